"""Guesses at the next tokens, copied from the tokens that a sequence already holds: prompt-lookup speculation.

Agents copy much from their context: arguments from the request, answers from results.
"""

from collections.abc import Sequence

_RUN = 3


class Ngrams:
    """Finds where the last tokens of one sequence stood before. `tokens` is kept; the caller appends to it."""

    __slots__ = ("_indexed", "_places", "_tokens")

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens
        self._places: dict[tuple[int, ...], int] = {}
        self._indexed = _RUN - 1

    def propose(self, size: int) -> tuple[int, ...]:
        """Returns the `size` tokens that followed the last occurrence of the sequence's last three tokens. If that
        occurrence is very recent, the tokens since then are repeated. Returns () if there is none."""
        tokens, places = self._tokens, self._places
        end = len(tokens)
        last = tuple(tokens[end - _RUN : end])
        # The run at the very end is looked up before it is entered, so that it does not find itself.
        for position in range(self._indexed, end - 1):
            places[tuple(tokens[position - _RUN + 1 : position + 1])] = position
        self._indexed = max(self._indexed, end - 1)
        found = places.get(last)
        if found is None:
            return ()
        period = end - 1 - found
        if period >= size:
            return tuple(tokens[found + 1 : found + 1 + size])
        return tuple(tokens[found + 1 + place % period] for place in range(size))
