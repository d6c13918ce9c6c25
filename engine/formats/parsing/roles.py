"""What each marker of a format means, by its text. Made once for a format, its spelling in a vocabulary and what the
caller demands; what a meaning does is said in the tables of `text_turn`.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum, auto
from functools import lru_cache

from engine.formats.families import Format, JsonSyntax, TaggedJsonSyntax, ToolSyntax
from engine.formats.parsing.reader import CUT, Mark, Markers, Spelling, compiled
from engine.formats.parsing.shapes.section import CallMarks, call_marks
from engine.formats.parsing.unmarked import Demands
from engine.formats.parsing.whole_calls import MARKS

_TOKEN = re.compile(r"<[^<>\s]+>|\[/?[^\[\]\s]+\]")
BARE = "\0"
"""Stands for a marker where calls begin without one."""


class Role(StrEnum):
    """What a text means; one text may mean several things. The values are what a text with this role does."""

    CUT = "is the beginning of a marker, where the output ends"
    BARE = "is no marker, and a call without one begins"
    WHOLE = "may begin a JSON call anywhere"
    CALLS = "opens a section of calls, or a call"
    SECTION = "opens a section in which each call has a marker of its own"
    CLOSER = "closes a section, or a call"
    CALL_END = "closes a section or a call, and is nothing else"
    ELEMENT = "opens an element with the name of a call's closing marker"
    FENCE = "stands around an answer that must be JSON"
    STOP = "stops the generation"
    OPENS = "opens reasoning"
    CLOSES = "closes reasoning"
    HEADER = "begins a header"
    ANSWER = "opens the answer"
    ANSWER_END = "closes the answer"
    START = "begins a message"
    END = "ends the turn"
    OTHER = "begins another part of the turn, and cannot occur in prose"
    PART = "begins or ends a part of the answer, or of the turn"
    LONE = "closes or separates what is not there, and is nothing else"
    CONTROL = "is a control token"
    STRAY = "closes what is not open, and cannot occur in prose"


class Place(StrEnum):
    """Where the reader looks for markers."""

    AT_START = auto()
    IN_CONTENT = auto()
    IN_ANSWER = auto()
    IN_REASONING = auto()
    BEHIND_CALL = auto()


_OF_THEIR_OWN = (Role.FENCE, Role.STOP, Role.OPENS, Role.HEADER, Role.CALLS)


@dataclass(frozen=True, slots=True, eq=False)
class Roles:
    """The markers of a format: `of` has the roles of each text, `marks` the texts of a role, with the white space that
    the template writes around them, `at` what is looked for in a place. `skipped`: the white space of markers that only
    separate parts. `ends_draft` ends a call that reasoning only drafts; `behind_section` are the markers that end prose
    between a section's opening marker and its first call."""

    of: Mapping[str, frozenset[Role]]
    marks: Mapping[Role, Mapping[str, Mark]]
    at: Mapping[Place, Markers]
    skipped: Mapping[str, Mark]
    header_end: Mark
    ends_draft: Markers
    behind_section: Markers

    def all(self, role: Role) -> Markers:
        """Returns all markers with this role, to look for them alone."""
        return compiled(*self.marks[role])

    def mark(self, role: Role, text: str) -> Mark:
        """Returns a marker with the white space around it in this role."""
        return self.marks[role].get(text, _NO_SPACE)

    def before(self, role: Role) -> str:
        """Returns the longest white space that the template writes before a marker with this role."""
        return max((mark.before for mark in self.marks[role].values()), key=len, default="")


_NO_SPACE = Mark()


def roles_of(format_: Format, spelling: Spelling, demands: Demands, *, tools: bool) -> Roles:
    """Returns the roles of a format's markers. `tools`: there are tools, and their names are known."""
    anywhere = tools and demands.calls and not (demands.json or demands.drops)
    return _made(format_, spelling, calls=demands.calls, json=demands.json, tools=tools, anywhere=anywhere)


@lru_cache(maxsize=512)
def _made(format_: Format, spelling: Spelling, *, calls: bool, json: bool, tools: bool, anywhere: bool) -> Roles:
    """`anywhere`: JSON anywhere in the answer may be a call."""
    syntax = format_.tools if calls else None
    call = call_marks(syntax, spelling) if syntax else CallMarks()
    marks = _marks(format_, spelling, call, json=json)
    control = frozenset(spelling.characters.values() if calls else ())
    strays = [*_strays(format_, syntax, spelling), *control]
    texts = {**marks, **_others(marks, call, strays)}
    texts[Role.CONTROL] = control
    if anywhere and isinstance(syntax, JsonSyntax | TaggedJsonSyntax) and syntax.whole_objects:
        texts[Role.WHOLE] = MARKS
    in_prose = _in_prose(format_, spelling, marks[Role.OPENS])
    # A call without its section is one in reasoning, too, if it names a declared tool and ends the output.
    in_reasoning = [text for text in call.openers if text in call.wrappers or tools]
    skipped = {text: Mark("\n") for text in texts[Role.CALL_END]}
    for role in (Role.ANSWER_END, Role.END, Role.START, Role.FENCE):
        skipped.update(marks[role])
    return Roles(
        of=_by_text(texts),
        marks=marks,
        at=_places(texts, in_prose, in_reasoning, repeats=format_.content_repeats),
        skipped=skipped,
        header_end=spelling.mark(format_.header[1]),
        ends_draft=compiled(*_of(marks, Role.CLOSES, Role.OTHER)),
        behind_section=_behind_section(call),
    )


def _others(
    marks: Mapping[Role, Mapping[str, Mark]], calls: CallMarks, strays: Sequence[str]
) -> dict[Role, Collection[str]]:
    """Returns the texts of the roles that follow from a format's markers."""
    known = {*strays, *_of(marks, *marks)}
    call_ends = [text for text in calls.closers.literals if text not in known]
    begins = frozenset(calls.is_call.literals)
    return {
        Role.CUT: (CUT,),
        Role.BARE: (BARE,),
        Role.WHOLE: (),
        Role.SECTION: calls.openers.keys() - begins if begins else (),
        Role.CLOSER: calls.closers.literals,
        Role.CALL_END: call_ends,
        Role.ELEMENT: _elements(call_ends, known, tuple(calls.openers)),
        Role.PART: _of(marks, Role.ANSWER, Role.ANSWER_END, Role.START, Role.END),
        Role.STRAY: strays,
        Role.LONE: set(strays).difference(_of(marks, *_OF_THEIR_OWN)),
    }


def _places(
    texts: Mapping[Role, Collection[str]], in_prose: Sequence[str], in_reasoning: Sequence[str], *, repeats: bool
) -> dict[Place, Markers]:
    """Returns what is looked for in each place. `in_prose` opens reasoning behind other text, `in_reasoning` calls in
    reasoning. `repeats`: an answer may begin behind other text."""
    content = [*texts[Role.CALLS], *in_prose, *_of(texts, Role.OTHER, Role.STRAY, Role.END, Role.STOP, Role.FENCE)]
    content += [*texts[Role.CALL_END], *sorted(texts[Role.ELEMENT]), *texts[Role.WHOLE]]
    begins = _of(texts, Role.CALLS, Role.OPENS, Role.CLOSES, Role.ANSWER, Role.START, Role.HEADER)
    left_over = _of(texts, Role.FENCE, Role.END, Role.STOP, Role.STRAY, Role.CALL_END)
    return {
        Place.AT_START: compiled(*begins, *left_over),
        Place.IN_CONTENT: compiled(*content, *(texts[Role.ANSWER] if repeats else ())),
        Place.IN_ANSWER: compiled(*content, *texts[Role.ANSWER_END]),
        Place.IN_REASONING: compiled(*_of(texts, Role.CLOSES, Role.OTHER), *in_reasoning),
        Place.BEHIND_CALL: compiled(*_of(texts, Role.END, Role.STOP, Role.ANSWER_END, Role.CLOSER)),
    }


def _marks(format_: Format, spelling: Spelling, calls: CallMarks, *, json: bool) -> dict[Role, Mapping[str, Mark]]:
    """Returns the markers that a format names, by what they mean."""
    reasoning, marks = format_.reasoning, spelling.marks
    opens = (reasoning.open, *reasoning.also_open) if reasoning else ()
    closes = (reasoning.close, *reasoning.also_close) if reasoning else ()
    found = {
        Role.OPENS: marks(*opens),
        Role.CLOSES: marks(*closes),
        Role.CALLS: calls.openers,
        Role.ANSWER: marks(format_.content[0]),
        Role.ANSWER_END: marks(format_.content[1]),
        Role.START: marks(format_.start),
        Role.HEADER: marks(format_.header[0]),
        Role.FENCE: marks(*(("\n```json\n", "\n```\n") if json else ())),
        Role.END: marks(*format_.ends),
        # A marker that begins another part of the turn ends the previous part, if it cannot occur in prose.
        Role.OTHER: marks(*filter(spelling.is_hard, (format_.content[0], format_.start))),
    }
    own = {*found[Role.ANSWER_END], *found[Role.END], *found[Role.CLOSES]}
    found[Role.STOP] = {text: mark for text, mark in marks(*format_.stops).items() if text not in own}
    return found


def _strays(format_: Format, tools: ToolSyntax | None, spelling: Spelling) -> Mapping[str, Mark]:
    """Returns the markers that close something, and cannot occur in prose."""
    reasoning = format_.reasoning
    closes = (reasoning.close, *reasoning.also_close) if reasoning else ()
    over = [format_.content[1], *(tools.section[1:] + tools.call_marks[1:] if tools else ())]
    later = reasoning is not None and reasoning.where != "start"
    return spelling.marks(*filter(_is_token, closes if later else ()), *filter(spelling.is_hard, (*closes, *over)))


def _in_prose(format_: Format, spelling: Spelling, opens: Mapping[str, Mark]) -> list[str]:
    """Returns the markers that open reasoning behind other text too."""
    reasoning = format_.reasoning
    if reasoning is None or reasoning.where == "anywhere":
        return [*opens]
    literals = (reasoning.open, *reasoning.also_open) if reasoning.where != "start" else ()
    tokens = spelling.marks(*filter(_is_token, literals))
    return [text for text in opens if text in tokens]


def _elements(call_ends: Iterable[str], known: set[str], openers: tuple[str, ...]) -> frozenset[str]:
    """Returns the openings of elements that a call's closing marker may close: one that the text opens has a closing
    marker of its own."""
    names = [text[2:-1] for text in call_ends if text.startswith("</")]
    elements = {f"<{name}{end}" for name in names for end in "> "} - known
    return frozenset(text for text in elements if not text.startswith(openers) and not _begins(text, openers))


def _behind_section(calls: CallMarks) -> Markers:
    begins = calls.is_call.literals
    others = [text for text in (*calls.openers, *calls.closers.literals) if not _begins(text, begins)]
    return compiled(*begins, *others)


def _begins(text: str, markers: Iterable[str]) -> bool:
    """Whether one of the markers begins with the text."""
    return any(marker.startswith(text) for marker in markers)


def _of(texts: Mapping[Role, Collection[str]], *roles: Role) -> list[str]:
    return [text for role in roles for text in texts[role]]


def _by_text(named: Mapping[Role, Iterable[str]]) -> Mapping[str, frozenset[Role]]:
    found: dict[str, set[Role]] = {}
    for role, texts in named.items():
        for text in texts:
            found.setdefault(text, set()).add(role)
    return {text: frozenset(roles) for text, roles in found.items()}


@lru_cache
def _is_token(literal: str) -> bool:
    """Whether a marker looks like one token rather than prose."""
    return _TOKEN.fullmatch(literal.strip()) is not None
