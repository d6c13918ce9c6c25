"""Adapters: their names, and those that compute a request's tokens."""

import hashlib
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias, cast

from engine.support.errors import RequestError, shown
from engine.types.turn_settings import AdaptersLike

_LARGEST = 1_000  # scales in use are 0 to 4; far larger ones make logits that are not numbers

Scales: TypeAlias = tuple[tuple[str, float], ...]
"""Adapters, each the SHA-256 of its file, with their scales; in ascending order, none with scale 0."""


class Adapters(NamedTuple):
    """What computes a request's tokens: from position `start` on the model with these adapters, before it the model
    alone. `salt`: whose they are; prefixes are shared among equal ones only. The value is part of a prefix's key."""

    scales: Scales = ()
    start: int = 0
    salt: str = ""

    def at(self, position: int) -> Scales:
        """Returns the adapters in force at a position."""
        return self.scales if position >= self.start else ()

    def alike(self, other: "Adapters") -> int:
        """Returns how many leading positions both compute alike, and may share."""
        if self.salt != other.salt:
            return 0
        return sys.maxsize if self == other else min(self._adapted, other._adapted)

    @property
    def _adapted(self) -> int:
        """The first position with an adapter."""
        return self.start if self.scales else sys.maxsize

    def salted(self, salt: str | None) -> "Adapters":
        """Returns these adapters for the caller that gave this salt, of which only a digest is kept; None: for all
        that give none."""
        if salt is None:
            return self
        return self._replace(salt=hashlib.sha256(salt.encode("utf-8", "surrogatepass")).hexdigest())


BASE = Adapters()
"""The model alone."""


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """A loaded adapter: its `path`, the SHA-256 of its file, the `scale` that it has in a turn that gives none, its
    `architecture`, `rank` and size. `invocation_tokens`: the tokens from which an activated LoRA applies; empty for a
    LoRA that applies everywhere."""

    name: str
    path: Path
    digest: str
    scale: float
    architecture: str
    rank: int
    size_bytes: int
    invocation_tokens: tuple[int, ...]


class LoadAdapter(NamedTuple):
    """Load the adapter in this file, unless another name has it; the reply has this id. `key`: what drops it again."""

    id: int
    digest: str
    path: Path
    key: int


class DropAdapter(NamedTuple):
    """Free what was loaded with this `key`, if it has no other, once no request uses it; then reply under this id.
    Where nothing was, nothing is freed, so it may be asked again."""

    id: int
    digest: str
    key: int


class AdapterNames:
    """The adapters of one engine by name. May be used from any thread."""

    def __init__(self) -> None:
        self._known: dict[str, AdapterInfo] = {}
        self._keys: dict[str, int] = {}  # of those that are about to be loaded, too
        self._lock = threading.Lock()

    @property
    def known(self) -> dict[str, AdapterInfo]:
        """The adapters that turns may name, by name."""
        with self._lock:
            return dict(self._known)

    def reserve(self, name: str, key: int) -> None:
        """Take a name for an adapter that is about to be loaded; `settle` or `remove` follows. Raises RequestError if
        it is taken."""
        with self._lock:
            if self._keys.setdefault(name, key) != key:
                raise RequestError(f"There is an adapter {shown(name)} already; drop it first, or use another name.")

    def settle(self, adapter: AdapterInfo, key: int) -> None:
        """Let turns use the adapter."""
        with self._lock:
            if self._keys.setdefault(adapter.name, key) == key:
                self._known[adapter.name] = adapter

    def named(self, name: str) -> tuple[AdapterInfo, int]:
        """Returns an adapter and its key. Raises RequestError if there is none."""
        with self._lock:
            _ = self._checked([name])
            return self._known[name], self._keys[name]

    def remove(self, name: str, key: int) -> None:
        """Refuse turns that name this adapter from now on, and let the name be free again, if this key still has it."""
        with self._lock:
            if self._keys.get(name) == key:
                self._known.pop(name, None)
                del self._keys[name]

    def chosen(self, named: AdaptersLike | None, tokens: Sequence[int]) -> Adapters:
        """Returns what computes a prompt of these tokens. An activated LoRA applies from the last place of its
        invocation tokens on, or nowhere if they do not occur, as in llama.cpp's server. Raises RequestError for names
        that are not known and for scales that are no numbers from -1,000 to 1,000."""
        if named is None:
            return BASE
        with self._lock:
            scales = self._checked(named)
            adapters = {name: self._known[name] for name, scale in scales.items() if scale}
        activated = next((adapter for adapter in adapters.values() if adapter.invocation_tokens), None)
        if activated is not None and len(adapters) > 1:
            raise RequestError(
                f"The adapter {shown(activated.name)} is an activated LoRA, which begins to apply within a prompt: it "
                "is used alone. Leave the others out, or give them scale 0."
            )
        start = 0 if activated is None else _last_place(activated.invocation_tokens, tokens)
        sums: dict[str, float] = {}  # a file that is loaded under two names has the sum of their scales
        for name, adapter in adapters.items():
            sums[adapter.digest] = sums.get(adapter.digest, 0.0) + scales[name]
        used = tuple(sorted((digest, scale) for digest, scale in sums.items() if scale))
        return Adapters(used, start) if used and start >= 0 else BASE

    def _checked(self, named: object) -> dict[str, float]:
        """Returns the names with their scales."""
        known = ", ".join(map(repr, sorted(self._known))) or "none; pass adapters= to Engine.load, or call load_adapter"
        if isinstance(named, str | bytes) or not isinstance(named, Sequence | Mapping):
            raise RequestError(
                f'adapters={shown(named)} is not valid; write ["name"] or {{"name": 0.5}}. Loaded are: {known}.'
            )
        given = cast("Sequence[object] | Mapping[object, object]", named)
        scales: dict[str, float] = {}
        for name in given:
            if not isinstance(name, str) or name not in self._known:
                raise RequestError(f"There is no adapter {shown(name)}. Loaded are: {known}.")
            scale = given[name] if isinstance(given, Mapping) else self._known[name].scale
            scales[name] = scale_of(name, scale, f" Loaded are: {known}.")
        return scales


def scale_of(name: object, scale: object, further: str = "") -> float:
    """Returns the scale of an adapter. Raises RequestError for what is no number from -1,000 to 1,000."""
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not abs(scale) <= _LARGEST:
        raise RequestError(
            f"The scale of the adapter {shown(name)} is {shown(scale)}; it must be a number from -{_LARGEST:,} to "
            f"{_LARGEST:,} (usual are 0 to 4).{further}"
        )
    return float(scale)


def _last_place(wanted: Sequence[int], tokens: Sequence[int]) -> int:
    """Returns where the last occurrence of a sequence of tokens begins; -1 if there is none."""
    size, wanted = len(wanted), tuple(wanted)
    ends = (at for at in range(len(tokens) - size, -1, -1) if tokens[at] == wanted[0])
    return next((at for at in ends if tuple(tokens[at : at + size]) == wanted), -1)
