"""What an answer must be: the forms of `response_format`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeAlias
from typing import _SpecialForm as SpecialForm  # pyright: ignore[reportPrivateUsage] - what mypy takes Literal[...] for

from typing_extensions import TypeAliasType, TypeVar

from engine.support.errors import RequestError
from engine.types.parts import Record

Answer = TypeVar("Answer", default=Any)
"""The type of `Completion.parsed`, for type checkers."""


Answer_co = TypeVar("Answer_co", default=Any, covariant=True)


class ResponseFormat(Record):
    """What a final answer must be: any text, any JSON object, or JSON that fits a schema.

    `json_schema` holds for "json_object" too, as in llama.cpp's server. `closed`: see `JsonSchema`.
    """

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: dict[str, Any] | None = None
    closed: bool = True


class AnswerFormat(Generic[Answer_co]):
    """The base of the forms of a `response_format` whose answers are read as values of one type."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class JsonSchema(AnswerFormat[Any]):
    """An answer that is JSON and fits a schema.

    closed: objects with `properties` take no other keys, which small models invent, unless the schema says or implies
    otherwise. False takes the schema exactly as it stands.
    """

    schema: Mapping[str, Any] | bool
    closed: bool = True


@dataclass(frozen=True, slots=True)
class Choice(AnswerFormat[str]):
    """An answer that is one of these texts."""

    options: Sequence[str]

    if not TYPE_CHECKING:

        def __new__(cls, *options: object, **_: object) -> Self:
            """Refuse texts that are not in a list."""
            if len(options) > 1:
                raise RequestError('Choice takes its texts in a list: Choice(["yes", "no"]).')
            return object.__new__(cls)


@dataclass(frozen=True, slots=True)
class Regex(AnswerFormat[str]):
    """An answer that matches a regular expression as a whole (Rust's syntax; no look-around, no back references)."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Lark(AnswerFormat[str]):
    """An answer under a grammar in llguidance's variant of Lark, which begins at its rule `start`."""

    grammar: str


@dataclass(frozen=True, slots=True)
class GBNF(AnswerFormat[str]):
    """An answer under a grammar in llama.cpp's GBNF, which begins at its rule `root`."""

    grammar: str


ResponseFormatLike: TypeAlias = (
    type[Answer]
    | AnswerFormat[Answer]
    | ResponseFormat
    | Mapping[str, Any]
    | list[str]
    | tuple[str, ...]
    | UnionType
    | SpecialForm
    | TypeAliasType
    | None
)
"""What an answer must be: a type that pydantic knows, `JsonSchema`, `Choice` or a list of texts, `Regex`, `Lark`,
`GBNF`, OpenAI's dictionary, or None for any text."""
