"""Calls that are known only when they are whole: JSON anywhere in an answer, in a code fence or in OpenAI's envelope,
that names a declared tool and fits its schema.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from engine.formats.parsing.emitter import Emitter
from engine.formats.parsing.json_reader import LONE_SURROGATE
from engine.formats.parsing.lookahead import LONGEST, MOST, ends_well
from engine.formats.parsing.reader import WINDOW, Gen, Reader, compiled
from engine.tools import json_value
from engine.types.tools import Tool

FENCE = "```"
MARKS = (FENCE, "{", "[")
"""What such a call may begin with."""
_FENCE = re.compile(r"```(?:json|JSON)?[ \t]{0,8}\r?\n")
_MAYBE_FENCE = re.compile(r"`{1,3}|```[a-zA-Z]{0,4}[ \t]{0,8}\r?")
_FENCE_END = compiled(FENCE)
_SPACE = re.compile(r"\s+")
_KEYS = ("name", "id", "type", "function", "arguments", "parameters", "tool_calls")
_BEGUN = re.compile(r"\[?\s*\{\s*\"(?:" + "|".join(_KEYS) + r")\"\s*:")
_MAYBE_BEGUN = re.compile(r"\[?\s*(?:\{\s*(?:\"(?P<key>\w*)(?P<end>\"\s*)?)?)?")
_NAME = re.compile(r'"name"\s*:\s*"([^"\\]*)(.?)', re.DOTALL)
_NO_NAME = re.compile(r'"name"\s*:\s*[^"\s]')
_NAMESPACE = "functions."
_EDGE = re.compile(r"[^\s0-9A-Za-z.,:+\-]")
_STRING_EDGE = re.compile(r'["\\]')
_NAMED = frozenset({"name", "arguments", "parameters", "id", "type", "index"})
_ENVELOPE = frozenset({"function", "id", "type", "index"})


class _Scan:
    """Finds where a JSON value ends, looking at each character once."""

    __slots__ = ("_depth", "_escaped", "_in_string")

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = False

    def end(self, text: str) -> int | None:
        """Returns where, in the next piece of text, the value ends (None: not there). Raises ValueError for what no
        JSON holds."""
        at, self._escaped = int(self._escaped), False
        while found := (_STRING_EDGE if self._in_string else _EDGE).search(text, at):
            at, edge = found.end(), found.group()
            if edge == "\\" and self._in_string:
                self._escaped = at == len(text)
                at += 1
            elif edge == '"':
                self._in_string = not self._in_string
            elif edge not in "{}[]":
                raise ValueError
            else:
                self._depth += 1 if edge in "{[" else -1
                if self._depth <= 0:
                    return at
        return None


class WholeCalls:
    """Looks ahead whether calls stand at the front, and reads them."""

    def __init__(self, reader: Reader, emitter: Emitter) -> None:
        self._reader = reader
        self._emitter = emitter
        self._tools: Mapping[str, Tool] = emitter.tools or {}
        self._folded = _unique(self._tools)
        self._found: list[tuple[str, str | None, str]] = []
        self._read: list[str] = []
        self._failed = 0

    def stands_here(self) -> Gen[bool]:
        """Whether whole calls stand at the front, with the fence around them. Consumes nothing; holds the text while it
        may be one."""
        if self._failed == MOST:
            return False
        self._found, self._read = [], []
        decided = yield from self._look()
        text = "".join(self._read)
        self._failed += not decided and len(text) > WINDOW
        self._reader.put_back(text)
        return decided

    def read(self) -> Gen[None]:
        """Read the calls that `stands_here` has found."""
        self._reader.take(sum(map(len, self._read)), "marker")
        for name, id_, arguments in self._found:
            call = self._emitter.call(name, id_)
            call.write(arguments)
            call.end()
        return
        yield

    def _look(self) -> Gen[bool]:
        reader = self._reader
        fenced = reader.buffer.startswith("`", reader.pos)
        if fenced and not (yield from self._fence_begins()):
            return False
        while True:
            yield from self._spaces()
            if not (yield from self._value()):
                return False
            if not fenced:
                return (yield from self._reader.judged(ends_well)) is not False
            yield from self._spaces()
            if not (yield from reader.more()):
                return True
            if reader.buffer[reader.pos] not in "{[":
                ended = yield from reader.starts(_FENCE_END)
                self._take(len(ended or ""))
                return ended is not None

    def _take(self, count: int) -> str:
        self._read.append(self._reader.take(count))
        return self._read[-1]

    def _spaces(self) -> Gen[None]:
        reader = self._reader
        while (yield from reader.more()):
            if (found := _SPACE.match(reader.buffer, reader.pos)) is None:
                return
            self._take(found.end() - reader.pos)

    def _fence_begins(self) -> Gen[bool]:
        def size(text: str) -> int | None:
            if (found := _FENCE.match(text)) is not None:
                return found.end()
            return None if _MAYBE_FENCE.fullmatch(text) else 0

        fence = yield from self._reader.judged(size)
        if fence:
            self._take(fence)
        return bool(fence)

    def _value(self) -> Gen[bool]:
        """Take a JSON value, and find its calls. Returns False as soon as it cannot be one."""
        reader, scan, head, first, size = self._reader, _Scan(), "", len(self._read), 0
        end: int | None = None
        while end is None:
            if not (yield from reader.more()) or size > LONGEST:
                return False
            piece = reader.buffer[reader.pos :]
            try:
                end = scan.end(piece)
            except ValueError:
                return False
            size += len(self._take(len(piece) if end is None else end))
            head += piece[: WINDOW - len(head)]
            if not self._may_call(head):
                return False
        return self._calls("".join(self._read[first:]))

    def _may_call(self, head: str) -> bool:
        """Whether a value that begins like this may be a call."""
        if not _BEGUN.match(head):
            return _still_begins(head)
        named = _NAME.search(head)
        if named is None:
            return not _NO_NAME.search(head)
        return self._named(named[1]) is not None if named[2] else self._may_name(named[1])

    def _calls(self, text: str) -> bool:
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
        self._found += [call for call in found if call is not None]
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
        tool = self._named(name) if isinstance(name, str) else None
        if tool is None or len(given) != 1 or isinstance(outer.get("id"), dict | list):
            return None
        arguments = given[0] if isinstance(given[0], str) else json.dumps(given[0], ensure_ascii=False)
        id_ = outer.get("id")
        return (tool.name, id_ if isinstance(id_, str) and id_ else None, arguments) if _fits(tool, arguments) else None

    def _named(self, written: str) -> Tool | None:
        """Returns the declared tool of this name, which a model may write in another case or with a namespace."""
        name = written if written in self._tools else written.removeprefix(_NAMESPACE)
        return self._tools.get(name) or self._folded.get(name.casefold())

    def _may_name(self, begun: str) -> bool:
        """Whether this may be the beginning of such a name."""
        folded = begun.removeprefix(_NAMESPACE).casefold()
        return _NAMESPACE.startswith(begun) or any(name.startswith(folded) for name in self._folded)


def _still_begins(text: str) -> bool:
    """Whether the text may be the beginning of a call's object, up to the end of its first key."""
    found = _MAYBE_BEGUN.fullmatch(text)
    if found is None or (key := found["key"]) is None:
        return found is not None
    return any(known == key if found["end"] else known.startswith(key) for known in _KEYS)


def _unique(tools: Mapping[str, Tool]) -> dict[str, Tool]:
    """Returns the tools by their names without case, as far as these differ."""
    names = [name.casefold() for name in tools]
    return {name.casefold(): tool for name, tool in tools.items() if names.count(name.casefold()) == 1}


def _fits(tool: Tool, arguments: str) -> bool:
    """Whether the arguments are an object that the tool takes."""
    try:
        value: Any = json_value(arguments)
    except ValueError:
        return False
    has_lone = LONE_SURROGATE.search(arguments) is not None
    return isinstance(value, dict) and not has_lone and (tool.check is None or tool.check(value) is None)
