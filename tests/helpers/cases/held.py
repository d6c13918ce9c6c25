"""Whether a text may be written under a constraint: values in answers, and in demanded calls of every shape."""

import json
from collections.abc import Callable, Mapping
from typing import Any, cast

from cases.canonical import Call, Turn
from cases.parsing_cases import FAMILIES
from cases.walking import as_text, byte_compiler, grammar_of, read_back
from cases.writer import written

from engine.formats.families import PythonicSyntax, builtin_families
from engine.formats.grammar.json_schema import prepared
from engine.formats.grammar.lark import GrammarText
from engine.formats.grammar.response import Response
from engine.runtime.guidance import matcher
from engine.runtime.guidance.matcher import Matcher
from engine.types.tools import Tool


def _shapes() -> dict[str, str]:
    formats = {name: builtin_families().get(name).format for name in FAMILIES}
    found: dict[str, str] = {}
    for name, form in formats.items():
        syntax = form.tools
        if form.channels is not None:
            found["channels"] = name
        elif syntax is not None and not getattr(syntax, "heading", ("", ""))[0]:
            typed = bool(getattr(syntax, "type_end", ""))
            found.setdefault(f"{syntax.shape}{' typed' if typed else ''}", name)
    return found


SHAPES = _shapes()
"""A family of each shape of calls, by the shape."""


def takes(start: Matcher, text: str) -> bool:
    """Whether a grammar allows a text as a whole."""
    position = start.copy()
    data = list(text.encode())
    for byte in data:
        if (position.number_must_end and chr(byte).isdigit()) or not position.consume(byte):
            return False
    return position.accepts


def answers(response: Response) -> Matcher:
    """The start of an answer's grammar."""
    return byte_compiler().compiled(GrammarText(as_text).text(response.answer.node, {}))


def held(tool: Tool) -> Tool:
    """The tool with the schema that its calls are held to."""
    schema, _ = prepared(tool.parameters, matcher.refusal, "The schema", close=True)
    return tool.model_copy(update={"parameters": dict(schema)})


def calls(family: str, tool: Tool) -> Matcher:
    """The start of the grammar of one demanded call of a tool, which is held."""
    return byte_compiler().compiled(grammar_of(builtin_families().get(family).format, (tool,), 1))


def call_of(family: str, tool: Tool, arguments: str) -> str:
    """The call as the family's models write it."""
    format_ = builtin_families().get(family).format
    if format_.channels is not None:
        return f"<|start|>assistant to=functions.{tool.name}<|channel|>commentary json<|message|>{arguments}<|call|>"
    if isinstance(format_.tools, PythonicSyntax):
        pairs = (f"{key}={_literal(value)}" for key, value in json.loads(arguments).items())
        return f"{format_.tools.section[0]}[{tool.name}({', '.join(pairs)})]{format_.tools.section[1]}".lstrip()
    return written(Turn("held", (Call(tool.name, arguments),)), format_).lstrip()


def _literal(value: Any) -> str:
    """A value as a literal of Python, with the quotes that models write."""
    match value:
        case str():
            return json.dumps(value, ensure_ascii=False)
        case list():
            return f"[{', '.join(map(_literal, cast('list[Any]', value)))}]"
        case dict():
            members = cast("dict[str, Any]", value).items()
            return f"{{{', '.join(f'{_literal(key)}: {_literal(item)}' for key, item in members)}}}"
        case _:
            return repr(value)


def _same(value: Any) -> Any:
    return value


def unwritable(
    family: str, start: Matcher, tool: Tool, arguments: Mapping[str, Any], means: Callable[[Any], Any] = _same
) -> str | None:
    """Why a call with these arguments cannot be demanded of a family; None if it can, and reads back as what they
    mean."""
    text = call_of(family, tool, json.dumps(arguments, ensure_ascii=False))
    if not takes(start, text):
        position, data = start.copy(), list(text.encode())
        return f"{family}: {bytes(data[: len(position.allowed(data))])!r} cannot go on as {text!r}"
    (call,) = read_back(family, (tool,), text).tool_calls
    if call.error or means(json.loads(call.arguments)) != means(arguments):
        return f"{family}: {text!r} is read as {call.arguments} ({call.error})"
    return None
