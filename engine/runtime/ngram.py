"""Guesses at what comes next, copied from what a sequence already holds: prompt-lookup speculation.

Knows: one sequence's tokens, where each run of three occurred last, and how often guesses came true. Does not know:
how guesses are verified (`loop`), models. Agents copy much from their context: arguments from the request, answers
from results.
"""

from collections.abc import Sequence

_RUN = 3
_FIRST = 3
"""With the token before them, guesses are one row more: 3, 7 and 15 of them fill the blocks of four rows that the
kernels for repacked weights take at once (ggml-cpu/repack.cpp). Eight rows can take less time than seven."""


class NgramDrafter:
    """Drafts for one sequence, of 1, 3, 7, ... tokens, up to `longest`. A draft that came true makes the next one
    longer, one that mostly did not makes it shorter; after failures in a row it rests, for twice as many tokens each
    time."""

    __slots__ = ("_indexed", "_longest", "_places", "_rest", "_size", "_tokens", "_wait", "accepted", "drafted")

    def __init__(self, tokens: Sequence[int], longest: int) -> None:
        self._tokens = tokens
        self._longest = longest
        self._places: dict[tuple[int, ...], int] = {}
        self._indexed = _RUN - 1
        self._size = _FIRST if longest >= _FIRST else 1
        self._wait = 0
        self._rest = 1
        self.drafted = 0
        self.accepted = 0

    def propose(self, room: int) -> tuple[int, ...]:
        """The tokens that followed when the sequence's last three occurred before, over and over where that was but a
        moment ago; at most `room` of them."""
        tokens, places = self._tokens, self._places
        end = len(tokens)
        last = tuple(tokens[end - _RUN : end])
        # The run at the very end is looked up before it is entered, so that it does not find itself.
        for position in range(self._indexed, end - 1):
            places[tuple(tokens[position - _RUN + 1 : position + 1])] = position
        self._indexed = max(self._indexed, end - 1)
        if self._wait:
            self._wait -= 1
            return ()
        found = places.get(last)
        if found is None:
            return ()
        size, period = min(self._size, room), end - 1 - found
        if period >= size:
            return tuple(tokens[found + 1 : found + 1 + size])
        return tuple(tokens[found + 1 + place % period] for place in range(size))

    def restart(self) -> None:
        """The sequence lost tokens in its middle: what was known of places in it is void."""
        self._places.clear()
        self._indexed = _RUN - 1

    def judged(self, drafted: int, accepted: int) -> None:
        """So many of the last draft's tokens came true."""
        self.drafted += drafted
        self.accepted += accepted
        if accepted:
            self._rest = 1
            if accepted == drafted:
                self._size = longer if (longer := 2 * self._size + 1) <= self._longest else self._size
            elif 2 * accepted < drafted:
                self._size = max(self._size // 2, 1)
        else:
            self._size = max(self._size // 2, 1)
            self._wait = self._rest
            self._rest = min(self._rest * 2, 64)
