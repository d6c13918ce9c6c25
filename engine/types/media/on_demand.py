"""What pictures and sounds share: each is decoded once, what came over the wire when somebody needs it."""

from abc import ABC, abstractmethod
from typing import Generic, Literal, Protocol, Self, TypeAlias, TypeVar, cast

from engine.types.media.budget import MediaBudget
from engine.types.media.source import Encoded

MediaKind: TypeAlias = Literal["image", "audio"]


class Decoded(Protocol):
    """Pixels or samples, and what tells them from others."""

    @property
    def digest(self) -> bytes: ...


D = TypeVar("D", bound=Decoded)


class OnDemand(ABC, Generic[D]):
    """A picture or a sound. Equal if what is decoded is."""

    __slots__ = ("_content", "_sent")

    _content: D | Encoded
    _sent: bool

    @classmethod
    def _over_the_wire(cls, content: D | Encoded) -> Self:
        made = cls.__new__(cls)
        made._content, made._sent = content, True
        return made

    @property
    @abstractmethod
    def kind(self) -> MediaKind: ...

    @abstractmethod
    def _measure(self) -> str:
        """Returns the size of what was decoded, for people."""

    @abstractmethod
    def _read(self, data: bytes, budget: MediaBudget) -> D:
        """Decode a file. Raises RequestError."""

    def decode(self, budget: MediaBudget | None = None) -> Self:
        """Decode what came over the wire, unless it was done before. Raises RequestError for what cannot be decoded, or
        is more than what is left of the budget."""
        if isinstance(self._content, Encoded):
            budget = budget or MediaBudget()
            budget.take("parts")
            budget.take("bytes", self._content.size)
            self._content = self._read(self._content.data(), budget)
        return self

    @property
    def is_decoded(self) -> bool:
        return not isinstance(self._content, Encoded)

    @property
    def _decoded(self) -> D:
        if isinstance(self._content, Encoded):
            self.decode()
        return cast("D", self._content)

    @property
    def digest(self) -> bytes:
        """SHA-256 over the kind, the size or the rate, and the pixels or the samples."""
        return self._decoded.digest

    @property
    def identity(self) -> bytes:
        """What tells it from others without decoding it: the digest, or that of the file."""
        return self._content.digest

    @property
    def about(self) -> str:
        """The picture or sound in a word, for people: "image 64x40", "audio 2.5 s"."""
        if isinstance(self._content, Encoded):
            return f"{self.kind} of {self._content.size:,} bytes"
        return f"{self.kind} {self._measure()}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)
