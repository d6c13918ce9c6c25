"""Log-probabilities against the plain formula."""

import numpy as np
import pytest

from engine.runtime.logprobs import token_logprobs


@pytest.mark.parametrize("top", [0, 1, 5])
def test_log_probabilities(top: int) -> None:
    logits = np.random.default_rng(1).normal(0, 5, 1000).astype(np.float32)
    before = logits.copy()
    exact = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum())
    found = token_logprobs(logits, 17, top)
    assert found.drawn.token == 17
    assert found.drawn.logprob == pytest.approx(exact[17], abs=1e-5)
    assert [pair.token for pair in found.top] == np.argsort(-exact)[:top].tolist()
    assert [pair.logprob for pair in found.top] == pytest.approx(np.sort(exact)[::-1][:top].tolist(), abs=1e-5)
    assert (logits == before).all()


def test_masked_tokens_are_impossible() -> None:
    logits = np.full(10, -np.inf, dtype=np.float32)
    logits[[3, 4]] = 1000.0
    found = token_logprobs(logits, 3, 3)
    assert found.drawn.logprob == pytest.approx(np.log(0.5))
    assert [pair.token for pair in found.top[:2]] == [3, 4]
    assert found.top[2].logprob == -np.inf
