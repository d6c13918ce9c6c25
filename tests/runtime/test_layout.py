"""engine.runtime.layout: when sequences have a buffer each, and when one for all, in a loop over a script and over
weights."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import model_files
import numpy as np
import pytest
from doubles import Bench, echo, plain

from engine import ContextOverflowError, Engine, EngineError
from engine.llama import model as llama
from engine.llama.context import LlamaBackend
from engine.llama.memory import Footprint
from engine.llama.model import Model
from engine.runtime.generation import Limits
from engine.runtime.options import ContextOptions
from engine.runtime.request import Request
from engine.types import SamplingParams

N_CTX, SHARE = 16_384, 2048
SHORT = Limits(max_tokens=1100)
LONG = Limits(max_tokens=SHARE)


def opened(**options: Any) -> Bench:
    return Bench(echo, n_ctx=N_CTX, n_ctx_other=SHARE, **options)


def names(count: int) -> list[str]:
    return [f"{chr(97 + number) * 30} asks" for number in range(count)]


def parted(bench: Bench, count: int = 4) -> list[int]:
    """Requests that make the sequences part, and have begun."""
    ids = [bench.submit(name, SHORT) for name in names(count)]
    bench.step()
    assert bench.backend.n_ctx_sequence == SHARE
    return ids


def answers(bench: Bench, ids: list[int]) -> list[str]:
    return [bench.completion(id_).content for id_ in ids]


def test_many_short_requests_at_once_have_buffers_of_their_own() -> None:
    bench = opened()
    ids = parted(bench, 6)
    bench.run()
    assert answers(bench, ids) == [f"re: {name}" for name in names(6)]
    assert bench.backend.evaluated < 6 * 80, "nothing was evaluated twice"


def test_prompts_share_no_batch_any_more_once_they_have_buffers_of_their_own() -> None:
    bench = opened()
    bench.backend.mixed_rows = 0
    parted(bench)
    assert bench.backend.batches == [len(names(1)[0])]


def test_who_is_in_the_middle_of_a_prompt_begins_again() -> None:
    bench = opened(n_batch=64)
    long = "x" * 200
    ids = [bench.submit(long, SHORT)]
    bench.step()
    assert bench.backend.evaluated == 64
    ids += [bench.submit(name, SHORT) for name in names(3)]
    bench.run()
    assert bench.backend.n_ctx_sequence == SHARE
    assert answers(bench, ids) == [f"re: {text}" for text in (long, *names(3))]
    usage = bench.completion(ids[0]).usage
    assert usage is not None
    assert (usage.cached_tokens, usage.prompt_tokens) == (0, 200)


@pytest.mark.parametrize("other", [0, N_CTX, 2 * N_CTX])
def test_a_backend_without_a_layout_of_shares_stays_as_it_is(other: int) -> None:
    bench = Bench(echo, n_ctx=N_CTX, n_ctx_other=other)
    ids = [bench.submit(name, SHORT) for name in names(4)]
    bench.run()
    assert bench.backend.n_ctx_sequence == N_CTX
    assert answers(bench, ids) == [f"re: {name}" for name in names(4)]


@pytest.mark.parametrize(
    ("count", "limits", "part"),
    [
        (4, SHORT, True),
        (3, Limits(max_tokens=1500), False),  # too few
        (4, Limits(max_tokens=900), False),  # who hold too little
        (4, Limits(), False),  # whose length nobody knows
        (4, Limits(max_tokens=SHARE - 35), True),  # the prompts have 35 tokens
        (4, Limits(max_tokens=SHARE - 34), False),
        (4, Limits(max_tokens=SHARE - 36, reasoning_close=(1,)), True),
        (4, Limits(max_tokens=SHARE - 36, reasoning_close=(1, 2)), False),
    ],
)
def test_requests_that_part(count: int, limits: Limits, part: bool) -> None:
    bench = opened()
    for name in names(count):
        bench.submit(name, limits)
    bench.step()
    assert bench.backend.n_ctx_sequence == (SHARE if part else N_CTX)


def test_one_that_may_be_long_is_enough_to_stay_together() -> None:
    bench = opened(n_sequences=8)
    ids = [bench.submit(name, SHORT if at != 3 else Limits()) for at, name in enumerate(names(6))]
    bench.step()
    assert bench.backend.n_ctx_sequence == N_CTX
    bench.run()
    assert answers(bench, ids) == [f"re: {name}" for name in names(6)]


def test_only_as_many_as_there_are_sequences_are_together_at_once() -> None:
    bench = opened(n_sequences=3)
    for name in names(8):
        bench.submit(name, SHORT)
    bench.step()
    assert bench.backend.n_ctx_sequence == N_CTX, "three of them hold some 3,400 tokens"


def test_a_stream_under_way_is_not_interrupted() -> None:
    bench = opened()
    bench.submit("first of all", SHORT)
    bench.step()
    assert bench.partial(1).content == "r"
    for name in names(4):
        bench.submit(name, SHORT)
    bench.run()
    assert bench.backend.n_ctx_sequence == N_CTX
    again = [bench.submit(name, SHORT) for name in names(4)]
    bench.run()
    assert bench.backend.n_ctx_sequence == SHARE, "at the next opportunity"
    assert answers(bench, again) == [f"re: {name}" for name in names(4)]


def test_where_only_the_end_is_waited_for_it_may_be() -> None:
    bench = opened()
    first = bench.submit("first of all", SHORT, patient=True)
    bench.step(3)
    ids = [first, *(bench.submit(name, SHORT, patient=True) for name in names(4))]
    bench.run()
    assert bench.backend.n_ctx_sequence == SHARE
    assert answers(bench, ids) == ["re: first of all", *(f"re: {name}" for name in names(4))]


def test_much_that_is_held_is_not_forgotten_for_few() -> None:
    bench = opened()
    bench.submit("y" * 6000, Limits(max_tokens=1))
    bench.run()
    ids = [bench.submit(name, SHORT) for name in names(4)]
    bench.run()
    assert bench.backend.n_ctx_sequence == N_CTX
    assert answers(bench, ids) == [f"re: {name}" for name in names(4)]
    more = [bench.submit(name, Limits(max_tokens=1800)) for name in names(4)]
    bench.run()
    assert bench.backend.n_ctx_sequence == SHARE
    assert answers(bench, more) == [f"re: {name}" for name in names(4)]


def pin(bench: Bench, text: str) -> None:
    tokens = tuple(bench.backend.vocab.tokenize(text, special=True))
    bench.loop.submit(Request(1000, tokens, plain, SamplingParams(), SHORT, pin=True))


def test_a_pinned_prefix_keeps_them_together() -> None:
    bench = opened()
    pin(bench, "a prefix")
    bench.run()
    for name in names(4):
        bench.submit(name, SHORT)
    bench.run()
    assert bench.backend.n_ctx_sequence == N_CTX
    bench.loop.unpin(1000)
    for name in names(4):
        bench.submit(name, SHORT)
    bench.run()
    assert bench.backend.n_ctx_sequence == SHARE


def test_a_prefix_is_pinned_in_one_buffer() -> None:
    bench = opened()
    ids = parted(bench)
    pin(bench, "a prefix")
    bench.run()
    assert bench.backend.n_ctx_sequence == N_CTX
    assert answers(bench, ids) == [f"re: {name}" for name in names(4)]
    bench.loop.save(1001, 1000)
    (reply,) = bench.loop.drain()
    assert reply.saved is not None
    assert bytes(reply.saved.tokens) == b"a prefix"


def test_a_longer_one_waits_for_those_under_way_and_goes_before_those_behind_it() -> None:
    bench = opened(n_sequences=8)
    ids = parted(bench)
    bench.step(3)
    before = bench.backend.evaluated
    long, behind = bench.submit("l" * 3000, LONG), bench.submit("behind", SHORT)
    while not all(reply[-1].final for reply in (bench.replies[id_] for id_ in ids)):
        assert bench.backend.n_ctx_sequence == SHARE
        assert not {long, behind} & bench.replies.keys()
        bench.step()
    assert bench.backend.evaluated - before < 4 * 40, "nobody under way was evaluated again"
    bench.run()
    assert bench.backend.n_ctx_sequence == N_CTX
    assert answers(bench, [*ids, long, behind]) == [
        *(f"re: {name}" for name in names(4)),
        f"re: {'l' * (SHARE - 4)}",
        "re: behind",
    ]


def test_those_before_a_longer_one_do_not_wait_for_it() -> None:
    bench = opened(n_sequences=4)
    parted(bench, 6)
    long = bench.submit("long", Limits())
    bench.run()
    order = list(bench.replies)
    assert order.index(long) == 6
    assert bench.completion(long).content == "re: long"


def test_sequences_that_joined_do_not_part_again() -> None:
    bench = opened()
    parted(bench)
    bench.submit("long", LONG)
    bench.run()
    ids = [bench.submit(name, SHORT) for name in names(8)]
    ids.append(bench.submit("another", LONG))
    bench.run()
    assert bench.backend.n_ctx_sequence == N_CTX
    assert answers(bench, ids) == [f"re: {name}" for name in (*names(8), "another")]


def test_one_that_is_cancelled_while_it_waits_changes_nothing() -> None:
    bench = opened()
    ids = parted(bench)
    long = bench.submit("long", LONG)
    bench.loop.cancel(long)
    bench.run()
    assert bench.backend.n_ctx_sequence == SHARE
    assert bench.completion(long).finish_reason == "cancelled"
    assert answers(bench, ids) == [f"re: {name}" for name in names(4)]


def test_a_prompt_longer_than_a_share_is_no_error_and_one_longer_than_all_is() -> None:
    bench = opened()
    parted(bench)
    fits, not_ = bench.submit("f" * (SHARE + 1), Limits(max_tokens=3)), bench.submit("n" * (N_CTX + 1), SHORT)
    bench.run()
    assert bench.completion(fits).content == "re:"
    assert isinstance(bench.error(not_), ContextOverflowError)


def test_guesses_stay_within_a_share() -> None:
    bench = Bench(lambda _: "ab" * 2000, n_ctx=N_CTX, n_ctx_other=SHARE, longest_draft=8)
    ids = [bench.submit(name, Limits(max_tokens=SHARE - len(name))) for name in names(4)]
    bench.run()
    assert bench.backend.n_ctx_sequence == SHARE
    assert [bench.completion(id_).finish_reason for id_ in ids] == ["length"] * 4
    assert bench.backend.evaluated == sum(bench.backend.batches), "no decode failed"
    usage = bench.completion(ids[0]).usage
    assert usage is not None
    assert usage.accepted_tokens > 1000


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return model_files.write(tmp_path / "m.gguf", shape=model_files.Shape(n_ctx=4096))


def test_a_context_changes_its_layout_and_back(tiny: Path) -> None:
    with Model.load(tiny) as model:
        first = model.backend(ContextOptions(n_sequences=4, n_ctx=3840, n_threads=1))
        assert (first.n_ctx, first.n_ctx_sequence, first.n_ctx_other) == (3840, 3840, 768)
        origin, sampler = first.origin, first.sampler(SamplingParams(temperature=0))
        second = first.relaid()
        assert (second.n_ctx, second.n_ctx_sequence, second.n_ctx_other) == (3072, 768, 3840)
        assert not second.options.is_unified
        assert first.origin == origin
        with pytest.raises(EngineError, match="closed"):
            first.positions(0)
        first.close()
        third = second.relaid()
        assert (third.n_ctx_sequence, third.n_ctx_other, third.origin) == (3840, 768, origin)
        sampler.accept(1)
        third.close()
        with pytest.raises(EngineError, match="This sampler is closed"):
            sampler.accept(1)


@pytest.mark.parametrize("joins", [False, True])
def test_a_layout_that_cannot_be_made(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, joins: bool
) -> None:
    def make(model: Model, options: ContextOptions, *rest: Any, **more: Any) -> LlamaBackend:
        if options.is_unified is joins:
            raise EngineError("no memory.")
        return LlamaBackend(model, options, *rest, **more)

    with Model.load(tiny) as model:
        backend = model.backend(ContextOptions(n_sequences=4, n_ctx=3840, n_threads=1))
        if joins:
            backend = backend.relaid()
        monkeypatch.setattr(llama, "LlamaBackend", make)
        same = backend.relaid()
        assert (same.n_ctx, same.n_ctx_sequence, same.n_ctx_other) == (backend.n_ctx, backend.n_ctx_sequence, 0)
        assert same.options == backend.options
        assert "as there is no other context to be had: no memory" in caplog.text
        with pytest.raises(EngineError, match="one layout"):
            same.relaid()


def test_where_no_layout_can_be_made_any_more_that_is_an_error(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(*_: Any, **__: Any) -> LlamaBackend:
        raise EngineError("no memory.")

    with Model.load(tiny) as model:
        backend = model.backend(ContextOptions(n_sequences=4, n_ctx=3840, n_threads=1))
        monkeypatch.setattr(llama, "LlamaBackend", make)
        with pytest.raises(EngineError, match="no memory"):
            backend.relaid()


def stuck(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From now on the cells stay laid out as they are; how many decodes there were when another layout was tried."""
    tries: list[int] = []
    plain = bench.backend.relaid

    def stays() -> object:
        tries.append(bench.backend.decodes)
        plain()
        plain()
        bench.backend.n_ctx_other = 0
        return bench.backend

    monkeypatch.setattr(bench.backend, "relaid", stays)
    return tries


def test_where_there_is_no_memory_for_buffers_of_their_own_requests_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = opened()
    tries = stuck(bench, monkeypatch)
    ids = [bench.submit(name, SHORT) for name in names(5)]
    bench.run()
    ids += [bench.submit(name, SHORT) for name in names(5)]
    ids.append(bench.submit("long", LONG))
    bench.run()
    assert answers(bench, ids) == [f"re: {name}" for name in (*names(5), *names(5), "long")]
    assert tries == [0]


def test_where_one_buffer_cannot_be_had_again_only_longer_prompts_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = opened()
    ids = parted(bench)
    tries = stuck(bench, monkeypatch)
    fits, fills = bench.submit("may be long", LONG), bench.submit("l" * (SHARE - 10), LONG)
    long, last = bench.submit("n" * (SHARE + 1), SHORT), bench.submit("full" * (SHARE // 4), LONG)
    bench.run()
    assert answers(bench, [*ids, fits]) == [f"re: {name}" for name in (*names(4), "may be long")]
    assert bench.completion(fills).content == "re: lllllll"
    assert [bench.completion(id_).finish_reason for id_ in (fits, fills, last)] == ["stop", "length", "length"]
    error = bench.error(long)
    assert isinstance(error, ContextOverflowError)
    assert "2,049 tokens; a sequence of this context holds 2,048" in str(error)
    assert len(tries) == 1
    later = bench.submit("n" * (SHARE + 1), SHORT)
    assert not bench.loop.busy, "refused at once, from now on"
    again = [bench.submit(name, SHORT) for name in names(4)]
    bench.run()
    assert answers(bench, again) == [f"re: {name}" for name in names(4)]
    assert isinstance(bench.error(later), ContextOverflowError)


@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        ("qwen3", {"n_ctx": 4 * 512 - 256}),  # too little for each
        ("qwen3", {"n_ctx": 4096, "kv_unified": True}),
        ("qwen3", {"n_ctx": 4096, "kv_unified": False}),
        ("qwen3", {"n_ctx": 4096, "n_sequences": 1}),
        ("qwen3", {}),  # apart for good: each has the training length
        ("lfm2", {"n_ctx": 4096}),
        ("mamba", {"n_ctx": 4096}),
    ],
)
def test_contexts_of_one_layout(tmp_path: Path, architecture: str, options: dict[str, Any]) -> None:
    path = model_files.write(tmp_path / "m.gguf", architecture, model_files.Shape(n_ctx=4096))
    options = {"n_sequences": 4, "n_threads": 1, **options}
    with Model.load(path) as model:
        backend = model.backend(ContextOptions(**options))
        assert backend.n_ctx_other == 0
        with pytest.raises(EngineError, match="has one layout; load with kv_unified=None"):
            backend.relaid()
        assert backend.positions(0) == 0, "it still serves"


def test_short_requests_then_a_long_one_on_weights(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("engine.runtime.layout._CELLS", 200)
    options: Any = {"preflight": False, "n_threads": 1, "family": "content-only", "n_sequences": 4}
    turn: Any = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}
    asked = [f"{name} " * 8 for name in ("anna", "bert", "carl", "dora")]
    with Engine.load(tiny, n_ctx=768, kv_unified=True, **options) as llm:
        alone = [llm.chat(text, **turn).content for text in asked]
        long = llm.chat(asked[0], **turn | {"max_tokens": 520}).content
    with Engine.load(tiny, n_ctx=4 * 512, **options) as llm, caplog.at_level(logging.INFO, logger="engine.llama"):
        assert llm.n_ctx == 4 * 512
        assert [each.content for each in llm.generate(asked, **turn)] == alone
        assert "a buffer of 512 for each" in caplog.text
        caplog.clear()
        assert llm.chat(asked[0], **turn | {"max_tokens": 520}).content == long
        assert "one buffer for all" in caplog.text
        with llm.pin("anna") as prefix:
            assert prefix.tokens


def test_positions_that_hang_on_the_length_of_the_context_keep_it(tmp_path: Path) -> None:
    """LongRoPE: other factors where the context is longer than the model was first trained for."""

    def longrope(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
        for name in ("long", "short"):
            writer.add_tensor(f"rope_factors_{name}.weight", np.ones(16, np.float32))

    path = model_files.write(tmp_path / "m.gguf", shape=model_files.Shape(n_ctx=4096), change=longrope)
    with Model.load(path) as model:
        assert model.backend(ContextOptions(n_sequences=4, n_ctx=4096)).n_ctx_other == 0


@pytest.mark.parametrize(("more", "other"), [(0, 1024), (1, 0)])
def test_the_other_layout_must_fit_too(tiny: Path, monkeypatch: pytest.MonkeyPatch, more: int, other: int) -> None:
    def needs(_: object, options: ContextOptions, n_ctx: int) -> Footprint:
        return Footprint(n_ctx, 0 if options.is_unified else more)

    options = ContextOptions(n_sequences=4, n_ctx=4096, flash_attn="on")
    with Model.load(tiny) as model:
        monkeypatch.setattr(llama, "estimate", needs)
        monkeypatch.setattr(model, "_room", lambda: 4096)
        assert model.backend(options).n_ctx_other == other
        assert model.backend(replace(options, check_memory=False)).n_ctx_other == 1024
