"""Calls that are known only when they are whole: JSON anywhere in an answer, in a code fence or in OpenAI's envelope,
that names a declared tool and fits its schema.
"""

import json
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any, cast

from engine.formats.parsing.emitter import Emitter
from engine.formats.parsing.json_reader import LONE_SURROGATE, JsonReader, Outcome
from engine.formats.parsing.lookahead import MOST, Trial, ends_well
from engine.formats.parsing.reader import WINDOW, Gen, Reader, Spelling, compiled
from engine.support.nothing import nothing
from engine.tools import json_value
from engine.types.tools import Tool

FENCE = "```"
MARKS = (FENCE, "{", "[")
"""What such a call may begin with."""
_FENCE = re.compile(r"```(?:json|JSON)?[ \t]{0,8}\r?\n")
_MAYBE_FENCE = re.compile(r"`{1,3}|```[a-zA-Z]{0,4}[ \t]{0,8}\r?")
_FENCE_END = compiled(FENCE)
_KEYS = ("name", "id", "type", "function", "arguments", "parameters", "tool_calls")
_BEGUN = re.compile(r"\[?\s*\{\s*\"(?:" + "|".join(_KEYS) + r")\"\s*:")
_MAYBE_BEGUN = re.compile(r"\[?\s*(?:\{\s*(?:\"(?P<key>\w*)(?P<end>\"\s*)?)?)?")
_NAME = re.compile(r'"name"\s*:\s*"([^"\\]*)(.?)', re.DOTALL)
_NO_NAME = re.compile(r'"name"\s*:\s*[^"\s]')
_NAMESPACE = "functions."
_NAMED = frozenset({"name", "arguments", "parameters", "id", "type", "index"})
_ENVELOPE = frozenset({"function", "id", "type", "index"})


class WholeCalls:
    """Looks ahead whether calls stand at the front, and reads them."""

    def __init__(self, reader: Reader, emitter: Emitter, spelling: Spelling) -> None:
        self._reader = reader
        self._emitter = emitter
        self._spelling = spelling
        self._trial: WholeTrial | None = None
        self._failed = 0

    @cached_property
    def _tools(self) -> "_Tools":
        return _Tools(self._emitter.tools or {})

    def stands_here(self) -> Gen[bool]:
        """Whether whole calls stand at the front, with the fence around them. Consumes nothing; holds the text while it
        may be one."""
        if self._failed == MOST or (yield from self._reader.judged(_begins)) is not True:
            return False
        self._trial = trial = WholeTrial(self._reader, self._emitter, self._spelling, self._tools)
        stands = yield from trial.succeeds()
        self._failed += not stands and trial.inner.consumed > WINDOW
        return stands

    def read(self) -> Gen[None]:
        """Read the calls that `stands_here` has found."""
        assert self._trial is not None  # it has found them
        self._reader.take(self._trial.inner.consumed, "marker")
        for name, id_, arguments in self._trial.calls:
            call = self._emitter.call(name, id_)
            call.write(arguments)
            call.end()
        return
        yield


class WholeTrial(Trial):
    """Whether the text at the front is calls as JSON, in a fence or not. `calls` are their names, ids and arguments."""

    def __init__(self, reader: Reader, emitter: Emitter, spelling: Spelling, tools: "_Tools") -> None:
        super().__init__(reader, emitter, spelling, compiled())
        self.inner.listener = None  # whether a value is malformed is known at its end
        self._tools = tools
        self._text: list[str] = []  # of the value that is being read
        self._named = False  # that value names a declared tool, or is too long to tell
        self.calls: list[tuple[str, str | None, str]] = []
        self._stand = False

    def _reads(self) -> Gen[None]:
        reader = self.inner
        fence = yield from reader.judged(_fence_size)
        reader.take(fence or 0)
        while (yield from reader.after_space()) in ("{", "[") and (yield from self._value()):
            if not fence:
                self._stand = (yield from reader.judged(ends_well)) is not False
                return
            if (yield from reader.after_space()) not in ("{", "["):
                self._stand = not reader.left or (yield from reader.match(_FENCE_END))
                return

    def _value(self) -> Gen[bool]:
        """Read a JSON value, and find its calls."""
        self.inner.record, self._named = self._text, False
        self._text.clear()
        outcome = yield from JsonReader(self.inner).value(nothing, "marker")
        is_call = outcome is Outcome.COMPLETE and self._may_call() and self._add("".join(self._text))
        self.inner.record = None
        return is_call

    def _fed(self) -> bool | None:
        if not self._running:
            return self._stand
        return None if self._may_call() else False

    def _ended_output(self) -> bool:
        self.inner.closed = True
        self._advance()
        return self._stand

    def _may_call(self) -> bool:
        """Whether the value that is being read may be a call, as it begins."""
        if self.inner.record is None or self._named:
            return True
        head = ("".join(self._text) + self._rest)[:WINDOW]
        if (begun := _begins(head)) is not True:
            return begun is None
        named = _NAME.search(head)
        self._named = len(head) == WINDOW or (named is not None and bool(named[2]))
        if named is None:
            return not _NO_NAME.search(head)
        return self._tools.named(named[1]) is not None if named[2] else self._tools.may_name(named[1])

    def _add(self, text: str) -> bool:
        """Whether a whole value is a call, or a list of calls; adds them to those found."""
        try:
            value = json_value(text, strict=False, unique=True)
        except ValueError:
            return False
        listed: object = value
        if isinstance(value, dict):
            listed = cast("dict[str, object]", value).get("tool_calls", [cast("object", value)])
        items = cast("list[object]", listed) if isinstance(listed, list) else []
        found = [self._call(item) for item in items]
        self.calls += [call for call in found if call is not None]
        return bool(found) and None not in found

    def _call(self, item: object) -> tuple[str, str | None, str] | None:
        """Returns the name, id and arguments of a call; None if the object is no call of a declared tool."""
        if not isinstance(item, dict):
            return None
        outer = cast("dict[str, object]", item)
        inner = outer.get("function")
        node = cast("dict[str, object]", inner) if isinstance(inner, dict) else outer
        allowed = _NAMED if node is outer else _NAMED | _ENVELOPE
        if not (outer.keys() | node.keys()) <= allowed or outer.get("type", "function") != "function":
            return None
        name, given = node.get("name"), [node[key] for key in ("arguments", "parameters") if key in node]
        tool = self._tools.named(name) if isinstance(name, str) else None
        if tool is None or len(given) != 1 or isinstance(outer.get("id"), dict | list):
            return None
        arguments = given[0] if isinstance(given[0], str) else json.dumps(given[0], ensure_ascii=False)
        id_ = outer.get("id")
        return (tool.name, id_ if isinstance(id_, str) and id_ else None, arguments) if _fits(tool, arguments) else None


class _Tools:
    """The declared tools by their names, which a model may write in another case or with a namespace."""

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        names = [name.casefold() for name in tools]
        self._tools = tools
        self._folded = {name.casefold(): tool for name, tool in tools.items() if names.count(name.casefold()) == 1}

    def named(self, written: str) -> Tool | None:
        """Returns the tool of this name."""
        name = written if written in self._tools else written.removeprefix(_NAMESPACE)
        return self._tools.get(name) or self._folded.get(name.casefold())

    def may_name(self, begun: str) -> bool:
        """Whether this may be the beginning of such a name."""
        folded = begun.removeprefix(_NAMESPACE).casefold()
        return _NAMESPACE.startswith(begun) or any(name.startswith(folded) for name in self._folded)


def _fence_size(text: str) -> int | None:
    """Returns the length of the fence that a text begins with, 0 if it has none; None if it is too short to tell."""
    found = _FENCE.match(text)
    return found.end() if found else None if _MAYBE_FENCE.fullmatch(text) else 0


def _begins(text: str) -> bool | None:
    """Whether the text begins with a call's object, up to the end of its first key; None if it is too short to tell."""
    fence = _fence_size(text)
    if fence is None:
        return None
    inside = text[fence:].lstrip()
    if _BEGUN.match(inside):
        return True
    found = _MAYBE_BEGUN.fullmatch(inside)
    if found is None or (key := found["key"]) is None:
        return None if found else False
    return None if any(known == key if found["end"] else known.startswith(key) for known in _KEYS) else False


def _fits(tool: Tool, arguments: str) -> bool:
    """Whether the arguments are an object that the tool takes."""
    try:
        value: Any = json_value(arguments)
    except ValueError:
        return False
    has_lone = LONE_SURROGATE.search(arguments) is not None
    return isinstance(value, dict) and not has_lone and (tool.check is None or tool.check(value) is None)
