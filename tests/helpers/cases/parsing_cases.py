"""The parsing cases of every family, and the ways of feeding one that must all give the same.

A case is a prompt's prefix, a raw output, and what it holds. The canonical turns are written in the family's format;
tests/golden/*.toml has the literal outputs that no writer derives, or that check it. The tools are one set for all.
"""

import inspect
import os
import random
import re
import tomllib
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
from cases import writer
from cases.canonical import TURNS, Turn

from engine.formats.families import Format, builtin_families
from engine.formats.parsing import Parser
from engine.tools import as_tools
from engine.types.completion import Completion
from engine.types.events import Event, ToolCallDelta, ToolCallEnd, ToolCallStart, fold
from engine.types.prompt import Piece
from engine.types.sampling import FinishReason

DIRECTORY = Path(__file__).parents[2] / "golden"


def _function(name: str, required: list[str], **properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": f"Does {name}.", "parameters": parameters}}


TOOLS = as_tools(
    [
        _function("get_weather", ["city"], city={"type": "string"}, days={"type": "integer"}),
        _function("ping", []),
        _function(
            "everything",
            ["s"],
            s={"type": "string"},
            i={"type": "integer"},
            f={"type": "number"},
            b={"type": "boolean"},
            n={"type": ["null", "string"]},
            a={"type": "array"},
            o={"type": "object"},
        ),
    ]
)


@dataclass(frozen=True)
class Case:
    """One raw output and what it holds."""

    family: str
    name: str
    output: str
    prefix: str = ""
    reasoning: str = ""
    content: str = ""
    calls: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    finish: FinishReason = "stop"

    def __str__(self) -> str:
        return f"{self.family}: {self.name}"

    def parser(self, **options: Any) -> Parser:
        """A parser in text mode, seeded with the case's prefix."""
        return Parser(self.family, options.pop("prefix", self.prefix), tools=TOOLS, **options)


def canonical(family: str, turn: Turn) -> Case | None:
    """A canonical turn as the family's models write it; None where they cannot."""
    format_ = builtin_families().get(family).format
    if not writer.applies(turn, format_):
        return None
    calls = [
        {
            "name": call.name,
            "arguments": turn.kept(call.arguments),
            "error": call.error,
            "id": writer.call_id(turn, format_, number),
        }
        for number, call in enumerate(turn.calls)
    ]
    return Case(
        family,
        turn.name,
        writer.written(turn, format_),
        writer.prefix(turn, format_),
        turn.kept(writer.reasoning_of(turn, format_)).strip(),
        turn.content,
        [{key: text for key, text in call.items() if text} for call in calls],
        "length" if turn.cut else "stop",
    )


def documents() -> Iterator[dict[str, Any]]:
    """The files of tests/golden: `case` are literal cases; `written` are canonical turns as the family spells them,
    which check the writer."""
    for path in sorted(DIRECTORY.glob("*.toml")):
        yield tomllib.loads(path.read_text(encoding="utf-8"))


def load() -> list[Case]:
    """All cases of all families: the canonical turns, and the literal ones."""
    cases: list[Case] = []
    for document in documents():
        family = document["family"]
        cases += [case for turn in TURNS if (case := canonical(family, turn))]
        cases += [Case(family=family, **case) for case in document.get("case", [])]
    return cases


CASES = load()
NAMES = frozenset(turn.name for turn in TURNS)
MARKUP = frozenset(
    {"content", "reasoning and call", "a call ends open reasoning", "call markup inside reasoning is quoted"}
    | {"reasoning forced open, and opened again", "reasoning closed by the prompt", "two calls", "text between calls"}
    | {"every JSON type", "escapes and unicode", "marker text inside an argument", "cut inside the arguments"}
)
FAMILIES = sorted({case.family for case in CASES})
each_family = pytest.mark.parametrize("family", FAMILIES)


def families_where(wanted: Callable[[Format], object]) -> pytest.MarkDecorator:
    """Makes a test of a `family` a test of every family whose format is wanted."""
    families = [family for family in FAMILIES if wanted(builtin_families().get(family).format)]
    return pytest.mark.parametrize("family", families)


each_with_control = families_where(lambda format_: format_.control)
"""The families some of whose markers exist as control tokens only."""
each_with_calls = families_where(lambda format_: format_.tools or format_.channels)
each_with_several = families_where(lambda format_: format_.channels or (format_.tools and format_.tools.parallel))
each_with_reasoning = families_where(lambda format_: format_.reasoning)


def cases_where(wanted: Callable[[Case], bool]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Makes a test of one `case` a test of all cases of a `family` that are wanted, for every family. A failure names
    its case."""

    def decorated(test: Callable[..., None]) -> Callable[..., None]:
        def of_family(family: str, **others: Any) -> None:
            for case in (case for case in CASES if case.family == family and wanted(case)):
                try:
                    test(case=case, **others)
                except BaseException as error:
                    error.add_note(f"in the case {case.name!r} of {family}")
                    raise

        of_family.__name__, of_family.__doc__ = test.__name__, test.__doc__
        of_family.__module__ = test.__module__
        names = ["family", *(name for name in inspect.signature(test).parameters if name != "case")]
        parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
        of_family.__dict__["__signature__"] = inspect.Signature(parameters)
        of_family.__dict__["pytestmark"] = getattr(test, "pytestmark", [])
        return each_family(of_family)

    return decorated


each_case = cases_where(lambda _: True)
each_markup = cases_where(lambda case: case.name in MARKUP or case.name not in NAMES)
"""The literal cases, and the canonical turns that show every marker."""


def places(case: Case, step: int) -> range:
    """Every `step`-th place in a case's output, from one on that differs from case to case; every place where the
    environment has EVERY_PLACE, which takes minutes."""
    if "EVERY_PLACE" in os.environ:
        return range(len(case.output))
    return range(zlib.crc32(str(case).encode()) % step, len(case.output), step)


_NOT_MARKERS = frozenset(
    {"history", "gate", "fields", "where", "when_closed", "off", "after_result", "shape", "text_types"}
    | {"name_fields", "arguments_fields", "id_fields", "arguments_as", "namespace", "role", "continued_end"}
)


def find(family: str, name: str) -> Case:
    """A family's case of that name."""
    return next(case for case in CASES if case.family == family and case.name == name)


def answer(family: str) -> tuple[Case, str, str]:
    """A turn with content and no call: the case, and its output before and after the content."""
    case = next(case for case in CASES if case.family == family and case.content and not case.calls)
    before, after = case.output.split(case.content)
    return case, before, after


def one_argument(family: str) -> tuple[Case, str, str]:
    """A call with one string argument: the case, and its output before and after the value."""
    case = find(family, "one call")
    before, after = case.output.split("Paris")
    return case, before, after


@cache
def markers(family: str) -> tuple[str, ...]:
    """Every literal text of a family's format, white space at the edges apart, longest first."""
    found = {text.strip() for text in _texts(builtin_families().get(family).format.model_dump())}
    return tuple(sorted(found - {""}, key=len, reverse=True))


def _texts(node: object) -> Iterator[str]:
    match node:
        case str():
            yield node
        case dict():
            for key, value in cast("dict[str, object]", node).items():
                if key not in _NOT_MARKERS:
                    yield from _texts(value)
        case list() | tuple():
            for item in cast("Sequence[object]", node):
                yield from _texts(item)
        case _:
            pass


def splits(text: str) -> list[list[str]]:
    """The text whole, a character at a time, and cut at random places."""
    source = random.Random(text)
    cuts = sorted(source.randrange(len(text) + 1) for _ in range(len(text) // 4))
    return [[text], list(text), [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]]


def run(parser: Parser, chunks: Iterable[str], finish: FinishReason = "stop") -> list[Event]:
    """All events of the chunks, the end included."""
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    return [*events, *parser.close(finish)]


def pieces(family: str, text: str) -> list[Piece]:
    """The text as a vocabulary that has the family's control tokens would bring it."""
    control = builtin_families().get(family).format.control
    if not control:
        return [Piece(text)]
    pattern = "|".join(re.escape(marker) for marker in sorted(control, key=len, reverse=True))
    return [Piece(part, part in control) for part in re.split(f"({pattern})", text) if part]


def feed_pieces(parser: Parser, fed: Sequence[Piece], finish: FinishReason = "stop") -> list[Event]:
    """All events of the pieces: control tokens whole, text a character at a time."""
    events: list[Event] = []
    for text, special, _ in fed:
        for part in [text] if special else list(text):
            events.extend(parser.feed(part, special))
    return [*events, *parser.close(finish)]


def check_expected(case: Case, completion: Completion) -> None:
    """The completion is what the case says."""
    assert completion.reasoning == case.reasoning
    assert completion.content == case.content
    found = [
        {"name": call.name, "arguments": call.arguments, "error": call.error or ""} for call in completion.tool_calls
    ]
    wanted = [{"error": "", **{key: value for key, value in call.items() if key != "id"}} for call in case.calls]
    assert found == wanted
    for call, expected in zip(completion.tool_calls, case.calls, strict=True):
        assert call.id == expected.get("id", call.id)
    assert len({call.id for call in completion.tool_calls}) == len(completion.tool_calls)
    ended = "tool_calls" if case.calls and case.finish == "stop" else case.finish
    assert completion.finish_reason == ended


def check_order(events: Sequence[Event]) -> None:
    """Parts end before the next begins; arguments only grow, and their end is what grew; nothing is empty."""
    part = -1
    arguments: dict[int, str] = {}
    ended: set[int] = set()
    for event in events[:-1]:
        number = getattr(event, "part")  # noqa: B009 - every event but the last has one
        assert number >= part
        part = number
        match event:
            case ToolCallStart(index):
                assert index == len(arguments)
                arguments[index] = ""
            case ToolCallDelta(index, text):
                assert text
                assert index not in ended
                arguments[index] += text
            case ToolCallEnd(index, whole):
                assert whole.strip() == arguments[index].strip()
                ended.add(index)
            case _:
                assert getattr(event, "text")  # noqa: B009
    assert ended == set(arguments)


def without_ids(completion: Completion) -> Completion:
    """The completion, its made ids apart (they depend on the salt alone)."""
    parts = [part.model_copy(update={"id": ""}) if part.type == "tool_call" else part for part in completion.parts]
    return completion.model_copy(update={"parts": tuple(parts)})


def completion_of(events: Iterable[Event]) -> Completion:
    return fold(events)
