"""engine.runtime.drafts: what follows a run of three where it occurred last, and how much is risked."""

from hypothesis import given
from hypothesis import strategies as st

from engine.runtime.drafts import Drafter


def test_copies_what_followed_the_last_occurrence() -> None:
    tokens = [1, 2, 3, 4, 5, 9, 1, 2, 3, 7, 8, 9, 9, 1, 2, 3]
    assert Drafter(tokens, 3).propose(10) == (7, 8, 9)
    assert Drafter(tokens, 3).propose(1) == (7,)
    assert Drafter(tokens, 3).propose(0) == ()


def test_nothing_to_copy() -> None:
    for tokens in ([], [1, 2], [1, 2, 3], [1, 2, 3, 4, 5]):
        assert Drafter(tokens, 4).propose(10) == ()


def test_a_repetition_is_continued() -> None:
    assert Drafter([1, 2, 1, 2, 1, 2], 4).propose(10) == (1, 2)
    assert Drafter([5, 5, 5, 5], 4).propose(10) == (5,)


def test_success_makes_longer_drafts_and_failure_shorter() -> None:
    tokens = [*range(50), 0, 1, 2]
    drafter = Drafter(tokens, 16)
    sizes: list[int] = []
    for accepted in (4, 8, 16, 5, None):
        sizes.append(len(drafter.propose(100)))
        drafter.judged(sizes[-1], sizes[-1] if accepted is None else accepted)
    assert sizes == [4, 8, 16, 16, 5]
    assert (drafter.drafted, drafter.accepted) == (49, 38)


def test_failures_in_a_row_rest_longer_each_time() -> None:
    tokens = [*range(50), 0, 1, 2]
    drafter = Drafter(tokens, 16)
    rests: list[int] = []
    for _ in range(4):
        waited = 0
        while not (draft := drafter.propose(100)):
            waited += 1
        drafter.judged(len(draft), 0)
        rests.append(waited)
    assert rests == [0, 1, 2, 4]
    while not (draft := drafter.propose(100)):
        pass
    assert len(draft) == 1
    drafter.judged(1, 1)
    assert len(drafter.propose(100)) == 2


@given(st.lists(st.integers(0, 2), max_size=40), st.integers(1, 8))
def test_a_draft_follows_an_earlier_occurrence_of_the_end(tokens: list[int], longest: int) -> None:
    drafter = Drafter(grown := [], longest)
    for token in tokens:
        grown.append(token)
        draft = drafter.propose(8)
        assert len(draft) <= longest
        if draft:
            wanted = [*grown[-3:], *draft]
            assert any(grown[at : at + len(wanted)] == wanted for at in range(len(grown) - 3))
