"""Tools that a family's models were trained with: asked for by name, declared by the template in its own words.

Knows: the variable that templates read them from, and how gpt-oss's models call theirs, which its template writes as
calls of ordinary functions once they are history. Does not know: what they do; nothing here runs them, a caller's
tool of the same name may.
Source: the harmony response format: calls of `python`, `browser.search`, .. go to the analysis channel, their
recipient has no namespace, and what `python` is sent is code, not JSON.
"""

import json
import re
from collections.abc import Iterable, Sequence

from engine.errors import RequestError
from engine.families import ChannelSyntax
from engine.template.conversation import as_mapping
from engine.template.env import Template
from engine.types import Tool

VARIABLE = "builtin_tools"
_FUNCTIONS = {"browser": ("browser.search", "browser.open", "browser.find")}
_DECODER = json.JSONDecoder(strict=False)


def check(names: Sequence[str], template: Template) -> tuple[str, ...]:
    """The names as asked for. Raises RequestError where the template declares no such tools."""
    if isinstance(names, str):
        raise RequestError(f"builtin_tools must be a list of names; put it in a list: builtin_tools=[{names!r}].")
    if names and VARIABLE not in template.variables:
        raise RequestError(
            f"builtin_tools={list(names)!r}, and this model's chat template declares none. Leave the option out, and "
            "give tools of your own with tools=."
        )
    return tuple(names)


def belongs(name: str, builtin: Iterable[str]) -> bool:
    """Whether a tool's name is one of the built-in tools, or a function of one (`browser.search`)."""
    return any(name == known or name.startswith(f"{known}.") for known in builtin)


def records(builtin: Sequence[str], known: Sequence[Tool]) -> tuple[Tool, ...]:
    """What a parser may know of built-in tools for which the caller gave no tool: their names."""
    given = {tool.name for tool in known}
    names = (name for each in builtin for name in _FUNCTIONS.get(each, (each,)))
    return tuple(Tool(name=name, parameters={"type": "object"}) for name in names if name not in given)


def as_written(text: str, mark: str, syntax: ChannelSyntax) -> str:
    """A render in which the calls of built-in tools, and their results, stand as the model and its tools write them.

    `mark` stands before the names of these calls, and nowhere else.
    """
    start, to, marked = map(re.escape, (syntax.start, syntax.recipient, syntax.namespace + mark))
    role, rest = re.escape(syntax.role), f"{re.escape(syntax.channel)}[^<]*{re.escape(syntax.message)}"
    call, result = f"{role} {to}{marked}(?P<called>[^<\\s]+)", f"{marked}(?P<answering>[^<\\s]+) {to}{role}"
    pattern = re.compile(f"{start}(?:{call}|{result}){rest}")
    parts: list[str] = []
    position = 0
    while (header := pattern.search(text, position)) is not None:
        value, end = _json_at(text, header.end())
        parts += (text[position : header.start()], _message(header, value, text[header.end() : end], syntax))
        position = end
    return "".join(parts) + text[position:]


def _json_at(text: str, position: int) -> tuple[object, int]:
    """The JSON value there and where it ends; nothing, at `position`, where a template writes none."""
    try:
        return _DECODER.raw_decode(text, position)
    except ValueError:
        return None, position


def _message(header: re.Match[str], value: object, written: str, syntax: ChannelSyntax) -> str:
    analysis = f"{syntax.channel}{syntax.reasoning[0]}"
    if (name := header["called"]) is not None:
        author = f"{syntax.role} {syntax.recipient}{name}{analysis} code"
        return f"{syntax.start}{author}{syntax.message}{_sent(value, written)}"
    author = f"{header['answering']} {syntax.recipient}{syntax.role}{analysis}"
    return f"{syntax.start}{author}{syntax.message}{value if isinstance(value, str) else written}"


def _sent(value: object, written: str) -> str:
    """What a call sends: the code where it is its only argument, else the JSON."""
    arguments = as_mapping(value) or {}
    code = arguments.get("code")
    return code if isinstance(code, str) and len(arguments) == 1 else written
