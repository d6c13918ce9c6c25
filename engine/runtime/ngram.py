"""Guesses at the next tokens, copied from the tokens that a sequence already holds: prompt-lookup speculation.

Agents copy much from their context: arguments from the request, answers from results.
"""

from collections.abc import Sequence

_RUN = 3
_FIRST = 3
"""Guesses are evaluated together with the token before them: with it, 3, 7 or 15 guesses fill the blocks of four rows
that the kernels for repacked weights take at once (ggml-cpu/repack.cpp). Eight rows can take less time than seven."""


class NgramDrafter:
    """Drafts for one sequence, of 1, 3, 7, ... tokens, up to `longest`. A draft that was right in full makes the next
    one longer; one that was mostly wrong makes it shorter. After a draft without a right guess the drafter pauses, for
    twice as many tokens after each further failure in a row."""

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
        """Returns the tokens that followed the last occurrence of the sequence's last three tokens, at most `room` of
        them. If that occurrence is very recent, the tokens since then are repeated."""
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

    def judged(self, drafted: int, accepted: int) -> None:
        """Record that `accepted` of the last draft's `drafted` tokens were right."""
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
