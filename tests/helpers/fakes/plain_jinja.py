"""Chat templates rendered by jinja2 directly, as Hugging Face's libraries do: a check on our own way of rendering.

Unlike theirs, `list.append` works (official templates use it, for engines that allow it).
"""

import json
from datetime import datetime
from functools import cache
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import SandboxedEnvironment


class _Generation(Extension):
    tags = {"generation"}  # noqa: RUF012 - an instance variable in jinja2's own declaration

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("body"), [], [], body).set_lineno(line)

    def body(self, caller: Any) -> str:
        return caller()


def _raise(message: str) -> None:
    raise TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005 - as ours does


@cache
def compiled(source: str) -> Template:
    env = SandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    env.filters.update(tojson=_tojson, from_json=json.loads, safe=str)
    env.globals.update({"raise_exception": _raise, "strftime_now": _now})  # pyright: ignore[reportArgumentType, reportCallIssue]
    return env.from_string(source)


def render(
    source: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, **values: Any
) -> str | None:
    """None if the template refuses the conversation."""
    copies = json.loads(json.dumps({"messages": messages, "tools": tools}))
    try:
        return compiled(source).render(**copies, documents=None, add_generation_prompt=True, **values)
    except Exception:  # noqa: BLE001 - whatever a template raises
        return None
