"""Draws follow the probabilities, over vocabularies of any size."""

import numpy as np
import pytest

from engine.llama.candidates import Categorical

RNG = np.random.default_rng(3)


@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 127, 129, 1000])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_draws_follow_the_probabilities(size: int, temperature: float) -> None:
    logits = RNG.normal(0, 2, size).astype(np.float32)
    weights = np.exp(logits.astype(np.float64) / temperature)
    expected = weights / weights.sum()
    drawn = Categorical(temperature, 11)
    counts = np.bincount([drawn.draw(logits, float(logits.max())) for _ in range(4000)], minlength=size)
    assert np.abs(counts / 4000 - expected).max() < 0.04


def test_every_token_may_come() -> None:
    logits = np.zeros(130, dtype=np.float32)
    drawn = Categorical(1.0, 5)
    assert {drawn.draw(logits, 0.0) for _ in range(5000)} == set(range(130))


def test_masked_tokens_never_come() -> None:
    logits = np.full(5000, -np.inf, dtype=np.float32)
    logits[[0, 777, 4999]] = (3.0, 3.0, 3.0)
    drawn = Categorical(1.0, 5)
    assert {drawn.draw(logits, 3.0) for _ in range(300)} == {0, 777, 4999}


class Always:
    """A random stream that always gives the same number."""

    def __init__(self, number: float) -> None:
        self._number = number

    def random(self) -> float:
        return self._number


@pytest.mark.parametrize("number", [0.0, 1 - 2**-53])
def test_the_ends_of_the_range_give_possible_tokens(monkeypatch: pytest.MonkeyPatch, number: float) -> None:
    for mask in ([5], [0, 99], [63, 64], [200]):
        logits = np.full(201, -np.inf, dtype=np.float32)
        logits[mask] = 1.0
        drawn = Categorical(0.7, 1)
        monkeypatch.setattr(drawn, "_random", Always(number))
        assert drawn.draw(logits, 1.0) in mask


def test_a_seed_repeats() -> None:
    logits = RNG.normal(0, 1, 500).astype(np.float32)
    first, again, other = (Categorical(1.0, seed) for seed in (1, 1, 2))
    tokens = [first.draw(logits, float(logits.max())) for _ in range(20)]
    assert tokens == [again.draw(logits, float(logits.max())) for _ in range(20)]
    assert tokens != [other.draw(logits, float(logits.max())) for _ in range(20)]
