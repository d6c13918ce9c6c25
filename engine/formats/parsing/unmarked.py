"""Calls without any markers: JSON, or a pythonic list, that names a declared tool."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from engine.formats.families import ToolSyntax
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


_STRING = re.compile(r'"([^"\\]*)("?)')
_SPACE = re.compile(r"\s*")
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
        choice = demands.choice

        def read(inner: Reader, made: Emitter) -> Gen[None]:
            return BareCalls(inner, made, syntax, spelling, demands).read()

        self._own = syntax is not None and is_bare(syntax)
        self._may_answer = demands.json or demands.drops
        self._is_cut = False
        closer = spelling.mark(syntax.section[1]).text if syntax is not None else ""
        self._trial = partial(BareTrial, reader, emitter, spelling, read, closer=closer)
        json = syntax if syntax is not None and syntax.shape == "json" else PLAIN
        self._syntax = json.model_copy(update={"section": ("", ""), "code": ("", ""), "bare": True})
        unmarked = Section(reader, emitter, self._syntax, spelling)
        self._reader = reader
        self._emitter = emitter
        self._tools: Mapping[str, Tool] = emitter.tools or {}
        self._objects = JsonShape(unmarked, self._syntax)
        self._json = JsonReader(reader)
        self._list = PythonicShape(unmarked) if syntax is not None and syntax.shape == "pythonic" else None
        self._demanded = choice not in ("auto", "none")
        # Families that write bare JSON or lists may also write a list of it; for others a list is a call only if one is
        # demanded.
        self._in_lists = syntax is not None and syntax.shape == "json" and (syntax.bare or syntax.several == "list")
        self._named = choice.name if isinstance(choice, ToolName) else None
        answers = syntax is None or (syntax.shape == "json" and syntax.answers)
        self._answers = answers and not (demands.json or demands.drops or self._named)

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
        if self._syntax.name_is_key:
            return self._begins_with_a_tool(text)
        allowed = (*self._syntax.name_fields, *self._syntax.id_fields, "type", *WRAPPERS, "tool_calls")
        at = 1
        while True:
            key, at = _string_at(text, at, allowed)
            if key is None:
                return None if at < 0 else False
            at = _skip(text, at, ":")
            if at < 0 or at >= len(text):
                return None if at != -2 else False
            if key in WRAPPERS and text[at] == "{":
                at += 1
                continue
            named = key in self._syntax.name_fields
            value, at = _string_at(text, at, tuple(self._tools) if named else None)
            if value is None:
                return None if at < 0 else False
            if named:
                return value in self._tools
            at = _skip(text, at, ",")
            if at < 0:
                return None if at != -2 else False

    def _begins_with_a_tool(self, text: str) -> bool | None:
        """The same if the tool's name is the object's only key."""
        key, at = _string_at(text, 1, tuple(self._tools))
        at = _skip(text, at, ":") if key is not None else at
        if at == len(text) or at == -1:
            return None
        return key is not None and at > 0 and text[at] == "{"

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


def _skip(text: str, at: int, expected: str) -> int:
    """Returns the position after the expected character and white space; -1 if the text ends, -2 at another
    character."""
    match = _SPACE.match(text, at)
    at = match.end() if match else at
    if at == len(text):
        return -1
    if text[at] != expected:
        return -2
    match = _SPACE.match(text, at + 1)
    return match.end() if match else at + 1


def _string_at(text: str, at: int, allowed: tuple[str, ...] | None) -> tuple[str | None, int]:
    """Returns the short string at this position and the position after it.

    (None, -1): the text ends inside a string that may still be allowed; (None, 0): there is no string, or it is not
    allowed.
    """
    space = _SPACE.match(text, at)
    at = space.end() if space else at
    if at == len(text):
        return None, -1
    found = _STRING.match(text, at)
    if found is None:
        return None, 0
    content, closed = found.groups()
    if not closed:
        cut = found.end() == len(text)
        possible = allowed is None or any(option.startswith(content) for option in allowed)
        return (None, -1) if cut and possible else (None, 0)
    return (content, found.end()) if allowed is None or content in allowed else (None, 0)
