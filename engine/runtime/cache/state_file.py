"""A file with the memory of a sequence: its tokens, its state, and the model and settings that both belong to.

Layout: the magic bytes, the length of a JSON head (4 bytes, little-endian), the head with the origin, the tokens and
the length of the state, the state, and the SHA-256 of all that.

The digest detects damage, not forgery. A state is the model's own memory: whoever writes one decides what the model has
read, and values in it that are not numbers spoil the cells that they are in. So a state file must be trusted like a
model file.
"""

import hashlib
import json
import math
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from operator import index
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from engine.runtime.adapters.adapters import BASE, Adapters
from engine.support.errors import RequestError
from engine.support.output_file import write_file
from engine.support.own_file import open_regular

_MAGIC = b"llama-engine state 3\n"
_START = len(_MAGIC) + 4
_LONGEST = 256 << 20
"""Bytes of a head: ten million tokens."""
_DIGEST = 32


@dataclass(frozen=True, slots=True)
class Origin:
    """What a state belongs to: the weights (a digest), the library, and the settings that shape a cache. `rope`: the
    options for positions that were given. `buffers`: one for all sequences, or one for each; llama.cpp loads a state
    only into as many as it was saved from. `control_vectors`: a digest of their sum, "" without any. `projector`: a
    digest of what makes rows of pictures and sounds, "" without one."""

    model: str
    library: str
    type_k: str
    type_v: str
    flash_attn: str
    rope: str
    swa_full: bool
    buffers: int
    control_vectors: str = ""
    projector: str = ""


@dataclass(frozen=True, slots=True)
class SavedState:
    """The tokens that a sequence held, its state, and the adapters that computed it. Rows of pictures and sounds are
    among the tokens, as the numbers that `engine.runtime.media.media` makes of their content."""

    tokens: tuple[int, ...]
    state: bytes
    adapters: Adapters = BASE


def write_state(path: Path, origin: Origin, saved: SavedState) -> None:
    """Write the file completely or not at all. Raises RequestError if it cannot be written."""
    said = {"origin": asdict(origin), "tokens": saved.tokens, "adapters": saved.adapters, "bytes": len(saved.state)}
    head = json.dumps(said).encode()
    start = b"".join((_MAGIC, len(head).to_bytes(4, "little"), head))
    digest = hashlib.sha256(start)
    digest.update(saved.state)
    try:
        write_file(path, start, saved.state, digest.digest())
    except OSError as error:
        raise RequestError(f"{path} cannot be written ({error}); choose another path.") from error


def read_state(path: Path, origin: Origin, *, own: bool = False) -> SavedState:
    """Returns what `write_state` wrote for the same origin, with any adapters. `own`: only from a file of ours, to
    which nobody else may write. Raises RequestError, with the reason, if the file is missing, is not a state file, is
    damaged, or belongs to another model or other settings."""
    with _opened(path, own=own) as file:
        start, head = _read(path, file, origin)
        state, digest = file.read(head.size), file.read(_DIGEST)
    found = hashlib.sha256(start)
    found.update(state)
    if found.digest() != digest:
        raise _damaged(path)
    return SavedState(head.tokens, state, head.adapters)


def read_head(path: Path, origin: Origin, *, own: bool = False) -> tuple[tuple[int, ...], Adapters]:
    """Returns the tokens and adapters of a state file, without reading its state and without proof that it is not
    damaged. Raises what `read_state` raises."""
    with _opened(path, own=own) as file:
        head = _read(path, file, origin)[1]
    return head.tokens, head.adapters


class _Head(NamedTuple):
    """What the head of a file says; `size`: bytes of the state."""

    tokens: tuple[int, ...]
    adapters: Adapters
    size: int


@contextmanager
def _opened(path: Path, *, own: bool) -> Generator[BinaryIO]:
    try:
        with open_regular(path, own=own) as file:
            yield file
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        raise RequestError(f"{path} cannot be read ({error}); save a state there first.") from error


def _read(path: Path, file: BinaryIO, origin: Origin) -> tuple[bytes, _Head]:
    """Returns a file up to its state, and what its head says. The file is as long as that, so that what is read later
    is no more than a state."""
    start = file.read(_START)
    if not start.startswith(_MAGIC):
        raise RequestError(f"{path} is not a state file of this version; save the state again.")
    length = int.from_bytes(start[len(_MAGIC) :], "little")
    rest = os.fstat(file.fileno()).st_size - _START - length - _DIGEST
    if rest < 0 or length > _LONGEST:
        raise _damaged(path)
    start += file.read(length)
    head = _parsed(path, start[_START:], origin)
    if head.size != rest:
        raise _damaged(path)
    return start, head


def _damaged(path: Path) -> RequestError:
    return RequestError(f"{path} is cut off or damaged; save the state again.")


def _parsed(path: Path, data: bytes, origin: Origin) -> _Head:
    """Returns what a head says, after comparing the origin in it."""
    try:
        head: Any = json.loads(data)
        found, tokens = Origin(**head["origin"]), tuple(map(index, head["tokens"]))
        scales, first, salt = head["adapters"]
        adapters = Adapters(tuple((str(digest), _finite(scale)) for digest, scale in scales), index(first), str(salt))
        parsed = _Head(tokens, adapters, index(head["bytes"]))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise RequestError(f"{path} is a state file whose head cannot be read; save the state again.") from error
    if found != origin:
        raise RequestError(f"{path} is the state of another model, or of other settings; delete it.")
    return parsed


def _finite(scale: Any) -> float:
    """Returns an adapter's scale. Raises ValueError for one that is no number, or no finite one."""
    if not math.isfinite(number := float(scale)):
        raise ValueError(f"the scale {number} is not finite")
    return number
