"""Weighs whole texts where a form leaves only a few: the likeliest first token may begin one that no model would write.

A model that would write "fantasy" takes the "f" of "find_phone", and all else is forced: so each text has its whole
probability, and its first token that of all texts that it begins.
"""

from collections.abc import Sequence
from math import exp, isfinite, log

from engine.runtime.loop.backend import Ahead, Backend

MOST_WEIGHED = 5
"""Texts that are tried, the likeliest by their first tokens."""
_NEVER = -1e4


class Trial:
    """The texts that may follow a sequence, tried one after the other: each is evaluated behind the last token like
    guesses, in a step beside all that runs, and forgotten."""

    def __init__(self, backend: Backend, row: int, token: int, texts: Sequence[Sequence[int]]) -> None:
        """`row`: that of the sequence's last token, `token`."""
        self._backend = backend
        entry = backend.logprobs(row, token, tuple(dict.fromkeys(text[0] for text in texts)))
        self._first = first = {each.token: each.logprob for each in entry.top}
        self._known = sorted((text for text in texts if isfinite(first[text[0]])), key=lambda text: -first[text[0]])
        self._left = list(self._known[:MOST_WEIGHED])
        self._totals: dict[int, list[float]] = {}
        self._best = -float("inf")
        self._pass_short()

    @property
    def is_choice(self) -> bool:
        """Whether more than one text is possible."""
        return len(self._known) > 1

    @property
    def next(self) -> tuple[int, ...]:
        """The tokens to evaluate behind the last one: those of a text but its last. None if enough is known."""
        return tuple(self._left[0][:-1]) if self._left else ()

    def tried(self, row: int) -> None:
        """Record how likely `next` and the token behind it are. `row`: that of the sequence's last token."""
        text = self._left[0]
        rest = (self._backend.logprobs(row + at, token, 0).drawn.logprob for at, token in enumerate(text[1:], 1))
        self._know(text, sum(rest))
        self._pass_short()

    def _know(self, text: Sequence[int], rest: float) -> None:
        total = self._first[text[0]] + rest
        self._best = max(self._best, total)
        self._totals.setdefault(text[0], []).append(total)
        del self._left[0]

    def _pass_short(self) -> None:
        """Take the texts of one token as known. Leave out the others behind one that can be no likelier than one that
        is known, unless its first token begins such a one."""
        while self._left:
            text = self._left[0]
            if self._first[text[0]] < self._best and text[0] not in self._totals:
                self._left.clear()
            elif len(text) == 1:
                self._know(text, 0.0)
            else:
                return

    @property
    def ahead(self) -> Ahead:
        """What the first tokens get. Those of texts that were not tried get the mean of the others."""
        first = self._first
        more = {token: _together(some) - first[token] for token, some in self._totals.items() if isfinite(max(some))}
        mean = sum(more.values()) / len(more) if more else 0.0
        tokens = tuple(dict.fromkeys(text[0] for text in self._known))
        return Ahead(tokens, tuple(more.get(token, mean if token not in self._totals else _NEVER) for token in tokens))


def _together(several: Sequence[float]) -> float:
    """Returns the log-probability of one of several texts, which may be too small to be a float."""
    best = max(several)
    return best + log(sum(exp(each - best) for each in several))
