"""Ids of the form name and counter, of which a client replaced the punctuation: models copy them."""

import pytest
from cases.parsing_cases import families_where, run
from cases.writer import stated

from engine.formats.families import TaggedJsonSyntax, builtin_families
from engine.formats.parsing import Parser
from engine.types.events import fold

TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("look", "a_b")]


@families_where(lambda format_: stated(format_.tools, "name_is_id", default=False))
@pytest.mark.parametrize(
    ("written", "meant", "error"),
    [
        ("functions_look_0", "look", None),
        ("functions_a_b_12", "a_b", None),
        ("look_3", "look", None),
        ("functions.look:1", "look", None),
        ("functions_nope_1", "functions_nope_1", "unknown_tool"),
        ("a_b", "a_b", None),
    ],
)
def test_a_declared_tool_is_found_in_a_rewritten_id(family: str, written: str, meant: str, error: str | None) -> None:
    tools = builtin_families().get(family).format.tools
    assert isinstance(tools, TaggedJsonSyntax)
    output = tools.section[0] + tools.call[0] + written + tools.name_end + "{}" + tools.call[1] + tools.section[1]
    (call,) = fold(run(Parser(family, tools=TOOLS), [output])).tool_calls
    assert (call.name, call.error) == (meant, error)
