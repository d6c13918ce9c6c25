"""engine.runtime.ngram: what follows a run of three where it occurred last, and how much is risked."""

from hypothesis import given
from hypothesis import strategies as st

from engine.runtime.ngram import NgramDrafter


def test_copies_what_followed_the_last_occurrence() -> None:
    tokens = [1, 2, 3, 4, 5, 9, 1, 2, 3, 7, 8, 9, 9, 1, 2, 3]
    assert NgramDrafter(tokens, 3).propose(10) == (7, 8, 9)
    assert NgramDrafter(tokens, 3).propose(1) == (7,)
    assert NgramDrafter(tokens, 3).propose(0) == ()


def test_nothing_to_copy() -> None:
    for tokens in ([], [1, 2], [1, 2, 3], [1, 2, 3, 4, 5]):
        assert NgramDrafter(tokens, 4).propose(10) == ()


def test_a_repetition_is_continued() -> None:
    assert NgramDrafter([1, 2, 1, 2, 1, 2], 4).propose(10) == (1, 2, 1)
    assert NgramDrafter([5, 5, 5, 5], 4).propose(10) == (5, 5, 5)
    assert NgramDrafter([5, 5, 5, 5], 4).propose(2) == (5, 5)
    assert NgramDrafter([9, 1, 2, 3, 1, 2, 3], 4).propose(10) == (1, 2, 3)


def test_success_makes_longer_drafts_and_failure_shorter() -> None:
    tokens = [*range(50), 0, 1, 2]
    drafter = NgramDrafter(tokens, 16)
    sizes: list[int] = []
    for accepted in (3, 7, 15, 8, 7, 3):
        sizes.append(len(drafter.propose(100)))
        drafter.judged(sizes[-1], accepted)
    assert sizes == [3, 7, 15, 15, 15, 7]
    assert len(drafter.propose(100)) == 3
    assert (drafter.drafted, drafter.accepted) == (62, 43)


def test_drafts_are_no_longer_than_may_be() -> None:
    tokens = [*range(50), 0, 1, 2]
    for longest, expected in ((1, [1, 1, 1]), (2, [1, 1, 1]), (3, [3, 3, 3]), (8, [3, 7, 7]), (15, [3, 7, 15])):
        drafter = NgramDrafter(tokens, longest)
        sizes: list[int] = []
        for _ in expected:
            sizes.append(len(drafter.propose(100)))
            drafter.judged(sizes[-1], sizes[-1])
        assert sizes == expected


def test_failures_in_a_row_rest_longer_each_time() -> None:
    tokens = [*range(50), 0, 1, 2]
    drafter = NgramDrafter(tokens, 16)
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
    assert len(drafter.propose(100)) == 3


@given(st.lists(st.integers(0, 2), max_size=40), st.integers(1, 8))
def test_a_draft_follows_an_earlier_occurrence_of_the_end(tokens: list[int], longest: int) -> None:
    drafter = NgramDrafter(grown := [], longest)
    for token in tokens:
        grown.append(token)
        draft = drafter.propose(8)
        assert len(draft) <= longest
        for place, guess in enumerate(draft):
            before = [*grown, *draft[:place]]
            wanted = [*before[-3:], guess]
            assert any(before[at : at + 4] == wanted for at in range(len(before) - 3))
