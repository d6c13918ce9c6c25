"""Prefixes that are pinned, saved and restored; and the prefill's progress."""

import gc
from pathlib import Path
from typing import Any

import pytest
from fakes.doubles import echo, plain, prompt
from files import model_files

from engine import ChatTemplate, ContextOverflowError, Engine, EngineError, RequestError, StateStore
from engine.runtime.loop.request import TurnRequest
from engine.runtime.stream.service import PinnedPrefix, Service
from engine.testing.scripted import ByteVocab, ScriptedBackend
from engine.types.turn_settings import TurnSettings

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


def test_progress() -> None:
    told: list[tuple[int, int]] = []

    def tell(done: int, total: int) -> None:
        told.append((done, total))

    with Service(ScriptedBackend(echo, n_batch=16, n_sequences=2)) as service:
        service.submit(TurnRequest(prompt("x" * 40), plain, TurnSettings(progress=tell))).result()
        assert told == [(16, 40), (32, 40), (40, 40)]
        told.clear()
        service.pin(list(b"y" * 20), TurnSettings(progress=tell)).release()
        assert told == [(16, 20), (20, 20)]


def test_progress_may_stop_the_turn() -> None:
    with Service(ScriptedBackend(echo, n_batch=4, n_sequences=2)) as service:
        stream = service.submit(TurnRequest(prompt("x" * 400), plain, TurnSettings(progress=lambda done, _: done < 8)))
        completion = stream.result()
        assert (completion.finish_reason, completion.content) == ("cancelled", "")
        with pytest.raises(EngineError, match="not pinned"):
            service.pin(list(b"x" * 400), TurnSettings(progress=lambda _done, _total: False))

        def broken(done: int, total: int) -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            service.submit(TurnRequest(prompt("y" * 400), plain, TurnSettings(progress=broken))).result()
        assert service.submit(TurnRequest(prompt("fine"), plain)).result().content == "re: fine"


def scripted(**options: Any) -> tuple[Engine, ScriptedBackend]:
    backend = ScriptedBackend(lambda _: "fine", vocab=VOCAB, n_sequences=4, **options)
    return Engine.over(backend, ChatTemplate(None, family="qwen3", control_tokens=VOCAB.control_tokens)), backend


def test_an_engine_pins_what_its_prompts_have_in_common() -> None:
    llm, backend = scripted()
    tools = [{"name": "f", "description": "does something", "parameters": {"type": "object"}}]
    with llm, llm.pin(SYSTEM, tools) as prefix:
        assert VOCAB.text(backend.tokens(0)).endswith("<|im_start|>user\n")
        usage = llm.chat([*SYSTEM, {"role": "user", "content": "x"}], tools=tools).usage
        assert usage is not None
        assert usage.cached_tokens == prefix.tokens
        with llm.pin([*SYSTEM, {"role": "user", "content": "x"}], tools) as whole:
            assert whole.tokens == usage.prompt_tokens
        with pytest.raises(RequestError, match="no option 'temprature'"):
            llm.pin(SYSTEM, temprature=1)  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize("architecture", ["qwen3", "mamba", "lfm2", "gemma3"])
def test_on_weights(tmp_path: Path, architecture: str, unified: bool) -> None:
    path = model_files.write(tmp_path / "m.gguf", architecture)
    asked = [*SYSTEM[:1], {"role": "user", "content": "hello world"}]
    options: Any = {"preflight": False, "n_threads": 1, "family": "content-only", "n_ctx": 3 * 512, "n_sequences": 3}
    turn: Any = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}

    def opened(file: Path = path, **more: Any) -> Engine:
        states = StateStore(0, tmp_path / "states", 1 << 30)
        given: dict[str, Any] = {**options, "kv_unified": unified, **more}
        return Engine.load(file, states=states, **given)

    with Engine.load(path, **options, kv_unified=unified) as llm:
        alone = llm.chat(asked, **turn)
    with opened() as llm, llm.pin(SYSTEM) as prefix:
        answers = [llm.chat(asked, **turn)]
    for _ in range(2):
        with opened() as llm, llm.pin(SYSTEM):
            assert llm.metrics.prompt_tokens == 0
            answers.append(llm.chat(asked, **turn))
    for completion in answers:
        assert completion.content == alone.content
        assert completion.usage is not None
        assert completion.usage.cached_tokens >= prefix.tokens > 64
    tuned = model_files.write(tmp_path / "t.gguf", architecture, model_files.Shape(seed=2))
    for other in (opened(type_k="f32"), opened(kv_unified=not unified), opened(tuned)):
        with other:
            usage = other.chat(asked, **turn).usage
            assert usage is not None
            assert usage.cached_tokens == 0
