"""What the parser holds back, fed a character at a time: a live marker's beginning, and nothing else."""

import json
import re
from collections.abc import Iterator

import pytest
from cases.parsing_cases import (
    FAMILIES,
    TOOLS,
    Case,
    answer,
    each_family,
    each_markup,
    each_with_calls,
    each_with_reasoning,
    find,
    markers,
    one_argument,
)
from cases.writer import is_bare

from engine.formats.families import builtin_families
from engine.formats.parsing import Parser
from engine.types.events import ContentDelta, Event, ReasoningDelta, ToolCallDelta

MOST_MARKERS = 4
WORD = re.compile(r"[\"']?[\w.\-:/$@]+[\"']?")
TEXT = frozenset({"content", "reasoning", "arguments", "malformed"})
BARE_NAME = re.compile(r'"name"\s*:\s*"([^"]*)')
ESCAPE = re.compile(r"\\(?:u[\da-fA-F]{0,3})?")
QUOTES = re.compile(r"\"{1,2}|'{1,2}|[\"'](?:[\s\])}]*|\s*,\s*\w*\s*)")
OTHER = "☃"  # begins no marker


@each_markup
def test_text_is_held_only_as_a_live_marker(case: Case) -> None:
    """Names and keys wait until they are whole. Text waits only where all that waits can be the beginning of markers
    that stand one behind the other, a function's name behind an opening one included; or behind a call in reasoning,
    where it is open until the end if it is reasoning."""
    parser = case.parser(trace=True)
    held: list[tuple[int, int]] = []
    done = 0
    for at, character in enumerate(case.output, 1):
        events = parser.feed(character)
        if done < at - 1 or not _is_text(events, character):
            done = sum(len(segment.text) for segment in parser.trace)
        else:
            done = at
        held.append((done, at))
    parser.close(case.finish)
    kinds = [segment.kind for segment in parser.trace for _ in segment.text]
    for start, end in held:
        if any(kinds[at] in TEXT and not case.output[at].isspace() for at in range(start, end)):
            text = case.output[start:end]
            before = [kind for kind in kinds[:start] if "space" not in kind][-1:]
            drafted = "reasoning" in {*kinds[start:end], *before} and _begins_a_call(case.family, text)
            behind_call = "reasoning" in kinds[start:end] and "name" in kinds[:start]
            assert drafted or behind_call or _is_live(case.family, text), text


def _is_text(events: list[Event], character: str) -> bool:
    """Whether the events are this character, as text: then nothing is held, and the trace need not be asked."""
    return [getattr(event, "text", "") for event in events] == [character] and isinstance(
        events[0], ContentDelta | ReasoningDelta
    )


def _is_live(family: str, held: str) -> bool:
    """Whether the text can be the beginning of some markers in a row; or of a bare call, its name undecided; or of an
    escape inside a string; or of Python's three quotes, or of what can follow the one that ends a string."""
    known = markers(family)
    rest = held.strip()
    tools = builtin_families().get(family).format.tools
    pythonic = tools is not None and tools.shape in ("pythonic", "json")  # both hold literals as Python writes them
    if ESCAPE.fullmatch(held) or (pythonic and QUOTES.fullmatch(rest)):
        return True
    if tools is not None and is_bare(tools) and rest[:1] in ("{", "["):
        name = BARE_NAME.search(rest)
        return name is None or any(tool.name.startswith(name.group(1)) for tool in TOOLS)
    for _ in range(MOST_MARKERS):
        if any(marker.startswith(rest) for marker in known):
            return True
        whole = next((marker for marker in known if rest.startswith(marker)), None)
        if whole is None:
            return False
        rest = rest[len(whole) :].lstrip()
        name = WORD.match(rest)
        rest = rest[name.end() :].lstrip() if name and whole in _call_openers(family) else rest
    return False


def _begins_a_call(family: str, held: str) -> bool:
    return any(held.strip().startswith(opener) for opener in _call_openers(family))


def _call_openers(family: str) -> set[str]:
    tools = builtin_families().get(family).format.tools
    opening = (tools.section[0], *tools.section_also, tools.call_marks[0], tools.code[0]) if tools else ()
    return {text.strip() for text in opening if text.strip()}


def _beginnings(family: str) -> Iterator[str]:
    """Every proper beginning of every marker of a family that is not a marker itself, nor holds one."""
    known = markers(family)
    for marker in known:
        for end in range(1, len(marker)):
            beginning = marker[:end]
            if beginning[-1].isspace() or any(other in beginning for other in known if other != marker):
                continue
            yield beginning


def _fed(parser: Parser, text: str) -> str:
    """What comes out for the text, fed a character at a time: all of it text of one kind."""
    return "".join(getattr(event, "text", "") for character in text for event in parser.feed(character))


@each_family
def test_content_holds_back_a_marker_s_beginning_until_it_is_none(family: str) -> None:
    case, before, _ = answer(family)
    parser = case.parser()
    parser.feed(before)
    assert _fed(parser, f"So{OTHER}") == f"So{OTHER}"
    for beginning in dict.fromkeys(_beginnings(family)):
        assert _fed(parser, f" {beginning}{OTHER}") == f" {beginning}{OTHER}"


@each_with_reasoning
def test_reasoning_holds_back_a_marker_s_beginning_until_it_is_none(family: str) -> None:
    case = find(family, "reasoning and content")
    before, _ = case.output.split(case.reasoning)
    parser = case.parser()
    parser.feed(before)
    assert _fed(parser, f"So{OTHER}") == f"So{OTHER}"
    assert parser.in_reasoning
    for beginning in dict.fromkeys(_beginnings(family)):
        assert _fed(parser, f" {beginning}{OTHER}") == f" {beginning}{OTHER}"
    assert parser.in_reasoning


@each_with_calls
def test_a_string_argument_holds_back_a_marker_s_beginning_until_it_is_none(family: str) -> None:
    case, before, _ = one_argument(family)
    parser = case.parser()
    fragments = [event.text for event in parser.feed(before) if isinstance(event, ToolCallDelta)]
    fragments.append(_fed(parser, f"So{OTHER}"))
    for beginning in dict.fromkeys(_beginnings(family)):
        if set(beginning) & set("\"'\\\n"):
            continue  # these end a string in some syntaxes
        fragments.append(_fed(parser, f" {beginning}{OTHER}"))
        _, _, value = "".join(fragments).partition('"city": "')
        assert json.loads(f'"{value}"').endswith(f" {beginning}{OTHER}")


@each_family
def test_a_call_s_opening_marker_before_prose_is_let_go(family: str) -> None:
    """As soon as no name can follow; but any text may be code, and one token of the vocabulary always acts."""
    case, before, _ = answer(family)
    tools = builtin_families().get(family).format.tools
    code = tools.code[0].strip() if tools else ""
    for opener in sorted(_call_openers(family) - {code}):
        parser = case.parser()
        parser.feed(before)
        assert _fed(parser, f"So {opener}{OTHER}") == f"So {opener}{OTHER}"


@pytest.mark.parametrize(
    ("family", "output", "held"),
    [
        ("llama-3", '{"', '{"'),
        ("llama-3", '{"na', '{"na'),
        ("llama-3", '{"nx', ""),
        ("llama-3", '{"name": "pi', '{"name": "pi'),
        ("llama-3", '{"name": "pix', ""),
        ("llama-3", '{"name": "ping"', '{"name": "ping"'),
        ("llama-3", '{"name": "ping", "parameters": {', ""),
        ("llama-3", '{"name": "ping", "risk"', '{"name": "ping", "risk"'),
        ("llama-3", '{"type": "function", "name": "p', '{"type": "function", "name": "p'),
        ("xlam", '{"type": "function", "nope', ""),
        ("llama-3", '{"function": {"name": "p', '{"function": {"name": "p'),
        ("llama-3", "a {", " {"),
        ("llama-3", "a {b", ""),
        ("llama-3", 'a {"name": "Pi', ' {"name": "Pi'),
        ("llama-3", 'a {"name": "Pix', ""),
        ("llama-3", "Use ```j", " ```j"),
        ("llama-3", "Use ```js x", ""),
        ("llama-4", "[get_wea", "[get_wea"),
        ("llama-4", "[get_wex", ""),
        ("llama-4", "[ping](http", ""),
        ("content-only", '{"tool_call": {"name": "', '{"tool_call": {"name": "'),
        ("content-only", '{"tool_call": {"city', ""),
        ("content-only", '{"tool_calls": [{"name": "', '{"tool_calls": [{"name": "'),
    ],
)
def test_a_bare_call_is_held_until_its_name_is_decided(family: str, output: str, held: str) -> None:
    parser = Parser(family, tools=TOOLS, trace=True)
    for character in output:
        parser.feed(character)
    decided = "".join(segment.text for segment in parser.trace)
    assert output == decided + held


def test_there_are_families_for_all_of_this() -> None:
    assert len(FAMILIES) > 80
