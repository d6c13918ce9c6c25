"""Files of pictures and sounds decoded in child processes, one file at a time in each: the parent's side.

The system limits a child's memory, it can open no file, what its libraries print goes nowhere, and it is killed when a
decode is late. It starts on first use, stays, and ends with this process; a fork of this process starts its own. A
picture that takes seconds has a child that only waits for others of its kind.
"""

import json
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from engine.support import threads
from engine.support.child import Child, ChildGoneError, ChildNotStartedError
from engine.support.errors import RequestError
from engine.types.media.budget import MediaBudget
from engine.types.media.source import damaged

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DATA, DONE, REFUSAL, LARGE = b"d", b"e", b"r", b"l"
"""The first byte of an answer's frames. DATA: a piece of the pixels or samples. DONE: the end, an object in JSON.
REFUSAL: why there are none. LARGE: the picture is for the child of large ones."""
Kind: TypeAlias = Literal["image", "large image", "audio"]
PIECE = 1 << 20
"""The most bytes of a piece."""
WORKER = "engine.types.media.decoding_child"
_LEAST_SECONDS = 0.25
"""The least time limit, in seconds: ordinary pictures are decoded within it, so a short deadline does not kill the
child."""
_STARTING = 30.0
_POLL = 0.25
_PIXELS = "pass a picture that Pillow has opened, or an array of its pixels"
_REMEDY: dict[Kind, str] = {
    "image": _PIXELS,
    "large image": _PIXELS,
    "audio": "pass an array of its samples, as soundfile reads it",
}
_children: dict[Kind, Child] = {}
_locks: dict[Kind, threading.Lock] = {kind: threading.Lock() for kind in _REMEDY}


@threads.after_fork
def _after_fork() -> None:
    """Replace the locks, which threads of the parent may hold. (`Child` itself recognises children of the parent.)"""
    _locks.update((kind, threading.Lock()) for kind in _REMEDY)


def pixels_of(data: bytes, budget: MediaBudget) -> tuple[int, int, bytes]:
    """Returns the width, height and RGB of a picture's file. Raises RequestError for one that cannot be decoded, or not
    within the budget; ChildNotStartedError if there is no child to do it."""
    pieces: list[bytes] = []
    most = budget.left("pixels")
    end = _decoded("image", data, most, budget, pieces.append)
    if end is None:
        end = _decoded("large image", data, most, budget, pieces.append) or {}
    budget.take("pixels", end["pixels"])
    return end["width"], end["height"], b"".join(pieces)


def samples_of(data: bytes, budget: MediaBudget) -> "tuple[int, NDArray[np.float32]]":
    """Returns the rate and the samples of one channel of a sound's file. Raises as `pixels_of` does."""
    import numpy as np

    samples, count = np.empty(budget.left("samples"), np.float32), 0  # takes memory as it is filled

    def take(piece: bytes) -> None:
        nonlocal count
        more = np.frombuffer(piece, np.float32)
        samples[count : count + len(more)] = more
        count += len(more)

    end = _decoded("audio", data, budget.left("samples"), budget, take) or {}
    budget.take("samples", count)
    return end["rate"], samples[:count] if 2 * count > len(samples) else samples[:count].copy()


def prepare() -> None:
    """Start the child for pictures in the background, unless there is one."""
    if (lock := _locks["image"]).acquire(blocking=False):
        try:
            with suppress(ChildNotStartedError):  # the first picture raises it
                _child("image")
        finally:
            lock.release()


def _decoded(
    kind: Kind, data: bytes, most: int, budget: MediaBudget, take: Callable[[bytes], object]
) -> dict[str, Any] | None:
    """Give the pieces of a file's pixels or samples (at most so many) to `take`. Returns what the child said at the
    end; None if another decodes such a picture."""
    budget.check()  # else each file of a request whose time is over would start a child and wait for it
    with _alone(kind, budget):
        child, began = _started(kind, budget), time.monotonic()
        seconds = max(budget.seconds, _LEAST_SECONDS)
        order = json.dumps({"kind": kind, "most": most, "seconds": seconds}).encode()
        try:
            with child.within(seconds):
                child.send(order + b"\n")
                child.send(data)
                while (frame := _frame(child, budget))[:1] == DATA:
                    take(frame[1:])
        except ChildGoneError as error:
            child.kill()
            if child.late:
                raise budget.late() from error
            raise damaged("audio" if kind == "audio" else "image", error) from error
        except BaseException:
            child.kill()  # a late answer would be read as the answer to the next order
            raise
        finally:
            budget.spend(time.monotonic() - began)
    if frame[:1] == REFUSAL:
        raise RequestError(frame[1:].decode(errors="replace"))
    return None if frame == LARGE else json.loads(frame[1:])


def _frame(child: Child, budget: MediaBudget) -> bytes:
    while not child.answers_within(_POLL):
        budget.check()
    return child.receive(PIECE + 1)


@contextmanager
def _alone(kind: Kind, budget: MediaBudget) -> Generator[None]:
    lock = _locks[kind]
    while not lock.acquire(timeout=_POLL):
        budget.check()
    try:
        yield
    finally:
        lock.release()


def _child(kind: Kind) -> Child:
    child = _children.get(kind)
    if child is None or not child.alive:
        child = Child(WORKER, f"The process that decodes {kind}s", _REMEDY[kind], grace=0.0)
        _children[kind] = child
    return child


def _started(kind: Kind, budget: MediaBudget) -> Child:
    """Returns a child that is ready. Raises ChildNotStartedError, and RequestError if the request's time ends first."""
    child = _child(kind)
    if not child.greeted:
        try:
            with child.within(_STARTING):
                while not child.answers_within(_POLL):
                    budget.check()
                child.wait_for_greeting()
        except RequestError:
            raise  # it starts meanwhile, for the next request
        except ChildGoneError as error:
            child.kill()
            raise ChildNotStartedError(f"{str(error).removesuffix('.')}; {_REMEDY[kind]}.") from error
        except BaseException:
            child.kill()
            raise
    return child
