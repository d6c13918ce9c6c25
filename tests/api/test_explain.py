"""Explain: the prompt's authors and tokens, the format's reasons, the parser's state, an output's pieces."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from engine.api.engine import Engine
from engine.api.explain import Classified, Explanation, RestoredReasoning, Written
from engine.formats.families import builtin_families
from engine.formats.template.chat_template import ChatTemplate
from engine.testing.scripted import ByteVocab, ScriptedBackend
from engine.types.answer_formats import JsonSchema
from engine.types.prompt import Piece

FOLDER = os.environ.get("LLAMA_CPP_TEMPLATES", "")
OURS = sorted((Path(__file__).parents[2] / "templates").glob("*.jinja"))
TEMPLATES = [*OURS, *(sorted(Path(FOLDER).glob("*.jinja")) if FOLDER else [])]
QWEN = ByteVocab(["<|im_start|>", "<think>", "</think>", "<tool_call>", "</tool_call>"], end=["<|im_end|>"])
CALL = '<tool_call>\n{"name": "look", "arguments": {"city": "Oslo"}}\n</tool_call>'
TURN = f"<think>\nHm.\n</think>\n\nI look.\n{CALL}"
FORCED = "deepseek-r1"


def look(city: str) -> str:
    """Look at the weather."""
    return city


def engine(family: str = "qwen3", replies: Any = (), vocab: ByteVocab = QWEN) -> Engine:
    return Engine.over(
        ScriptedBackend(replies, vocab=vocab), ChatTemplate(None, family=family, control_tokens=vocab.control_tokens)
    )


def explained(messages: Any, family: str = "qwen3", **options: Any) -> Explanation:
    with engine(family) as llm:
        return llm.explain(messages, **options)


class TestConstraint:
    SCHEMA = JsonSchema({"type": "object", "properties": {"mood": {"enum": ["glad", "calm"]}}, "required": ["mood"]})

    def test_there_is_none_unless_asked_for(self) -> None:
        assert explained("Hi", tools=[look]).constraint is None

    def test_it_is_the_grammar_and_where_it_begins(self) -> None:
        found = explained("Hi", tools=[look], tool_choice="required", answer_reserve=99)
        held = found.constraint
        assert held is not None
        assert (held.holds, held.begins, held.reserve) == ("answer", "at the prompt's end", 99)
        assert '"const": "look"' in held.grammar
        assert "holds the answer, at the prompt's end; 99 tokens are kept for it" in found.text()
        assert json.loads(json.dumps(found.data()))["constraint"]["holds"] == "answer"

    @pytest.mark.parametrize(
        ("family", "options", "holds", "begins"),
        [
            ("qwen3", {"tools": [look], "strict_tools": True}, "calls", "where a call begins"),
            ("qwen3", {"response_format": SCHEMA}, "answer", "at the prompt's end"),
            (FORCED, {"response_format": SCHEMA}, "answer", "after reasoning"),
        ],
    )
    def test_where_it_begins(self, family: str, options: Any, holds: str, begins: str) -> None:
        held = explained("Hi", family, **options).constraint
        assert held is not None
        assert (held.holds, held.begins) == (holds, begins)


class TestPrompt:
    def test_who_wrote_what(self) -> None:
        system = {"role": "system", "content": "Be brief."}
        asked = [system, {"role": "user", "content": 'Say "<|im_end|>" twice.'}]
        found = explained(asked, tools=[look])
        assert found.complete
        keywords = {"type", "properties", "required", "additionalProperties"}  # of the tool's schema
        callers = [piece for piece in found.prompt if piece.author == "caller" and piece.text not in keywords]
        assert callers == [
            Written("caller", "look"),
            Written("caller", "Look at the weather."),
            Written("caller", "city"),
            Written("caller", "city"),
            Written("caller", 'Say "'),
            Written("caller", "<|im_end|>", guarded=True),
            Written("caller", '" twice.'),
        ]
        with engine() as llm:
            assert "".join(piece.text for piece in found.prompt) == llm.render(asked, [look]).text

    def test_arguments_and_results_are_the_callers_too(self) -> None:
        call = {"id": "c1", "name": "look", "arguments": {"city": "Oslo"}}
        loop = [
            {"role": "user", "content": "Go"},
            {"role": "assistant", "reasoning": "Why not.", "tool_calls": [call]},
            {"role": "tool", "content": "4 degrees"},
        ]
        wrote = [piece.text for piece in explained(loop).prompt if piece.author == "caller"]
        assert wrote == ["Go", "Why not.", "look", "city", "Oslo", "4 degrees"]

    def test_a_template_that_looks_into_texts(self) -> None:
        source = "{{ 'Yes' if 'Hi' in messages[0].content else 'No' }}: {{ messages[-1].content }}"
        backend = ScriptedBackend([], vocab=QWEN)
        with Engine.over(backend, ChatTemplate(source, control_tokens=QWEN.control_tokens)) as llm:
            turns = (("user", "Hi"), ("assistant", "Yes?"), ("user", "A <think>"))
            found = llm.explain([{"role": role, "content": text} for role, text in turns])
        assert not found.complete
        assert "".join(piece.text for piece in found.prompt) == "Yes: A <think>"
        assert Written("caller", "<think>", guarded=True) in found.prompt
        assert "inspects callers' texts" in found.text()

    def test_the_tokens_are_those_that_are_sent(self) -> None:
        with engine(replies=["Yes."]) as llm:
            found = llm.explain("Hi <think>")
            llm.chat("Hi <think>", temperature=0)
        assert [token.text for token in found.tokens if token.control] == ["<|im_start|>", "<|im_end|>", "<|im_start|>"]
        assert "".join(token.text for token in found.tokens) == "".join(piece.text for piece in found.prompt)
        assert [token.id for token in found.tokens][:2] == [QWEN.token("<|im_start|>"), ord("u")]


# Templates that sort keys, so that those are left unmarked.
SORTING = ("Kimi-K3", "google-gemma-4-31B-it", "google-gemma-4-31B-it-interleaved")


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_every_template_tells_its_authors(path: Path) -> None:
    """No template that ships with llama.cpp, nor any of ours, renders marked texts otherwise."""
    call = {"id": "abcdefgh1", "name": "look", "arguments": {"city": "Oslotext"}}
    loop = [
        {"role": "user", "content": "Whytext?"},
        {"role": "assistant", "content": "", "reasoning": "Hmtext.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdefgh1", "content": "fourtext"},
        {"role": "assistant", "content": "Coldtext."},
        {"role": "user", "content": "Andtext?"},
    ]
    made = ChatTemplate(path.read_text(encoding="utf-8"), "<s>", "</s>")
    prompt = made.render(loop, [look])
    assert prompt.complete or path.stem in SORTING
    wrote = " ".join(piece.text for piece in prompt.pieces if not piece.trusted)
    said = ("Whytext?", "Oslotext", "fourtext", "Coldtext.", "Andtext?", "Hmtext.")
    # Where it is not complete, the template's own words are not told from the callers', and "text" may be one.
    seen = [text.rstrip(".?") if prompt.complete else text.split("text")[0] for text in said if text in prompt.text]
    assert all(text in wrote for text in seen)
    assert "And" in wrote
    assert "<" not in wrote, "nothing of the template's"


class TestFormat:
    def test_every_field_has_its_reason(self) -> None:
        reasons = {field.name: field for field in explained("Hi").format}
        assert reasons["tools.shape"].reason == "[family.qwen3] declares it"
        assert reasons["reasoning.open"].value == "<think>\n"

    def test_generic_tools(self) -> None:
        source = "{% for m in messages %}{{ m.content }}{% endfor %}"
        with Engine.over(ScriptedBackend([], vocab=QWEN), ChatTemplate(source, family="phi-4-reasoning")) as llm:
            reasons = {field.name: field.reason for field in llm.explain("Hi").format}
        assert reasons["tools.section"].startswith("the chat template states no tools")

    def test_where_the_format_came_from(self) -> None:
        given = ChatTemplate("{{ messages[-1].content }}", family=builtin_families().get("qwen3").format)
        with Engine.over(ScriptedBackend([], vocab=QWEN), given) as llm:
            found = llm.explain("Hi")
        assert found.reason == "the caller gave its format"
        assert {field.reason.partition(";")[0] for field in found.format} == {"the caller's format says so"}


class TestState:
    @pytest.mark.parametrize(
        ("family", "options", "where", "words"),
        [
            ("qwen3", {}, "start of the turn", r"leaves it to the model to open reasoning with '<think>\n'"),
            ("qwen3", {"reasoning": False}, "start of the turn", "has closed reasoning with"),
            (FORCED, {}, "reasoning", "opens with '<think>' and is not closed"),
            ("gpt-oss", {}, "header", "'<|start|>assistant'; its channel decides"),
            ("llama-3", {}, "start of the turn", "this family marks no reasoning"),
            ("mistral-nemo", {}, "start of the turn", "contains nothing of this turn"),
        ],
    )
    def test_at_the_end_of_the_prompt(self, family: str, options: Any, where: str, words: str) -> None:
        state = explained("Hi", family, **options).state
        assert state.where == where
        assert words in state.reason

    def test_what_it_has_read_of_the_turn(self) -> None:
        state = explained("Hi", FORCED).state
        assert Classified("reasoning-marker", "<think>") in state.seed
        assert "".join(part.text for part in state.seed) + state.undecided == "<｜Assistant｜><think>\n"


class TestOutput:
    def test_every_piece_is_classified(self) -> None:
        found = explained("Hi", tools=[look], output=TURN)
        assert found.output is not None
        assert "".join(part.text for part in found.output) == TURN
        kinds = [part.kind for part in found.output]
        assert kinds[:4] == ["reasoning-marker", "reasoning-space", "reasoning", "reasoning-space"]
        assert Classified("content", "I look.") in found.output
        assert Classified("name", '"look"') in found.output
        assert found.completion is not None
        assert [(call.name, call.error) for call in found.completion.tool_calls] == [("look", None)]
        assert found.completion.finish_reason == "tool_calls"

    def test_a_tool_that_nobody_declared(self) -> None:
        found = explained("Hi", tools=[look], output=CALL.replace("look", "peek"))
        assert found.completion is not None
        assert found.completion.tool_calls[0].error == "unknown_tool"
        assert "= call            peek" in found.text()
        assert "[unknown_tool]" in found.text()

    def test_control_markers_in_a_text_count_as_tokens_and_pieces_say_it_themselves(self) -> None:
        format_ = builtin_families().get("gpt-oss").format
        vocab = ByteVocab([*format_.control], end=["<|return|>", "<|call|>"])
        text = "<|channel|>analysis<|message|>Hm.<|end|>"
        with engine("gpt-oss", vocab=vocab) as llm:
            as_text = llm.explain("Hi", output=text).completion
            quoted = llm.explain("Hi", output=[Piece(text)]).completion
            written = llm.explain("Hi", output=[Piece(text, trusted=True)]).completion
        assert as_text is not None
        assert as_text.reasoning == "Hm."
        assert written == as_text
        assert quoted is not None
        assert quoted.reasoning == ""
        assert "analysis" in quoted.content

    def test_without_an_output_there_is_none(self) -> None:
        found = explained("Hi")
        assert (found.output, found.completion) == (None, None)
        assert "output" not in found.text()


class TestRestored:
    """Reasoning that a client dropped: which message it went back to, and whether the model sees it."""

    def converse(self) -> Explanation:
        with engine(replies=[f"<think>\nFirst.\n</think>\n\n{CALL}", "<think>\nThen.\n</think>\n\nCold."]) as llm:
            history: list[Any] = [{"role": "user", "content": "Go"}]
            for result in ("4 degrees", None):
                turn = llm.chat(history, tools=[look], temperature=0).message
                history.append({"role": "assistant", "content": turn.content, "tool_calls": turn.tool_calls})
                if result is not None:
                    history.append({"role": "tool", "content": result})
            asked = [*history, {"role": "user", "content": "And?"}]
            assert llm.render(asked).restored == (1, 3)
            within = llm.explain(history[:3], tools=[look])
            assert within.restored == (RestoredReasoning(1, "First.", shown=True),)
            return llm.explain(asked)

    def test_what_was_restored_and_what_the_rule_lets_through(self) -> None:
        found = self.converse()
        assert found.restored == (
            RestoredReasoning(1, "First.", shown=False),
            RestoredReasoning(3, "Then.", shown=False),
        )
        assert "message 1 (dropped by the family's rule): 'First.'" in found.text()

    def test_nothing_is_restored_where_nothing_was_lost(self) -> None:
        assert explained("Hi").restored == ()
        assert "restored" not in explained("Hi").text()


def test_as_data() -> None:
    found = explained("Hi", tools=[look], output=TURN)
    data = json.loads(json.dumps(found.data()))
    assert data["family"] == "qwen3"
    assert data["state"]["where"] == "start of the turn"
    assert data["output"][0] == {"kind": "reasoning-marker", "text": "<think>"}
    assert data["completion"]["parts"][0] == {"type": "reasoning", "text": "Hm."}
    assert {"id": 256, "text": "<|im_start|>", "control": True} in data["tokens"]
    assert json.loads(json.dumps(explained("Hi").data()))["completion"] is None


def test_the_report_has_no_control_codes() -> None:
    text = explained("Hi \x1b[2J\x07.", output="\x1b[31m").text()
    assert "\x1b" not in text
    assert "\\x1b[2J\\x07." in text
    assert "family: qwen3 (Qwen3): the caller named it" in text
    assert max(map(len, text.splitlines())) < 1000
