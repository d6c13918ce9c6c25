"""Log-probabilities against the plain formula."""

import numpy as np
import pytest

from engine.runtime.loop.logprobs import described, token_logprobs


def spelt(token: int) -> bytes:
    return f"<{token}>".encode()


@pytest.mark.parametrize("top", [0, 1, 5])
def test_log_probabilities(top: int) -> None:
    logits = np.random.default_rng(1).normal(0, 5, 1000).astype(np.float32)
    before = logits.copy()
    exact = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum())
    found = token_logprobs(logits, 17, top, spelt)
    assert found.drawn.token == 17
    assert found.drawn.logprob == pytest.approx(exact[17], abs=1e-5)
    assert [pair.token for pair in found.top] == np.argsort(-exact)[:top].tolist()
    assert [pair.logprob for pair in found.top] == pytest.approx(np.sort(exact)[::-1][:top].tolist(), abs=1e-5)
    assert (logits == before).all()


@pytest.mark.parametrize("size", [1, 31, 4096, 152_064])
@pytest.mark.parametrize("spread", [0.0, 0.01, 3.0, 40.0])
def test_rows_of_any_size_against_double_precision(size: int, spread: float) -> None:
    """Ties go to the lower token; what is impossible comes last."""
    random = np.random.default_rng(size)
    logits = random.normal(0, spread, size).astype(np.float32).round(2)
    logits[random.integers(0, size, size // 3)] = -np.inf
    exact = logits.astype(np.float64)
    exact -= exact.max() + np.log(np.exp(exact - exact.max()).sum())
    found = token_logprobs(logits, size - 1, 20, spelt)
    best = np.argsort(-logits, kind="stable")[:20]
    assert [pair.token for pair in found.top] == best.tolist()
    assert [pair.logprob for pair in found.top] == pytest.approx(exact[best].tolist(), abs=3e-6)


def test_no_number_anywhere_makes_no_logprob() -> None:
    for size in (5, 5000):
        for place in (0, size - 1):
            logits = np.zeros(size, dtype=np.float32)
            logits[place] = np.nan
            assert np.isnan(token_logprobs(logits, 1, 2, spelt).drawn.logprob)


def test_masked_tokens_are_impossible() -> None:
    logits = np.full(10, -np.inf, dtype=np.float32)
    logits[[3, 4]] = 1000.0
    found = token_logprobs(logits, 3, 3, spelt)
    assert found.drawn.logprob == pytest.approx(np.log(0.5))
    assert [pair.token for pair in found.top[:2]] == [3, 4]
    assert found.top[2].logprob == -np.inf


def test_no_more_alternatives_than_there_are_tokens() -> None:
    assert len(token_logprobs(np.zeros(4, dtype=np.float32), 1, 100, spelt).top) == 4


def test_what_callers_get() -> None:
    logits = np.array([0.0, 1.0, 2.0], dtype=np.float32)
    found = described(token_logprobs(logits, 0, 2, lambda token: b"\xc3" if token == 2 else b"a%d" % token))
    assert (found.token, found.text, found.bytes) == (0, "a0", (0x61, 0x30))
    assert [(entry.token, entry.text, entry.bytes, entry.top) for entry in found.top] == [
        (2, "\ufffd", (0xC3,), ()),
        (1, "a1", (0x61, 0x31), ()),
    ]
    assert found.logprob < found.top[1].logprob < found.top[0].logprob < 0
