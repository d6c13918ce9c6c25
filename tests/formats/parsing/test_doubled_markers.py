"""A model may write a value's closing marker twice; a value that holds such an element of its own stays whole."""

import json
from typing import Any

import pytest
from cases import writer
from cases.canonical import Call, Turn
from cases.parsing_cases import families_where, run, splits

from engine.formats.families import Format, TaggedArgumentsSyntax, builtin_families
from engine.formats.parsing import Parser
from engine.types.events import fold

PROPERTIES = {"path": {"type": "string"}, "body": {"type": "string"}, "days": {"type": "integer"}}
TOOL = {"type": "function", "function": {"name": "save", "parameters": {"type": "object", "properties": PROPERTIES}}}
ARGUMENTS: tuple[dict[str, Any], ...] = (
    {"path": "/tmp/a.md"},
    {"path": "/tmp/a.md", "body": "x"},
    {"body": "x", "path": "/tmp/a.md"},
    {"path": "/tmp/a.md", "days": 2},
    {"days": 2, "path": "/tmp/a.md"},
)
each_tagged = families_where(lambda format_: format_.tools and format_.tools.shape == "tagged_args")


def markers(format_: Format) -> tuple[str, str]:
    """What opens and closes an element like an argument's value, without an attribute."""
    tools = format_.tools
    assert isinstance(tools, TaggedArgumentsSyntax)
    tag = (tools.value_open or tools.argument[0]).strip()
    end = tools.value_open.strip()[-1:] or tools.key_end.strip()[-1:]
    return (tag if tools.value_open else (tag.rpartition(" ")[0] or tag.rstrip("=")) + end), tools.argument[1].strip()


def read(family: str, format_: Format, output: str) -> list[tuple[str, str, str | None]]:
    """The calls in an output, the same however it is cut."""
    found: list[list[tuple[str, str, str | None]]] = []
    for chunks in splits(output):
        calls = fold(run(Parser(family, format_.start, tools=[TOOL]), chunks)).tool_calls
        found.append([(call.name, call.arguments, call.error) for call in calls])
    assert found[0] == found[1] == found[2]
    return found[0]


@each_tagged
@pytest.mark.parametrize("space", ["", " ", "\n", "\n\n", "\r\n  "])
def test_a_doubled_closing_marker_is_one(family: str, space: str) -> None:
    format_ = builtin_families().get(family).format
    _, close = markers(format_)
    for arguments in ARGUMENTS:
        output = writer.written(Turn("saved", (Call("save", json.dumps(arguments)),)), format_)
        for value in map(str, arguments.values()):
            place = output.index(close, output.index(value, output.index("save"))) + len(close)
            for times in (1, 2):
                ((name, written, error),) = read(
                    family, format_, output[:place] + (space + close) * times + output[place:]
                )
                assert (name, json.loads(written), error) == ("save", arguments, None)


@each_tagged
@pytest.mark.parametrize(
    "value",
    ["{0}\n <x/>\n{1}", "{0}a{1}", "a {0}b{1}", "{0}{0}x{1}{1}", "{0}a{1} and {0}b{1}", "{1} ends it", "a {1}{1} b"],
)
def test_a_value_with_such_an_element_stays_text(family: str, value: str) -> None:
    format_ = builtin_families().get(family).format
    text = value.format(*markers(format_))
    for arguments in ({"path": text}, {"path": text, "body": "x"}, {"body": "x", "path": text}):
        output = writer.written(Turn("saved", (Call("save", json.dumps(arguments)),)), format_)
        if f"&{text[1:2]}" in output:
            continue  # this family escapes its values
        ((name, written, error),) = read(family, format_, output)
        assert (name, json.loads(written), error) == ("save", arguments, None)
