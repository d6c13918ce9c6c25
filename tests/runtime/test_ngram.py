"""engine.runtime.draft.ngram: what follows a run of three where it occurred last."""

from engine.runtime.draft.ngram import Ngrams


def test_what_followed_the_last_occurrence_is_proposed() -> None:
    tokens = [1, 2, 3, 4, 1, 2, 3, 7, 8, 9, 1, 2, 3]
    assert Ngrams(tokens).propose(3) == (7, 8, 9)
    assert Ngrams(tokens).propose(1) == (7,)


def test_nothing_is_proposed_without_a_repetition() -> None:
    for tokens in ([], [1], [1, 2], [1, 2, 3], [1, 2, 3, 4, 5]):
        assert Ngrams(tokens).propose(10) == ()


def test_an_occurrence_that_overlaps_the_end_is_repeated() -> None:
    assert Ngrams([1, 2, 1, 2, 1, 2]).propose(3) == (1, 2, 1)
    assert Ngrams([5, 5, 5, 5]).propose(4) == (5, 5, 5, 5)
    assert Ngrams([9, 1, 2, 3, 1, 2, 3]).propose(7) == (1, 2, 3, 1, 2, 3, 1)


def test_the_index_keeps_up_with_a_growing_sequence() -> None:
    ngrams = Ngrams(tokens := [1, 2, 3, 4])
    assert ngrams.propose(2) == ()
    tokens += [9, 1, 2, 3]
    assert ngrams.propose(2) == (4, 9)
    tokens += [8, 1, 2, 3]
    assert ngrams.propose(2) == (8, 1)
