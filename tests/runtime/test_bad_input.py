"""Bad input, end to end through Engine: each gives an error of ours that says what to do, and the process lives."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import gguf
import pytest
from files import model_files

from engine import (
    ChatTemplate,
    ContextOverflowError,
    Engine,
    EngineError,
    FamilyError,
    LlamaOptions,
    MissingTemplateError,
    ModelLoadError,
    RequestError,
    TemplateError,
)
from engine.support.errors import NoSuchReasoningError
from engine.testing.scripted import ByteVocab, ScriptedBackend

QUESTION: list[dict[str, Any]] = [{"role": "user", "content": "Hello!"}]


def refused(kind: type[EngineError], action: Callable[[], object], *words: str) -> str:
    """The message of the error, which is of exactly this class, names the cause and says what to do."""
    with pytest.raises(EngineError) as caught:
        action()
    assert type(caught.value) is kind
    message = str(caught.value)
    for word in words:
        assert word in message
    return message


def load(path: Path, **options: Any) -> None:
    """Load, and close again what should not have loaded."""
    Engine.load(path, preflight=False, n_threads=1, **options).close()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_files.write(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="module")
def llm(tiny: Path) -> Iterator[Engine]:
    with Engine.load(tiny, preflight=False, n_threads=1, family="qwen3", n_ctx=256) as loaded:
        yield loaded


def test_a_missing_file(tmp_path: Path) -> None:
    refused(ModelLoadError, lambda: load(tmp_path / "none.gguf"), "There is no file", "check the path")


def test_a_directory(tmp_path: Path) -> None:
    refused(ModelLoadError, lambda: load(tmp_path), "is a directory", "pass the path of a .gguf file")


def test_a_file_that_is_no_gguf(tmp_path: Path) -> None:
    for name, data in (
        ("empty", b""),
        ("text", b"Once upon a time there was a model." * 99),
        ("zip", b"PK\x03\x04" * 99),
    ):
        path = tmp_path / name
        path.write_bytes(data)
        refused(ModelLoadError, lambda path=path: load(path), str(path))


def test_a_truncated_gguf(tiny: Path, tmp_path: Path) -> None:
    data = tiny.read_bytes()
    for length in (5, 40, len(data) // 3, len(data) - 1):
        path = tmp_path / f"cut-{length}.gguf"
        path.write_bytes(data[:length])
        refused(ModelLoadError, lambda path=path: load(path), str(path))
    refused(ModelLoadError, lambda: load(tmp_path / f"cut-{len(data) - 1}.gguf"), "is cut off", "download it again")


def test_a_vocabulary_only(tmp_path: Path) -> None:
    path = model_files.write(tmp_path / "vocabulary.gguf", tensors=False)
    refused(ModelLoadError, lambda: load(path), "vocabulary only", "full GGUF")


def without_template(writer: gguf.GGUFWriter) -> None:
    for keys in writer.kv_data:
        keys.pop("tokenizer.chat_template")


def test_a_gguf_without_a_template(tmp_path: Path) -> None:
    path = model_files.write(tmp_path / "bare.gguf", change=without_template)
    with Engine.load(path, preflight=False, n_threads=1) as base:
        for action in (base.chat, base.stream, base.run, base.render, base.pin, base.explain):
            words = ("no chat template", "chat_template=", "family=", "complete() needs no template")
            refused(MissingTemplateError, lambda action=action: action(QUESTION), *words)
        assert base.complete("Once", max_tokens=2).finish_reason == "length"
        assert base.family.name == "content-only"
    refused(MissingTemplateError, lambda: load(path, family="content-only"), "has none of its own")
    with Engine.load(path, preflight=False, n_threads=1, family="llama-3") as cured:
        assert cured.chat(QUESTION, max_tokens=2).finish_reason in ("length", "stop")


def test_a_broken_template(tiny: Path, tmp_path: Path) -> None:
    refused(TemplateError, lambda: load(tiny, chat_template="{% for m in messages %}"))
    refused(TemplateError, lambda: load(tiny, chat_template=tmp_path / "none.jinja"), "Correct the path")


def test_an_unknown_family(tiny: Path) -> None:
    refused(FamilyError, lambda: load(tiny, family="quen3"), "'quen3'", "qwen3")


def test_a_context_beyond_memory(tiny: Path) -> None:
    message = refused(ContextOverflowError, lambda: load(tiny, n_ctx=2**30), "n_ctx=1,073,741,824", "MiB are available")
    assert "the largest that fits" in message


def test_options_that_make_no_sense(tiny: Path) -> None:
    refused(RequestError, lambda: load(tiny, n_ctx=0), "n_ctx=0")
    refused(RequestError, lambda: load(tiny, type_k="q3"), "type_k='q3'", "q8_0")
    refused(RequestError, lambda: load(tiny, n_gpu_layers=-2), "n_gpu_layers=-2")
    refused(RequestError, lambda: LlamaOptions(split_mode=cast("Any", "rows")), "split_mode='rows'")


def test_a_context_too_small_for_the_prompt(llm: Engine) -> None:
    refused(ContextOverflowError, lambda: llm.chat("word " * 400), "n_ctx=256", "Shorten it", "larger n_ctx=")
    refused(ContextOverflowError, lambda: llm.run("word " * 400), "n_ctx=256")
    assert llm.chat(QUESTION, max_tokens=2).usage


def test_messages_that_the_template_rejects(tiny: Path) -> None:
    once = "{% if messages|length > 1 %}{{ raise_exception('One question at a time') }}{% endif %}"
    picky = once + "{{ messages[0].content }}"
    with Engine.load(tiny, preflight=False, n_threads=1, n_ctx=256, chat_template=picky) as picky_llm:
        messages = [*QUESTION, {"role": "assistant", "content": "Hi."}, *QUESTION]
        refused(TemplateError, lambda: picky_llm.chat(messages), "One question at a time")
        assert picky_llm.chat(QUESTION, max_tokens=2).usage


BAD_MESSAGES: list[tuple[object, str]] = [
    ([], "empty"),
    ([{"role": "human", "content": "x"}], "messages[0] is not valid at role"),
    ([{"role": "user", "text": "x"}], "unknown fields: 'text'"),
    (["x"], "messages[0] is not valid"),
    (
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        "on the wire only data: URLs are",
    ),
    ([{"role": "assistant", "content": "x"}], "nothing to answer"),
    (
        [*QUESTION, {"role": "tool", "tool_call_id": "call_9", "content": "x"}],
        "tool_call_id 'call_9' matches no tool call before it",
    ),
    ([*QUESTION, {"role": "tool", "content": "x"}], "no tool call is waiting"),
]


@pytest.mark.parametrize(("messages", "words"), BAD_MESSAGES)
def test_messages_that_are_not_valid(llm: Engine, messages: Any, words: str) -> None:
    for action in (llm.chat, llm.stream, llm.run, llm.stream_run, llm.render):
        refused(RequestError, lambda action=action: action(messages), words)


def test_an_id_that_matches_nothing_among_some_that_do(llm: Engine) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        *QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_2", "content": "x"},
    ]
    refused(RequestError, lambda: llm.chat(messages), "'call_2'", "'call_1'")


def test_half_characters_do_not_stop_a_conversation() -> None:
    broken = "half an emoji: \ud83d"
    call = {"id": "call_1a2b3", "function": {"name": "get", "arguments": '{"key": "\\ud83d"}'}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": broken},
        {"role": "assistant", "content": "", "reasoning": broken, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1a2b3", "content": broken},
    ]
    for family in ("qwen3", "gpt-oss", "llama-3", "mistral-nemo", "qwen3-coder", "deepseek-r1"):
        template = ChatTemplate(None, family=family)
        with Engine.over(ScriptedBackend(["Fine."], n_ctx=8192), template) as engine:
            completion = engine.chat(messages, tools=[{"name": "get", "description": broken}])
        assert completion.finish_reason == "stop"


def get(key: str) -> str:
    """Get it."""
    return key


BAD_TOOLS: list[tuple[list[Any], str]] = [
    ([{"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "strin"}}}}], "not JSON Schema"),
    ([{"name": "f", "parameters": {"type": "array"}}], "not a schema of type object"),
    ([get, {"name": "get"}], "Two tools are called 'get'"),
    ([get, get], "Two tools are called 'get'"),
    ([object()], "is not a tool"),
    ([lambda: None], "write a def"),
]


@pytest.mark.parametrize(("tools", "words"), BAD_TOOLS)
def test_tools_that_are_not_valid(llm: Engine, tools: list[Any], words: str) -> None:
    for action in (llm.chat, llm.stream, llm.run, llm.stream_run, llm.render):
        refused(RequestError, lambda action=action: action("x", tools), words)


def test_reasoning_that_the_family_cannot_do() -> None:
    vocab = ByteVocab(end=["<|eot_id|>"])
    with Engine.over(ScriptedBackend([], vocab=vocab), ChatTemplate(None, family="llama-3")) as llama:
        refused(NoSuchReasoningError, lambda: llama.chat("x", reasoning=True), "no reasoning")
