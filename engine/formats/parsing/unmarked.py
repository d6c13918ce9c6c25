"""Calls without any markers: JSON, or a pythonic list, that names a declared tool."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from engine.formats.families import JsonSyntax, PythonicSyntax, ToolSyntax
from engine.formats.parsing.emitter import Emitter
from engine.formats.parsing.json_reader import JsonReader, Outcome
from engine.formats.parsing.lookahead import BareTrial
from engine.formats.parsing.reader import Gen, Reader, Spelling, compiled
from engine.formats.parsing.shapes import JsonShape, PythonicShape, Section
from engine.formats.parsing.shapes.json_calls import FENCE, PLAIN, WRAPPERS
from engine.formats.parsing.shapes.section import raw_writer
from engine.types.parts import CallError
from engine.types.tools import IN_NAME, Tool, ToolChoice, ToolName


@dataclass(frozen=True, slots=True)
class Demands:
    """What the caller demanded of a turn. `json`: the answer must be JSON, so a code fence around it is dropped.
    `exact`: white space at the answer's ends belongs to it, also if it is all of it. `drops`: no call is wanted, and
    one in the family's own form is left out."""

    choice: ToolChoice = "auto"
    json: bool = False
    exact: bool = False
    drops: bool = False

    @property
    def calls(self) -> bool:
        """Whether call markup is parsed; if not, it is content."""
        return self.choice != "none" or self.drops

    @property
    def demanded(self) -> bool:
        """Whether the answer must be a call."""
        return self.choice not in ("auto", "none")


_MEMBER = re.compile(
    r'\s*(?:"(?P<key>[^"\\]*)(?P<key_ends>"\s*(?::\s*'
    r'(?:(?P<brace>\{)|"(?P<value>[^"\\]*)(?P<ends>"\s*(?P<comma>,)?)?)?)?)?)?'
)
"""As much as there is of a member: its key, and the beginning of an object or a string."""
_NAME = re.compile(rf"\[\s*({IN_NAME}*)")
_OPENING = re.compile(r"\(\s*(?:\)|\w+\s*=(?!=)|[\"'\[{\-\d])")
_MAYBE_OPENING = re.compile(r"\s*(?:\(\s*(?:\w+\s*)?)?")
_LIST = re.compile(r'\{\s*"tool_calls"\s*:\s*(?=\[)')
_LIST_KEY = re.compile(r'\{\s*"tool_calls"\s*:\s*')
_CLOSE = compiled("}")
_NOTHING = compiled()
_ANSWER = re.compile(r'\{\s*"response"\s*:\s*(?=\S)')
_ANSWER_START = '{"response":'


def is_bare(syntax: ToolSyntax) -> bool:
    """Whether the family itself writes calls without markers."""
    return (syntax.shape == "json" or syntax.shape == "pythonic") and (syntax.bare or not syntax.section[0])


def bare_calls(
    reader: Reader, emitter: Emitter, syntax: ToolSyntax | None, spelling: Spelling, demands: Demands
) -> "BareCalls | None":
    """Returns what reads calls without markers at the start of a text; None where there are none to be expected."""
    whole = syntax if syntax and (syntax.shape == "json" or syntax.shape == "pythonic") else None
    # An answer's format, and an answer where no call is wanted, leave only the family's own form.
    own_only = demands.drops or demands.json
    expected = whole is not None and is_bare(whole) if own_only else syntax is None or whole is not None
    if not demands.calls or not (demands.demanded or (expected and emitter.tools is not None)):
        return None
    return BareCalls(reader, emitter, syntax, spelling, demands)


class BareCalls:
    """Recognises and reads calls without markers.

    If the caller's choice demands a call, more forms of text are read as one.
    """

    def __init__(
        self, reader: Reader, emitter: Emitter, syntax: ToolSyntax | None, spelling: Spelling, demands: Demands
    ) -> None:
        def read(inner: Reader, made: Emitter) -> Gen[None]:
            return BareCalls(inner, made, syntax, spelling, demands).read()

        json = syntax if isinstance(syntax, JsonSyntax) else None
        closer = spelling.mark(syntax.section[1]).text if syntax is not None else ""
        self._reader, self._emitter = reader, emitter
        self._trial = partial(BareTrial, reader, emitter, spelling, read, closer=closer)
        self._tools: Mapping[str, Tool] = emitter.tools or {}
        self._own = syntax is not None and is_bare(syntax)
        self._demanded, self._may_answer = demands.demanded, demands.json or demands.drops
        self._is_cut = False
        self._named = demands.choice.name if isinstance(demands.choice, ToolName) else None
        self._syntax = (json or PLAIN).model_copy(update={"section": ("", ""), "code": ("", ""), "bare": True})
        unmarked = Section(reader, emitter, self._syntax, spelling)
        self._objects = JsonShape(unmarked, self._syntax)
        self._json = JsonReader(reader)
        self._list = PythonicShape(unmarked) if isinstance(syntax, PythonicSyntax) else None
        # Families that write bare JSON or lists may also write a list of it; for others a list is a call only if one is
        # demanded.
        self._in_lists = json is not None and (json.bare or json.several == "list")
        answers = json.answers if json is not None else syntax is None
        self._answers = answers and not (self._may_answer or self._named)

    def read(self) -> Gen[None]:
        """Read the calls at the front of the buffer."""
        reader = self._reader
        fenced = yield from reader.match(FENCE)
        yield from reader.space()
        named = None  # the tool if only its arguments stand here; decided first, since that needs the most text
        if self._named is not None and reader.buffer.startswith("{", reader.pos) and not (yield from self._is_object()):
            named = self._named
        wrapped = None if named else _LIST.match(reader.buffer, reader.pos)
        answer = _ANSWER.match(reader.buffer, reader.pos) if self._answers else None
        if answer is not None:
            reader.take(answer.end() - reader.pos, "marker")
            yield from self._answer()
        elif wrapped is not None:
            reader.take(wrapped.end() - reader.pos, "marker")
            yield from self._objects.read()
            yield from reader.space()
            yield from reader.match(_CLOSE)
        elif reader.buffer.startswith("[", reader.pos):
            pythonic = self._list is not None and not self._lists_an_object(reader.behind(0))
            yield from (self._list.read() if pythonic and self._list is not None else self._objects.read())
        elif named is not None:
            yield from self._arguments_of(named)
        else:
            yield from self._objects.call()
            while (yield from self._objects.another()):
                yield from self._objects.call()
        if fenced:
            yield from reader.space()
            yield from reader.match(FENCE)

    def _answer(self) -> Gen[None]:
        """Read the value of a wrapped answer, as content, and the brace that closes it."""
        reader, part = self._reader, self._emitter.next_part()

        def write(text: str) -> None:
            if text:
                self._emitter.delta("content", text, part)

        read = self._json.unwrapped if reader.buffer[reader.pos] == '"' else self._json.value
        if (yield from read(write, "content")) is Outcome.COMPLETE:
            yield from reader.space("marker")
            yield from reader.match(_CLOSE)

    def _is_object(self) -> Gen[bool]:
        """Whether the object at the front is a call; if not, it is the bare arguments of the named tool."""
        return (yield from self._reader.judged(lambda text: self._names_a_tool(text.lstrip()))) is True

    def _arguments_of(self, name: str) -> Gen[None]:
        call = self._emitter.call(name, None)
        outcome = yield from self._json.value(call.write, "arguments")
        if outcome is Outcome.MALFORMED:
            yield from self._reader.until(_NOTHING, raw_writer(self._reader, call))
        verdict: dict[Outcome, CallError] = {Outcome.TRUNCATED: "truncated", Outcome.MALFORMED: "malformed"}
        call.end(verdict.get(outcome))

    def stands_here(self) -> Gen[bool]:
        """Whether calls stand here. Where one is demanded, its name decides."""
        if (yield from self._reader.judged(self._decided)) is not True:
            return False
        reader = self._reader
        if self._demanded or (self._answers and _ANSWER.match(reader.buffer, reader.pos)):
            return True
        # The family's own form is passed on as it comes, unless its text may be an answer after all. Another form is no
        # call then.
        own = self._own and (self._list is None or reader.buffer.startswith("[", reader.pos))
        if self._may_answer and not own:
            return False
        trial = self._trial(at_end=self._may_answer or not own)
        stands = yield from trial.succeeds()
        self._is_cut = trial.is_cut
        return stands

    def is_cut(self) -> bool:
        """Whether the output was cut off in what was probably the beginning of a call."""
        reader = self._reader
        if not (reader.closed and reader.cut and reader.left):
            return False
        return self._is_cut or self._decided(reader.buffer[reader.pos :]) is None

    def _decided(self, text: str) -> bool | None:
        """Whether the text begins with a call; None while it is too short to tell."""
        if self._demanded and (text.startswith("```") or "```".startswith(text)):
            text = text.removeprefix("```").removeprefix("json").lstrip() if len(text) > len("```json") else ""
        if not text:
            return None
        if text.startswith("["):
            return self._lists_a_tool(text)
        if self._named is not None and text.startswith("{"):
            return True
        named = self._names_a_tool(text)
        if not self._answers or named is True:
            return named
        if _ANSWER.match(text):
            return True
        begun = _ANSWER_START.startswith("".join(text.split()))
        return None if begun else named

    def _names_a_tool(self, text: str) -> bool | None:
        """The same for one object. Only short string members and wrappers may precede the name."""
        if not text.startswith("{"):
            return False if text else None
        lists = _LIST_KEY.match(text)
        if lists is not None:
            rest = text[lists.end() :]
            return self._lists_an_object(rest) if rest.startswith("[") else (None if not rest else False)
        syntax, is_key = self._syntax, self._syntax.name_is_key
        before = (*syntax.name_fields, *syntax.id_fields, "type", *WRAPPERS, "tool_calls")
        for key, value in _members(text):
            known = key.is_one_of(self._tools if is_key else before)
            if known is not True or value is None:
                return None if known else known
            if is_key:
                return value is _BRACE
            if value is _BRACE and key.text not in WRAPPERS:
                return False
            if key.text in syntax.name_fields:
                return value.is_one_of(self._tools)
        return False

    def _lists_a_tool(self, text: str) -> bool | None:
        if self._demanded or self._in_lists:
            objects = self._lists_an_object(text)
            if objects is not False or self._list is None:
                return objects
        if self._list is None:
            return False
        found = _NAME.match(text)
        assert found is not None  # the text starts with the bracket
        name, rest = found.group(1), text[found.end() :]
        if name in self._tools:
            if _OPENING.match(rest):
                return True
            return None if _MAYBE_OPENING.fullmatch(rest) else False
        possible = any(tool.startswith(name) for tool in self._tools)
        return None if not rest and possible else False

    def _lists_an_object(self, text: str) -> bool | None:
        inside = text[1:].lstrip()
        return self._names_a_tool(inside) if inside else None


class _Word(NamedTuple):
    """The inside of a short string; `ends`: its closing quotation mark is there."""

    text: str
    ends: bool = True

    def is_one_of(self, words: Iterable[str]) -> bool | None:
        """Whether it is one of the words; None while it may become one."""
        if self.ends:
            return self.text in words
        return None if any(word.startswith(self.text) for word in words) else False


_BRACE = _Word("{")
"""In place of a value: an object begins."""


def _members(text: str) -> Iterator[tuple[_Word, _Word | None]]:
    """Yields the keys and values at the front of an object that may be unfinished, as far as the values are short
    strings; a value that is an object is followed by its members. The last value is None if it has not begun. Ends
    where something else follows."""
    at, goes_on = 1, True
    while goes_on:
        found = _MEMBER.match(text, at)
        assert found is not None  # it matches every text
        key, value = found["key"] or "", found["value"]
        at, is_last = found.end(), found.end() == len(text)
        goes_on = bool(found["brace"] or found["comma"])
        if goes_on or found["ends"]:
            yield _Word(key), _BRACE if value is None else _Word(value)
        elif is_last:
            yield _Word(key, found["key_ends"] is not None), None if value is None else _Word(value, ends=False)
        if is_last and not goes_on:
            yield _Word("", ends=False), None
