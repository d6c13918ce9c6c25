"""One hostile template let loose on this package, and what it cost the process that rendered it."""

import os
import re
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from attacks.hostile_templates import TRIGGER

from engine.formats.template import chat_template, renderer
from engine.formats.template.chat_template import ChatTemplate
from engine.formats.template.renderer import TemplateStoppedError
from engine.support.errors import TemplateError

_LOOT = re.compile(
    r"root:x?:0|uid=\d|PATH=|<class 'object'>|<module|<frame|<code object|<function eval|_io\.TextIOWrapper"
)
"""What a text holds only if its template got out: files, environment, Python's own objects."""
_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}},
}
_CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello."},
    {
        "role": "assistant",
        "content": "Hello.",
        "tool_calls": [_TOOL | {"id": "a1b2c3d4e", "function": {"name": "look", "arguments": {}}}],
    },
    {"role": "tool", "tool_call_id": "a1b2c3d4e", "content": "A room."},
    {"role": "user", "content": f"{TRIGGER}!"},
]


@dataclass(frozen=True, slots=True)
class Cost:
    """What became of a template, and what it cost this process: seconds on the clock and of its processor, bytes beyond
    what it held before. `raw` is an exception that is no TemplateError; `loot` what it brought out."""

    loaded: str
    rendered: str
    seconds: float
    processor_seconds: float
    bytes: int
    raw: str = ""
    loot: str = ""


def attack(source: str) -> Cost:
    """Load a template as a model's own, and render what it waits for."""
    before, began, used = _peak_from_here(), time.monotonic(), time.process_time()
    loaded = rendered = raw = text = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            template = ChatTemplate(source)
        loaded = "loaded"
        text = template.render(_CONVERSATION, [_TOOL]).text
        rendered = "rendered"
    except TemplateError as error:
        text = str(error)
        outcome = "stopped" if isinstance(error, TemplateStoppedError) else "refused"
        loaded, rendered = (loaded, outcome) if loaded else (outcome, "")
    except BaseException as error:  # noqa: BLE001 - finding these is what it is for
        raw = f"{type(error).__name__}: {error}"[:200]
    found = _LOOT.search(text)
    return Cost(
        loaded,
        rendered,
        time.monotonic() - began,
        time.process_time() - used,
        _peak() - before,
        raw,
        found.group() if found else "",
    )


def hurry(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Stop templates after so many seconds, at loading and for each turn."""
    patch.setattr(renderer, "SECONDS", seconds)
    patch.setattr(chat_template, "SECONDS", seconds)
    patch.setattr(chat_template, "_PROBING", 2 * seconds)


def _peak_from_here() -> int:
    """The bytes that this process holds now, from which on its peak counts."""
    if sys.platform == "linux":
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    return _peak()


def _peak() -> int:
    """The most bytes that this process held."""
    if sys.platform == "linux":
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return int(re.findall(r"VmHWM:\s*(\d+) kB", status)[0]) << 10
    if os.name == "posix":
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return 0
