"""The rendered prompt: its text, which pieces of it the template wrote, and the tail that seeds the parser."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.support.printed import Printed
from engine.types.media import Media


class Piece(NamedTuple):
    """A piece of text.

    - `special`: in what a parser reads: the text is one control or user-defined token.
    - `trusted`: in a prompt: control-token text in it becomes control tokens. In all other text it never does.
    """

    text: str
    special: bool = False
    trusted: bool = False


class Span(NamedTuple):
    """Characters `start` to `end` (exclusive) of a text."""

    start: int
    end: int


def _opens_nothing(_prompt: "Prompt") -> bool:
    return False


@dataclass(frozen=True, slots=True)
class MediaPiece:
    """A picture or a sound at its place in a prompt."""

    media: Media

    @property
    def text(self) -> str:
        """What people see in its place: "[image 64x40]"."""
        return f"[{self.media.about}]"

    @property
    def trusted(self) -> bool:
        """False: nothing of it becomes a control token."""
        return False

    @property
    def key(self) -> str:
        """A text that is another for each other picture or sound, and that no caller can write: callers' texts have no
        lone surrogates."""
        return f"\ud800{self.media.kind} {self.media.identity.hex()}\udfff"


@dataclass(frozen=True, slots=True, repr=False)
class Prompt(Printed):
    """What is sent to the model.

    - `pieces`: the whole prompt; their texts concatenate to `text`. Pictures and sounds are pieces of their own. In a
      piece that is `trusted`, control-token text becomes control tokens; in the others, which callers wrote, it never
      does. System and developer text is trusted.
    - `complete`: whether the pieces that are not `trusted` contain all that callers wrote, but for the template's words
      and white space at the edges. If not, the template examines callers' text, and these pieces contain what could
      become a control token.
    - `prefix`: the part of it that belongs to the turn that the model is about to write, from the assistant's start on;
      it seeds the parser. In it, each of the family's control markers that the template wrote is a piece of its own,
      with `special`.
    - `stop`: texts that end the turn, besides the vocabulary's own end tokens.
    - `opens`: whether a prompt leaves reasoning open; see `in_reasoning`.
    - `restored`: the indices of the messages whose reasoning the caller did not send and memory restored.
    """

    text: str
    pieces: tuple[Piece | MediaPiece, ...]
    prefix: tuple[Piece, ...] = ()
    stop: tuple[str, ...] = ()
    complete: bool = True
    restored: tuple[int, ...] = ()
    opens: "Callable[[Prompt], bool]" = field(default=_opens_nothing, repr=False, compare=False)

    def __str__(self) -> str:
        return self.text

    @property
    def texts(self) -> tuple[Piece, ...]:
        """The pieces of text."""
        return tuple(piece for piece in self.pieces if isinstance(piece, Piece))

    @property
    def media(self) -> tuple[Media, ...]:
        """The pictures and sounds, in their order."""
        return tuple(piece.media for piece in self.pieces if isinstance(piece, MediaPiece))

    @property
    def key(self) -> str:
        """The text by which the prompt is remembered: two pictures of one size are told apart in it."""
        if not self.media:
            return self.text
        return "".join(piece.key if isinstance(piece, MediaPiece) else piece.text for piece in self.pieces)

    @property
    def in_reasoning(self) -> bool:
        """Whether the prompt leaves reasoning open. Parses the prefix on each access."""
        return self.opens(self)
