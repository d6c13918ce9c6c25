"""engine.testing.scripted: the byte vocabulary, and the books that ScriptedBackend keeps."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cases.template_calls import ENDS, SOURCES, UNFAITHFUL, template_of, writes

from engine import ChatTemplate, Choice, JsonSchema, RequestError
from engine.runtime.loop.backend import Backend, Row
from engine.support.errors import DecodeError, EngineError
from engine.testing.scripted import ByteVocab, Reply, ScriptedBackend, ScriptedEngine, call, markup
from engine.tools import as_tools
from engine.types.prompt import Piece
from engine.types.sampling import SamplingParams


def rows(tokens: list[int], sequence: int = 0, start: int = 0) -> list[Row]:
    return [Row(token, start + index, sequence, index == len(tokens) - 1) for index, token in enumerate(tokens)]


def say(backend: ScriptedBackend, prompt: str, sequence: int = 0) -> str:
    """Prefill a prompt and draw until the end token: the shortest loop over a backend."""
    sampler = backend.sampler(SamplingParams())
    batch = rows(backend.vocab.tokenize(prompt, special=True), sequence, backend.positions(sequence))
    out: list[int] = []
    while True:
        backend.decode(batch)
        token = backend.sample(sampler, len(batch) - 1)
        if backend.vocab.is_end(token):
            return backend.vocab.text(out)
        out.append(token)
        batch = rows([token], sequence, backend.positions(sequence))


def test_vocab_tokens_and_bytes() -> None:
    vocab = ByteVocab(["<|im_start|>", "<|im|>"], end=["<|im_end|>"], bos="<s>")
    assert vocab.size == 260
    assert vocab.control_tokens == {"<|im_start|>", "<|im|>", "<|im_end|>", "<s>"}
    text = "<|im_start|>é<|im|>"
    tokens = vocab.tokenize(text, special=True)
    assert tokens == [vocab.token("<|im_start|>"), 0xC3, 0xA9, vocab.token("<|im|>")]
    assert vocab.text(tokens) == text
    assert vocab.tokenize(text, special=False) == list(text.encode())
    assert [vocab.is_special(token) for token in tokens] == [True, False, False, True]
    assert vocab.is_end(vocab.token("<|im_end|>"))
    assert not vocab.is_end(tokens[0])
    assert vocab.end == vocab.token("<|im_end|>")


def test_vocab_encode_guards_plain_pieces() -> None:
    vocab = ByteVocab(["<x>"], bos="<s>")
    pieces = [Piece("<x>", trusted=True), Piece("<x>")]
    assert vocab.encode(pieces, add_bos=True) == [vocab.token("<s>"), vocab.token("<x>"), *b"<x>"]
    assert ByteVocab().encode([Piece("a")], add_bos=True) == [97]


def test_vocab_needs_an_end() -> None:
    with pytest.raises(ValueError, match="end token"):
        ByteVocab(end=[])


def test_is_a_backend() -> None:
    backend: Backend = ScriptedBackend([])
    backend.close()
    assert isinstance(backend, ScriptedBackend)
    assert backend.closed


def test_replies_in_order_and_control_tokens() -> None:
    backend = ScriptedBackend(["one<|call|>x", "two"], vocab=ByteVocab(["<|call|>"]))
    assert say(backend, "a", 0) == "one<|call|>x"
    assert say(backend, "b", 1) == "two"
    with pytest.raises(EngineError, match="2 replies and request 3"):
        say(backend, "c", 2)


def test_reply_function_sees_the_prompt() -> None:
    backend = ScriptedBackend(lambda prompt: prompt[::-1])
    assert say(backend, "abc") == "cba"


def test_a_function_is_asked_again_after_forced_tokens() -> None:
    backend = ScriptedBackend(lambda text: "aaaa" if "!" not in text else "bb")
    sampler = backend.sampler(SamplingParams())
    backend.decode(rows([1]))
    assert backend.sample(sampler, 0) == ord("a")
    sampler.accept(ord("!"))
    backend.decode(rows([ord("a"), ord("!")], start=1))
    assert backend.sample(sampler, 1) == ord("b")


def test_a_list_goes_on_after_forced_tokens() -> None:
    backend = ScriptedBackend(["ab"])
    sampler = backend.sampler(SamplingParams())
    sampler.accept(1)  # a token of the prompt, told before anything was drawn, changes nothing
    backend.decode(rows([1]))
    assert backend.sample(sampler, 0) == ord("a")
    sampler.accept(ord("!"))
    backend.decode(rows([ord("a"), ord("!")], start=1))
    assert backend.sample(sampler, 1) == ord("b")


def test_a_draw_from_the_wrong_sequence_is_noticed() -> None:
    backend = ScriptedBackend(["ab"])
    sampler = backend.sampler(SamplingParams())
    backend.decode(rows([1]))
    backend.sample(sampler, 0)
    backend.decode(rows([ord("z")], start=1))
    with pytest.raises(EngineError, match="mixed up"):
        backend.sample(sampler, 0)


def test_a_draw_needs_output_and_an_own_sampler() -> None:
    backend = ScriptedBackend(["ab"])
    backend.decode(rows([1, 2]))
    with pytest.raises(EngineError, match="without output"):
        backend.sample(backend.sampler(SamplingParams()), 0)

    class Foreign:
        def accept(self, token: int) -> None: ...

        def close(self) -> None: ...

    with pytest.raises(EngineError, match="not made by this backend"):
        backend.sample(Foreign(), 1)


def test_cells_are_shared_and_counted_once() -> None:
    backend = ScriptedBackend([], n_ctx=10)
    backend.decode(rows([1, 2, 3, 4]))
    backend.copy(0, 1, 3)
    assert backend.used == 4
    assert backend.tokens(1) == [1, 2, 3]
    backend.decode(rows([9], 1, 3))
    assert backend.used == 5
    assert backend.tokens(0) == [1, 2, 3, 4]
    assert backend.trim(0, 0)
    assert backend.used == 4
    assert backend.trim(1, 2)
    assert backend.used == 2
    assert backend.positions(1) == 2
    assert backend.trim(1, 0)
    assert backend.used == 0
    backend.decode(rows([1]))
    with pytest.raises(DecodeError, match="not empty"):
        backend.copy(0, 0, 1)


def test_decode_refuses_what_llama_cpp_refuses() -> None:
    backend = ScriptedBackend([], n_ctx=4, kv_tokens=4, n_batch=3)
    with pytest.raises(DecodeError, match="n_batch"):
        backend.decode(rows([1, 2, 3, 4]))
    with pytest.raises(DecodeError, match="n_batch"):
        backend.decode([])
    with pytest.raises(DecodeError, match="position 0, not at 1"):
        backend.decode(rows([1], start=1))
    backend.decode(rows([1, 2, 3]))
    with pytest.raises(DecodeError, match="3 of 4 cells"):
        backend.decode(rows([1, 2], 1))
    assert backend.used == 3
    assert backend.positions(1) == 0
    assert backend.decodes == 5
    assert backend.evaluated == 3
    assert backend.batches == [4, 0, 1, 3, 2]


def test_recurrent_memory_is_whole_or_nothing() -> None:
    backend = ScriptedBackend([], trimmable=False)
    backend.decode(rows([1, 2, 3]))
    assert not backend.trim(0, 2)
    assert backend.positions(0) == 3
    assert backend.trim(0, 3)
    with pytest.raises(DecodeError, match="complete sequence"):
        backend.copy(0, 1, 2)
    backend.copy(0, 1, 3)
    assert backend.trim(0, 0)
    assert backend.positions(0) == 0
    assert backend.tokens(1) == [1, 2, 3]


def test_hooks() -> None:
    seen: list[int] = []

    def fail(batch: object) -> None:
        seen.append(1)
        raise DecodeError("no")

    backend = ScriptedBackend([], before_decode=fail, delay=0.0001)
    with pytest.raises(DecodeError, match="no"):
        backend.decode(rows([1]))
    backend.before_decode = None
    backend.decode(rows([1]))
    assert seen == [1]
    assert backend.decodes == 2
    assert backend.evaluated == 1


def get_order(order: int, note: str = "") -> str:
    """Look an order up."""
    return f"order {order} is on its way{note}"


def ways(reply: str) -> tuple[list[str], Callable[[str], str]]:
    """The ways to give one reply."""

    def whole(_: str) -> str:
        return reply

    return [reply], whole


FORM = JsonSchema({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})


@pytest.mark.parametrize("family", ["deepseek-r1", "gpt-oss", "llama-3", "mistral-nemo", "qwen3", "qwen3-coder"])
def test_a_call_is_written_as_its_family_writes_it(family: str) -> None:
    with ScriptedEngine([call("get_order", order=7, note=' "é"\n'), "Done."], family) as llm:
        run = llm.run("Where is order 7?", [get_order])
    assert [result.content for step in run.steps for result in step.results] == ['order 7 is on its way "é"\n']
    assert [(result.name, result.error) for step in run.steps for result in step.results] == [("get_order", False)]


def test_replies_of_several_parts_and_of_functions() -> None:
    parts: Reply = ["<think>\nTwo.\n</think>\n\n", call("get_order", order=7), call("get_order", order=8)]

    def reply(prompt: str) -> Reply:
        return "Both." if "order 8 is" in prompt else parts

    with ScriptedEngine(reply) as llm:
        run = llm.run("Where are they?", [get_order], tool_choice="auto")
    assert run.steps[0].completion.reasoning == "Two."
    assert [result.content[:7] for result in run.steps[0].results] == ["order 7", "order 8"]
    assert run.completion.content == "Both."


def test_a_template_that_writes_no_calls_is_refused() -> None:
    template = ChatTemplate("{% for message in messages if message.role == 'user' %}{{ message.content }}{% endfor %}")
    with pytest.raises(RequestError, match="does not write 1 calls"):
        ScriptedEngine([call("get_order", order=7)], template=template)
    with pytest.raises(RequestError, match="does not write 2 calls in one turn"):
        ScriptedEngine([[call("get_order", order=7), call("get_order", order=8)]], "gpt-oss")


def test_prompts_are_what_the_model_was_sent() -> None:
    with ScriptedEngine(["Hi.", "Hello."]) as llm:
        llm.chat([{"role": "system", "content": "Be kind."}, {"role": "user", "content": "<|im_end|>"}])
        llm.complete("Once")
        assert len(llm.script.prompts) == 2
        assert llm.script.prompts[0].startswith("<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n<|im_end|>")
        assert llm.script.prompts[1] == "Once"


@pytest.mark.parametrize(
    ("reply", "form", "told"),
    [
        ("Hello.", FORM, "goes on with 'Hello.', but the form allows only white space, .*'{' there"),
        ('{"n": x}', FORM, "goes on with 'x}', but the form allows only a digit, '-' there"),
        ('{"n": 1', FORM, "after .*1' it ends, but the form allows only a digit, '}' there"),
        ('{"m": 1}', FORM, r"goes on with 'm\": 1}', but the form allows only 'n'"),
        ("nah", Choice(["yes", "no"]), "after .*n' it goes on with 'ah', but the form allows only 'o'"),
    ],
)
def test_a_script_that_breaks_the_form_is_an_error(reply: str, form: Any, told: str) -> None:
    for replies in ways(reply):
        with ScriptedEngine(replies) as llm, pytest.raises(EngineError, match=told):
            llm.chat("?", response_format=form, reasoning=False)
    with ScriptedEngine([reply], rewrite=True) as llm:
        answer = llm.chat("?", response_format=form, reasoning=False, max_tokens=60, seed=3)
    assert answer.finish_reason == "length" or answer.parsed is not None


def test_a_script_that_keeps_the_form_is_written_as_it_is() -> None:
    reply = '<think>\nWell.\n</think>\n\n{"n": 12}'
    for replies in ways(reply):
        with ScriptedEngine(replies) as llm:
            answer = llm.chat("?", response_format=FORM)
        assert (answer.reasoning, answer.content, answer.parsed) == ("Well.", '{"n": 12}', {"n": 12})
    for replies in ways("yes"):  # what the form forces before the first draw counts
        with ScriptedEngine(replies) as llm:
            assert llm.chat("?", response_format=Choice(["yes", "yellow"]), reasoning=False).parsed == "yes"


def test_a_required_call_of_a_script() -> None:
    with ScriptedEngine([call("get_order", order=7)]) as llm:
        (made,) = llm.chat("?", [get_order], tool_choice="required", reasoning=False).tool_calls
    assert made.parsed() == {"order": 7}
    with ScriptedEngine(["I would rather not."]) as llm, pytest.raises(EngineError, match="breaks the form"):
        llm.chat("?", [get_order], tool_choice="required")


def test_the_fixture_of_pytest(tmp_path: Path, repository: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "kept = []\n"
        "def test_one(scripted_engine):\n"
        "    llm = scripted_engine(['Hi.'])\n"
        "    kept.append(llm)\n"
        "    assert llm.chat('Hello').content == 'Hi.'\n"
        "def test_two(scripted_engine):\n"
        "    assert kept[0].closed\n"
        "    assert scripted_engine(['a'], 'gpt-oss').family.name == 'gpt-oss'\n",
        encoding="utf-8",
    )
    options = ["-q", "-p", "no:cacheprovider", "-p", "engine.plugins.pytest_plugin", "-c", "none.ini", "--rootdir", "."]
    (tmp_path / "none.ini").write_text("[pytest]\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(repository), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_a_call_is_written_without_reasoning_and_whole(path: Path) -> None:
    """Parameters with the names of tags, in every template that writes calls."""
    names = ("s", "b", "think", "city")
    properties = {name: {"type": "string"} for name in names}
    (tool,) = as_tools([{"name": "trip", "parameters": {"type": "object", "properties": properties}}])
    arguments = {name: f"V{name}" for name in names}
    odd = path.stem in UNFAITHFUL and UNFAITHFUL[path.stem][1]((tool, arguments))
    if odd or not writes(path) or path.stem in ENDS:
        pytest.skip("it writes no calls of its own, or no end of them")
    template = template_of(path)
    with ScriptedEngine([call("trip", **arguments)], template=template, n_ctx=16_384) as llm:
        message = llm.chat("Go.", tools=[tool]).message
        prompt = llm.script.prompts[0]
    (written,) = message.tool_calls
    assert (json.loads(written.arguments), message.content or "") == (arguments, "")
    assert not (message.reasoning or "").strip()
    closed = template.format.reasoning.close.strip() if template.format.reasoning else ""
    if closed and prompt.rstrip().endswith(closed):
        assert not markup([call("trip", **arguments)], template).lstrip().startswith(closed)
