"""Calls that a turn may not have behind others: a second one, or one that repeats an earlier one (where calls are
demanded, the grammar allows one more after each, and a small model takes it again and again)."""

import json
from collections.abc import Iterable

from engine.types.events import Event, ToolCallDelta, ToolCallEnd, ToolCallStart


class CallRepeats:
    """Drops a call whose name and arguments equal those of an earlier one, and everything behind it. Holds a call back
    as long as it may become one; white space outside of its texts does not count.

    single: drops every call but the first. `hit`: there was such a call, and nothing passes any more.
    """

    def __init__(self, *, single: bool = False) -> None:
        self._single = single
        self.hit = False
        self._made: dict[tuple[str, str], set[str]] = {}
        self._held: list[Event] = []
        self._name = ""
        self._may_equal: list[str] = []
        self._read = 0

    def filter(self, events: Iterable[Event]) -> list[Event]:
        """Returns these events, without what is held back or dropped."""
        out: list[Event] = []
        for event in events:
            if not self.hit:
                self._held.append(event)
                self._follow(event)
            if not self._may_equal:
                out += self.flush()
        return out

    def flush(self) -> list[Event]:
        """Returns what was held back and is not dropped."""
        held, self._held = self._held, []
        return held

    def _follow(self, event: Event) -> None:
        if isinstance(event, ToolCallStart):
            self._name, self._read = event.name, 0
            if self._single and self._made:
                self.hit = True
                self._held.clear()
            self._may_equal = [text for name, text in self._made if name == event.name]
        elif isinstance(event, ToolCallDelta) and self._may_equal:
            new = _squeezed(event.text)
            self._may_equal = [text for text in self._may_equal if text.startswith(new, self._read)]
            self._read += len(new)
        elif isinstance(event, ToolCallEnd):
            key, spelt = (self._name, _squeezed(event.arguments)), _spelt(event.arguments)
            made = self._made.setdefault(key, set())  # texts that differ in white space share a key
            self.hit = bool(self._may_equal) and spelt in made
            made.add(spelt)
            self._may_equal = []
            if self.hit:
                self._held.clear()


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _spelt(arguments: str) -> str:
    """Returns arguments that are JSON in one spelling."""
    try:
        return json.dumps(json.loads(arguments))
    except (ValueError, RecursionError):
        return arguments
