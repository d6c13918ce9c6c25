"""Edits of a rendered prompt: cut by who wrote what, media in their places, the tail that seeds the parser."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from engine.types.media import Media
from engine.types.prompt import MediaPiece, Piece, Prompt, Span


def with_tail(prompt: Prompt, text: str, control: Iterable[str]) -> Prompt:
    """Returns the prompt with text of ours appended as if the template had written it."""
    written = Piece(text, trusted=True)
    prefix = (*prompt.prefix, *prefix_of([written], 0, control))
    return replace(prompt, text=prompt.text + text, pieces=(*prompt.pieces, written), prefix=prefix)


def with_media(prompt: Prompt, places: Mapping[str, Media]) -> Prompt:
    """Returns the prompt with media in place of the characters that stand for them, which occur nowhere else."""
    at = re.compile(f"([{''.join(places)}])")
    parts = (
        (piece._replace(text=part), number % 2 == 1)
        for piece in prompt.texts
        for number, part in enumerate(at.split(piece.text))
    )
    pieces = tuple(MediaPiece(places[piece.text]) if stands else piece for piece, stands in parts if piece.text)
    shown = {ord(character): MediaPiece(media).text for character, media in places.items()}
    prefix = tuple(piece._replace(text=piece.text.translate(shown)) for piece in prompt.prefix)
    return replace(prompt, text=prompt.text.translate(shown), pieces=pieces, prefix=prefix)


def pieces_of(text: str, callers: Sequence[Span]) -> tuple[Piece, ...]:
    """Returns the text cut into pieces at the spans that callers wrote."""
    pieces: list[Piece] = []
    position = 0
    for span in callers:
        if span.start > position:
            pieces.append(Piece(text[position : span.start], trusted=True))
        pieces.append(Piece(text[span.start : span.end]))
        position = span.end
    if position < len(text):
        pieces.append(Piece(text[position:], trusted=True))
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
        if markers and piece.trusted:
            prefix += [Piece(part, index % 2 == 1) for index, part in enumerate(markers.split(tail))]
        else:
            prefix.append(Piece(tail, piece.special))
    return tuple(piece for piece in joined(prefix) if piece.text)


@lru_cache(maxsize=64)
def _markers(texts: frozenset[str]) -> re.Pattern[str] | None:
    """Returns the pattern that finds the longest of these texts at each position; None for no texts."""
    return re.compile(f"({'|'.join(map(re.escape, sorted(texts, key=len, reverse=True)))})") if texts else None


def joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Returns the pieces with ordinary texts that follow one another as one."""
    whole: list[Piece] = []
    for piece in pieces:
        if whole and not piece.special and not whole[-1].special:
            whole[-1] = Piece(whole[-1].text + piece.text)
        else:
            whole.append(piece)
    return whole


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
