"""Filters over arrays of logits: what they leave, beside a sort of everything."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine.llama import candidates
from engine.llama.candidates import Filter, TopK, TopP, first_filter
from engine.runtime.loop.ranking import best_first
from engine.support.errors import DecodeError
from engine.types.sampling import SamplingParams

SIZES = (1, 31, 32, 33, 1000, 8192, 10_007)


def ranked(logits: Any) -> list[int]:
    """All tokens, best first, the lower number first where two are alike."""
    return [int(token) for token in np.argsort(-logits, kind="stable")]


def most_likely(logits: Any, count: int) -> list[int]:
    return ranked(logits)[:count]


def nucleus(logits: Any, mass: float) -> list[int]:
    order = ranked(logits)
    weights = np.exp(logits.astype(np.float64)[order] - logits.max())
    reached = np.cumsum(weights) / weights.sum()
    return order[: int(np.searchsorted(reached, mass)) + 1]


FILTERS: list[tuple[Callable[[Any], Filter], Callable[[Any, Any], list[int]], Any]] = [
    (TopK, most_likely, 1),
    (TopK, most_likely, 20),
    (TopK, most_likely, 200),
    (TopP, nucleus, 0.1),
    (TopP, nucleus, 0.95),
]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("make", "plainly", "number"), FILTERS)
@pytest.mark.parametrize("spread", [0.1, 5.0])
def test_what_is_left(
    make: Callable[[Any], Filter], plainly: Callable[[Any, Any], list[int]], number: Any, size: int, spread: float
) -> None:
    random = np.random.default_rng(size)
    for _ in range(5):
        logits = random.normal(0, spread, size).astype(np.float32)
        kept = make(number)(logits)
        assert logits[kept.tokens].tolist() == logits[plainly(logits, number)].tolist()
        assert len(set(kept.tokens.tolist())) == len(kept.tokens)
        assert not kept.ranked or (np.diff(logits[kept.tokens]) <= 0).all()


@pytest.mark.parametrize("mass", [0.05, 0.5, 0.9, 0.999])
def test_a_nucleus_is_the_same_whatever_is_left_out_before_it_is_sorted(
    mass: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(int(1000 * mass))
    rows = [random.normal(0, spread, size) for spread in (0.01, 1, 3, 12, 90) for size in (1025, 4000, 20_000)]
    rows += [row.round(digits) for row in rows for digits in (0, 1)]  # many equals
    rows += [np.where(random.random(row.size) < 0.5, row, -np.inf) for row in rows]
    logits = [row.astype(np.float32) for row in rows]
    found = [TopP(mass)(row).tokens.tolist() for row in logits]
    monkeypatch.setattr(candidates, "_MANY", 1 << 30)
    for row, tokens in zip(logits, found, strict=True):
        assert tokens == TopP(mass)(row).tokens.tolist() == ranked(row)[: len(tokens)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("digits", [0, 1])
def test_of_equals_the_lower_numbers_are_first(size: int, digits: int) -> None:
    logits = np.random.default_rng(size).normal(0, 2, size).round(digits).astype(np.float32)  # with 0 and -0
    assert best_first(logits).tolist() == ranked(logits)
    assert TopK(5)(logits).tokens.tolist() == ranked(logits)[:5]
    kept = TopP(0.9)(logits).tokens.tolist()
    assert kept == ranked(logits)[: len(kept)]


@pytest.mark.parametrize("size", [1000, 8192, 10_007])
@pytest.mark.parametrize("allowed", [[0], [999], [3, 500, 999]])
@pytest.mark.parametrize("chosen", [TopK(20), TopK(200), TopP(0.9)])
def test_what_a_mask_forbids_is_not_left(chosen: Filter, allowed: list[int], size: int) -> None:
    logits = np.full(size, -np.inf, np.float32)
    places = [size - 1 if token == 999 else token for token in allowed]
    logits[places] = 1.0
    kept = chosen(logits).tokens
    possible = [token for token in kept.tolist() if logits[token] > -np.inf]
    assert sorted(possible) == places
    assert len(kept) < 200 or size < 32 * 200, "the forbidden are not ranked"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("chosen", [TopK(1), TopK(20), TopP(0.9)])
@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_what_is_no_number_is_found_at_any_place(chosen: Filter, size: int, broken: float) -> None:
    for place in {0, size // 2, size - 1}:
        logits = np.zeros(size, np.float32)
        logits[place] = broken
        with pytest.raises(DecodeError, match="not numbers"):
            chosen(logits)


@pytest.mark.parametrize("chosen", [TopK(1), TopK(20), TopP(0.9)])
def test_nothing_is_possible(chosen: Filter) -> None:
    with pytest.raises(DecodeError, match="not numbers"):
        chosen(np.full(10_007, -np.inf, np.float32))


def test_filters_by_their_names() -> None:
    params = SamplingParams(top_k=2, top_p=0.9)
    logits = np.array([1.0, 3.0, 2.9, 2.8], np.float32)
    assert first_filter("top_k", params)(logits).tokens.tolist() == [1, 2]
    assert first_filter("top_p", params)(logits).tokens.tolist() == [1, 2, 3]
    with pytest.raises(AssertionError, match="xtc is left to llama"):
        first_filter("xtc", params)
