"""models.toml as frozen records: what each model family writes, and how a model is recognised as one of a family.

Knows: the schema of a family table, its checks, and the rules of detection. Does not know: how a format is parsed,
rendered or constrained; those rooms read the records. Markers are literals written with the whitespace that the
family's template puts beside them: "\\n</think>\\n\\n" is the marker `</think>` with one newline before it and two
after.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, cast

from pydantic import Field, ValidationError, model_validator

from engine import _data
from engine.errors import FamilyError
from engine.types import Record

History: TypeAlias = Literal["none", "last_user", "last_answer", "all", "unknown"]
Shape: TypeAlias = Literal["json", "tagged_json", "tagged_args", "pythonic", "dictionary", "nested"]


_HEADER = re.compile(r"\[(.+)\]\s*$")
_HEADER_PART = re.compile(r'"[^"]*"|[^.]+')
_KEY = re.compile(r"([\w-]+)\s*=")


class Gate(Record):
    """The template variable that switches reasoning: its name, and the value for each position it has.

    A position that is absent does not exist (gpt-oss cannot be switched off). `default` is what the template does
    when the variable is not given.
    """

    kwarg: str
    on: Any = None
    off: Any = None
    low: Any = None
    medium: Any = None
    high: Any = None
    default: Literal["on", "off"] = "on"


class ReasoningSyntax(Record):
    """How a family marks reasoning, and what becomes of it in later prompts.

    `also_open` and `also_close` are other spellings that models write. `implicit`: a turn is reasoning from its first
    character on, without an opening marker, wherever the prompt says nothing else. `forced_open` tells what the
    template usually does; the parser believes the rendered prompt's tail instead. `history`: earlier reasoning is
    dropped ("none"), kept after the last user message ("last_user"), since the last final answer ("last_answer"),
    always ("all"), or the template has no notion of it ("unknown"). `fields` are the message fields that the template
    reads it from ("" as an entry: tags inside `content`). `ends_on_call`: whether tool markup inside open reasoning
    ends it (else it is quoted text). `where`: reasoning opens only at the start of a turn's segment (start of the
    turn, after a call, after other reasoning), or anywhere. `when_closed`: what an opening marker is that a model
    writes although the prompt closed reasoning: it is separated like any other, or that marker alone is dropped.
    """

    open: str
    close: str
    also_open: tuple[str, ...] = ()
    also_close: tuple[str, ...] = ()
    implicit: bool = False
    forced_open: bool = False
    gate: Gate | None = None
    history: History = "unknown"
    fields: tuple[str, ...] = ()
    ends_on_call: bool = False
    where: Literal["start", "anywhere"] = "start"
    when_closed: Literal["separate", "drop"] = "separate"


class ToolSyntax(Record):
    """The syntax of tool calls: a section that holds calls, in one of the shapes.

    - `json`: the section holds a JSON object, an array of objects, or several objects.
    - `tagged_json`: `call[0] name name_end {json} arguments_end call[1]`.
    - `tagged_args`: `call[0] name name_end (argument[0] key key_end value argument[1])* call[1]`.
    - `pythonic`: `name(key=value, ..)`, in a list or a line each, Python or JSON literals.
    - `dictionary`: `call[0] name{key:value, ..} call[1]`, keys bare, strings between `quote` marks.
    - `nested`: `call[0] name name_end`, then an element for each argument, `tag[0] key tag[1]` .. `tag[2] key tag[1]`.

    Markup: `section_also` are other spellings of the section's opening marker; `section_optional`: calls are found
    without the section's markers too; `bare`: a JSON object (or a pythonic list) at the start of the answer is a call
    when it names a declared tool; `names_declared`: the call marker counts only before the name of a declared tool;
    `code` are the marks around raw code for a tool called `python`. Names and ids: `name_prefix` is not part of the
    name; `name_is_id`: prefix, name and counter together are the id; `id_end` ends an id written before the name,
    `id_open` begins one after it; `attributes_end` ends what follows the name;
    `call_empty` ends the name of a call without arguments, and the call. Arguments: `value_open` stands between
    key and value; `type_end` ends a type written after the key, `text_types` are the types whose values are text;
    `cdata`: values may be CDATA sections. JSON: `name_fields`, `arguments_fields`, `id_fields` are the keys (several
    spellings allowed, the first is the family's own); `name_is_key`: the name is the key itself; `id_last`: the id
    comes after the arguments. Rendering: `arguments_as`, `id_length` and `parallel` are what the family's template
    wants of history.
    """

    shape: Shape
    section: tuple[str, str] = ("", "")
    section_also: tuple[str, ...] = ()
    section_optional: bool = False
    call: tuple[str, str] = ("", "")
    name_end: str = ""
    name_prefix: str = ""
    names_declared: bool = False
    name_is_id: bool = False
    id_end: str = ""
    id_open: str = ""
    attributes_end: str = ""
    call_empty: str = ""
    arguments_end: str = ""
    argument: tuple[str, str] = ("", "")
    key_end: str = ""
    value_open: str = ""
    type_end: str = ""
    text_types: tuple[str, ...] = ()
    cdata: bool = False
    tag: tuple[str, str, str] = ("", "", "")
    quote: str = ""
    code: tuple[str, str] = ("", "")
    bare: bool = False
    name_fields: tuple[str, ...] = ("name",)
    arguments_fields: tuple[str, ...] = ("arguments", "parameters")
    id_fields: tuple[str, ...] = ()
    name_is_key: bool = False
    id_last: bool = False
    arguments_as: Literal["object", "string"] = "object"
    id_length: int | None = None
    parallel: bool = True

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.shape in ("json", "pythonic"):
            if not (self.section[0] or self.bare):
                raise ValueError(f"shape {self.shape} needs section = [open, close], or bare = true")
        elif not self.call[0]:
            raise ValueError(f"shape {self.shape} needs call = [open, close]")
        for field, shape in _NEEDED.items():
            if self.shape == shape and not any(part.strip() for part in getattr(self, field)):
                raise ValueError(f"shape {shape} needs {field}")
        return self


_NEEDED = {"argument": "tagged_args", "quote": "dictionary", "tag": "nested"}


class ChannelSyntax(Record):
    """Messages with a header: `start role channel-marker channel message-marker body end`, a recipient in the header.

    Source of the roles of each field: the harmony response format of gpt-oss.
    """

    start: str
    role: str
    channel: str
    constrain: str
    message: str
    ends: tuple[str, ...]
    call_end: str
    recipient: str = "to="
    namespace: str = "functions."
    reasoning: tuple[str, ...]
    content: tuple[str, ...]


class Format(Record):
    """Everything the parser needs: the turn's start, its markers, and which of them exist only as control tokens.

    `content` are the marks around the answer; `header` the marks around a heading that says nothing to the reader;
    `ends` what a model writes, as text, at the end of its turn.
    """

    start: str = ""
    stops: tuple[str, ...] = ()
    control: tuple[str, ...] = ()
    reasoning: ReasoningSyntax | None = None
    tools: ToolSyntax | None = None
    channels: ChannelSyntax | None = None
    content: tuple[str, str] = ("", "")
    header: tuple[str, str] = ("", "")
    ends: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.channels and self.tools:
            raise ValueError("channels and tools exclude each other: a channel format carries its calls itself")
        return self


class Detect(Record):
    """How a model is recognised. `template`: all of these texts occur in the chat template; `template_not`: none does.
    `architectures` and `names` (case-insensitive parts of the model's name) serve a GGUF that carries no template."""

    template: tuple[str, ...] = ()
    template_not: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


class Family(Record):
    """One row of the truth table."""

    name: str
    title: str
    verified: str = Field(description="the official template this row was checked against")
    detect: Detect = Detect()
    format: Format
    sampling: Mapping[str, float] = {}
    sampling_source: str = ""


@dataclass(frozen=True, slots=True)
class Detection:
    """A family, and the sentence that says why it was chosen."""

    family: Family
    reason: str


class Families:
    """The families known, in order of precedence."""

    def __init__(self, rows: Sequence[Family]) -> None:
        self._rows = {row.name: row for row in rows}

    @classmethod
    def load(cls, path: Path | str | None = None) -> Self:
        """Read a truth table: the shipped one, or a file of your own, whose rows may be `like` shipped ones.

        Raises FamilyError naming the file, the line and the field at fault.
        """
        source = Path(path) if path is not None else _data.models_toml()
        tables, text = _tables(source)
        shipped = tables if path is None else _tables(_data.models_toml())[0]
        return cls([_row(name, _inherited(name, {**shipped, **tables}, source), source, text) for name in tables])

    def names(self) -> tuple[str, ...]:
        return tuple(self._rows)

    def get(self, name: str) -> Family:
        """The family of that name. Raises FamilyError listing the known ones."""
        if name not in self._rows:
            raise FamilyError(f"There is no family {name!r}. Known: {', '.join(sorted(self._rows))}. See models.toml.")
        return self._rows[name]

    def extended(self, other: "Families") -> "Families":
        """These families with the other's added; the other's win and are asked first."""
        return Families([*other._rows.values(), *(row for row in self._rows.values() if row.name not in other._rows)])

    def detect(self, template: str | None, architecture: str = "", name: str = "") -> Detection:
        """The family of a model. Its template decides; architecture and name serve when it has none.

        The first row whose rule holds wins, so models.toml lists the more specific first. Nothing matching gives
        `content-only`.
        """
        for row in self._rows.values():
            rule = row.detect
            if template is not None:
                matches = bool(rule.template) and all(text in template for text in rule.template)
                if matches and not any(text in template for text in rule.template_not):
                    return Detection(row, f"its chat template contains {_quoted(rule.template)}")
            elif architecture in rule.architectures:
                parts = [part for part in rule.names if part.casefold() in name.casefold()]
                if parts or not rule.names:
                    return Detection(row, f"it has no chat template; architecture {architecture!r}, name {name!r}")
        return Detection(self.get("content-only"), "no family in models.toml matches its chat template")


@cache
def builtin_families() -> Families:
    """The shipped truth table, read once."""
    return Families.load()


def _quoted(texts: Sequence[str]) -> str:
    return " and ".join(repr(text) for text in texts)


def _inherited(name: str, rows: dict[str, dict[str, Any]], path: Path, below: tuple[str, ...] = ()) -> dict[str, Any]:
    """A family's table over that of the family it is `like`; `respell` replaces text in all markers."""
    if name not in rows or name in below:
        chain = " -> ".join((*below, name))
        raise FamilyError(
            f"{path}: [family.{below[-1]}]: like = {name!r} leads nowhere ({chain}). Name another family."
        )
    table = dict(rows[name])
    like = table.pop("like", None)
    if like is not None:
        parent = _inherited(like, rows, path, (*below, name))
        parent.pop("detect", None)
        table = _merged(parent, table)
    for old, new in table.pop("respell", ()):
        table["format"] = _respelled(table["format"], old, new)
    return table


def _merged(below: Any, above: Any) -> Any:
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    merged = dict(cast("dict[str, Any]", below))
    for key, value in cast("dict[str, Any]", above).items():
        merged[key] = _merged(merged[key], value) if key in merged else value
    return {key: value for key, value in merged.items() if value is not False or key not in ("reasoning", "tools")}


def _respelled(node: Any, old: str, new: str) -> Any:
    match node:
        case str():
            return node.replace(old, new)
        case list():
            return [_respelled(item, old, new) for item in cast("list[Any]", node)]
        case dict():
            return {key: _respelled(value, old, new) for key, value in cast("dict[str, Any]", node).items()}
        case _:
            return node


def _tables(path: Path) -> tuple[dict[str, dict[str, Any]], str]:
    try:
        text = path.read_text(encoding="utf-8")
        tables = tomllib.loads(text)
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise FamilyError(f"{path} cannot be read as TOML: {error}. Correct it there.") from error
    if unknown := set(tables) - {"family"}:
        raise FamilyError(f"{path}: unknown tables {sorted(unknown)}; every family is a table [family.<name>].")
    return cast("dict[str, dict[str, Any]]", tables.get("family", {})), text


def _row(name: str, table: dict[str, Any], path: Path, text: str) -> Family:
    try:
        return Family(name=name, **table)
    except ValidationError as error:
        first = error.errors()[0]
        place = ("family", name, *(str(item) for item in first["loc"]))
        line = _line(text, place)
        raise FamilyError(f"{path}:{line}: [{'.'.join(place)}]: {first['msg']}. Correct it there.") from error


def _line(text: str, place: tuple[str, ...]) -> int:
    """The number of the line that holds a field, or that opens the nearest table around it."""
    found, depth = 1, 0
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = tuple(part.strip('"') for part in _HEADER_PART.findall(header.group(1)))
        elif key := _KEY.match(line):
            table_and_key = (*table, key.group(1))
            if place[: len(table_and_key)] == table_and_key and len(table_and_key) > depth:
                found, depth = number, len(table_and_key)
            continue
        if table and place[: len(table)] == table and len(table) > depth:
            found, depth = number, len(table)
    return found
