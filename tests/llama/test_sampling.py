"""Samplers over logits that the tests write: what each option lets through, whose draws repeat, what greedy means."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from files import model_files
from pydantic import ValidationError

from engine.llama import sampling as sampling_plan
from engine.llama.context import LlamaBackend
from engine.llama.lib import library
from engine.llama.model import Model
from engine.llama.sampling import Plan, plan
from engine.llama.softmax import Softmax
from engine.runtime.loop.backend import Row
from engine.runtime.loop.config import ContextOptions
from engine.support.errors import DecodeError, EngineError, RequestError
from engine.types.sampling import SamplingParams

SIZE = 8192
LADDER = {100: 5.0, 200: 4.0, 300: 3.0, 400: 2.0, 500: 1.0}  # token: logit; all others are far below


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaBackend]:
    path = model_files.write(tmp_path_factory.mktemp("sampling") / "m.gguf", shape=model_files.Shape(n_vocab=SIZE))
    with Model.load(path) as model:
        backend = model.backend(ContextOptions(n_ctx=256, n_threads=1))
        backend.decode([Row(5, 0, 0, True)])
        yield backend


@pytest.fixture(params=["chain", "arrays"])
def backend(large: LlamaBackend, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> LlamaBackend:
    """A backend whose row 0 has the ladder for logits; with a vocabulary that is left to llama.cpp, or is not."""
    if request.param == "arrays":
        monkeypatch.setattr(sampling_plan, "_ARRAYS_PAY", 0)
    logits = large.logits(0)
    logits[:] = -20.0
    for token, logit in LADDER.items():
        logits[token] = logit
    return large


def drawn(backend: LlamaBackend, count: Any = 200, **params: Any) -> Counter[int]:
    """What so many draws give, each from a sampler of its own."""
    return Counter(backend.sample(backend.sampler(SamplingParams(seed=seed, **params)), 0) for seed in range(count))


def sequence(backend: LlamaBackend, count: int = 20, **params: Any) -> list[int]:
    sampler = backend.sampler(SamplingParams(**params))
    return [backend.sample(sampler, 0) for _ in range(count)]


def test_greedy_takes_the_largest(backend: LlamaBackend) -> None:
    assert sequence(backend, temperature=0) == [100] * 20
    assert (
        sequence(backend, temperature=0, top_k=3, top_p=0.5, min_p=0.1, typical_p=0.5, xtc_probability=1) == [100] * 20
    )


def test_a_seed_repeats_and_none_does_not(backend: LlamaBackend) -> None:
    first = sequence(backend, temperature=2, seed=7)
    assert first == sequence(backend, temperature=2, seed=7)
    assert first != sequence(backend, temperature=2, seed=8)
    assert sequence(backend, temperature=2) != sequence(backend, temperature=2)
    assert len(set(first)) > 1


def test_the_largest_seed_is_one_like_any_other(backend: LlamaBackend) -> None:
    """llama.cpp takes 2**32 - 1 for "draw one yourself"."""
    assert len({tuple(sequence(backend, temperature=2, seed=2**32 - 1)) for _ in range(4)}) == 1


def test_each_sequence_has_its_own_random_stream(backend: LlamaBackend) -> None:
    alone = sequence(backend, temperature=2, seed=7)
    mine, neighbour = (backend.sampler(SamplingParams(temperature=2, seed=seed)) for seed in (7, 9))
    together: list[int] = []
    for _ in alone:
        backend.sample(neighbour, 0)
        together.append(backend.sample(mine, 0))
    assert together == alone


def test_tokens_are_drawn_by_their_probability(backend: LlamaBackend) -> None:
    for temperature in (1.0, 2.0):
        weights = {token: np.exp(logit / temperature) for token, logit in LADDER.items()}
        found = drawn(backend, 1000, temperature=temperature)
        for token, weight in weights.items():
            assert abs(found[token] / 1000 - weight / sum(weights.values())) < 0.06
        assert drawn(backend, 1000, temperature=temperature, top_k=5).keys() <= LADDER.keys()


@pytest.mark.parametrize(("temperature", "spread", "exponent"), [(1.0, 0.5, 1.0), (0.8, 2.0, 3.0), (None, 0.9, 0.5)])
def test_a_varying_temperature_follows_the_entropy(
    backend: LlamaBackend, temperature: float | None, spread: float, exponent: float
) -> None:
    """The same is drawn as at the fixed temperature that the ladder's entropy gives."""
    weights = np.exp(np.array(list(LADDER.values())))
    shares = weights / weights.sum()
    entropy = -(shares * np.log(shares)).sum() / np.log(len(shares))
    least, most = max(0.0, (temperature or 1.0) - spread), (temperature or 1.0) + spread
    fixed = least + (most - least) * entropy**exponent
    ladder: dict[str, Any] = {"top_k": len(LADDER)}
    varying = {"temperature": temperature, "dynatemp_range": spread, "dynatemp_exponent": exponent}
    assert drawn(backend, 100, **ladder, **varying) == drawn(backend, 100, **ladder, temperature=fixed)


def test_no_temperature_varies_at_zero(backend: LlamaBackend) -> None:
    assert sequence(backend, temperature=0, dynatemp_range=0.9) == sequence(backend, temperature=0)


@pytest.mark.parametrize(
    ("params", "allowed"),
    [
        ({"top_k": 1}, {100}),
        ({"top_k": 3}, {100, 200, 300}),
        ({"top_k": 3, "temperature": 1.0}, {100, 200, 300}),
        ({"top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0}, set(LADDER)),
        ({"top_p": 0.5}, {100}),
        ({"top_p": 0.7}, {100, 200}),
        ({"min_p": 0.3}, {100, 200}),
        ({"min_p": 0.1}, {100, 200, 300}),
        ({"typical_p": 0.2}, {200}),
        ({"top_n_sigma": 1.0}, {100, 200}),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.2}, {200, 300, 400, 500}),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.05}, {300, 400, 500}),
        ({"top_k": 4, "top_p": 0.99, "min_p": 0.1, "temperature": 3.0}, {100, 200, 300}),
        ({"samplers": ("temperature", "min_p"), "min_p": 0.3, "temperature": 2.0}, {100, 200, 300}),
        ({"samplers": ("min_p", "temperature"), "min_p": 0.3, "temperature": 2.0}, {100, 200}),
    ],
)
def test_what_each_filter_lets_through(backend: LlamaBackend, params: dict[str, Any], allowed: set[int]) -> None:
    if "top_n_sigma" in params:
        # The deviation over all tokens is 0.97 with the ladder's five far from the rest.
        backend.logits(0)[:] = np.where(backend.logits(0) < -10, 0.0, backend.logits(0))
        backend.logits(0)[[100, 200]] = (5.0, 4.95)
    assert set(drawn(backend, **{"temperature": 1.0} | params)) == allowed


def test_a_filter_that_the_order_leaves_out_is_off(backend: LlamaBackend) -> None:
    assert set(drawn(backend, top_k=1, samplers=())) == set(LADDER)


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": -1},
        {"temperature": float("nan")},
        {"dynatemp_range": -0.1},
        {"dynatemp_exponent": 0},
        {"top_k": -1},
        {"top_p": 0},
        {"min_p": 1.5},
        {"typical_p": 0},
        {"top_n_sigma": float("inf")},
        {"xtc_probability": 2},
        {"repeat_penalty": 0},
        {"frequency_penalty": 99},
        {"penalty_last_n": 0},
        {"dry_base": 0.5},
        {"logit_bias": {"five": 1}},
        {"logprobs": -1},
        {"seed": -1},
        {"seed": 2**32},
        {"nonsense": 1},
    ],
)
def test_options_that_make_no_sense(params: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SamplingParams.model_validate(params)


def test_repetition_is_penalised_greedily_and_sampled(backend: LlamaBackend) -> None:
    # 5 / 1.5 < 4: the second best wins once the best has been, then falls behind itself.
    assert sequence(backend, 3, temperature=0, repeat_penalty=1.5) == [100, 200, 100]
    assert sequence(backend, 3, temperature=0, presence_penalty=1.5) == [100, 200, 100]
    assert sequence(backend, 4, temperature=0, frequency_penalty=0.6) == [100, 100, 200, 100]
    assert drawn(backend, repeat_penalty=1e-1, temperature=0) == {100: 200}


def test_penalties_look_back_so_far(backend: LlamaBackend) -> None:
    for last, expected in ((2, 200), (1, 100)):
        sampler = backend.sampler(SamplingParams(temperature=0, presence_penalty=1.5, penalty_last_n=last))
        sampler.accept(100)
        sampler.accept(7)
        assert backend.sample(sampler, 0) == expected


@pytest.mark.parametrize(
    ("told", "params", "expected"),
    [
        ((100, 200, 300, 100, 200), {}, 100),  # 300 would be punished, 100 still is the best
        ((7, 8, 100, 7, 8), {}, 200),  # 100 would go on with "7 8"
        ((7, 8, 100, 7, 8), {"dry_allowed_length": 3}, 100),
        ((7, 8, 100, 7, 8), {"dry_multiplier": 0.0}, 100),
        ((7, 8, 100, 7, 8), {"dry_last_n": 2}, 100),
        ((7, 8, 100, 7, 9), {}, 100),
    ],
)
def test_dry_punishes_going_on_with_a_repetition(
    backend: LlamaBackend, told: Sequence[int], params: dict[str, Any], expected: int
) -> None:
    sampler = backend.sampler(SamplingParams.model_validate({"temperature": 0, "dry_multiplier": 5, **params}))
    for token in told:
        sampler.accept(token)
    assert backend.sample(sampler, 0) == expected


def test_a_repetition_does_not_reach_across_a_breaker(backend: LlamaBackend) -> None:
    letter = backend.vocab.tokenize("a", special=False)[0]
    for breakers, expected in ((("a",), 100), (("§",), 200)):
        params = SamplingParams(temperature=0, dry_multiplier=5, dry_breakers=breakers)
        sampler = backend.sampler(params)
        for token in (7, letter, 100, 7, letter):
            sampler.accept(token)
        assert backend.sample(sampler, 0) == expected


def test_dry_samplers_do_not_share_what_they_saw(backend: LlamaBackend) -> None:
    params = SamplingParams(temperature=0, dry_multiplier=5)
    told, fresh = backend.sampler(params), backend.sampler(params)
    for token in (7, 8, 100, 7, 8):
        told.accept(token)
    later = backend.sampler(params)
    assert [backend.sample(sampler, 0) for sampler in (told, fresh, later)] == [200, 100, 100]


def test_dry_settings_come_and_go(backend: LlamaBackend) -> None:
    samplers = [backend.sampler(SamplingParams(temperature=0, dry_multiplier=n)) for n in range(2, 41)]
    for sampler in samplers:
        for token in (7, 8, 100, 7, 8):
            sampler.accept(token)
    assert [backend.sample(sampler, 0) for sampler in samplers] == [200] * 39


@pytest.mark.parametrize("temperature", [0.0, 0.1])
@pytest.mark.parametrize("top_k", [0, 20])
def test_biases_add_to_the_logits_of_this_draw_only(backend: LlamaBackend, temperature: float, top_k: int) -> None:
    before = backend.logits(0).copy()
    for bias, expected in (({500: 100.0}, 500), ({100: -100.0}, 200), ([(500, 3.0), (500, 3.0)], 500)):
        params = SamplingParams.model_validate(
            {"temperature": temperature, "top_k": top_k, "logit_bias": bias, "seed": 1}
        )
        assert backend.sample(backend.sampler(params), 0) == expected
        assert (backend.logits(0) == before).all()


@pytest.mark.parametrize("token", [-1, SIZE])
def test_a_bias_on_a_token_that_does_not_exist(backend: LlamaBackend, token: int) -> None:
    with pytest.raises(RequestError, match=f"logit_bias names token {token}"):
        backend.sampler(SamplingParams(logit_bias=((token, 1.0),)))


@pytest.mark.parametrize("top_k", [0, 20])
def test_processors_see_the_tokens_and_change_the_logits(backend: LlamaBackend, top_k: int) -> None:
    seen: list[tuple[int, ...]] = []

    def forbid(tokens: Sequence[int], logits: Any) -> None:
        seen.append(tuple(tokens))
        logits[list(tokens)] = -np.inf

    def prefer(_tokens: Sequence[int], logits: Any) -> None:
        logits[500] += 50

    sampler = backend.sampler(SamplingParams(top_k=top_k, temperature=0.1, logits_processors=(forbid, prefer)))
    assert backend.sample(sampler, 0) == 500
    sampler.accept(100)
    assert backend.sample(sampler, 0) == 200
    assert seen == [(), (500, 100)]


def test_processors_see_the_prompt_and_the_bias_and_leave_no_trace(backend: LlamaBackend) -> None:
    seen: list[tuple[int, float]] = []
    kept: list[Sequence[int]] = []

    def watch(tokens: Sequence[int], logits: Any) -> None:
        kept.append(tokens)
        seen.append((tokens[0], float(logits[500])))
        logits[:] = -np.inf
        logits[7] = 1

    before = backend.logits(0).copy()
    params = SamplingParams(temperature=0, logit_bias=((500, 3.0),), logits_processors=(watch,))
    sampler = backend.sampler(params, [41, 42])
    assert backend.sample(sampler, 0) == 7
    assert (backend.logits(0) == before).all()
    assert seen == [(41, float(before[500]) + 3)]
    assert (list(kept[0]), len(kept[0]), kept[0][1:]) == ([41, 42, 7], 3, [42, 7])


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0, "presence_penalty": 1.5},
        {"temperature": 0, "repeat_penalty": 1.5},
        {"temperature": 0, "frequency_penalty": 1.5, "top_k": 5},
        {"temperature": 0, "dry_multiplier": 5, "dry_last_n": 5},
        {"temperature": 0, "dry_multiplier": 5, "presence_penalty": 0.1, "penalty_last_n": 1},
        {"temperature": 0.01, "presence_penalty": 3, "seed": 1},
    ],
)
def test_penalties_and_dry_look_at_the_prompt(backend: LlamaBackend, params: dict[str, Any]) -> None:
    made = SamplingParams(**params)
    prompt = (7, 8, 100, 7, 8)
    assert backend.sample(backend.sampler(made), 0) == 100
    assert backend.sample(backend.sampler(made, prompt), 0) == 200
    told = backend.sampler(made)
    for token in prompt:
        told.accept(token)
    assert backend.sample(told, 0) == 200, "as if every token had been accepted"


def test_no_more_of_the_prompt_is_seen_than_penalties_look_back(backend: LlamaBackend) -> None:
    for last, expected in ((2, 200), (1, 100)):
        params = SamplingParams(temperature=0, presence_penalty=1.5, penalty_last_n=last)
        assert backend.sample(backend.sampler(params, [100, 7]), 0) == expected


def test_a_processor_that_fails_is_named(backend: LlamaBackend) -> None:
    def broken(_tokens: Sequence[int], _logits: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(RequestError, match=r"broken.*ZeroDivisionError") as caught:
        backend.sample(backend.sampler(SamplingParams(logits_processors=(broken,))), 0)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


class Plain:
    """The chain that `params` ask for, built link by link, over the whole vocabulary."""

    def __init__(self, params: SamplingParams, backend: LlamaBackend) -> None:
        lib = library()
        number: Any = {name: value for name, value in params if isinstance(value, float | int)}
        make: dict[str, Callable[[], Any]] = {
            "penalties": lambda: lib.llama_sampler_init_penalties(
                SIZE,
                params.penalty_last_n,
                number.get("repeat_penalty", 1.0),
                number.get("frequency_penalty", 0.0),
                number.get("presence_penalty", 0.0),
            ),
            "top_k": lambda: lib.llama_sampler_init_top_k(number.get("top_k", 0)),
            "typical_p": lambda: lib.llama_sampler_init_typical(number.get("typical_p", 1.0), 1),
            "top_p": lambda: lib.llama_sampler_init_top_p(number.get("top_p", 1.0), 1),
            "min_p": lambda: lib.llama_sampler_init_min_p(number.get("min_p", 0.0), 1),
            "xtc": lambda: lib.llama_sampler_init_xtc(number.get("xtc_probability", 0.0), 0.1, 1, params.seed),
            "temperature": lambda: lib.llama_sampler_init_temp_ext(
                number.get("temperature", 1.0), number.get("dynatemp_range", 0.0), params.dynatemp_exponent
            ),
        }
        usual = ("penalties", "top_k", "typical_p", "top_p", "min_p", "xtc", "temperature")
        order = usual if params.samplers is None else params.samplers
        self._chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        for link in (*(make[name]() for name in order), lib.llama_sampler_init_dist(params.seed)):
            lib.llama_sampler_chain_add(self._chain, link)
        self._context = backend._handle()  # pyright: ignore[reportPrivateUsage]

    def draw(self) -> int:
        return library().llama_sampler_sample(self._chain, self._context, 0)

    def close(self) -> None:
        library().llama_sampler_free(self._chain)


FILTERS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.6},
    {"top_k": 40},
    {"top_k": 40, "top_p": 0.8, "min_p": 0.05, "temperature": 0.7},
    {"top_k": 20, "typical_p": 0.7, "xtc_probability": 0.5},
    {"top_k": 2000, "top_p": 0.999},
    {"top_p": 0.95, "temperature": 0.6},
    {"top_p": 0.3},
    {"top_p": 0.99},
    {"min_p": 0.05},
    {"min_p": 0.001, "temperature": 1.5},
    {"samplers": ("min_p", "top_p", "temperature"), "min_p": 0.01, "top_p": 0.9},
    {"samplers": ("top_p", "min_p", "xtc"), "min_p": 0.2, "top_p": 0.9, "xtc_probability": 0.3},
    {"top_k": 40, "presence_penalty": 1.5},
    {"top_p": 0.9, "repeat_penalty": 1.3, "frequency_penalty": 0.4, "penalty_last_n": 3},
    {"min_p": 0.1, "repeat_penalty": 0.7},
    {"samplers": (), "temperature": 0.5},
    {"temperature": 0.4, "repeat_penalty": 1.3, "frequency_penalty": -0.4, "presence_penalty": 0.7},
    {"samplers": ("top_k", "penalties", "temperature"), "top_k": 9, "repeat_penalty": 1.3, "presence_penalty": 0.7},
    {"dynatemp_range": 0.5},
    {"dynatemp_range": 2.0, "dynatemp_exponent": 1.7, "temperature": 0.7, "min_p": 0.01},
]


@pytest.mark.parametrize("params", FILTERS)
def test_what_is_drawn_is_what_llama_cpp_draws(backend: LlamaBackend, params: dict[str, Any]) -> None:
    """Against the chain as llama.cpp's own order has it, over the whole vocabulary: one random stream for a seed."""
    random = np.random.default_rng(5)
    for seed in range(25):
        logits = backend.logits(0)
        logits[:] = random.normal(0, 4, SIZE)
        if seed % 5 == 1:  # many are impossible
            logits[random.integers(0, SIZE, SIZE // 2)] = -np.inf
        made = SamplingParams(seed=seed, **params)
        ours, theirs = backend.sampler(made), Plain(made, backend)
        assert [backend.sample(ours, 0) for _ in range(6)] == [theirs.draw() for _ in range(6)]
        theirs.close()


@pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 5000])
def test_draws_by_probability_of_rows_of_any_size(size: int) -> None:
    """Never an impossible token, all alike where all are alike, and an error where no number is."""
    random = np.random.default_rng(size)
    sampler = Softmax(0.7, 3)
    for possible in range(1, min(size, 40) + 1):
        logits = np.full(size, -np.inf, np.float32)
        places = random.choice(size, possible, replace=False)
        logits[places] = random.normal(0, 30, possible)
        assert {sampler.draw(logits) for _ in range(10)} <= set(places.tolist())
    alike = Counter(sampler.draw(np.full(size, -3.0, np.float32)) * 2 // size for _ in range(400))
    assert size == 1 or 140 < alike[0] < 260
    for broken in (np.nan, np.inf, -np.inf):
        with pytest.raises(DecodeError, match="not numbers"):
            sampler.draw(np.full(size, broken, np.float32))


@pytest.mark.parametrize(("number", "token"), [(0, 300), (2**62, 300), (2**63 + 2**62, 301), (2**64 - 1, 301)])
def test_the_ends_of_the_random_numbers_draw_what_is_possible(number: int, token: int) -> None:
    logits = np.full(600, -np.inf, np.float32)
    logits[[300, 301]] = 1.0
    sampler: Any = Softmax(1.0, 3)
    sampler._random = SimpleNamespace(bytes=Mock(return_value=number.to_bytes(8, "little")))
    assert sampler.draw(logits) == token


@pytest.mark.parametrize("temperature", [0, 0.9])
@pytest.mark.parametrize("spared", [1, 200, SIZE - 40])
def test_a_mask_is_kept_however_much_it_allows(backend: LlamaBackend, temperature: float, spared: int) -> None:
    """Greedy draws the likeliest of what is allowed, others only what is; and the logits are as before."""
    random = np.random.default_rng(spared)
    row = backend.logits(0)
    row[:] = random.normal(0, 3, SIZE)
    before = row.copy()
    for _ in range(5):
        allowed = np.zeros(SIZE, bool)
        allowed[random.choice(SIZE, spared, replace=False)] = True
        allowed[int(row.argmax())] = False
        allowed[7] = True
        mask = np.packbits(allowed, bitorder="little").view(np.int32)
        params = SamplingParams(temperature=temperature, seed=5)
        token = backend.sampler(params).draw(backend.handle, 0, row, mask)
        assert allowed[token]
        assert temperature or token == int(np.where(allowed, row, -np.inf).argmax())
        assert (row == before).all()


@pytest.mark.parametrize("params", FILTERS)
def test_a_mask_leaves_few_tokens(backend: LlamaBackend, params: dict[str, Any]) -> None:
    logits = backend.logits(0)
    logits[:] = -np.inf
    logits[[4000, SIZE - 1]] = (1.0, 1.5)
    assert {backend.sample(backend.sampler(SamplingParams(seed=n, **params)), 0) for n in range(50)} <= {4000, SIZE - 1}


@pytest.mark.parametrize("params", [{"top_k": 40}, {"top_p": 0.5}, {"min_p": 0.5}])
def test_all_tokens_may_be_equal(backend: LlamaBackend, params: dict[str, Any]) -> None:
    backend.logits(0)[:] = 1.0
    assert len(set(sequence(backend, 50, seed=4, **params))) > 10


@pytest.mark.parametrize("params", [{"temperature": 0}, {}, {"top_k": 40}, {"top_p": 0.5}, {"min_p": 0.5}])
@pytest.mark.parametrize("token", [0, 4000, SIZE - 1])
def test_no_number_at_any_place_is_found(backend: LlamaBackend, params: dict[str, Any], token: int) -> None:
    backend.logits(0)[token] = np.nan
    with pytest.raises(DecodeError, match="not numbers"):
        backend.sample(backend.sampler(SamplingParams(**params)), 0)


def test_a_closed_sampler(backend: LlamaBackend) -> None:
    for params in (SamplingParams(temperature=0), SamplingParams(temperature=1)):
        sampler = backend.sampler(params)
        sampler.close()
        sampler.close()
        with pytest.raises(EngineError, match="sampler is closed"):
            sampler.accept(5)
        with pytest.raises(EngineError, match="sampler is closed"):
            backend.sample(sampler, 0)


@pytest.mark.parametrize(
    ("params", "looks_back"),
    [
        ({}, False),
        ({"repeat_penalty": 1.0, "frequency_penalty": 0.0}, False),
        ({"repeat_penalty": 1.1}, True),
        ({"presence_penalty": -0.5}, True),
        ({"dry_multiplier": 0.8}, True),
    ],
)
def test_what_looks_back(params: dict[str, Any], looks_back: bool) -> None:
    assert SamplingParams(**params).looks_back == looks_back


LARGE, TINY = 150_000, 1000


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"temperature": 0}, Plan(None, (), "argmax")),
        ({"temperature": 1e-40, "top_k": 5}, Plan(None, (), "argmax")),
        ({"temperature": 0, "top_k": 5, "top_p": 0.5}, Plan(None, (), "argmax")),
        ({"temperature": 0, "presence_penalty": 1}, Plan(None, (), "argmax", True)),
        ({"temperature": 0, "presence_penalty": 1, "dry_multiplier": 1}, Plan(None, ("dry",), "greedy", True)),
        ({}, Plan(None, (), "softmax")),
        ({"temperature": 0.7, "top_k": 0, "top_p": 1.0, "min_p": 0.0}, Plan(None, ("temperature",), "softmax")),
        ({"repeat_penalty": 1.1, "top_k": 40}, Plan("top_k", (), "dist", True)),
        ({"samplers": (), "temperature": 0.5}, Plan(None, (), "softmax")),
        ({"top_k": 40}, Plan("top_k", (), "dist")),
        ({"top_k": 5000}, Plan(None, ("top_k",), "dist")),
        ({"top_k": 40, "top_p": 0.9, "temperature": 0.6}, Plan("top_k", ("top_p", "temperature"), "dist")),
        ({"top_p": 0.9, "temperature": 0.6}, Plan("top_p", ("temperature",), "dist")),
        ({"min_p": 0.1, "xtc_probability": 1}, Plan("min_p", ("xtc",), "dist")),
        ({"typical_p": 0.9, "top_p": 0.9}, Plan(None, ("typical_p", "top_p"), "dist")),
        ({"dry_multiplier": 1, "top_k": 40}, Plan(None, ("dry", "top_k"), "dist")),
        (
            {"samplers": ("temperature", "top_p"), "top_p": 0.5, "temperature": 2, "top_k": 3},
            Plan(None, ("temperature", "top_p"), "dist"),
        ),
        (
            {"samplers": ("top_k", "penalties"), "top_k": 3, "presence_penalty": 1},
            Plan("top_k", ("penalties",), "dist"),
        ),
    ],
)
def test_plans(params: dict[str, Any], expected: Plan) -> None:
    assert plan(SamplingParams(**params), LARGE) == expected


def test_a_small_vocabulary_is_left_to_llama_cpp() -> None:
    assert plan(SamplingParams(top_p=0.5), TINY) == Plan(None, ("top_p",), "dist")
    assert plan(SamplingParams(top_k=5), TINY) == Plan(None, ("top_k",), "dist")
