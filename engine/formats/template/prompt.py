"""The rendered prompt: its text, which spans of it the template wrote, and the tail that seeds the parser."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from engine.formats.parsing.reader import Piece
from engine.formats.template.markers import Span
from engine.types.media import Media


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
    def special(self) -> bool:
        """False: nothing of it becomes a control token."""
        return False

    @property
    def key(self) -> str:
        """A text that is another for each other picture or sound, and that no caller can write: callers' texts have no
        lone surrogates."""
        return f"\ud800{self.media.kind} {self.media.digest.hex()}\udfff"


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is sent to the model.

    - `pieces`: the whole prompt; their texts concatenate to `text`. Pictures and sounds are pieces of their own. In a
      piece with `special`, control-token text becomes control tokens; in the others, which callers wrote, it never
      does. System and developer text is trusted.
    - `complete`: whether the pieces without `special` contain all that callers wrote, except for the template's words
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


def with_tail(prompt: Prompt, text: str, control: Iterable[str]) -> Prompt:
    """Returns the prompt with text of ours appended as if the template had written it."""
    written = Piece(text, True)
    prefix = (*prompt.prefix, *prefix_of([written], 0, control))
    return replace(prompt, text=prompt.text + text, pieces=(*prompt.pieces, written), prefix=prefix)


def with_media(prompt: Prompt, places: Mapping[str, Media]) -> Prompt:
    """Returns the prompt with media in place of the characters that stand for them, which occur nowhere else."""
    at = re.compile(f"([{''.join(places)}])")
    parts = (
        (part, piece.special, number % 2 == 1)
        for piece in prompt.texts
        for number, part in enumerate(at.split(piece.text))
    )
    pieces = tuple(
        MediaPiece(places[part]) if stands else Piece(part, special) for part, special, stands in parts if part
    )
    shown = {ord(character): MediaPiece(media).text for character, media in places.items()}
    prefix = tuple(Piece(piece.text.translate(shown), piece.special) for piece in prompt.prefix)
    return replace(prompt, text=prompt.text.translate(shown), pieces=pieces, prefix=prefix)


def pieces_of(text: str, callers: Sequence[Span]) -> tuple[Piece, ...]:
    """Returns the text cut into pieces at the spans that callers wrote."""
    pieces: list[Piece] = []
    position = 0
    for span in callers:
        if span.start > position:
            pieces.append(Piece(text[position : span.start], True))
        pieces.append(Piece(text[span.start : span.end], False))
        position = span.end
    if position < len(text):
        pieces.append(Piece(text[position:], True))
    return tuple(pieces)


def prefix_of(pieces: Sequence[Piece], start: int, control: Iterable[str]) -> tuple[Piece, ...]:
    """Returns the pieces from position `start` on, with each control marker that the template wrote as a piece of its
    own."""
    markers = _markers(frozenset(control))
    prefix: list[Piece] = []
    position = 0
    for piece in pieces:
        tail = piece.text[max(start - position, 0) :]
        position += len(piece.text)
        if not tail:
            continue
        parts = markers.split(tail) if markers and piece.special else [tail]
        prefix += [Piece(part, index % 2 == 1) for index, part in enumerate(parts)]
    return tuple(piece for piece in _joined(prefix) if piece.text)


@lru_cache(maxsize=64)
def _markers(texts: frozenset[str]) -> re.Pattern[str] | None:
    """Returns the pattern that finds the longest of these texts at each position; None for no texts."""
    return re.compile(f"({'|'.join(map(re.escape, sorted(texts, key=len, reverse=True)))})") if texts else None


def _joined(pieces: Sequence[Piece]) -> list[Piece]:
    joined: list[Piece] = []
    for piece in pieces:
        if joined and not piece.special and not joined[-1].special:
            joined[-1] = Piece(joined[-1].text + piece.text, False)
        else:
            joined.append(piece)
    return joined


def turn_start(text: str, without: str | None, start: str, *, continues: bool) -> int:
    """Returns the position in `text` at which the turn that the model is about to write begins.

    `without` is the same conversation rendered without a generation prompt (None if that cannot be rendered): the text
    that `text` adds to it is the generation prompt. `start` is the family's assistant start ("" for none). If the
    prompt adds nothing and `continues` (the last message is a tool's), the model continues a turn that began earlier:
    the position is the end of the text, so that no earlier turn seeds the parser.
    """
    added = common(text, without) if without is not None else 0
    if start:
        found = text.rfind(start, added)
        if found < 0 and not continues:
            found = text.rfind(start)
        if found >= 0:
            return found
    return added if without is not None else len(text)


def common(first: str, second: str) -> int:
    """Returns the length of the common prefix of two texts."""
    if first.startswith(second):
        return len(second)
    length = min(len(first), len(second))
    return next((index for index in range(length) if first[index] != second[index]), length)
