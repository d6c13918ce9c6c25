"""What a model's child sends is plain data: every record comes back as it went, and a frame holds nothing else."""

import json
import pickle
import random
import struct
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, cast, get_args, get_type_hints

import pytest
from pydantic import BaseModel

from engine.isolated import answers
from engine.isolated.answers import decoded, encoded
from engine.isolated.protocol import Failed, Line, Loading, Opened, Parts
from engine.llama.gguf.gguf import NamedTemplate
from engine.llama.model import ModelInfo
from engine.runtime.cache.state_file import Origin
from engine.runtime.loop.backend import ContextInfo
from engine.runtime.loop.logprobs import Logprob, TokenLogprobs
from engine.runtime.loop.request import Reply
from engine.runtime.stream.embed_queue import Vectors
from engine.support.errors import ContextOverflowError, DecodeError, EngineError, RequestError
from engine.types.completion import Usage
from engine.types.events import (
    ContentDelta,
    Event,
    Finished,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolResult,
)

EVENTS: tuple[Event, ...] = (
    ReasoningDelta("Hm, \ud83d \0 é\U0001f600"),
    ContentDelta("", 1, 2),
    ToolCallStart(0, "id", "look"),
    ToolCallDelta(0, '{"a": "\\"'),
    ToolCallEnd(0, "{}", "malformed", 3, 0, "id"),
    Finished("tool_calls", Usage(prompt_tokens=3, time_to_first_token=0.25)),
)
ORIGIN = Origin("digest", "0.3", "f16", "q8_0", "auto", "rope_freq_scale=0.5", False, 1)
NAMED = (NamedTemplate("rag", "{{ x }}"),)
INFO = ModelInfo(Path("a/b.gguf"), "qwen3", "", "Q8_0", 10**10, 2**40, 0, None, NAMED, "", "", True, False, False)
LOGPROBS = TokenLogprobs(Logprob(1, -0.5, b"\xff\0"), (Logprob(2, float("-inf"), b""), Logprob(3, -1e-300, b"ab")))
REPLIES = [
    Reply(7, EVENTS),
    Reply(8, (), final=True, error=RequestError("no"), output=(1, 2), logprobs=(LOGPROBS,) * 2, prefilled=3),
    Reply(8, EVENTS, final=True, checkpoints=(2, 1 << 40)),
    Reply(9, (), vectors=Vectors(random.Random(1).randbytes(100_000), 25_000, (3,))),
]


@pytest.mark.parametrize(
    "answer", [*REPLIES, INFO, Opened(ContextInfo(512), ORIGIN), Loading(0.5), Line("engine", 20, "é\nx")]
)
def test_records_come_back_as_they_went(answer: Any) -> None:
    there = decoded(encoded(answer))
    if isinstance(answer, Reply):
        assert (type(there.error), str(there.error)) == (type(answer.error), str(answer.error))
        there, answer = there._replace(error=None), answer._replace(error=None)
    assert there == answer
    assert type(there) is type(answer)


def test_a_list_of_replies_has_tuples_inside() -> None:
    there = decoded(encoded(REPLIES))
    assert [type(reply.events) for reply in there] == [tuple] * len(REPLIES)
    assert [reply.vectors for reply in there] == [reply.vectors for reply in REPLIES]


def test_every_record_that_an_answer_may_hold_is_known() -> None:
    """Found from the annotations: a field of a new class, and nobody told the list."""
    waiting: list[Any] = [Reply, Failed, Line, Loading, Opened, ModelInfo, Parts]
    seen: set[Any] = {ToolResult}  # an event of the agent loop, which no child runs
    records: set[type[Any]] = set()
    while waiting:
        kind = waiting.pop()
        waiting += get_args(kind)
        if isinstance(kind, type) and kind not in seen and is_record(cast("type[Any]", kind)):
            waiting += get_type_hints(kind).values()
            records.add(kind)
        seen.add(kind)
    assert records == set(answers._RECORDS.values())  # pyright: ignore[reportPrivateUsage]


def is_record(kind: type[Any]) -> bool:
    return is_dataclass(kind) or issubclass(kind, BaseModel) or hasattr(kind, "_fields")


class Local(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (DecodeError("no room", "no_slot"), DecodeError),
        (ContextOverflowError("long"), ContextOverflowError),
        (KeyError("x"), KeyError),
        (ValueError("a", 1), ValueError),
        (OSError(2, "gone"), OSError),
        (Local("hm"), EngineError),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "odd"), EngineError),
        (ExceptionGroup("many", [ValueError("x")]), EngineError),
        (RuntimeError(object()), RuntimeError),
    ],
)
def test_errors_come_back_as_what_they_are_or_say(error: Exception, expected: type[Exception]) -> None:
    there = decoded(encoded(Failed(error))).error
    assert type(there) is expected or (expected is OSError and isinstance(there, OSError))
    if type(there) is type(error):
        assert str(there) == str(error) or "object" in str(error)
        assert getattr(there, "reason", None) == getattr(error, "reason", None)
    else:
        assert str(there).startswith(f"{type(error).__name__}: ")


def test_what_is_no_answer_is_not_sent() -> None:
    for value in (object(), {"a": 1}, print, {1}, Path):
        with pytest.raises(TypeError, match="cannot be part of a reply"):
            encoded(value)


class Bomb:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return (open, (str(self._path), "w"))


def frame(value: object) -> bytes:
    text = json.dumps(value).encode()
    return struct.pack(">Q", len(text)) + text


NOT_RECORDS: list[Any] = [
    {"Popen": ["id"]},
    {"__class__": []},
    {"Reply": []},
    {"Reply": ["x", [], True, None, [], [], 0, None]},
    {"Reply": [1, ["no event"], True, None, [], [], 0, None]},
    {"Reply": [1, [{"Line": ["a", 1, "b"]}], True, None, [], [], 0, None]},
    {"Reply": [1, [], True, {"ContentDelta": ["a", 0, 0]}, [], [], 0, None]},
    {"ContentDelta": [{"ContentDelta": ["a", 0, 0]}, 0, 0]},
    {"ContentDelta": {"text": "a"}},
    {"Finished": ["exploded", None, 0]},
    {"Opened": [1, "origin"]},
    {"bytes": "x"},
    {"bytes": -1},
    {"bytes": 1},
    {"bytes": 1.5},
    {"error": []},
    {"error": [1, 2, 3]},
    {},
    {"a": 1, "b": 2},
]


@pytest.mark.parametrize("value", NOT_RECORDS)
def test_a_frame_of_something_else_is_refused(value: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        decoded(frame(value))


def test_names_of_other_things_are_only_words() -> None:
    for name in ("print", "open", "exec", "SystemExit", "KeyboardInterrupt", "Any", "__import__", "type"):
        there = decoded(frame({"error": [name, ["id"], None]}))
        assert type(there) is EngineError
        assert str(there) == f"{name}: id"


def test_nothing_executes(tmp_path: Path) -> None:
    """Pickles, and frames damaged in a thousand ways: an error or plain data, and never a file."""
    bomb, chosen, refused = pickle.dumps(Bomb(tmp_path / "ran")), random.Random(3), 0
    for payload in (bomb, struct.pack(">Q", len(bomb)) + bomb, struct.pack(">Q", 0) + bomb):
        with pytest.raises((ValueError, struct.error)):
            decoded(payload)
    whole = encoded(REPLIES[:2])
    for _ in range(3000):
        damaged = bytearray(whole)
        for _ in range(chosen.randint(1, 4)):
            damaged[chosen.randrange(len(damaged))] = chosen.randrange(256)
        try:
            there = decoded(bytes(damaged[: chosen.choice((len(damaged), chosen.randrange(len(damaged))))]))
        except (ValueError, TypeError, struct.error, RecursionError, OverflowError):
            refused += 1
        else:
            assert all(isinstance(reply, Reply | dict) for reply in there)
    assert 0 < refused < 3000
    assert not list(tmp_path.iterdir())
