"""Text that callers wrote cannot pass for structure: it is marked before rendering and found again afterwards.

Knows: a marking that survives whatever a template does. Each character of a suspicious text is replaced by a
stand-in, one for one, from Unicode's private planes: lengths stay, whitespace, quotes and backslashes stay (so that
trim, split and tojson do what they would have done), and after rendering every stand-in still says "a caller wrote
this character". Does not know: tokens' ids, messages, templates. Only texts that hold a control token, or could
complete one at either end, are marked; a conversation without any renders exactly as it would have.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, NamedTuple, cast

from engine.template.affixes import Beginnings, Endings
from engine.types import Message, Tool

_PRIVATE = range(0xF0000, 0x10FFFE)
_KEPT = frozenset('"\\')
_LOOKS_LIKE_CONTROL = re.compile(r"<[^<>\n]{1,80}>|\[/?[A-Z][A-Z_]{1,40}\]|<｜[^｜\n]{1,80}｜>")
_ESCAPE_OR_TEXT = re.compile(r'(\\u[0-9a-fA-F]{4}|\\.)|([^"\\]+)', re.DOTALL)
# As `repr` and as `json.dumps` write a character of the private planes.
_ESCAPED_STAND_IN = r"\\U[0-9a-f]{8}|\\u[0-9a-f]{4}\\u[0-9a-f]{4}"
_JSON_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


class Span(NamedTuple):
    """Characters `start` to `end` (exclusive) of a text."""

    start: int
    end: int


class Markers:
    """The control-token texts of a vocabulary, or, where none is known, a guess by their looks.

    Whitespace alone is never a marker, though many vocabularies have user-defined tokens of it.
    """

    def __init__(self, known: Iterable[str] | None, also: Iterable[str] = ()) -> None:
        texts = {text for text in (*(known or ()), *also) if text.strip()}
        self._guess = known is None
        self._texts = texts
        lengths: dict[str, set[int]] = {}
        for text in texts:
            lengths.setdefault(text[0], set()).add(len(text))
        # Some vocabularies have thousands of markers that begin alike, and few lengths.
        self._lengths = {head: sorted(found, reverse=True) for head, found in lengths.items()}
        self._heads = re.compile("[" + re.escape("".join(lengths)) + "]") if lengths else None
        self._prefixes, self._suffixes = Beginnings(texts), Endings(texts)
        self._longest = max(map(len, texts), default=0)

    def spans(self, text: str) -> list[Span]:
        """Where markers stand in a text: at each position the longest, overlaps included."""
        found = [Span(*match.span()) for match in _LOOKS_LIKE_CONTROL.finditer(text)] if self._guess else []
        for head in self._heads.finditer(text) if self._heads else ():
            start = head.start()
            for length in self._lengths[text[start]]:
                if text[start : start + length] in self._texts:
                    found.append(Span(start, start + length))
                    break
        return sorted(set(found))

    def suspects(self, text: str) -> bool:
        """Whether a text holds a marker, or a part of one at an end, where a template could complete it."""
        if self.spans(text):
            return True
        bare = text.strip()
        head, tail = bare[: self._longest], bare[-self._longest :] if self._longest else ""
        return any(head[:length] in self._suffixes for length in range(1, len(head) + 1)) or any(
            tail[-length:] in self._prefixes for length in range(1, len(tail) + 1)
        )


class Guard:
    """The marking of one render. Make it with everything that will be rendered, so that no stand-in occurs there.

    Without markers nothing is marked. `everything`: also texts that are not suspicious, to learn which characters of a
    render are the callers'; a template that looks into them may render something else then.
    """

    def __init__(self, markers: Markers | None, taken: Iterable[str], *, everything: bool = False) -> None:
        self._markers = markers or Markers(())
        self._everything = everything
        private = _private(taken)
        self._free = (chr(code) for code in _PRIVATE if chr(code) not in private)
        self._stand_in: dict[str, str] = {}
        self._original: dict[str, str] = {}

    @property
    def used(self) -> bool:
        """Whether anything was marked."""
        return bool(self._original)

    @property
    def escapes(self) -> dict[str, str]:
        """What HTML's escape would make of the marked characters; also marked."""
        escaped = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "'": "&#39;"}
        found = [
            (self._stand_in[character], text) for character, text in escaped.items() if character in self._stand_in
        ]
        return {stand_in: self._mark(text) for stand_in, text in found}

    def hide(self, text: str) -> str:
        """The text, marked if it is suspicious."""
        return self._mark(text) if self._markers.suspects(text) else text

    def hide_prose(self, text: str) -> str:
        """A text that says nothing to the template: marked if it is suspicious, or if everything is."""
        return self._mark(text) if self._everything else self.hide(text)

    def _mark(self, text: str) -> str:
        return "".join(map(self._stand_in_for, text))

    def _stand_in_for(self, character: str) -> str:
        if character in _KEPT or character.isspace() or character < " ":
            return character
        known = self._stand_in.get(character)
        if known is None:
            known = self._stand_in[character] = next(self._free)
            self._original[known] = character
            self._original[repr(known)[1:-1]] = repr(character)[1:-1]
            self._original[json.dumps(known)[1:-1]] = json.dumps(character)[1:-1]
        return known

    def hide_json(self, text: str) -> str:
        """JSON text with its strings marked; its structure stays, so it parses as before."""
        return _JSON_STRING.sub(lambda match: '"' + self._hide_literal(match.group()[1:-1]) + '"', text)

    def _hide_literal(self, body: str) -> str:
        suspects = self._markers.suspects
        if not (self._everything or suspects(body) or suspects(_unescaped(body))):
            return body

        def swap(match: re.Match[str]) -> str:
            escape, plain = match.groups()
            if escape is None:
                return self._mark(plain)
            return self._mark(_unescaped(escape)) if _is_plain(_unescaped(escape)) else escape

        return _ESCAPE_OR_TEXT.sub(swap, body)

    def hide_value(self, value: Any) -> Any:
        """A JSON value with every text in it marked as prose, keys where suspicious."""
        if isinstance(value, str):
            return self.hide_prose(value)
        if isinstance(value, Mapping):
            items = cast("Mapping[str, Any]", value).items()
            return {self.hide(str(key)): self.hide_value(item) for key, item in items}
        if isinstance(value, list | tuple):
            return [self.hide_value(item) for item in cast("list[Any]", value)]
        return value

    def hide_message(self, message: Message) -> Message:
        """A message with what its author wrote marked. System and developer text is trusted."""
        if message.role in ("system", "developer"):
            return message
        hidden: dict[str, object] = {"parts": ()}
        for field, hide in _FIELDS.items():
            text = getattr(message, field)
            hidden[field] = text if text is None else hide(self, text)
        hidden["tool_calls"] = tuple(
            call.model_copy(
                update={
                    "id": self.hide(call.id),
                    "name": self.hide(call.name),
                    "arguments": self.hide_json(call.arguments),
                }
            )
            for call in message.tool_calls
        )
        return message.model_copy(update=hidden)

    def hide_tool(self, tool: Tool) -> Tool:
        """A tool with its name, description and schema marked where suspicious."""
        return tool.model_copy(
            update={
                "name": self.hide(tool.name),
                "description": self.hide_prose(tool.description),
                "parameters": self._hide_schema(tool.parameters),
            }
        )

    def _hide_schema(self, schema: Any) -> Any:
        """A JSON Schema: its words are the template's to read, its descriptions are prose."""
        if isinstance(schema, Mapping):
            items = cast("Mapping[str, Any]", schema).items()
            return {
                self.hide(str(key)): self.hide_prose(item)
                if key == "description" and isinstance(item, str)
                else self._hide_schema(item)
                for key, item in items
            }
        if isinstance(schema, list | tuple):
            return [self._hide_schema(item) for item in cast("list[Any]", schema)]
        return self.hide(schema) if isinstance(schema, str) else schema

    def reveal(self, text: str) -> tuple[str, list[Span]]:
        """The text as it would have been, and the spans of the marked characters in it."""
        if not self._original:
            return text, []
        shown = re.compile(f"[{''.join(self._stand_in.values())}]+|{_ESCAPED_STAND_IN}")
        parts: list[str] = []
        spans: list[Span] = []
        position = length = 0
        for match in shown.finditer(text):
            found = match.group()
            if found[0] != "\\":
                original = "".join(map(self._original.__getitem__, found))
            elif (known := self._original.get(found)) is not None:
                original = known
            else:
                continue
            before = text[position : match.start()]
            start = length + len(before)
            length = start + len(original)
            if spans and spans[-1].end == start:
                spans[-1] = Span(spans[-1].start, length)
            else:
                spans.append(Span(start, length))
            parts += (before, original)
            position = match.end()
        parts.append(text[position:])
        return "".join(parts), spans

    def forged(self, text: str, spans: list[Span]) -> list[Span]:
        """Where `text` must be cut: markers with a character that a caller wrote, less those that the template wrote
        whole."""
        if not spans:
            return []
        touched: list[Span] = []
        legitimate: list[Span] = []
        for marker in self._markers.spans(text):
            (touched if _overlaps(marker, spans) else legitimate).append(marker)
        return _without(_merged(touched), legitimate)


_FIELDS = {
    "content": Guard.hide_prose,
    "reasoning": Guard.hide_prose,
    "name": Guard.hide,
    "tool_call_id": Guard.hide,
}


def absent(taken: Iterable[str], count: int) -> list[str]:
    """Characters that none of the texts has, and that no guard made for them uses before thousands of others."""
    private = _private(taken)
    free = (chr(code) for code in reversed(_PRIVATE) if chr(code) not in private)
    return list(islice(free, count))


def _private(texts: Iterable[str]) -> set[str]:
    return {character for text in texts if text and max(text) >= "\U000f0000" for character in text}


def _unescaped(body: str) -> str:
    try:
        return json.loads(f'"{body}"', strict=False)
    except ValueError:
        return body


def _is_plain(character: str) -> bool:
    return len(character) == 1 and character not in _KEPT and character.isprintable() and not character.isspace()


def _overlaps(span: Span, spans: list[Span]) -> bool:
    index = bisect_right(spans, span.start, key=lambda other: other.end)
    return index < len(spans) and spans[index].start < span.end


def _merged(spans: list[Span]) -> list[Span]:
    merged: list[Span] = []
    for span in spans:
        if merged and span.start < merged[-1].end:
            merged[-1] = Span(merged[-1].start, max(merged[-1].end, span.end))
        else:
            merged.append(span)
    return merged


def _without(spans: list[Span], others: list[Span]) -> list[Span]:
    """The spans less the parts that lie inside others."""
    left: list[Span] = []
    for span in spans:
        start = span.start
        for other in others:
            if other.end > start and other.start < span.end:
                left.append(Span(start, other.start))
                start = other.end
        left.append(Span(start, span.end))
    return [span for span in left if span.start < span.end]
