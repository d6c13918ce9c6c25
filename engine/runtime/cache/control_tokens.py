"""Finds the control tokens in a prompt, and refuses to send one that came from callers' text.

This is the last check of a prompt. It relies on no earlier step: not on how texts were marked, cut or tokenised, nor on
what was remembered of earlier turns.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from engine.runtime.loop.backend import Vocab
from engine.support.errors import ForgedPromptError
from engine.types.prompt import Piece

_SPACE = b" \t\r\n\v\f"
_IN_NO_VOCABULARY = "\U0003fffd"  # a plane without any character


class ControlTokens:
    """The control tokens of a vocabulary, but for the one for characters that it lacks. Its methods may be called from
    any thread."""

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab
        self._bytes: dict[int, bytes] = {}
        self._lengths: dict[int, int] = {}
        self._texts: dict[int, bytes] = {}
        self._bos = vocab.encode((), add_bos=True)
        self._unknown = frozenset(vocab.tokenize(_IN_NO_VOCABULARY, special=False))

    def _places(self, tokens: Sequence[int]) -> list[int]:
        """Returns the indices of the control tokens."""
        for token in set(tokens) - self._texts.keys():
            data = self._bytes[token] = self._vocab.token_bytes(token)
            self._lengths[token] = len(data)
            opens = token not in self._unknown and self._vocab.is_special(token)
            self._texts[token] = data if opens else b""
        texts = self._texts
        return [index for index, token in enumerate(tokens) if texts[token]]

    def standing(self, tokens: Sequence[int]) -> Iterator[tuple[int, str]]:
        """Yields each control token with the text since the previous one. White space is stripped from the text,
        because some control tokens absorb the white space beside them."""
        for before, place in pairwise((-1, *self._places(tokens))):
            yield tokens[place], self._spelt(tokens[before + 1 : place]).decode()

    def check(self, pieces: Sequence[Piece], tokens: Sequence[int]) -> None:
        """Raise ForgedPromptError if a control token came from text that callers wrote: from a piece that is not
        `trusted`."""
        if all(piece.trusted for piece in pieces):
            return
        places, callers = self._places(tokens), _Callers(pieces)
        position = first = 0
        if list(tokens[:1]) == self._bos and not callers.template_begins_with(self._texts[tokens[0]]):
            first = 1  # the vocabulary's own beginning token, which is part of no piece
        for index in places:
            if index < first:
                continue
            text, between = self._texts[tokens[index]], tokens[first:index]
            found = position + sum(map(self._lengths.__getitem__, between))
            if not callers.text.startswith(text, found):
                found = self._found(callers, position, between, text)
            if found < 0 or callers.wrote(found, found + len(text)):
                raise ForgedPromptError(
                    f"The prompt was not sent: text that callers wrote, which must stay text, became the control token "
                    f"{text.decode(errors='replace')!r} (token {index:,} of {len(tokens):,}). Leave that text out, and "
                    "report this as a bug: the text should have been tokenised as ordinary characters."
                )
            position, first = found + len(text), index + 1

    def _found(self, callers: "_Callers", position: int, between: Sequence[int], text: bytes) -> int:
        """Returns the position of a control token's `text` if it does not begin where the tokens before it end: a
        vocabulary may put a space before a text, and control tokens absorb the white space beside them. If the
        vocabulary does not reproduce its input exactly, the position is the next place where the template wrote that
        text; -1 if there is none."""
        spelt = self._spelt(between)
        found = callers.after_space(position)
        if callers.text.startswith(spelt, found):
            found += len(spelt)
            for place in (found, callers.after_space(found)):
                if callers.text.startswith(text, place):
                    return place
        found = callers.text.find(text, position)
        while found >= 0 and callers.wrote(found, found + len(text)):
            found = callers.text.find(text, found + 1)
        return found

    def _spelt(self, tokens: Sequence[int]) -> bytes:
        """Returns the text of the tokens in UTF-8, without white space at its edges."""
        data = b"".join(map(self._bytes.__getitem__, tokens))
        return data.decode(errors="replace").encode().strip(_SPACE)


class _Callers:
    """A prompt's text in UTF-8, and which of its bytes callers wrote."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        parts = [piece.text.encode(errors="replace") for piece in pieces]
        self.text = b"".join(parts)
        self._starts = list(accumulate(map(len, parts), initial=0))
        self._callers = [not piece.trusted for piece in pieces]

    def wrote(self, start: int, end: int) -> bool:
        """Whether callers wrote any of these bytes."""
        first, last = bisect_right(self._starts, start) - 1, bisect_right(self._starts, end - 1)
        return any(self._callers[first:last])

    def template_begins_with(self, text: bytes) -> bool:
        """Whether the prompt begins with this text, written by the template."""
        return bool(text) and self.text.startswith(text) and not self.wrote(0, len(text))

    def after_space(self, position: int) -> int:
        """Returns the position of the first byte at or after `position` that is not white space."""
        while position < len(self.text) and self.text[position] in _SPACE:
            position += 1
        return position
