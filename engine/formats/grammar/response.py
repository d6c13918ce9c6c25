"""Turns every form of `response_format` into a grammar, and a reader of the finished answer."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import lru_cache
from inspect import isroutine
from typing import Any, TypeAlias, cast

from pydantic import BaseModel, TypeAdapter, ValidationError

from engine.formats.grammar.enforcer import Enforcer
from engine.formats.grammar.json_schema import Refusal, prepared
from engine.formats.grammar.nodes import JsonText, Node, OneOf, Pattern, Rule, Words
from engine.formats.grammar.turn_grammar import Answer
from engine.support.errors import RequestError, shown
from engine.tools.check import described, schema_check, unmatched
from engine.tools.schema import TypeSchema
from engine.types.answer_formats import GBNF, Choice, JsonSchema, Lark, Regex, ResponseFormat

Reader: TypeAlias = Callable[[str], Any]
"""Converts a finished answer's content. Raises ValueError, with one sentence, if the content does not fit."""


@dataclass(frozen=True, slots=True)
class Response:
    """What an answer must be. `schema`: the JSON Schema as the caller, or the type, states it; None for other forms."""

    answer: Answer
    read: Reader
    schema: Mapping[str, Any] | None = None

    def shown(self, how: str) -> Mapping[str, Any]:
        """Returns the template variable `response_format`, for chat templates that show the schema, in the form that
        the family's template reads (`Family.shows_schema`): the schema, its JSON text, or OpenAI's dictionary holding
        either; {} if the template shows none."""
        if self.schema is None or not how:
            return {}
        text = json.dumps(self.schema, ensure_ascii=False)
        forms: dict[str, object] = {
            "schema": self.schema,
            "text": text,
            "openai": {"type": "json_schema", "json_schema": {"name": "answer", "schema": self.schema}},
            "cohere": {"type": "json_schema", "json_schema": text},
        }
        return {"response_format": forms[how]}


def response_of(given: object, enforcer: Enforcer) -> Response | None:
    """Returns the record for a caller's `response_format`; None if any text is allowed.

    Raises RequestError for an invalid `response_format`, and for a schema that cannot be enforced.
    """
    match given:
        case None | {"type": "text"} | ResponseFormat(type="text"):
            return None
        case JsonSchema(schema, closed):
            return _by_schema(schema, enforcer.refusal, close=closed)
        case ResponseFormat(type="json_object", json_schema=None):
            return _by_schema({"type": "object"}, enforcer.refusal)
        case ResponseFormat(json_schema=schema, closed=closed):
            return _by_schema(schema or {}, enforcer.refusal, close=closed)
        case {"type": "json_object"}:
            form = cast("Mapping[str, Any]", given)
            schema = {"type": "object"} if form.get("schema") is None else _mapping(form["schema"])
            return _by_schema(schema, enforcer.refusal, close=_closed(form))
        case {"type": "json_schema"}:
            form = cast("Mapping[str, Any]", given)
            inner = form.get("json_schema", form)
            return _by_schema(_schema_in(inner), enforcer.refusal, close=_closed(inner))
        case Choice(options):
            return _choice(options)
        case list() | tuple() if given and all(isinstance(text, str) for text in cast("Sequence[object]", given)):
            return _choice(cast("object", given))
        case Regex(pattern):
            return _text(Pattern(pattern), {}, _matched(enforcer.grammar_of(given), enforcer))
        case Lark() | GBNF():
            grammar = enforcer.grammar_of(given)
            return _text(Rule("answer"), {"answer": grammar}, _matched(grammar, enforcer))
        case Mapping() if _is_schema(cast("Mapping[str, Any]", given)):
            return _by_schema(cast("object", given), enforcer.refusal)
        case Mapping():
            raise RequestError(
                "response_format is a dictionary without a `type` that OpenAI defines; for a JSON Schema write "
                "JsonSchema({...}), or in OpenAI's form "
                '{"type": "json_schema", "json_schema": {"name": "...", "schema": {...}}}.'
            )
        case _:
            return _by_type(given, enforcer.refusal)


def _is_schema(given: Mapping[str, Any]) -> bool:
    """Whether a dictionary is a plain JSON Schema, and cannot be meant otherwise."""
    return given.get("type") in _JSON_TYPES or isinstance(given.get("properties"), Mapping) or "$schema" in given


_JSON_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")


def _by_schema(schema: object, refusal: Refusal, *, close: bool = True) -> Response:
    held, _ = prepared(schema, refusal, "The schema of response_format", close=close)
    stated = cast("Mapping[str, Any]", schema) if isinstance(schema, Mapping) else None
    for place, pattern in unmatched(stated or {}):
        raise RequestError(
            f"The schema of response_format cannot be held at {place}: {shown(pattern)} looks around or back, or is "
            "written as only Python does, and nothing could check it in bounded time. Write it without that."
        )
    check = schema_check("The keywords of response_format", stated or {})

    def read(content: str) -> Any:
        value = _json(content)
        if (reason := check(value)) is not None:
            raise ValueError(f"The answer does not fit the schema: {reason}")
        return value

    return Response(Answer(JsonText(held)), read, stated)


def _by_type(kind: Any, refusal: Refusal) -> Response:
    """Returns the record for a type, made once: in a program there are few, and no text of a stranger is one."""
    if _is_type(kind) and (written := _written(kind)) is not None:
        return _of_known_type(kind, written, refusal)
    return _of_type(kind, refusal)


def _is_type(kind: object) -> bool:
    return not (isinstance(kind, str) or isroutine(kind))  # pydantic takes a name, and a function for what it returns


def _written(kind: object) -> str | None:
    """Returns a type as Python writes it; None if something within it has no hash, such as what is in its `Annotated`,
    or is no type and cannot be written (an integer of 5,000 digits)."""
    try:
        hash(kind)
        return repr(kind)
    except (TypeError, ValueError):
        return None


@lru_cache(maxsize=64)
def _of_known_type(kind: Any, _written: str, refusal: Refusal) -> Response:
    """`_of_type`, remembered. `_written` tells types apart that are equal: `int | str` and `str | int`."""
    return _of_type(kind, refusal)


_LONGEST_REASON = 150  # characters: pydantic quotes a value whole that is no type


def _of_type(kind: Any, refusal: Refusal) -> Response:
    try:
        if not _is_type(kind):
            raise TypeError("it is not a type")
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
        schema, name = adapter.json_schema(schema_generator=TypeSchema), str(getattr(kind, "__name__", "the type"))
    except Exception as error:
        first = described(error).strip().partition("\n")[0].rstrip(".")
        first = first if len(first) <= _LONGEST_REASON else f"{first[:_LONGEST_REASON]}..."
        raise RequestError(
            f"response_format={shown(kind)} has no JSON Schema ({first}). {_meant(kind)}Give a type (a pydantic model, "
            "a dataclass, list[...]), JsonSchema({...}), Choice([...]), Regex(...), Lark(...), GBNF(...) or OpenAI's "
            "dictionary."
        ) from error
    held, _ = prepared(schema, refusal, f"The schema of {name}", close=True)

    def read(content: str) -> Any:
        try:
            return adapter.validate_json(content.strip())
        except ValidationError as error:
            parts = (f"{'.'.join(map(str, item['loc']))}: {item['msg']}".removeprefix(": ") for item in error.errors())
            raise ValueError(f"The answer does not fit the type: {'; '.join(parts)[:400]}.") from error

    return Response(Answer(JsonText(held)), read, schema)


def _meant(kind: object) -> str:
    """Returns what a value that is no type was probably meant for, as a sentence."""
    if isinstance(kind, str):
        return 'For any JSON object write {"type": "json_object"}; for a pattern write Regex("..."). '
    if isinstance(kind, set | frozenset):
        return "For one of several texts write Choice([...]). "
    if isinstance(kind, BaseModel) or (is_dataclass(kind) and not isinstance(kind, type)):
        return f"Write its class: response_format={type(kind).__name__}. "
    return ""


def _choice(options: object) -> Response:
    texts = list(cast("Collection[object]", options)) if isinstance(options, Collection) else []
    if isinstance(options, str) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise RequestError(
            f"Choice takes a list of one or more texts, none of them empty; it has {shown(cast('object', options))}."
        )
    if len(texts) > _MOST_OPTIONS:
        raise RequestError(f"Choice has {len(texts):,} options; {_MOST_OPTIONS:,} are allowed.")
    allowed = dict.fromkeys(cast("list[str]", texts))

    def read(content: str) -> str:
        if content not in allowed:
            raise ValueError(f"The answer is none of the texts to choose from: {shown(content)}.")
        return content

    return _text(OneOf(tuple(map(Words, allowed))), {}, read)


_MOST_OPTIONS = 10_000


def _text(node: Node, callers: Mapping[str, str], read: Reader) -> Response:
    return Response(Answer(node, callers, exact=True), read)


def _matched(grammar: str, enforcer: Enforcer) -> Reader:
    def read(content: str) -> str:
        if not enforcer.accepts(grammar, content):
            raise ValueError(f"The answer does not match the grammar as a whole: {shown(content)}.")
        return content

    return read


def _closed(form: Mapping[str, Any]) -> bool:
    """Returns the field `closed` beside a schema in OpenAI's dictionary, which is our own."""
    if not isinstance(closed := form.get("closed", True), bool):
        raise RequestError(f'The "closed" of response_format must be true or false, not {shown(closed)}.')
    return closed


def _schema_in(inner: object) -> object:
    """Returns the schema inside OpenAI's dictionary: of Chat Completions, `json_schema`, or of Responses, the whole."""
    schema = cast("Mapping[str, Any]", inner).get("schema") if isinstance(inner, Mapping) else None
    if not isinstance(schema, Mapping | bool):
        raise RequestError(
            'response_format of type "json_schema" needs "json_schema": {"name": "...", "schema": {...}}; its '
            f"schema is {shown(schema)}."
        )
    return cast("object", schema)


def _mapping(schema: object) -> object:
    if not isinstance(schema, Mapping):
        raise RequestError(f'The "schema" of response_format must be a JSON Schema, not {shown(schema)}.')
    return cast("object", schema)


def _json(content: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"The answer is not complete JSON: {error}.") from error
