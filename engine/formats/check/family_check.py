"""Checks a file of families: what each row states and inherits, and whether the turns it describes are parsed
correctly.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import wrap
from typing import Any

from engine.formats.check.roundtrip import ASKED, MESSAGES, expected, lost, read
from engine.formats.families import (
    Families,
    Family,
    Format,
    TaggedJsonSyntax,
    ToolSyntax,
    WholeSyntax,
    builtin_families,
)
from engine.formats.families.detect import tables_of
from engine.formats.families.response_template import format_of, given_template
from engine.formats.families.table import FamilyTables
from engine.formats.template import generic
from engine.formats.template.chat_template import ChatTemplate
from engine.formats.template.derive.derivation import stripped
from engine.support.errors import FamilyError, TemplateError
from engine.types.messages import Message
from engine.types.parts import Record, ToolCall

_WIDE = 48


@dataclass(frozen=True, slots=True)
class Stated:
    """A field of a row: its dotted name, its value, and the row or base that states it ("" if none does)."""

    name: str
    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class Tried:
    """A turn that was written and parsed; `problem` is what was read instead, "" if the turn was read correctly."""

    turn: str
    problem: str


@dataclass(frozen=True, slots=True)
class RowCheck:
    """The result for one row. `untried` says why no call was written."""

    family: Family
    fields: tuple[Stated, ...]
    tried: tuple[Tried, ...]
    untried: str = ""

    def text(self) -> str:
        """Returns the row as a table, and the results of its turns."""
        said = [field for field in self.fields if field.origin]
        names, values = ([_clipped(text) for text in texts] for texts in ([f.name for f in said], map(_shown, said)))
        left, middle = max(map(len, names), default=0), max(map(len, values), default=0)
        lines = [f"{self.family.name}: {self.family.title}"]
        lines += [
            f"  {name:<{left}}  {value:<{middle}}  from {field.origin}"
            for name, value, field in zip(names, values, said, strict=True)
        ]
        defaults = "; ".join(f"{field.name} = {_shown(field)}" for field in self.fields if not field.origin)
        lines += wrap(f"left at the default: {defaults}", 100, initial_indent="  ", subsequent_indent="    ")
        lines += _tried_text("written as the row says, and parsed", self.tried)
        return "\n".join([*lines, *([f"    {self.untried}"] if self.untried else [])])


@dataclass(frozen=True, slots=True)
class TemplateCheck:
    """The result for a chat template under the file's rows. `recognised`: the row's name, "" if it is not one of the
    file's; `hint`: what may be wrong if a turn was not read correctly; `response_template`: how one compares."""

    path: Path
    recognised: str
    reason: str
    tried: tuple[Tried, ...]
    hint: str = ""
    response_template: str = ""

    def text(self) -> str:
        found = self.recognised or "none of this file's rows"
        head = f"{self.path}: recognised as {found}: {self.reason}"
        lines = [head, *_tried_text("rendered by the template, and parsed", self.tried)]
        lines += [f"    {self.hint}"] if self.hint else []
        return "\n".join([*lines, *([f"  {self.response_template}"] if self.response_template else [])])


@dataclass(frozen=True, slots=True)
class FamilyCheck:
    """The result of `llama-engine families check`."""

    rows: tuple[RowCheck, ...]
    template: TemplateCheck | None = None

    @property
    def is_sound(self) -> bool:
        """Whether every turn was read correctly, and the template belongs to a row of the file."""
        tried = [trial for row in self.rows for trial in row.tried]
        if self.template is not None:
            tried += self.template.tried
            if not self.template.recognised:
                return False
        return not any(trial.problem for trial in tried)

    def text(self) -> str:
        parts = [row.text() for row in self.rows]
        if self.template is not None:
            parts.append(self.template.text())
        verdict = "all is read back" if self.is_sound else "NOT all is read back; see above"
        return "\n\n".join([*parts, f"{_count(len(self.rows))}: {verdict}."])


def check(path: Path, template: Path | None = None, response_template: Path | None = None) -> FamilyCheck:
    """Read a file of families and try every row, and a chat template under them; compare a response template with the
    row that the chat template belongs to.

    Raises FamilyError naming every mistake in the file, and for a response template that cannot be expressed or has no
    chat template beside it; TemplateError for a template that cannot be read or rendered.
    """
    if response_template is not None and template is None:
        raise FamilyError("A response template is compared by what a chat template writes: give it with --template.")
    own = Families.load(path)
    rows = tuple(row_check(own.get(name), tables_of(path)) for name in own.names())
    return FamilyCheck(rows, None if template is None else _template_check(template, own, response_template))


def row_check(family: Family, tables: FamilyTables) -> RowCheck:
    """Returns what a row states, and whether turns written by it are parsed correctly."""
    found, untried = list(_turns(family.format)), ""
    syntax = family.format.tools
    if family.format.channels is not None:
        found, untried = [], "turns in channels are written by templates only: give one with --template"
    elif syntax is not None and generic.writable(syntax) is not syntax:
        untried = f"calls of the shape {syntax.shape} are written by templates only: give one with --template"
    tried = tuple(_try(name, family.format, message, text) for name, message, text in found)
    return RowCheck(family, tuple(_fields(family, tables)), tried, untried)


def _fields(family: Family, tables: FamilyTables) -> Iterator[Stated]:
    """Yields every field that applies to this row."""

    def stated(record: Record, place: tuple[str, ...], names: Sequence[str]) -> Iterator[Stated]:
        for name in names:
            value, here = getattr(record, name), (*place, name)
            if isinstance(value, Record):
                yield from stated(value, here, list(type(value).model_fields))
            else:
                origin = tables.origin(family.name, here)
                yield Stated(".".join(here), value, "" if origin is None else origin[1])

    yield from stated(family, (), ["detect", "format", "sampling"])


def _turns(format_: Format) -> Iterator[tuple[str, Message, str]]:
    """Yields turns as a model of the format writes them, with the messages that they represent."""
    reasoning, (opening, closing) = format_.reasoning, format_.content
    syntax = format_.tools or generic.GENERIC
    for name, message in MESSAGES.items():
        bare = isinstance(syntax, WholeSyntax) and syntax.bare
        after = message.content and bare and not syntax.section[0]  # a bare call begins the answer
        unwritten = message.tool_calls and (generic.writable(syntax) is not syntax or after)
        if unwritten or (message.reasoning and reasoning is None):
            continue
        text = ""
        if reasoning is not None and message.reasoning:
            text = reasoning.open + message.reasoning + reasoning.close
        elif reasoning is not None and reasoning.implicit:
            text = reasoning.close
        if message.content:
            text += opening + message.content + closing
        if message.tool_calls:
            text += generic.written(_numbered(message.tool_calls, syntax), syntax)
        yield name, message, format_.start + text


def _numbered(calls: Sequence[ToolCall], syntax: ToolSyntax) -> Sequence[ToolCall]:
    """Returns the calls with ids made from their names, if the family's syntax writes such ids."""
    if not (isinstance(syntax, TaggedJsonSyntax) and syntax.name_is_id):
        return calls
    return [
        call.model_copy(update={"id": f"{syntax.name_prefix}{call.name}:{number}"}) for number, call in enumerate(calls)
    ]


def _try(name: str, format_: Format, message: Message, text: str) -> Tried:
    format_ = generic.with_generic_tools(format_)
    came, wanted = read(format_, "", text, calls=bool(message.tool_calls)), expected(message, text)
    return Tried(name, "" if stripped(came) == stripped(wanted) else f"{came} from {text!r}")


def _template_check(path: Path, own: Families, response_template: Path | None) -> TemplateCheck:
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TemplateError(f"The chat template {path} cannot be read: {error}. Correct the path.") from error
    stated = None if response_template is None else given_template(response_template)
    if stated is not None:
        format_of(stated.spec)  # refused with its reason
    made = ChatTemplate(
        source, family=builtin_families().extended(own), response_template=stated and replace(stated, chosen=False)
    )
    name = made.family.name
    unlike = lost(made, continues=False)
    shown = made.format.tools is not None or made.format.channels is not None
    turns = [turn for turn, message in MESSAGES.items() if shown or not message.tool_calls]
    tried = tuple(Tried(turn, unlike.get(turn, "")) for turn in turns)
    recognised = name if name in own.names() else ""
    return TemplateCheck(
        path, recognised, made.detection.reason, tried, _hint(made) if unlike else "", made.detection.response_template
    )


def _hint(template: ChatTemplate) -> str:
    """Returns what the row lacks: the beginning of the assistant's turn, which counts as the answer unless the row
    states it."""
    tail = "".join(piece.text for piece in template.render([ASKED]).prefix)
    if template.format.start or not tail.strip():
        return ""
    return f"The prompt ends with {tail!r}, but the row has no format.start. Write format.start = {json.dumps(tail)}"


def _tried_text(title: str, tried: Sequence[Tried]) -> list[str]:
    back = [trial.turn for trial in tried if not trial.problem]
    lines = [f"  {title}: {len(back)} of {len(tried)} turns come back"] if tried else []
    return lines + [f"    LOST {trial.turn}: read as {trial.problem}" for trial in tried if trial.problem]


def _shown(field: Stated) -> str:
    value: Any = field.value
    return "none" if value is None else json.dumps(value, ensure_ascii=False)


def _clipped(text: str) -> str:
    return text if len(text) <= _WIDE else f"{text[: _WIDE - 1]}…"


def _count(number: int) -> str:
    return f"{number} famil{'y' if number == 1 else 'ies'}"
