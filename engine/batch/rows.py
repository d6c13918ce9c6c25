"""One row of a batch: reads and checks it, and writes the line of its result.

OpenAI's batch format (guide "Batch API") or simple rows: `prompt` or `messages`, other columns carried through.
"""

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b, sha256
from itertools import pairwise
from typing import Any, Literal, TypeAlias, cast

from pydantic_core import to_jsonable_python

from engine.batch.bodies import EMBEDDINGS, ENDPOINTS, Texts, Turn, checked_turn, read_body, read_texts, timings
from engine.batch.column_prompt import ColumnPrompt
from engine.batch.judged import Judged, RowQuestions, decision_object
from engine.openai.choices import usage_object
from engine.openai.parameters import Json
from engine.support.errors import (
    BatchInputError,
    ContextOverflowError,
    DecodeError,
    EngineError,
    RequestError,
    TemplateError,
    shown,
)
from engine.tools import ToolLike, refuse_constant
from engine.types.completion import Completion
from engine.types.conversation import conversation_of
from engine.types.decisions import Decision
from engine.types.parts import whole_characters

Kind: TypeAlias = Literal["openai", "simple"]

ROW_ERRORS = (RequestError, ContextOverflowError, TemplateError, DecodeError)
"""Errors that fail one row; other errors of the engine stop the batch."""
_RESERVED = ("request_id", "error")
_OPENAI = frozenset({"custom_id", "method", "url", "body"})
_PREFIX = "batch_req_"
_ID = re.compile(_PREFIX + "([0-9a-f]{32})")
_ENDS = tuple(256 << step for step in range(9))
_BREAKS = {"\u2028": "\\u2028", "\u2029": "\\u2029", "\x85": "\\u0085"}


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the input. `key`: a digest (16 bytes) of its name and content. `columns` of a simple row are carried
    through."""

    name: str
    key: bytes
    kind: Kind
    request: Turn | Texts | Judged
    columns: Mapping[str, Any]


class BadRowError(RequestError):
    """A row is not valid. `name`: its custom_id, if it has one; `columns`: the columns that could be read."""

    def __init__(self, message: str, name: str | None, columns: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.name = name
        self.columns = columns


@dataclass(frozen=True, slots=True)
class Defaults:
    """What holds for every row without its own: options of `Engine.stream`, tools, a system message. `prompt` makes the
    prompts of simple rows; `added`: the columns that the batch adds to a table. `asked`: rows are judged by these
    questions, and nothing is generated."""

    options: Mapping[str, Any]
    tools: tuple[ToolLike, ...] = ()
    system: str | None = None
    prompt: ColumnPrompt | None = None
    added: tuple[str, ...] = ()
    asked: RowQuestions | None = None

    @property
    def result(self) -> str:
        """The name of what a simple row's line says of it."""
        return "completion" if self.asked is None else "decision"


def check_columns(table: str, columns: Sequence[str], defaults: Defaults) -> None:
    """Raise BatchInputError if no row of a table with these columns can be valid."""
    try:
        _check_free(columns, defaults)
        if defaults.prompt is not None:
            defaults.prompt.check(columns)
        elif not {"prompt", "messages", "body"} & set(columns):
            raise RequestError(
                f'There is no column "prompt"; the columns are {", ".join(columns):.1000}. Name the one to use with '
                'prompt_column= (--prompt-column), or write a prompt around it: prompt="Extract: {name}" (--prompt).'
            )
    except RequestError as error:
        raise BatchInputError(f"{table}: {error}") from error


def _check_free(columns: Collection[str], defaults: Defaults) -> None:
    """Raise RequestError for a column of a simple row that the batch writes itself."""
    if taken := [name for name in (*_RESERVED, defaults.result, *defaults.added) if name in columns]:
        raise RequestError(f'The batch writes a column "{taken[0]}" of its own; rename yours.')


def parse_row(raw: bytes, number: int, defaults: Defaults) -> Row:
    """Returns the row on line `number`. Raises BadRowError for a line that is not valid."""
    columns: Json = {}
    try:
        columns = _object(raw)
        is_simple = defaults.prompt is not None or not _OPENAI & columns.keys() - {"custom_id"}
        kind: Kind = "simple" if is_simple else "openai"
        name = _name(columns, kind, number)
        request = (_openai_request if kind == "openai" else _simple_request)(columns, defaults)
        key = digest(dump({**columns, "custom_id": name}, sort_keys=True))
    except RequestError as error:
        label = _text_of(columns.get("custom_id"))
        raise BadRowError(whole_characters(str(error)), label and whole_characters(label), columns) from error
    return Row(name, key, kind, request, columns)


def columns_of(raw: bytes) -> Json:
    """Returns the columns of a line; none of one that is no row."""
    try:
        return _object(raw)
    except RequestError:
        return {}


def bad_key(raw: bytes, number: int) -> bytes:
    """Returns the key of a line that is not valid."""
    return digest(f"{number} ".encode() + raw)


def digest(data: bytes) -> bytes:
    """Returns 16 bytes that identify these."""
    return sha256(data).digest()[:16]


def _object(raw: bytes) -> Json:
    try:
        value: object = json.loads(raw.decode("utf-8-sig"), parse_constant=refuse_constant)
    except UnicodeDecodeError as error:
        raise RequestError(f"The line is not UTF-8 text: {error}. Save the file as UTF-8.") from error
    except (ValueError, RecursionError) as error:
        raise RequestError(f"The line is not JSON: {error}.") from error
    if not isinstance(value, dict):
        raise RequestError(f"The line is {_kind_of(value)}; a row is a JSON object.")
    return cast("Json", value)


def _kind_of(value: object) -> str:
    names = {"list": "a list", "dict": "an object", "str": "a string", "bool": "true or false", "NoneType": "missing"}
    return names.get(type(value).__name__, "a number")


def _name(columns: Mapping[str, Any], kind: Kind, number: int) -> str:
    value = columns.get("custom_id")
    if value is None and kind == "simple":
        return f"row-{number}"
    name = _text_of(value)
    if not name or name != whole_characters(name):
        raise RequestError(f'"custom_id" is {shown(value)}; it must be a string or a number, different in every row.')
    return name


def _text_of(name: object) -> str | None:
    """Returns a row's name as text; None for what cannot be one."""
    is_number = isinstance(name, int | float) and not isinstance(name, bool)
    return str(name) if is_number or isinstance(name, str) else None


def _openai_request(columns: Mapping[str, Any], defaults: Defaults) -> Turn | Texts:
    if unknown := sorted(columns.keys() - _OPENAI):
        raise RequestError(
            f'"{unknown[0]}" is not a field of a row: those are custom_id, method, url and body; remove it.'
        )
    if columns.get("method") != "POST":
        raise RequestError(f'"method" is {shown(columns.get("method"))}; it must be "POST".')
    if defaults.asked is not None:
        raise RequestError('A row that is judged (decide=) has a "prompt" or "messages"; this one has OpenAI\'s form.')
    url, body = columns.get("url"), columns.get("body")
    if not isinstance(url, str):
        raise RequestError(f'"url" is {_kind_of(url)}; it must be one of {", ".join(ENDPOINTS)}.')
    if not isinstance(body, dict):
        raise RequestError(f'"body" is {_kind_of(body)}; it must be the object of a request.')
    if url == EMBEDDINGS:
        return read_texts(cast("Json", body))
    return read_body(url, cast("Json", body), defaults.options, defaults.tools)


def _simple_request(columns: Mapping[str, Any], defaults: Defaults) -> Turn | Judged:
    _check_free(columns, defaults)
    if defaults.prompt is None:
        prompt, messages = columns.get("prompt"), columns.get("messages")
    else:
        prompt, messages = defaults.prompt.fill(columns), None
    if (prompt is None) == (messages is None):
        raise RequestError('A row must have either a "prompt" (a string) or "messages" (a list).')
    if prompt is not None and not isinstance(prompt, str):
        raise RequestError(f'"prompt" is {_kind_of(prompt)}; it must be a string.')
    if messages is not None and not isinstance(messages, list):
        raise RequestError(f'"messages" is {_kind_of(messages)}; it must be a list.')
    conversation = [{"role": "user", "content": prompt}] if messages is None else cast("list[Any]", messages)
    system = [] if defaults.system is None else [{"role": "system", "content": defaults.system}]
    if defaults.asked is not None:
        return Judged(conversation_of([*system, *conversation]))
    return checked_turn([*system, *conversation], defaults.tools, defaults.options)


def sort_key(turn: Turn | Texts | Judged) -> bytes:
    """Returns 27 bytes that sort turns with the same beginning next to one another: digests of the first 256, 512, ..
    65,536 characters of what the model sees, tools first. Texts keep their order: no prefix is reused for vectors."""
    if isinstance(turn, Texts):
        return bytes(3 * len(_ENDS))
    before: list[Any] = []
    if isinstance(turn, Turn):
        shown = {name: repr(value) for name, value in turn.options.items() if name in ("reasoning", "template_kwargs")}
        before = [[tool.openai() for tool in turn.tools], shown]
    prompt = [
        *before,
        [message.model_dump(exclude={"parts"}, exclude_defaults=True) for message in turn.messages],
    ]
    text = json.dumps(prompt, default=repr).encode()
    sums, key = blake2b(digest_size=3), b""
    for start, end in pairwise((0, *_ENDS)):
        sums.update(text[start:end])
        key += sums.digest()
    return key


def body_line(row: Row, body: Json) -> bytes:
    """Returns the output line of a row that was answered with this body."""
    return _openai_line(row.key, row.name, _response(row.key, 200, body), None)


def answer_line(row: Row, turn: Turn, model: str, completions: Sequence[Completion]) -> bytes:
    """Returns the output line of a row whose turn was answered."""
    if turn.response is not None:
        return body_line(row, turn.response(row.key.hex(), model, completions))
    whole = completions[0]
    completion = {
        "content": whole.content,
        "reasoning": whole.reasoning or None,
        "tool_calls": [call.openai() for call in whole.tool_calls],
        "finish_reason": whole.finish_reason,
        "parsed": to_jsonable_python(whole.parsed),
        "parse_error": whole.parse_error,
        **({"made_up": list(whole.made_up)} if whole.made_up else {}),
        "usage": usage_object([whole.usage]),
        "timings": timings([whole]),
    }
    return _simple_line(row.key, row.name, row.columns, {"completion": completion}, None)


def decision_line(row: Row, decision: Decision[Any]) -> bytes:
    """Returns the output line of a row that was judged."""
    return _simple_line(row.key, row.name, row.columns, {"decision": decision_object(decision)}, None)


def failure_line(row: Row, error: EngineError) -> bytes:
    """Returns the error line of a row that failed, in OpenAI's form: a response with the status that a server would
    send."""
    message = " ".join(str(error).split())
    if row.kind == "openai" and not isinstance(row.request, Judged):
        problem = row.request.problem(error)
        body = {"error": {**problem.body()["error"], "message": message}}
        return _openai_line(row.key, row.name, _response(row.key, problem.status, body), None)
    result = "decision" if isinstance(row.request, Judged) else "completion"
    failure = {"code": type(error).__name__, "message": message}
    return _simple_line(row.key, row.name, row.columns, {result: None}, failure)


def bad_line(
    key: bytes, kind: Kind, name: str | None, columns: Mapping[str, Any], message: str, result: str = "completion"
) -> bytes:
    """Returns the error line of a row that was not valid and never ran."""
    error = {"code": "invalid_row", "message": message}
    if kind == "openai":
        return _openai_line(key, name, None, error)
    carried = {column: value for column, value in columns.items() if column not in (*_RESERVED, result)}
    try:
        return _simple_line(key, name, carried, {result: None}, error)
    except RequestError:  # nested deeper than can be written
        return _simple_line(key, name, {}, {result: None}, error)


def _response(key: bytes, status: int, body: Json) -> Json:
    return {"status_code": status, "request_id": f"req_{key.hex()}", "body": body}


def _openai_line(key: bytes, name: str | None, response: Json | None, error: Json | None) -> bytes:
    return dump({"id": _PREFIX + key.hex(), "custom_id": name, "response": response, "error": error}) + b"\n"


def _simple_line(
    key: bytes, name: str | None, columns: Mapping[str, Any], result: Mapping[str, Json | None], error: Json | None
) -> bytes:
    id_ = _PREFIX + key.hex()
    written = {"custom_id": name, **columns, "request_id": id_, **result, "error": error}
    return dump({**written, "custom_id": name}) + b"\n"


def identity(line: bytes) -> tuple[bytes, str | None] | None:
    """Returns the key and the custom_id of a line that a batch wrote; None for any other line."""
    try:
        fields: object = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    written = cast("Json", fields)
    id_, name = written.get("request_id", written.get("id")), written.get("custom_id")
    if not isinstance(id_, str) or not isinstance(name, str | None) or (key := _ID.fullmatch(id_)) is None:
        return None
    return bytes.fromhex(key[1]), name


def is_torn_line(piece: bytes) -> bool:
    """Whether these bytes are the beginning of a line that a batch writes, or null bytes, which a power cut leaves."""
    starts = (b'{"id":"%b' % _PREFIX.encode(), b'{"custom_id":')
    begins = any(piece.startswith(start) or start.startswith(piece) for start in starts)
    try:
        json.loads(piece)
    except (ValueError, RecursionError):
        return begins or not piece.strip(b"\0")
    return False


def dump(value: object, *, sort_keys: bool = False) -> bytes:
    """Returns JSON on one line, in UTF-8. NaN and infinity become null; dates, decimals, paths and the like become
    text, as pydantic writes them; arrays become lists. Raises RequestError for anything else that JSON does not
    have."""
    try:
        text = json.dumps(
            value,
            ensure_ascii=False,
            separators=(",", ":"),
            sort_keys=sort_keys,
            allow_nan=False,
            default=_converted,
        )
    except ValueError:
        try:
            return dump(_finite(value), sort_keys=sort_keys)
        except RecursionError as error:
            raise RequestError("A row contains itself, or a key that is not a string. Convert it first.") from error
    except (TypeError, RecursionError) as error:
        raise RequestError(f"A row contains a value that JSON does not have: {error}. Convert it first.") from error
    for character, escape in _BREAKS.items():  # some readers take these for line ends
        text = text.replace(character, escape)
    try:
        return text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which only an escape can express
        return json.dumps(value, separators=(",", ":"), sort_keys=sort_keys, default=_converted).encode()


def _converted(value: Any) -> object:
    if hasattr(value, "tolist"):  # NumPy's arrays and numbers
        return _finite(value.tolist())
    try:
        return to_jsonable_python(value)
    except ValueError as error:
        raise TypeError(str(error)) from error


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in cast("Mapping[Any, object]", value).items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in cast("Sequence[object]", value)]
    return value
