"""Prefixes that are pinned, saved and restored; and the prefill's progress."""

import gc
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import model_files
import pytest
from doubles import echo, plain, prompt

from engine import ChatTemplate, ContextOverflowError, DecodeError, Engine, EngineError, RequestError
from engine.runtime.loop.backend import Row
from engine.runtime.loop.request import TurnRequest
from engine.runtime.stream.service import PinnedPrefix, Service
from engine.testing.scripted import ByteVocab, ScriptedBackend

VOCAB = ByteVocab(["<|im_start|>"], end=["<|im_end|>"])
SYSTEM: list[dict[str, Any]] = [{"role": "system", "content": "You are a system prompt of some length. " * 3}]


def cached(service: Service, text: str) -> int:
    usage = service.submit(TurnRequest(prompt(text), plain)).result().usage
    assert usage is not None
    return usage.cached_tokens


def pin(service: Service, text: str) -> PinnedPrefix:
    return service.pin(service.tokens(prompt(text)))


def test_a_pinned_prefix_stays_when_everything_else_goes() -> None:
    backend = ScriptedBackend(lambda _: "fine", n_ctx=200, n_sequences=2)
    with Service(backend) as service:
        prefix = pin(service, "a prefix that many share: ")
        assert (prefix.tokens, backend.evaluated, backend.samplers[0].closed) == (26, 26, True)
        for number in range(4):
            assert cached(service, f"{number}" * 100) == 0
        assert cached(service, "a prefix that many share: x") == 26
        prefix.release()
        prefix.release()
        for number in range(4):
            cached(service, f"{number}" * 190)
        assert cached(service, "a prefix that many share: x") == 0
        assert service.metrics.prompt_tokens == 4 * 100 + 27 + 4 * 190 + 27, "a pin is no turn"


def test_a_prefix_that_nobody_holds_is_released() -> None:
    backend = ScriptedBackend(lambda _: "fine", n_sequences=2)
    with Service(backend) as service:
        pin(service, "one")
        gc.collect()
        with pin(service, "two"), pytest.raises(RequestError, match=r"take 1 of 2 already.*larger n_sequences"):
            pin(service, "three")
        pin(service, "four").release()


def test_one_sequence_is_left_for_requests() -> None:
    with (
        Service(ScriptedBackend([], n_sequences=1)) as service,
        pytest.raises(RequestError, match="take 0 of 1 already"),
    ):
        pin(service, "one")


def test_a_prefix_that_makes_no_sense() -> None:
    with Service(ScriptedBackend([], n_ctx=20, n_sequences=2)) as service:
        with pytest.raises(ContextOverflowError, match="21 tokens"):
            pin(service, "x" * 21)
        with pytest.raises(RequestError, match="empty"):
            service.pin([])


def test_requests_beside_a_large_pinned_prefix_are_told_what_is_left() -> None:
    backend = ScriptedBackend(lambda _: "x" * 90, n_ctx=100, kv_tokens=100, n_sequences=2)
    with Service(backend) as service, pin(service, "p" * 60):
        with pytest.raises(ContextOverflowError, match="room for 40"):
            service.submit(TurnRequest(prompt("y" * 50), plain)).result()
        assert service.submit(TurnRequest(prompt("y" * 20), plain)).result().finish_reason == "length"
        assert cached(service, "p" * 60 + "q") == 60


@pytest.mark.parametrize("trimmable", [True, False])
def test_saved_and_restored(tmp_path: Path, trimmable: bool) -> None:
    backend = ScriptedBackend(echo, n_sequences=3, trimmable=trimmable)
    with Service(backend) as service, pin(service, "a prefix that many share: ") as prefix:
        prefix.save(tmp_path / "prefix")
        with pytest.raises(RequestError, match="cannot be written"):
            prefix.save(tmp_path / "none" / "prefix")
        prefix.release()
        with pytest.raises(RequestError, match="was released"):
            prefix.save(tmp_path / "other")
    with pytest.raises(EngineError, match="closed"):
        prefix.save(tmp_path / "other")
    backend = ScriptedBackend(echo, n_sequences=3, trimmable=trimmable)
    with Service(backend) as service, service.restore(tmp_path / "prefix") as prefix:
        assert (prefix.tokens, backend.evaluated) == (26, 0)
        stream = service.submit(TurnRequest(prompt("a prefix that many share: x"), plain))
        assert stream.result().content == "re: a prefix that many share: x"
        assert cached(service, "a prefix that many share: y") == 26
        assert service.restore(tmp_path / "prefix").tokens == 26


def test_a_state_without_room_is_evaluated_when_there_is(tmp_path: Path) -> None:
    with Service(ScriptedBackend(echo, n_sequences=2)) as service, pin(service, "p" * 60) as prefix:
        prefix.save(tmp_path / "prefix")
    hold = threading.Event()

    def wait(_: Sequence[Row]) -> None:
        hold.wait()

    backend = ScriptedBackend(lambda _: "x" * 30, n_sequences=3, n_ctx=100, before_decode=wait)
    with Service(backend) as service:
        running = service.submit(TurnRequest(prompt("r" * 40), plain))
        threading.Timer(0.05, hold.set).start()
        with service.restore(tmp_path / "prefix"):
            assert running.result().content == "x" * 30
            assert cached(service, "p" * 60 + "q") == 60
    with Service(ScriptedBackend([], n_sequences=2, n_ctx=50)) as service, pytest.raises(ContextOverflowError):
        service.restore(tmp_path / "prefix")


def test_a_state_that_the_memory_refuses_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = ScriptedBackend(echo, n_sequences=2)
    with Service(backend) as service:
        pin(service, "prefix").save(tmp_path / "prefix")

        def refuse(sequence: int, state: bytes) -> None:
            backend.trim(sequence, 0)
            raise DecodeError("does not fit", "invalid")

        monkeypatch.setattr(backend, "restore", refuse)
        with pytest.raises(DecodeError, match="does not fit"):
            service.restore(tmp_path / "prefix")
        assert service.submit(TurnRequest(prompt("x"), plain)).result().content == "re: x"


def test_a_save_that_waits_when_the_loop_breaks_is_answered(tmp_path: Path) -> None:
    hold = threading.Event()

    def crash(rows: Sequence[Row]) -> None:
        if rows[0].token == ord("!"):
            hold.wait()
            raise ZeroDivisionError

    with Service(ScriptedBackend(echo, n_sequences=2, before_decode=crash)) as service:
        prefix = pin(service, "prefix")
        stream = service.submit(TurnRequest(prompt("!"), plain))
        time.sleep(0.02)
        threading.Timer(0.05, hold.set).start()
        with pytest.raises(EngineError, match="loop broke"):
            prefix.save(tmp_path / "prefix")
        with pytest.raises(EngineError, match="loop broke"):
            stream.result()


def test_progress() -> None:
    told: list[tuple[int, int]] = []

    def tell(done: int, total: int) -> None:
        told.append((done, total))

    with Service(ScriptedBackend(echo, n_batch=16, n_sequences=2)) as service:
        service.submit(TurnRequest(prompt("x" * 40), plain, progress=tell)).result()
        assert told == [(16, 40), (32, 40), (40, 40)]
        told.clear()
        service.pin(list(b"y" * 20), progress=tell).release()
        assert told == [(16, 20), (20, 20)]


def test_progress_may_stop_the_turn() -> None:
    with Service(ScriptedBackend(echo, n_batch=4, n_sequences=2)) as service:
        stream = service.submit(TurnRequest(prompt("x" * 400), plain, progress=lambda done, _: done < 8))
        completion = stream.result()
        assert (completion.finish_reason, completion.content) == ("cancelled", "")
        with pytest.raises(EngineError, match="not pinned"):
            service.pin(list(b"x" * 400), progress=lambda _done, _total: False)

        def broken(done: int, total: int) -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            service.submit(TurnRequest(prompt("y" * 400), plain, progress=broken)).result()
        assert service.submit(TurnRequest(prompt("fine"), plain)).result().content == "re: fine"


def scripted(**options: Any) -> tuple[Engine, ScriptedBackend]:
    backend = ScriptedBackend(lambda _: "fine", vocab=VOCAB, n_sequences=4, **options)
    return Engine(backend, ChatTemplate(None, family="qwen3", control_tokens=VOCAB.control_tokens)), backend


def test_an_engine_pins_what_its_prompts_have_in_common(tmp_path: Path) -> None:
    llm, backend = scripted()
    tools = [{"name": "f", "description": "does something", "parameters": {"type": "object"}}]
    with llm, llm.pin(SYSTEM, tools) as prefix:
        assert VOCAB.text(backend.tokens(0)).endswith("<|im_start|>user\n")
        usage = llm.chat([*SYSTEM, {"role": "user", "content": "x"}], tools=tools).usage
        assert usage is not None
        assert usage.cached_tokens == prefix.tokens
        with llm.pin([*SYSTEM, {"role": "user", "content": "x"}], tools) as whole:
            assert whole.tokens == usage.prompt_tokens
        prefix.save(tmp_path / "prefix")
        with pytest.raises(RequestError, match="no option 'temprature'"):
            llm.pin(SYSTEM, temprature=1)  # pyright: ignore[reportCallIssue]
    llm, backend = scripted()
    with llm, llm.restore(tmp_path / "prefix"):
        usage = llm.chat([*SYSTEM, {"role": "user", "content": "x"}], tools=tools).usage
        assert usage is not None
        assert usage.cached_tokens == prefix.tokens


def test_nothing_is_copied_for_a_restored_prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = ScriptedBackend(lambda _: "fine", n_ctx=400, n_sequences=4)
    with Service(backend) as service:
        pin(service, "a prefix that many share: and more of it").save(tmp_path / "prefix")
    backend = ScriptedBackend(lambda _: "fine", n_ctx=400, n_sequences=4)
    copies: list[int] = []
    plain_copy = backend.copy

    def counted(source: int, target: int, positions: int) -> None:
        copies.append(positions)
        plain_copy(source, target, positions)

    monkeypatch.setattr(backend, "copy", counted)
    with Service(backend) as service, pin(service, "a prefix that many share: "):
        with service.restore(tmp_path / "prefix") as prefix:
            assert copies == []
            assert cached(service, "a prefix that many share: and more of it, x") == prefix.tokens
        assert len(copies) == 1


@pytest.mark.parametrize("unified", [True, False])
def test_restored_beside_a_prefix_that_it_begins_with(tmp_path: Path, unified: bool) -> None:
    path = model_files.write(tmp_path / "m.gguf")
    options: Any = {"preflight": False, "n_threads": 1, "family": "content-only", "n_ctx": 4 * 512}
    options |= {"n_sequences": 4, "kv_unified": unified}
    turn: Any = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
    longer: list[Any] = [*SYSTEM, {"role": "user", "content": "a question"}, {"role": "assistant", "content": "fine"}]
    asked = [*longer, {"role": "user", "content": "hello world"}]
    with Engine.load(path, **options) as llm:
        alone = llm.chat(asked, **turn).content
        with llm.pin(longer) as prefix:
            prefix.save(tmp_path / "longer")
    with Engine.load(path, **options) as llm, llm.pin(SYSTEM), llm.restore(tmp_path / "longer") as prefix:
        restored = llm.chat(asked, **turn)
        assert restored.content == alone
        assert restored.usage
        assert restored.usage.cached_tokens >= prefix.tokens > 40


@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize("architecture", ["qwen3", "mamba", "lfm2", "gemma3"])
def test_on_weights(tmp_path: Path, architecture: str, unified: bool) -> None:
    path = model_files.write(tmp_path / "m.gguf", architecture)
    asked = [*SYSTEM[:1], {"role": "user", "content": "hello world"}]
    options: Any = {"preflight": False, "n_threads": 1, "family": "content-only", "n_ctx": 3 * 512}
    options |= {"kv_unified": unified}
    turn: Any = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
    with Engine.load(path, n_sequences=3, **options) as llm:
        alone = llm.chat(asked, **turn)
    with Engine.load(path, n_sequences=3, **options) as llm, llm.pin(SYSTEM) as prefix:
        prefix.save(tmp_path / "prefix")
        pinned = llm.chat(asked, **turn)
    with Engine.load(path, n_sequences=3, **options) as llm, llm.restore(tmp_path / "prefix"):
        restored = llm.chat(asked, **turn)
        again = llm.chat(asked, **turn)
    for completion in (pinned, restored, again):
        assert completion.content == alone.content
        assert completion.usage
        assert completion.usage.cached_tokens >= prefix.tokens > 20
    with (
        Engine.load(path, n_sequences=3, type_k="f32", **options) as other,
        pytest.raises(RequestError, match="type_k"),
    ):
        other.restore(tmp_path / "prefix")
    tuned = model_files.write(tmp_path / "t.gguf", architecture, model_files.Shape(seed=2))
    with Engine.load(tuned, n_sequences=3, **options) as other, pytest.raises(RequestError, match="another model"):
        other.restore(tmp_path / "prefix")
    (tmp_path / "noise").write_bytes(b"noise")
    with Engine.load(path, n_sequences=3, **options) as llm:
        for name, words in (("noise", "not a state file"), ("none", "cannot be read")):
            with pytest.raises(RequestError, match=words):
                llm.restore(tmp_path / name)
