"""Replies of a model's child process, as bytes that cannot execute anything in the process that reads them.

A frame is JSON, followed by the bytes values that occur in it (vectors may have megabytes). JSON contains only
values. Pydantic makes each record from its class's annotations, and only the classes listed here are made. A restricted
unpickler would be shorter and was rejected: reading a pickle calls what it names and sets attributes, those of classes
too, so that each class on the list would have to be proved harmless.
"""

import builtins
import json
import struct
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast, get_args

from pydantic import BaseModel, ConfigDict, TypeAdapter

from engine.isolated.protocol import Failed, Line, Loading, Opened, Parts
from engine.llama.gguf.gguf import NamedTemplate
from engine.llama.model import ModelInfo
from engine.runtime.cache.state_file import Origin
from engine.runtime.loop.backend import ContextInfo
from engine.runtime.loop.logprobs import Logprob, TokenLogprobs
from engine.runtime.loop.request import Reply
from engine.runtime.media.media import MediaChunk
from engine.runtime.stream.embed_queue import VectorInfo, Vectors
from engine.support import errors
from engine.support.errors import EngineError
from engine.types.completion import Usage
from engine.types.events import Event, ToolResult

# Results of tools are events of the agent loop, which no child runs.
_EVENTS = tuple(kind for kind in cast("tuple[type[Any], ...]", get_args(Event)) if kind is not ToolResult)
_RECORDS: Mapping[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        *_EVENTS,
        *(ContextInfo, Failed, Line, Loading, Logprob, ModelInfo, NamedTemplate),
        *(Opened, Origin, Parts, Reply, TokenLogprobs, MediaChunk, Usage, VectorInfo, Vectors),
    )
}
_SCALARS = frozenset({type(None), bool, int, float, str})
_BYTES, _ERROR = "bytes", "error"
_LENGTH = struct.Struct(">Q")


def encoded(answer: object) -> bytes:
    """Returns a record, or a list of records, as a frame. Raises TypeError for anything else."""
    attached: list[bytes] = []
    text = json.dumps(_plain(answer, attached)).encode()
    return b"".join((_LENGTH.pack(len(text)), text, *attached))


def decoded(frame: bytes) -> Any:
    """Returns what was encoded; sequences are tuples if the record declares them so. Raises ValueError for anything
    else."""
    start = _LENGTH.size
    (length,) = _LENGTH.unpack_from(frame)
    attached = memoryview(frame)[start + length :]
    position = 0

    def record(found: dict[str, Any]) -> Any:
        nonlocal position
        ((name, value),) = found.items()
        if name == _BYTES:
            data = bytes(attached[position : position + int(value)])
            if len(data) != value:
                raise ValueError(f"the frame announces {value} bytes, but {len(data)} follow")
            position += len(data)
            return data
        if name == _ERROR:
            return _error(*value)
        return _made(name, value)

    return json.loads(frame[start : start + length], object_hook=record)


def _plain(value: Any, attached: list[bytes]) -> Any:
    kind = cast("type[Any]", type(value))
    if kind in _SCALARS:
        return value
    if _RECORDS.get(kind.__name__) is kind:
        return {kind.__name__: [_plain(getattr(value, name), attached) for name in _names(kind)]}
    if kind is tuple or kind is list:
        return [_plain(item, attached) for item in value]
    if kind is bytes:
        attached.append(value)
        return {_BYTES: len(value)}
    if isinstance(value, Exception):
        return {_ERROR: [kind.__name__, _plain_arguments(value), getattr(value, "reason", None)]}
    if isinstance(value, Path | str):
        return str(value)
    raise TypeError(f"a {kind.__name__} cannot be part of a reply")


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    """Returns the names of a record's fields, in order."""
    if issubclass(kind, BaseModel):
        return tuple(kind.model_fields)
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else kind._fields  # a NamedTuple's


@cache
def _adapter(kind: type[Any]) -> "TypeAdapter[Any]":
    return TypeAdapter(kind, config=ConfigDict(arbitrary_types_allowed=True) if issubclass(kind, tuple) else None)


def _made(name: str, values: list[Any]) -> Any:
    kind = _RECORDS.get(name)
    if kind is None:
        raise ValueError(f"{name!r} is not a record of a reply")
    return _adapter(kind).validate_python(dict(zip(_names(kind), values, strict=True)))


def _plain_arguments(error: Exception) -> list[Any]:
    """Returns the error's arguments if another process can read them, otherwise its message."""
    plain = all(type(item) in _SCALARS for item in error.args)
    return list(error.args) if plain else [str(error)]


def _error(name: str, arguments: list[Any], reason: str | None) -> Exception:
    """Returns an error of this package or of Python's builtins; any other becomes an EngineError that names it."""
    kind = getattr(errors, name, None) or getattr(builtins, name, None)
    if not isinstance(kind, type) or not issubclass(kind, Exception):
        return EngineError(f"{name}: {', '.join(map(str, arguments))}")
    try:
        return kind(*arguments) if reason is None else kind(*arguments, reason)
    except (TypeError, ValueError):  # for example UnicodeDecodeError, which takes bytes
        return EngineError(f"{name}: {', '.join(map(str, arguments))}")
