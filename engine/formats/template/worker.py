"""The child process that renders untrusted templates: orders in, texts out, under limits that the system enforces.

A template that escapes `engine.formats.template.sandbox` is in a process that can open no file, start no process, and
use only limited memory and time.

An order is two lines of JSON: `{"key", "length", "seconds"}`, and a body. A text as the body is a template to compile
and store under that key; a body `{"values", "escapes", "now"}` is to be rendered by the template of that key, in at
most `length` characters. `seconds` bounds the processor time of the order.
"""

import json
import warnings
from datetime import datetime, timedelta, timezone
from typing import Any

from engine.formats.template.renderer import EXHAUSTED, LONGEST_REFUSAL, NAMES, REFUSAL, TEXT
from engine.formats.template.sandbox import Compiled, complaint
from engine.support.child import ends, read_frame, write_frame
from engine.support.limits import limit_resources, limit_time

MEMORY = 1 << 30
"""Bytes of address space. A conversation of a million tokens takes about a fifth of that."""
_LIMITS = {"AS": MEMORY, "CORE": 0, "FSIZE": 0, "NOFILE": 0, "NPROC": 0}
_LATE = (  # triggers the lazy imports of jinja2 and Python
    "{% for x in ['<a> b'] %}{{ x | striptags | truncate(9) | wordwrap(9) | urlencode | title | tojson | safe }}"
    "{{ '\\N{EN DASH}%s' | format(1) }}{{ '{}'.format(loop.index) }}{{ strftime_now('%d %b %Y') }}{% endfor %}"
)


def main() -> int:
    """Serve one parent until it closes the connection."""
    warnings.simplefilter("ignore")  # Python's compiler warns about code that jinja2 generates
    orders, answers = ends()
    templates: dict[str, Compiled] = {}
    for source in (_LATE, "{{ none.x.y }}"):
        _obey("", source, 0, templates)
        _obey("", {"values": {}, "escapes": {}, "now": ["2026-01-01", None, None]}, 1000, templates)
    limit_resources(**_LIMITS)
    while True:
        try:
            head, _, body = read_frame(orders).partition(b"\n")
        except EOFError:
            return 0
        order: dict[str, Any] = _read(head)
        limit_time(order["seconds"])
        answer = _obey(order["key"], _read(body), order["length"], templates)
        write_frame(answers, answer)
        if answer.startswith(EXHAUSTED):
            return 0


def _read(text: bytes) -> Any:
    return json.loads(text.decode("utf-8", "surrogatepass"))


def _obey(key: str, body: Any, length: int, templates: dict[str, Compiled]) -> bytes:
    try:
        if isinstance(body, str):
            templates[key] = Compiled(body)
            return NAMES + "\n".join(sorted(templates[key].variables)).encode()
        text = templates[key].render(body["values"], body["escapes"], _read_time(*body["now"]), length)
        return TEXT + text.encode("utf-8", "surrogatepass")
    except Exception as error:  # noqa: BLE001 - a template is a program: whatever it raises is its complaint
        kind = EXHAUSTED if isinstance(error, MemoryError) else REFUSAL
        return kind + complaint(error)[:LONGEST_REFUSAL].encode("utf-8", "surrogatepass")


def _read_time(clock: str, offset: float | None, name: str | None) -> datetime:
    zone = None if offset is None else timezone(timedelta(seconds=offset), name or "")
    return datetime.fromisoformat(clock).replace(tzinfo=zone)
