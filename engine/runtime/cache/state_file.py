"""A file with the memory of a sequence: its tokens, its state, and the model and settings that both belong to.

Layout: the magic bytes, the length of a JSON head (4 bytes, little-endian), the head with the origin and the tokens,
the state, and the SHA-256 of all that.

The digest detects damage, not forgery. A state is the model's own memory: whoever writes one decides what the model has
read, and values in it that are not numbers spoil the cells that they are in. So a state file must be trusted like a
model file.
"""

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from operator import index
from pathlib import Path
from typing import Any

from engine.runtime.adapters.adapters import BASE, Adapters
from engine.support.errors import RequestError
from engine.support.output_file import write_file

_MAGIC = b"llama-engine state 2\n"
_HEAD = len(_MAGIC) + 4
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
    head = json.dumps({"origin": asdict(origin), "tokens": saved.tokens, "adapters": saved.adapters}).encode()
    start = b"".join((_MAGIC, len(head).to_bytes(4, "little"), head))
    digest = hashlib.sha256(start)
    digest.update(saved.state)
    try:
        write_file(path, start, saved.state, digest.digest())
    except OSError as error:
        raise RequestError(f"{path} cannot be written ({error}); choose another path.") from error


def read_state(path: Path, origin: Origin) -> SavedState:
    """Returns what `write_state` wrote for the same origin, with any adapters. Raises RequestError, with the reason, if
    the file is missing, is not a state file, is damaged, or belongs to another model or other settings."""
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        raise RequestError(f"{path} cannot be read ({error}); save a state there first.") from error
    end = _start(path, data)
    if hashlib.sha256(memoryview(data)[:-_DIGEST]).digest() != data[-_DIGEST:]:
        raise RequestError(f"{path} is cut off or damaged; save the state again.")
    tokens, adapters = _parsed(path, data[_HEAD:end], origin)
    return SavedState(tokens, data[end:-_DIGEST], adapters)


def read_head(path: Path, origin: Origin) -> tuple[tuple[int, ...], Adapters]:
    """Returns the tokens and adapters of a state file, without reading its state and without proof that it is not
    damaged. Raises what `read_state` raises."""
    try:
        with path.open("rb") as file:
            data = file.read(_HEAD)
            head = file.read(_start(path, data) - _HEAD)
    except (OSError, ValueError) as error:
        raise RequestError(f"{path} cannot be read ({error}); save a state there first.") from error
    return _parsed(path, head, origin)


def _start(path: Path, data: bytes) -> int:
    """Returns where the state begins in a file that begins with `data`."""
    if not data.startswith(_MAGIC):
        raise RequestError(f"{path} is not a state file of this version; save the state again.")
    return _HEAD + int.from_bytes(data[len(_MAGIC) : _HEAD], "little")


def _parsed(path: Path, data: bytes, origin: Origin) -> tuple[tuple[int, ...], Adapters]:
    """Returns the tokens and adapters in a file's head, after comparing the origin in it."""
    try:
        head: Any = json.loads(data)
        found, tokens = Origin(**head["origin"]), tuple(map(index, head["tokens"]))
        scales, first = head.get("adapters", BASE)
        adapters = Adapters(tuple((str(digest), _finite(scale)) for digest, scale in scales), index(first))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise RequestError(f"{path} is a state file whose head cannot be read; save the state again.") from error
    if found != origin:
        raise RequestError(f"{path} is the state of another model, or of other settings; delete it.")
    return tokens, adapters


def _finite(scale: Any) -> float:
    """Returns an adapter's scale. Raises ValueError for one that is no number, or no finite one."""
    if not math.isfinite(number := float(scale)):
        raise ValueError(f"the scale {number} is not finite")
    return number
