"""Calls that a text shows as code, in reasoning as in content: they are not run, and stay in the text."""

import json
import random
from dataclasses import replace

import pytest
from attacks.code_slips import (
    BEFORE,
    SHOWN,
    call_behind_code,
    call_in_code,
    indented_call,
    left_open,
    quoted_call,
    shown_turn,
)
from attacks.markup_values import families
from attacks.slip import judged
from cases import writer
from cases.canonical import Call, Turn
from cases.parsing_cases import families_where, feed_pieces, pieces, run, splits
from cases.writer import written

from engine.formats.families import Format, builtin_families
from engine.formats.parsing import Parser
from engine.formats.parsing.lookahead import LONG_TRIAL, MOST, DraftTrial
from engine.formats.parsing.quoting import Quoting
from engine.formats.parsing.reader import Gen
from engine.formats.parsing.shown import ASIDE, ShownTrial
from engine.tools import as_tools
from engine.types.events import fold

TOOL = {"name": "trip", "parameters": {"type": "object", "properties": {"to": {"type": "string"}}}}
CALL = Call("trip", '{"to": "Rome"}')
AROUND = (
    "The form would be `{}`, but I must not.",
    "The form would be ``{}``, but I must not.",
    "So:\n\n```xml\n{}\n```\nbut not now.",
    "- first `x`\n- then `{}` | no",
)


def _has_markers(format_: Format) -> bool:
    """Whether calls begin with markers, none of which is a code fence."""
    tools = format_.tools
    return tools is not None and bool(tools.section[0].strip()) and "`" not in "".join(tools.section + tools.code)


def _shown(family: str, around: str) -> str:
    format_ = builtin_families().get(family).format
    assert format_.tools is not None
    output = written(Turn("", (CALL,)), format_).strip()
    return around.replace("{}", output[max(output.find(format_.tools.section[0].strip()), 0) :])


@families_where(_has_markers)
@pytest.mark.parametrize("around", AROUND)
def test_a_quoted_call_is_not_run(family: str, around: str) -> None:
    text = _shown(family, around)
    for chunks in splits(text):
        completion = fold(run(Parser(family, tools=[TOOL], trace=True), chunks))
        assert completion.tool_calls == (), text
        assert "Rome" in completion.content + completion.reasoning, text


@families_where(_has_markers)
@pytest.mark.parametrize("around", AROUND)
def test_a_quoted_call_of_one_token_is_not_run(family: str, around: str) -> None:
    text = _shown(family, around)
    control = frozenset(builtin_families().get(family).format.control)
    parser = Parser(family, tools=[TOOL], control_tokens=control)
    completion = fold(feed_pieces(parser, pieces(family, text)))
    assert completion.tool_calls == (), text
    assert "Rome" in completion.content + completion.reasoning, text


@pytest.mark.parametrize("family", families())
def test_a_call_quoted_in_code_is_not_run_in_any_family(family: str) -> None:
    format_, chance = builtin_families().get(family).format, random.Random(family)
    for tokens in (False, True) * 12:
        slip = replace(quoted_call(family, format_, chance), tokens=tokens)
        assert not judged(slip), (judged(slip), slip)


@pytest.mark.parametrize("family", families())
def test_a_turn_shown_in_code_is_not_run_and_code_left_open_holds_no_call(family: str) -> None:
    format_, chance = builtin_families().get(family).format, random.Random(family)
    for tokens in (False, True) * 8:
        for kind in (shown_turn, left_open):
            slip = replace(kind(family, format_, chance), tokens=tokens)
            assert not judged(slip), (judged(slip), slip)


@pytest.mark.parametrize("shape", SHOWN)
def test_a_call_that_an_answer_shows_in_code_is_not_run(shape: str) -> None:
    chance = random.Random(shape)
    for number, family in enumerate(families()):
        made = call_in_code(family, builtin_families().get(family).format, chance, shape)
        slip = replace(made, tokens=number % 2 == 1)
        assert not judged(slip), (judged(slip), slip)


@pytest.mark.parametrize("shape", BEFORE)
def test_a_call_behind_code_that_is_over_or_left_open_is_run(shape: str) -> None:
    chance = random.Random(shape)
    for number, family in enumerate(families()):
        made = call_behind_code(family, builtin_families().get(family).format, chance, shape)
        slip = replace(made, tokens=number % 2 == 1)
        assert not judged(slip), (judged(slip), slip)


def test_a_call_that_is_only_indented_is_run() -> None:
    chance = random.Random(0)
    for family in families():
        slip = indented_call(family, builtin_families().get(family).format, chance)
        assert not judged(slip), (judged(slip), slip)


@pytest.mark.parametrize(
    "text",
    [
        "I go:\n    {0}\n    {1}\n    {2}\nDone.",  # a paragraph goes on
        "I go:\n\n    {0}\n{1}\n{2}\n\nDone.",  # its lines are no code
        "I go:\n\n  {0}\n  {1}\n  {2}\n\nDone.",
        "    {0}\n    {1}\n    {2}\n\nDone.",  # no text before it
        "So:\n\n    x = 1\n\nI go.\n    {0}\n    {1}\n    {2}\n\nDone.",
    ],
)
def test_indented_lines_that_are_no_code_show_nothing(text: str) -> None:
    call = ("<tool_call>", '{"name": "trip", "arguments": {"to": "Rome"}}', "</tool_call>")
    for chunks in splits(text.format(*call)):
        (found,) = fold(run(Parser("qwen3", tools=[TOOL]), chunks)).tool_calls
        assert found.parsed() == {"to": "Rome"}


@pytest.mark.parametrize(
    ("family", "open_", "close", "call"),
    [
        ("qwen3", "<think>", "</think>", '<tool_call>\n{"name": "trip", "arguments": {"to": "Ro'),
        ("mistral-small-4", "[THINK]", "[/THINK]", '[TOOL_CALLS]trip[ARGS]{"to": "Ro'),
        ("mistral-small-4", "[THINK]", "[/THINK]", "[TOOL_CALLS]trip[ARGS]"),
    ],
)
def test_a_call_cut_off_in_code_that_was_left_open_is_a_cut_call(
    family: str, open_: str, close: str, call: str
) -> None:
    for chunks in splits(f"{open_}So:\n\n```py\nx = 1\n{close}Fine.\n{call}"):
        parser = Parser(family, tools=[TOOL])
        turn = fold([*(event for chunk in chunks for event in parser.feed(chunk)), *parser.close("length")])
        assert (turn.reasoning.strip(), turn.content.strip()) == ("So:\n\n```py\nx = 1", "Fine.")
        assert [call.error for call in turn.tool_calls] == ["truncated"]


def test_a_message_that_an_answer_shows_in_code_is_text() -> None:
    answer = "So:\n\n```text\n<|start|>assistant<|channel|>final<|message|>Hi.<|end|>\n```\nThat is all."
    for chunks in splits(answer + "<|return|>"):
        parser = Parser("gpt-oss", "<|start|>assistant<|channel|>final<|message|>", tools=[TOOL])
        assert fold(run(parser, chunks)).content == answer


def test_what_is_held_behind_the_end_of_reasoning_in_open_code() -> None:
    """A few words, for want of a call; then the answer passes."""
    parser = Parser("qwen3", "<think>\n", tools=[TOOL])
    parser.feed("So:\n\n```py\nx = 1\n</think>\n\n")
    assert not parser.in_reasoning
    answer = "word " * (ASIDE // 5)
    assert parser.feed(answer[:-2]) == []
    assert "".join(getattr(event, "text", "") for event in parser.feed(" more")).endswith("more")
    assert [getattr(event, "text", "") for event in parser.feed(" words")] == [" words"]


@pytest.mark.parametrize(
    ("behind", "is_shown"),
    [
        ("```", False),  # it holds all of the turn
        ("```\nbut no.", True),
        ("```\nbut no.\n", True),
        ("", False),
    ],
)
def test_a_fence_that_begins_reasoning_may_hold_the_whole_turn(behind: str, is_shown: bool) -> None:
    call = '<tool_call>\n{"name": "trip", "arguments": {"to": "Rome"}}\n</tool_call>\n'
    for chunks in splits(f"```xml\nI go.\n</think>\n{call}{behind}"):
        turn = fold(run(Parser("qwen3", "<think>\n", tools=[TOOL]), chunks))
        assert len(turn.tool_calls) == (not is_shown)


def test_code_left_open_again_and_again_is_tried_a_bounded_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0
    usual = ShownTrial.succeeds

    def noted(self: ShownTrial) -> Gen[bool]:
        nonlocal read
        found = yield from usual(self)
        read += self.inner.consumed
        return found

    monkeypatch.setattr(ShownTrial, "succeeds", noted)
    unit = "<think>x\n```x\n</think><minimax:tool_call>\n"
    parser = Parser("minimax-m2", tools=[TOOL])
    turn = fold(run(parser, [unit * 1000]))
    assert turn.tool_calls == ()
    assert 0 < read < 2 * MOST * LONG_TRIAL


def test_a_constraint_sees_the_call_behind_the_end_of_reasoning_in_open_code() -> None:
    """It holds the call, since reasoning may be over; if it is not, reasoning goes on."""
    begun = "So:\n\n```xml\n</think>\n"
    parser = Parser("qwen3", "<think>\n", tools=[TOOL])
    parser.feed(begun + '<tool_call>\n{"name"')
    assert (parser.in_reasoning, parser.call_start) == (False, len(begun))
    parser.feed(': "trip", "arguments": {}}\n</tool_call>\n```\nbut')
    assert (parser.in_reasoning, parser.call_start) == (True, None)


@families_where(
    lambda format_: _has_markers(format_) and format_.reasoning and format_.reasoning.open and format_.reasoning.close
)
@pytest.mark.parametrize("around", AROUND)
def test_a_call_that_thinking_quotes_is_thinking(family: str, around: str) -> None:
    reasoning = builtin_families().get(family).format.reasoning
    assert reasoning is not None
    thought = _shown(family, around)
    output = f"{thought}{reasoning.close}I will not."
    for chunks in splits(output):
        completion = fold(run(Parser(family, reasoning.open, tools=[TOOL]), chunks))
        assert (completion.reasoning, completion.tool_calls) == (thought, ()), output
        assert completion.text.endswith("I will not.")


def _shows_turns(format_: Format) -> bool:
    """Whether a text can show a whole turn with reasoning: no mark in it ends the text itself."""
    reasoning = format_.reasoning
    if not (_has_markers(format_) and reasoning and reasoning.open.strip() and reasoning.close.strip()):
        return False
    return not {reasoning.close.strip()} & {text.strip() for text in (*format_.content, *format_.ends)}


@families_where(_shows_turns)
@pytest.mark.parametrize("around", ["So:\n\n```text\n{}\n```\nbut not now.", "So:\n\n````\n{}\n````\nbut not now."])
def test_a_whole_turn_that_an_answer_quotes_is_text(family: str, around: str) -> None:
    reasoning = builtin_families().get(family).format.reasoning
    assert reasoning is not None
    shown = _shown(family, f"{reasoning.open.strip()}\nI go.\n{reasoning.close.strip()}\n\n{{}}")
    _is_text(family, around.replace("{}", shown), "I go.")


@families_where(lambda format_: _shows_turns(format_) and format_.reasoning and " " not in format_.reasoning.close)
def test_the_end_of_reasoning_and_a_call_in_backticks_are_text(family: str) -> None:
    reasoning = builtin_families().get(family).format.reasoning
    assert reasoning is not None
    _is_text(family, _shown(family, f"Write `{reasoning.close.strip()}\n{{}}` never."), "never.")


def _is_text(family: str, text: str, *shown: str) -> None:
    """As an answer, however it is cut, and as control tokens."""
    format_ = builtin_families().get(family).format
    turn = Turn("", (text,))
    prefix, output, control = writer.prefix(turn, format_), written(turn, format_), frozenset(format_.control)
    readings = [run(Parser(family, prefix, tools=[TOOL]), chunks) for chunks in splits(output)]
    parser = Parser(family, pieces(family, prefix), tools=[TOOL], control_tokens=control)
    for completion in map(fold, [*readings, feed_pieces(parser, pieces(family, output))]):
        assert (completion.tool_calls, completion.reasoning) == ((), ""), output
        assert all(each in completion.content for each in shown)


@pytest.mark.parametrize(
    ("text", "is_open"),
    [
        ("a `b", True),
        ("a `b` c", False),
        ("a ``b ` c", True),
        ("a `b\nc", True),
        ("a `b\n\nc", False),
        ("a `b\nc` d", False),
        ("a `b\n```py\n```\nc", False),
        ("Text\n```py\nx", True),
        ("Text\n```py\nx\n```\n", False),
        ("```py\nx", False),
        ("Text ```x``` y", False),
        ("Text\n```\n`", True),
        ("Text\n````py\n```\nx", True),
        ("Text\n````py\nx\n````\ny", False),
    ],
)
def test_what_is_quoted(text: str, is_open: bool) -> None:
    for chunks in splits(text):
        quoting = Quoting()
        for chunk in chunks:
            quoting.write(chunk)
        assert quoting.here().is_open == is_open


def test_a_marker_that_was_quoted_holds_no_later_quotation_however_the_text_is_cut() -> None:
    text = '`<think>`\n\n`\n<tool_call>\n{"name": "trip", "arguments": {"to": "Rome"}}\n</tool_call>'
    for chunks in splits(text):
        turn = fold(run(Parser("qwen3", tools=[TOOL]), chunks))
        assert len(turn.tool_calls) == 1, chunks


def test_a_closing_mark_behind_the_line_of_a_lone_backtick_is_left_out() -> None:
    for chunks in splits("I use ` here.\nFine.\n</think>\nSo."):
        assert "</think>" not in fold(run(Parser("qwen3", tools=[TOOL]), chunks)).content


def test_a_marker_that_is_a_fence_is_not_quoted_by_another() -> None:
    output = (
        'Text:\n```py\nx = 1\n\nAction:\n```json\n[\n    {"tool_name": "trip", "parameters": {"to": "Rome"}}\n]\n```'
    )
    for chunks in splits(output):
        (call,) = fold(run(Parser("command-r-plus", tools=[TOOL]), chunks)).tool_calls
        assert (call.name, call.arguments, call.error) == ("trip", '{"to": "Rome"}', None)


def test_calls_that_end_an_output_in_reasoning_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One trial reads them all to the end; each further one would read the rest again."""
    tried: list[str] = []
    usual = DraftTrial.succeeds

    def noted(self: DraftTrial) -> Gen[bool]:
        tried.append("")
        return (yield from usual(self))

    monkeypatch.setattr(DraftTrial, "succeeds", noted)
    format_ = builtin_families().get("granite-3").format
    assert format_.reasoning is not None
    parser = Parser("granite-3", format_.start + format_.reasoning.open, tools=as_tools([TOOL]))
    turn = fold([*parser.feed((written(Turn("", (CALL,)), format_).strip() + "\n") * 30), *parser.close("stop")])
    assert len(turn.tool_calls) == 30
    assert len(tried) == 1


def test_a_shown_call_that_nothing_closes_is_text() -> None:
    call = '<tool_call>\n{"name": "trip", "arguments": {"to": "Rome"}}\n'
    for chunks in splits(f"Like so:\n\n```xml\n</think>\n{call}```"):
        turn = fold(run(Parser("qwen3", "<think>\n", tools=[TOOL]), chunks))
        assert turn.tool_calls == ()


@pytest.mark.parametrize("family", ["qwen3", "glm-4.7", "deepseek-v3.1", "minimax-m2"])
@pytest.mark.parametrize("reasoning", ["I use `trip", "So:\n\n```py\nx = 1\n"])
@pytest.mark.parametrize("to", ["a `b` c", "# T\n```\nls\n```\nend"])
def test_backticks_in_the_arguments_of_a_call_that_is_meant_end_no_code(family: str, reasoning: str, to: str) -> None:
    call = Call("trip", json.dumps({"to": to}))
    for chunks in splits(written(Turn("", (call,), reasoning), builtin_families().get(family).format)):
        (found,) = fold(run(Parser(family, tools=[TOOL]), chunks)).tool_calls
        assert found.parsed() == {"to": to}
