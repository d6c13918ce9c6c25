"""Finds out who wrote which characters of a render, so that callers' text cannot become structure.

Each character that a caller wrote is replaced by one stand-in from Unicode's private planes: lengths do not change, nor
do white space, quotes and backslashes (so trim, split and tojson work as usual). After the render, every stand-in
identifies a character that a caller wrote.

The prompt that is sent is a render without marks. A marked render only shows who wrote each character, and it does so
if its revealed text is the same. A template may examine callers' text (compare a schema's type, split at `</think>`,
sort keys); then the marked render differs, and another one marks less (see `Sparing`).
"""

import json
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import IntEnum
from functools import cached_property
from itertools import filterfalse, islice, pairwise
from typing import Any, NamedTuple, TypeAlias, cast

from engine.formats.template.markers import Markers, merged
from engine.formats.template.renderer import TemplateStoppedError
from engine.support.errors import RequestError, TemplateError
from engine.types.messages import Message
from engine.types.prompt import Span

_PRIVATE = range(0xF0000, 0x10FFFE)
_STAND_INS = "\U000f0000-\U0010fffd"
_KEPT = " \t\n\r\f\v\"'\\"
_SAME = {ord(character): character for character in _KEPT}
# In this order, so that marked keys sort as the keys do.
_ASCII = sorted((code for code in range(33, 127) if chr(code) not in _KEPT), key=lambda code: (chr(code).lower(), code))
# As `repr` and as `json.dumps` write a character of the private planes.
_ESCAPED = r"\\U00(?:0[fF]|10)[0-9a-fA-F]{4}|\\u[dD][bB][89a-fA-F][0-9a-fA-F]\\u[dD][c-fC-F][0-9a-fA-F]{2}"
# White space and quotes between two stand-ins count as marked: whoever wrote them, no marker consists of them.
_RUNS = re.compile(rf"[{_STAND_INS}](?:[\x00-\x20\s\"'\\{_STAND_INS}]*[{_STAND_INS}])?")
_MARKED = re.compile(rf"{_RUNS.pattern}|{_ESCAPED}")
_TAKEN = re.compile(f"[{_STAND_INS}]|{_ESCAPED}")
_JSON_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_SHORT_ESCAPE_OR_TEXT = re.compile(r'(\\["\\/bfnrt])|((?:[^\\]|\\u)+)')
# An unclosed block extends to the end, so that nothing is scanned twice.
_BLOCK = re.compile(r"\{[{%].*?(?:[%}]\}|\Z)", re.DOTALL)
_QUOTED_OR_NAMED = re.compile(
    r"'((?:[^'\\]|\\.)*)(?:'|\\?\Z)|\"((?:[^\"\\]|\\.)*)(?:\"|\\?\Z)|\.\s*([A-Za-z_]\w*)", re.DOTALL
)
_MOST_SHARED = 20_000  # characters, a sixth of the private ones: one request may have as many again, and more
_MOST_WORDS = 2000  # real templates have up to 130
_ALWAYS = frozenset({"string", "number", "integer", "boolean", "object", "array", "null", "code"})


def words_of(source: str, markers: Markers) -> frozenset[str]:
    """Returns the words that a template may look for in callers' text: its literals and the names that it reads,
    without the markers among them; JSON Schema's types, which some compare in upper case; and "code", which
    `engine.formats.template.history` looks for."""
    found = (word for block in _BLOCK.findall(source) for each in _QUOTED_OR_NAMED.findall(block) for word in each)
    words = dict.fromkeys(word for word in found if word.strip(_KEPT) and not markers.spans(word))
    return _ALWAYS | frozenset(islice(words, _MOST_WORDS))


class Sparing(IntEnum):
    """What a marked render leaves unmarked, so that the template can read it.

    - WORDS: names and values that equal one of the template's words.
    - PARTS: also such words inside texts, and keys (which templates sort), unless they could become part of a marker
      that callers helped to write.
    - HARMLESS: also every text that could not become part of such a marker.
    """

    WORDS = 0
    PARTS = 1
    HARMLESS = 2


class Alphabet:
    """Stand-ins for characters: private ones that occur in none of these texts."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._free = filterfalse(_taken(texts).__contains__, map(chr, _PRIVATE))
        self._stand_ins = _StandIns(self._next, keeps=True)
        self._stand_ins.update(zip(_ASCII, self._free, strict=False))
        self._original = {ord(stand_in): chr(code) for code, stand_in in self._stand_ins.items()}
        self._of_kept = _StandIns(self._next, keeps=False)

    def _next(self, code: int) -> str:
        stand_in = next(self._free, None)
        if stand_in is None:
            raise RequestError(
                f"The request has more than {len(self._original):,} different characters, more than any real text. "
                "Leave out what is not text."
            )
        self._original[ord(stand_in)] = chr(code)
        return stand_in

    @property
    def size(self) -> int:
        """How many characters have a stand-in."""
        return len(self._original)

    def mark(self, text: str) -> str:
        """Returns the text in stand-ins, except for white space, quotes and backslashes."""
        return text.translate(self._stand_ins)

    def mark_all(self, text: str) -> str:
        """Returns the text in stand-ins, including white space, quotes and backslashes."""
        return text.translate(self._of_kept)

    @cached_property
    def escapes(self) -> dict[str, str]:
        """The HTML escapes of the marked characters, also marked."""
        escaped = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
        return {self.mark(character): self.mark(text) for character, text in escaped.items()}

    def reveal(self, text: str) -> tuple[str, list[Span]]:
        """Returns the text without stand-ins, and the spans of the marked characters in it."""
        if "\\U00" not in text and "\\ud" not in text:
            return text.translate(self._original), [Span(*match.span()) for match in _RUNS.finditer(text)]
        parts: list[str] = []
        spans: list[Span] = []
        position = length = 0
        for match in _MARKED.finditer(text):
            found = match.group()
            original = self._unescaped(found) if found[0] == "\\" else found.translate(self._original)
            before = text[position : match.start()]
            start = length + len(before)
            length = start + len(original)
            spans += [Span(start, length)] if original != found else []
            parts += (before, original)
            position = match.end()
        parts.append(text[position:])
        return "".join(parts), merged(spans)

    def _unescaped(self, escape: str) -> str:
        """Returns the `repr` or `json.dumps` escape of the character for which an escaped stand-in stands."""
        original = self._original.get(ord(_character(escape)))
        if original is None:
            return escape
        return (repr(original) if escape[1] == "U" else json.dumps(original))[1:-1]


class _StandIns(dict[int, str]):
    """Maps the code of each character to its stand-in, chosen on first use. With `keeps`, white space, quotes and
    backslashes map to themselves, since templates and JSON treat them specially; so do characters that UTF-8 cannot
    encode."""

    def __init__(self, choose: Callable[[int], str], *, keeps: bool) -> None:
        super().__init__(_SAME if keeps else {})
        self._choose = choose
        self._keeps = keeps

    def __missing__(self, code: int) -> str:
        character = chr(code)
        keeps = self._keeps and (character.isspace() or character < " " or "\ud800" <= character <= "\udfff")
        found = self[code] = character if keeps else self._choose(code)
        return found


class Alphabets:
    """The alphabets for the requests of one template, whose source is `source`: one for all of them, except for a
    request in whose texts private characters occur."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._shared = Alphabet([source])

    def of(self, texts: Sequence[str]) -> Alphabet:
        """Returns an alphabet for a request with these texts."""
        if _taken(texts):
            return Alphabet([self._source, *texts])
        if self._shared.size > _MOST_SHARED:
            self._shared = Alphabet([self._source])  # so that no request's characters use up those of the others
        return self._shared


def absent(texts: Iterable[str], count: int) -> list[str]:
    """Returns characters that occur in none of the texts, and that an alphabet made for them uses only after thousands
    of others."""
    return list(islice(filterfalse(_taken(texts).__contains__, map(chr, reversed(_PRIVATE))), count))


def _taken(texts: Iterable[str]) -> set[str]:
    """Returns the characters of the private planes that occur in the texts, directly or as escapes."""
    suspects = (text for text in texts if not text.isascii() or "\\" in text)
    return {_character(found) for text in suspects for found in _TAKEN.findall(text)}


def _character(text: str) -> str:
    """Returns a character, given it or its escape."""
    if text[0] != "\\":
        return text
    return chr(int(f"0x{text[2:]}", 0)) if text[1] == "U" else json.loads(f'"{text}"')


class Marking:
    """One way of marking what callers wrote.

    near: markers of which no unmarked text may become part. wary: markers of which no unmarked word may become part.
    """

    def __init__(
        self,
        alphabet: Alphabet,
        sparing: Sparing,
        words: frozenset[str],
        near: Collection[str] = (),
        wary: Collection[str] = (),
    ) -> None:
        self._alphabet = alphabet
        self._sparing = sparing
        self._words = words
        self._near_texts = near
        self._wary_texts = wary
        self.spared: set[str] = set()
        """The words that were left unmarked."""

    @cached_property
    def _near(self) -> Markers:
        return Markers(self._near_texts)

    @cached_property
    def _near_in_any_case(self) -> Markers:
        return Markers(text.lower() for text in self._near_texts)

    @cached_property
    def _wary(self) -> Markers:
        return Markers(text.lower() for text in self._wary_texts)

    @property
    def escapes(self) -> dict[str, str]:
        """The HTML escapes of the marked characters."""
        return self._alphabet.escapes

    def hide(self, text: str) -> str:
        """Mark a name or a value."""
        if text in self._words and not self._wary.reach(text.lower()):
            self.spared.add(text)
            return text
        return self.hide_prose(text)

    def hide_prose(self, text: str) -> str:
        """Mark text that is meant for a reader."""
        if not text.strip(_KEPT):
            return self._alphabet.mark_all(text) if self._near.reach(text) else text
        if self._sparing == Sparing.HARMLESS and self._is_harmless(text):
            return text
        return self._around_words(text) if self._sparing else self._alphabet.mark(text)

    def _is_harmless(self, text: str) -> bool:
        return not self._near_in_any_case.reach(text.lower())

    def hide_key(self, text: str) -> str:
        """Mark a key of an object."""
        return text if self._sparing and not self._near.reach(text) else self.hide(text)

    def _around_words(self, text: str) -> str:
        """Mark the text except for the template's words in it. Anything that could become part of a marker has at least
        one marked character, which is enough to identify it."""
        there = [word for word in self._words if (len(word) > 1 or not word.isalnum()) and word in text]
        if not there:
            return self._alphabet.mark(text)
        words = "|".join(map(re.escape, sorted(there, key=len, reverse=True)))
        spared = [Span(*match.span()) for match in re.finditer(rf"(?:{words}|[\s\"'\\])+", text)]
        ends = [span.end for span in spared]
        covering = ((bisect_left(ends, part.end), part) for part in self._near.reach(text))
        unsafe = {index for index, part in covering if index < len(ends) and spared[index].start <= part.start}
        edges = [edge for index, span in enumerate(spared) if index not in unsafe for edge in span]
        parts = [text[start:end] for start, end in pairwise([0, *edges, len(text)])]
        return "".join(part if index % 2 else self._alphabet.mark(part) for index, part in enumerate(parts))

    def hide_value(self, value: Any) -> Any:
        """Mark every text in a JSON value."""
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, Mapping):
            items = cast("Mapping[str, Any]", value).items()
            return {self.hide_key(str(key)): self.hide_value(item) for key, item in items}
        if isinstance(value, list | tuple):
            return [self.hide_value(item) for item in cast("list[Any]", value)]
        return value

    def hide_arguments(self, text: str, *, parsed: bool) -> str:
        """Mark the arguments of a call. `parsed`: the template reads their values; if not, it prints their text, and
        only the strings in it are marked. Text that is not JSON, or not an object if parsed, is marked as one text."""
        try:
            value: object = json.loads(text or "{}")
            if not parsed:
                return _JSON_STRING.sub(self._hide_literal, text)
            return (
                json.dumps(self.hide_value(value), ensure_ascii=False) if isinstance(value, dict) else self.hide(text)
            )
        except (ValueError, RecursionError):
            return self.hide(text)

    def _hide_literal(self, match: re.Match[str]) -> str:
        """Mark a string of a JSON text without decoding its escapes."""
        whole, body = match.group(0, 1)
        if self._sparing == Sparing.HARMLESS and self._is_harmless(body) and self._is_harmless(json.loads(whole)):
            return whole
        return '"' + _SHORT_ESCAPE_OR_TEXT.sub(lambda part: part[1] or self._alphabet.mark(part[2]), body) + '"'

    def hide_message(self, message: Message, *, parsed: bool) -> Message:
        """Mark what a message's author wrote. System and developer text is trusted. `parsed`: see `hide_arguments`."""
        if message.role in ("system", "developer"):
            return message
        calls = (
            call.model_copy(
                update={
                    "id": self.hide(call.id),
                    "name": self.hide(call.name),
                    "arguments": self.hide_arguments(call.arguments, parsed=parsed),
                }
            )
            for call in message.tool_calls
        )
        hidden = {
            "content": message.content and self.hide_prose(message.content),
            "reasoning": message.reasoning and self.hide_prose(message.reasoning),
            "name": message.name and self.hide(message.name),
            "tool_call_id": message.tool_call_id and self.hide(message.tool_call_id),
        }
        return message.model_copy(update={**hidden, "tool_calls": tuple(calls), "parts": ()})

    def hide_tool(self, tool: Mapping[str, Any]) -> dict[str, Any]:
        """Mark the name, description and schema of a tool in OpenAI's form."""
        return {**tool, "function": {field: self.hide_value(value) for field, value in tool["function"].items()}}


class Authored(NamedTuple):
    """A revealed render, and the spans of it that callers wrote. `marking`: that of the render; None: it has no
    marks. `complete`: the spans cover all that callers wrote, except for the template's words and
    white space at the edges; if not, the template examines their text, and the spans are only sure to cover what could
    become a marker."""

    text: str
    callers: Sequence[Span]
    marking: Marking | None
    complete: bool = False


Render: TypeAlias = Callable[[Marking | None], str]
"""Renders with callers' text marked in this way; None: unmarked."""


class Guard:
    """Distinguishes callers' characters from the template's, for one request. `alphabet`: stand-ins that occur in
    nothing that its renders may contain."""

    def __init__(self, markers: Markers, words: frozenset[str], alphabet: Alphabet) -> None:
        self._markers = markers
        self._words = words
        self._alphabet = alphabet

    def authored(self, render: Render) -> Authored:
        """Returns the text to send, and who wrote it.

        The text is the plain render's, unless the template examines a text that could become part of a marker: then it
        is that of a render in which the template could not do so. Raises what rendering without marks raises, unless
        the template refuses just such a text.
        """
        try:
            plain = render(None)
        except TemplateStoppedError:
            raise
        except TemplateError as refusal:
            found, plain = self._spared(render, refusal), None
        else:
            found = self._found(render, plain)
        callers = self._with_words(render, found)
        return Authored(found.text, callers, None if found.text == plain else found.marking, found.complete)

    def _spared(self, render: Render, refusal: TemplateError) -> Authored:
        """Returns the render in which the template cannot see callers' text that could become part of a marker, and
        reads all else. Raises the refusal if that is not what it refused."""
        first = self._marked(render, Sparing.WORDS)
        own = self._own(first) if first else Counter[str]()
        near = (self._markers.counted(first.text) - own).keys() if first else ()
        harmless = self._marked(render, Sparing.HARMLESS, near) if near else None
        if harmless is None or not self._own(harmless) <= own:
            raise refusal
        return harmless

    def _found(self, render: Render, plain: str) -> Authored:
        """Returns the marked render with the same text, or the one to send instead of the plain one."""
        there = self._markers.counted(plain)
        first = self._marked(render, Sparing.WORDS, near=there.keys())
        if first is not None and first.text == plain:
            return first._replace(complete=True)
        # The fully marked render shows which markers callers helped to write; markers that it lacks may be theirs.
        own = self._own(first) if first else Counter[str]()
        near = ((self._markers.counted(first.text) - own) | (there - own) if first else there).keys()
        parts = self._marked(render, Sparing.PARTS, near)
        if parts is not None and parts.text == plain:
            return parts
        strict = first or parts
        harmless = self._marked(render, Sparing.HARMLESS, near)
        # What this leaves unmarked is only presumed harmless: it must not produce a marker that the stricter render
        # lacks.
        if harmless is not None and (strict is None or self._own(harmless) <= self._own(strict)):
            return harmless
        if strict is not None:
            return strict
        raise TemplateError(
            "The chat template fails if text that could become one of its control tokens is guarded, so that text "
            "cannot be sent safely. Leave it out, or pass another template with chat_template=."
        )

    def _with_words(self, render: Render, found: Authored) -> Sequence[Span]:
        """Returns the spans that callers wrote, including words that became part of a marker."""
        if self._markers.by_looks:
            return found.callers  # too much looks like a marker, and the template's words are trusted
        if found.marking is None or not found.marking.spared:
            return found.callers
        own = self._own(found)
        spared = {word.lower() for word in found.marking.spared}
        wary = {marker for marker in own if any(word in marker.lower() for word in spared)}
        if not wary:
            return found.callers
        without = self._marked(render, Sparing.WORDS, wary=wary)
        if without is not None and without.text == found.text:
            return merged([*found.callers, *without.callers])
        # The template looks for these words: no occurrence of a marker is trusted if there are fewer without them.
        more = own - self._own(without) if without else own
        return merged([*found.callers, *Markers(wary & more.keys()).spans(found.text)])

    def _own(self, marked: Authored) -> Counter[str]:
        """Count the markers in a render that have no marked character."""
        return self._markers.counted(marked.text, marked.callers)

    def _marked(
        self, render: Render, sparing: Sparing, near: Collection[str] = (), wary: Collection[str] = ()
    ) -> Authored | None:
        """Returns a marked render; None if the template rejects the marked text."""
        marking = self.marking(sparing, near, wary)
        try:
            return Authored(*self._alphabet.reveal(render(marking)), marking)
        except TemplateStoppedError:
            raise
        except TemplateError:
            return None  # the template accepted the render without marks, so this error is not the caller's

    def marking(
        self, sparing: Sparing = Sparing.WORDS, near: Collection[str] = (), wary: Collection[str] = ()
    ) -> Marking:
        """Returns a way of marking this request's texts."""
        return Marking(self._alphabet, sparing, self._words, near, wary)

    def reveal(self, text: str) -> tuple[str, list[Span]]:
        """Returns a marked text without stand-ins, and the spans of it that are marked."""
        return self._alphabet.reveal(text)
