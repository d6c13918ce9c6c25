"""Markers of sections and reasoning that stand where a model's slip has put them: around prose, alone at the end of an
answer, behind reasoning that the prompt has closed. Prose is content; such markers are not."""

import json
import random
import re
from collections.abc import Iterable
from zlib import crc32

import pytest
from cases import writer
from cases.canonical import Call, Turn
from cases.parsing_cases import FAMILIES, TOOLS, check_order, families_where, run, splits
from fakes.response_templates import SHAPES

from engine.formats.families import Format, builtin_families
from engine.formats.families.response_template import format_of
from engine.formats.parsing import Parser
from engine.types.completion import Completion
from engine.types.events import fold
from engine.types.sampling import FinishReason

PARIS = Turn("one call", (Call("get_weather", '{"city": "Paris"}'),))
ANSWER = "The answer is 4."
with_sections = families_where(
    lambda of: of.tools and of.tools.section[1].strip() and "".join(of.tools.call_marks).strip()
)
with_json = families_where(lambda of: of.tools and of.tools.shape == "json" and all(of.tools.section))


def of_family(family: str) -> Format:
    return builtin_families().get(family).format


def read(family: str, output: str, prefix: str | None = None, *, finish: FinishReason = "stop") -> Completion:
    """What an output means, the same however it is cut."""
    found: list[Completion] = []
    for chunks in splits(output):
        parser = Parser(family, of_family(family).start if prefix is None else prefix, tools=TOOLS)
        events = run(parser, chunks, finish)
        check_order(events)
        found.append(fold(events))
    first = found[0]
    for other in found[1:]:
        assert (other.content, other.reasoning, other.tool_calls) == (first.content, first.reasoning, first.tool_calls)
    return first


def closers(family: str) -> Iterable[str]:
    """The closing markers of a family's sections and calls that no prose could be."""
    tools = of_family(family).tools
    found = {tools.section[1].strip(), tools.call_marks[1].strip()} if tools else set[str]()
    return sorted(text for text in found if re.fullmatch(r"(<[^<>\n]+>)+", text))


def openers(family: str) -> list[str]:
    tools = of_family(family).tools
    return [text.strip() for text in (tools.section[0], tools.call_marks[0]) if text.strip()] if tools else []


def in_answer(family: str, text: str) -> str:
    return writer.written(Turn("", (ANSWER,)), of_family(family)).replace(ANSWER, text)


@with_sections
def test_prose_inside_a_section_is_content_and_its_markers_are_not(family: str) -> None:
    tools = of_family(family).tools
    assert tools is not None
    opener, closer = (text.strip() for text in tools.section)
    output = writer.written(PARIS, of_family(family))
    begin, end = output.index(opener) + len(opener), output.rindex(closer)
    for prose in ("\nLet me check.\n", "I see 2 < 3,\n\nso go on: "):
        for text in (
            output[:begin] + prose + output[begin:],
            output[:end] + prose + output[end:],
            output[:begin] + prose + output[begin:end] + prose + output[end:],
        ):
            answer = read(family, text)
            (call,) = answer.tool_calls
            assert (call.name, json.loads(call.arguments), call.error) == ("get_weather", {"city": "Paris"}, None)
            assert answer.content.replace(prose.strip(), "").strip() == "", text
            assert prose.strip() in answer.content


@with_json
def test_prose_before_a_section_s_json_makes_all_of_it_text(family: str) -> None:
    tools = of_family(family).tools
    assert tools is not None
    opener, closer = (text.strip() for text in tools.section)
    output = writer.written(PARIS, of_family(family)).replace(opener, f"{opener}Let me check.")
    answer = read(family, output)
    assert (answer.content.strip().startswith(f"{opener}Let me check."), answer.tool_calls) == (True, ())
    assert output.strip().endswith((answer.content.strip(), answer.content.strip() + closer))


@pytest.mark.parametrize("family", [family for family in FAMILIES if closers(family)])
def test_a_closing_marker_alone_at_the_end_is_not_shown(family: str) -> None:
    for closer in closers(family):
        element = f"<{closer[2:-1]}>" if closer.startswith("</") else ""
        for left in (f"{ANSWER}\n{closer}", f"{ANSWER}\n {closer}\n", f"{ANSWER}\n\n{closer}  "):
            assert read(family, in_answer(family, left)).content.strip() == ANSWER
            if element and not any(map(element.startswith, openers(family))):
                quoted = f"So:\n{element}\nx\n{closer}"  # an element of the answer's own
                assert closer in read(family, in_answer(family, quoted)).content
        parser = Parser(family, of_family(family).start, tools=TOOLS, exact=True)
        exact = fold(run(parser, [f"{ANSWER}\n{closer}"])).content
        assert exact in (f"{ANSWER}\n{closer}", f"{ANSWER}\n", "")  # a control token is no text; or all is reasoning
        for kept in (f"{ANSWER}\n`{closer}`", f"{ANSWER}\n{closer} ends it."):
            shown = read(family, in_answer(family, kept)).content
            assert shown in (kept, kept.replace(closer, ""))  # a control token is no text
            assert shown.endswith(kept[-2:])


def closed_reasoning(family: str) -> str:
    """The closing marker of reasoning that the prompt can close, unless every message ends with it."""
    format_ = of_family(family)
    reasoning = format_.reasoning
    if reasoning is None or not writer.applies(Turn("", ("x",), prompt="closed"), format_):
        return ""
    close = reasoning.close.strip()
    return "" if not close.strip("\n").startswith(("<", "[/")) or close in ("<|end|>", "<|eom|>") else close


@pytest.mark.parametrize("family", [family for family in FAMILIES if closed_reasoning(family)])
def test_reasoning_behind_a_closed_one_is_told_apart_from_the_answer(family: str) -> None:
    format_, close = of_family(family), closed_reasoning(family)
    prefix = writer.prefix(Turn("", ("x",), prompt="closed"), format_)
    for between, behind in (("", ""), (" ", " "), ("\n", ""), ("", "\n\n")):
        answer = read(family, f"I add.{between}{close}{behind}It is 4.", prefix)
        assert answer.content.split() == ["I", "add.", "It", "is", "4."]
        assert [line.strip() for line in answer.content.split("\n") if line] == ["I add.", "It is 4."]
    assert read(family, f"I add.{close}", prefix).content == "I add."


NEWER = (
    '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}',
    '[TOOL_CALLS]get_weather[CALL_ID]abcdef123[ARGS]{"city": "Paris"}',
    '[TOOL_CALLS] get_weather [ARGS] {"city": "Paris"}',
)


@pytest.mark.parametrize("vocabulary", [None, frozenset(["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"])])
@pytest.mark.parametrize("output", NEWER)
def test_the_newer_syntax_under_mistral_s_older_template(output: str, vocabulary: frozenset[str] | None) -> None:
    for text, names in ((output, ["get_weather"]), (output + "[TOOL_CALLS]ping[ARGS]{}", ["get_weather", "ping"])):
        for cut in splits(text):
            chunks = [part for part in re.split(r"(\[[A-Z_]+\])", text) if part] if vocabulary else cut
            parser = Parser("mistral-nemo", tools=TOOLS, control_tokens=vocabulary)
            events = [event for part in chunks for event in parser.feed(part, part in (vocabulary or ()))]
            answer = fold([*events, *parser.close()])
            assert [(call.name, call.error) for call in answer.tool_calls] == [(name, None) for name in names]
            assert json.loads(answer.tool_calls[0].arguments) == {"city": "Paris"}
            assert answer.tool_calls[0].id == "abcdef123" or "abcdef123" not in text
            assert answer.content == ""


@pytest.mark.parametrize("output", ["I use [TOOL_CALLS]words here.", "[TOOL_CALLS]are marks[ARGS]too"])
def test_prose_about_those_marks_stays_text(output: str) -> None:
    assert (read("mistral-nemo", output).content, read("mistral-nemo", output).tool_calls) == (output, ())


SLIPS = ("oops", "{", "}", "]", '"', "12", ": ", "<b>")


def formats_with_calls() -> dict[str, Format]:
    """Every family's format, and one of each shape of response template, whose calls a marker closes."""
    every = {name: of_family(name) for name in FAMILIES}
    every |= {name: format_of(shape.template) for name, shape in SHAPES.items()}
    return {name: of for name, of in every.items() if of.tools and closing(of)}


def closing(format_: Format) -> list[str]:
    """The texts that close a call, or its section."""
    tools = format_.tools
    return [text.strip() for text in (tools.section[1], tools.call_marks[1]) if len(text.strip()) > 2] if tools else []


@pytest.mark.parametrize("name", formats_with_calls())
def test_no_closing_marker_is_shown_behind_a_slip_in_a_call(name: str) -> None:
    """Text at any edge of a call's markup: if a call is found, complete or not, its closing markers are no text."""
    format_ = formats_with_calls()[name]
    tools, chance = format_.tools, random.Random(crc32(name.encode()))
    assert tools is not None
    output = writer.written(PARIS, format_)
    ends = [writer.stated(tools, name, "") for name in ("name_end", "arguments_end")]
    marks = {*tools.section, *tools.call_marks, *writer.stated(tools, "argument", ("", "")), *ends, "{", "}", "Paris"}
    edges = {
        edge
        for mark in marks
        if mark.strip()
        for found in re.finditer(re.escape(mark.strip()), output)
        for edge in found.span()
    }
    for edge in sorted(edges - {0, len(output)}):
        for slip in chance.sample(SLIPS, 3):
            text = f"{output[:edge]}{slip}{output[edge:]}"
            width = chance.choice((1, 5, len(text)))
            pieces = [text[at : at + width] for at in range(0, len(text), width)]
            found = fold(run(Parser(format_, tools=TOOLS), pieces))
            assert not found.tool_calls or not any(each in found.content for each in closing(format_)), (text, found)


def test_behind_a_slip_at_a_section_s_beginning_its_calls_are_read() -> None:
    for name in ("qwen3-coder", "step-3.7", "arguments in tags"):
        format_ = formats_with_calls()[name]
        assert format_.tools is not None
        opener = format_.tools.section[0].strip()
        for slip in ("{", "[", "{\n"):
            text = writer.written(PARIS, format_).replace(opener, opener + slip)
            for cut in splits(text):
                found = fold(run(Parser(format_, tools=TOOLS), cut))
                assert [(call.name, call.error) for call in found.tool_calls][-1] == ("get_weather", None), (
                    text,
                    found,
                )
                assert found.content == ""


def test_what_stands_before_an_object_belongs_to_a_malformed_call() -> None:
    """It is no call of its own that leaves the object as the answer."""
    for name in ("plamo-3", "functionary-3.1", "deepseek-v3.1"):
        for slip in ("oops", "12", "\noops\n", "null "):
            text = writer.written(PARIS, of_family(name)).replace("{", slip + "{", 1)
            found = read(name, text)
            assert (found.content, found.tool_calls[0].error) == ("", "malformed"), (text, found)
            assert "Paris" in found.tool_calls[0].arguments
