"""models.toml as frozen records: what each model family writes, and how a model is recognised as one of a family.

Knows: the schema of a family table, its checks, and the rules of detection. Does not know: how a format is parsed,
rendered or constrained; those rooms read the records. Markers are literals written with the whitespace that the
family's template puts beside them: "\\n</think>\\n\\n" is the marker `</think>` with one newline before it and two
after.
"""

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
Shape: TypeAlias = Literal["json", "tagged_json", "tagged_args"]


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

    `forced_open` tells what the template usually does; the parser believes the rendered prompt's tail instead.
    `history`: earlier reasoning is dropped ("none"), kept after the last user message ("last_user"), since the last
    final answer ("last_answer"), always ("all"), or the template has no notion of it ("unknown"). `fields` are the
    message fields that the template reads it from ("" as an entry: tags inside `content`). `ends_on_call`: whether
    tool markup inside open reasoning ends it (else it is quoted text). `where`: reasoning opens only at the start of
    a turn's segment (start of the turn, after a call, after other reasoning), or anywhere.
    """

    open: str
    close: str
    forced_open: bool = False
    gate: Gate | None = None
    history: History = "unknown"
    fields: tuple[str, ...] = ()
    ends_on_call: bool = False
    where: Literal["start", "anywhere"] = "start"


class ToolSyntax(Record):
    """The syntax of tool calls: a section that holds calls, in one of the shapes.

    - `json`: the section holds a JSON object, an array of objects, or several objects.
    - `tagged_json`: `call[0] name name_end {json} arguments_end call[1]`.
    - `tagged_args`: `call[0] name name_end (argument[0] key key_end value argument[1])* call[1]`.

    `section_optional`: calls are found without the section's markers too. `bare`: a JSON object at the start of the
    answer is a call when it names a declared tool. `fields` are the JSON keys (several spellings allowed, the first
    is the family's own); `id` comes after the arguments where `id_last`.
    """

    shape: Shape
    section: tuple[str, str] = ("", "")
    section_optional: bool = False
    call: tuple[str, str] = ("", "")
    name_end: str = ""
    arguments_end: str = ""
    argument: tuple[str, str] = ("", "")
    key_end: str = ""
    bare: bool = False
    name_fields: tuple[str, ...] = ("name",)
    arguments_fields: tuple[str, ...] = ("arguments", "parameters")
    id_fields: tuple[str, ...] = ()
    id_last: bool = False
    arguments_as: Literal["object", "string"] = "object"
    id_length: int | None = None
    parallel: bool = True

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.shape == "json" and not (self.section[0] or self.bare):
            raise ValueError("shape json needs section = [open, close], or bare = true")
        if self.shape != "json" and not (self.call[0] and self.name_end):
            raise ValueError(f"shape {self.shape} needs call = [open, close] and name_end")
        if self.shape == "tagged_args" and not (self.argument[0] and self.argument[1].strip() and self.key_end):
            raise ValueError("shape tagged_args needs argument = [open, close] and key_end")
        return self


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
    """Everything the parser needs: the turn's start, its markers, and which of them exist only as control tokens."""

    start: str = ""
    stops: tuple[str, ...] = ()
    control: tuple[str, ...] = ()
    reasoning: ReasoningSyntax | None = None
    tools: ToolSyntax | None = None
    channels: ChannelSyntax | None = None
    content: tuple[str, str] = ("", "")

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
    def load(cls, path: Path | None = None) -> Self:
        """Read a truth table (the shipped one by default). Raises FamilyError naming the table and the field at
        fault."""
        path = path or _data.models_toml()
        try:
            tables = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise FamilyError(f"{path} cannot be read as TOML: {error}. Correct it there.") from error
        unknown = set(tables) - {"family"}
        if unknown:
            raise FamilyError(f"{path}: unknown tables {sorted(unknown)}; every family is a table [family.<name>].")
        rows = cast("dict[str, dict[str, Any]]", tables.get("family", {}))
        return cls([_row(name, table, path) for name, table in rows.items()])

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


def _row(name: str, table: dict[str, Any], path: Path) -> Family:
    try:
        return Family(name=name, **table)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(item) for item in ("family", name, *first["loc"]))
        raise FamilyError(f"{path}: [{place}]: {first['msg']}.") from error
