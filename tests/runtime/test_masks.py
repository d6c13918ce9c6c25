"""Drawing under a mask: the distribution is that of the allowed tokens, whatever filters come after; what it costs is
benchmarks/constraints.py's matter."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.llama.candidates import all_allowed, allowed_tokens, is_dense
from engine.llama.context import LlamaBackend
from engine.llama.model import Model
from engine.runtime.loop.backend import Row
from engine.runtime.loop.config import ContextOptions
from engine.support import _data
from engine.support.errors import RequestError
from engine.types.sampling import SamplingParams

DRAWS = 3000
ROW = 7


@pytest.fixture(scope="module")
def backend() -> Iterator[LlamaBackend]:
    with Model.load(_data.builtin_model()) as model:
        backend = model.backend(ContextOptions(n_ctx=256, n_threads=1))
        backend.decode([Row(token + 20, token, 0, token == ROW) for token in range(ROW + 1)])
        yield backend


def mask_of(tokens: Sequence[int], size: int) -> NDArray[np.int32]:
    bits = np.zeros(-(-size // 32) * 32, dtype=np.uint8)
    bits[list(tokens)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


def expected(logits: NDArray[np.float32], allowed: Sequence[int], params: dict[str, Any]) -> dict[int, float]:
    """The probabilities by definition: others than the allowed have none, then the filters."""
    masked = np.full(logits.size, -np.inf)
    masked[list(allowed)] = logits[list(allowed)]
    if k := params.get("top_k"):
        least = float(np.sort(masked)[-int(k)])
        masked[masked < least] = -np.inf
    weights = np.exp(masked - masked.max())
    if p := params.get("top_p"):
        order = np.argsort(-weights)
        reached = np.cumsum(weights[order]) / weights.sum()
        first = int(np.searchsorted(reached, float(p))) + 1
        masked[order[first:]] = -np.inf
    if p := params.get("min_p"):
        masked[np.exp(masked - masked.max()) < p] = -np.inf
    weights = np.exp((masked - masked.max()) / params["temperature"])
    return {int(token): float(weights[token] / weights.sum()) for token in np.flatnonzero(weights)}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_ends_a_value_has_the_mass_of_all_that_would_end_it(backend: LlamaBackend, temperature: float) -> None:
    """Of five tokens that end it two are allowed: together they are as likely as the five, beside what goes on."""
    logits = backend.logits(ROW).copy()
    best = np.argsort(-logits)
    ends, others = best[1:10:2], best[[4, 6]]
    allowed = [int(token) for token in (*ends[3:], *others)]
    shared = logits.copy()
    shared[ends[3:]] += np.log(np.exp(logits[ends]).sum()) - np.log(np.exp(logits[ends[3:]]).sum())
    mask, row = mask_of(allowed, logits.size), backend.logits(ROW)
    sampler = backend.sampler(SamplingParams(temperature=temperature, seed=3))
    drawn = Counter(sampler.draw(backend.handle, ROW, row, mask, ends) for _ in range(DRAWS))
    assert (row == logits).all()
    if not temperature:
        assert [*drawn] == [int(ends[3])]
        assert backend.sampler(SamplingParams(temperature=0)).draw(backend.handle, ROW, row, mask) == int(others[0])
        return
    wanted = expected(shared, allowed, {"temperature": 1.0})
    assert all(abs(drawn[token] / DRAWS - share) < 0.04 for token, share in wanted.items())


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 3.0}, {"temperature": 3.0, "top_k": 40}])
def test_where_the_model_would_write_nothing_allowed_only_what_must_follow_is_written(
    backend: LlamaBackend, params: dict[str, Any]
) -> None:
    row = backend.logits(ROW)
    size, kept = row.size, row.copy()
    best = int(row.argmax())
    opening, junk, other = (best + 1) % size, (best + 2) % size, (best + 3) % size
    mask = mask_of([opening, junk, other], size)

    def drawn(below: float, mask: NDArray[np.int32] = mask) -> set[int]:
        row[:] = -30.0
        row[best], row[[junk, opening, other]] = 0.0, (-below, -below - 5, -below - 1)
        sampler = backend.sampler(SamplingParams(seed=5, **params))
        return {sampler.draw(backend.handle, ROW, row, mask, None, opening) for _ in range(60)}

    assert drawn(6.5) == {opening}
    assert junk in drawn(5.5), "the model might write it"
    assert junk in drawn(9, mask_of([junk, other], size)), "what must follow is not allowed"
    row[:] = kept


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 5},
        {"temperature": 1.3, "top_p": 0.8},
        {"temperature": 1.0, "min_p": 0.1},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["few", "half", "nearly all"])
def test_the_distribution_is_exact(backend: LlamaBackend, params: dict[str, Any], kind: str) -> None:
    logits = backend.logits(ROW).copy()
    best = np.argsort(-logits)
    size = logits.size
    choices: dict[str, list[int]] = {
        "few": best[3:20:2].tolist(),
        "half": best[1::2].tolist(),
        "nearly all": best[1:].tolist(),
    }
    allowed = choices[kind]
    wanted = expected(logits, allowed, params)
    sampler = backend.sampler(SamplingParams(seed=5, **params))
    mask = mask_of(allowed, size)
    drawn = Counter(backend.sample(sampler, ROW, mask) for _ in range(DRAWS))
    assert drawn.keys() <= wanted.keys()
    assert np.array_equal(backend.logits(ROW), logits), "the logits are left as they were"
    # Pearson's statistic over the tokens that are expected often enough; others together.
    common = {token: share for token, share in wanted.items() if share * DRAWS >= 5}
    rest = 1 - sum(common.values())
    observed = [(drawn[token], share * DRAWS) for token, share in common.items()]
    if rest * DRAWS >= 5:
        observed.append((DRAWS - sum(count for count, _ in observed), rest * DRAWS))
    statistic = sum((count - mean) ** 2 / mean for count, mean in observed)
    freedom = max(1, len(observed) - 1)
    assert statistic < freedom + 5 * math.sqrt(2 * freedom) + 5


def test_greedy_is_the_best_of_the_allowed(backend: LlamaBackend) -> None:
    logits = backend.logits(ROW)
    best = np.argsort(-logits, kind="stable").tolist()
    sampler = backend.sampler(SamplingParams(temperature=0))
    for allowed in (best[:1], best[2:9], best[40:], [*best[:3], *best[50:]]):
        assert backend.sample(sampler, ROW, mask_of(allowed, logits.size)) == allowed[0]


def forbid_all(_: Sequence[int], logits: NDArray[np.float32]) -> None:
    logits[1:] = -np.inf


def test_nothing_left_of_nearly_all_is_an_error_too(backend: LlamaBackend) -> None:
    size = backend.logits(ROW).size
    sampler = backend.sampler(SamplingParams(temperature=1.0, logits_processors=(forbid_all,)))
    with pytest.raises(RequestError, match="forbids every token that the constraint allows"):
        backend.sample(sampler, ROW, mask_of(range(1, size), size))


def forbid_seven(_: Sequence[int], logits: NDArray[np.float32]) -> None:
    logits[7] = -np.inf


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_allowed_is_an_error(backend: LlamaBackend, temperature: float) -> None:
    size = backend.logits(ROW).size
    sampler = backend.sampler(SamplingParams(temperature=temperature, logits_processors=(forbid_seven,)))
    for mask in (mask_of([], size), mask_of([7], size), mask_of(range(7, 8), size)):
        with pytest.raises(RequestError, match="forbids every token that the constraint allows"):
            backend.sample(sampler, ROW, mask)
    assert math.isfinite(backend.logits(ROW)[7])


def test_penalties_look_at_what_was_drawn(backend: LlamaBackend) -> None:
    """The chain accepts what is drawn under a mask as what is drawn without."""
    size = backend.logits(ROW).size
    allowed = np.argsort(-backend.logits(ROW))[:2].tolist()
    sampler = backend.sampler(SamplingParams(temperature=0, frequency_penalty=10.0))
    drawn = [backend.sample(sampler, ROW, mask_of(allowed, size)) for _ in range(4)]
    assert drawn == [*allowed, *allowed]


@pytest.mark.parametrize("size", [1, 31, 33, 1355, 32_001])
def test_masks_of_any_size_are_read(size: int) -> None:
    rng = np.random.default_rng(size)
    for share in (0.0, 0.001, 0.5, 0.999, 1.0):
        tokens = np.flatnonzero(rng.random(size) < share)
        mask = mask_of(tokens.tolist(), size)
        assert np.array_equal(allowed_tokens(mask, size), tokens)
        assert np.array_equal(allowed_tokens(~mask, size), np.setdiff1d(np.arange(size), tokens))
        assert all_allowed(mask, tokens)
        assert not all_allowed(mask, np.arange(size)) or tokens.size == size
        assert is_dense(mask) == (share > 0.6) or share == 0.5 or size < 64
