"""Notices that a model has run away: that it writes one text again and again."""

LOOK_EVERY = 64
"""In tokens: a look costs microseconds, so not every token gets one."""
_TIMES = 4
_GLANCE = 16


class Repetition:
    """The tokens of a turn. It has run away if they end in one unit, of at most `limit` tokens (64 or more), that
    stands there at least `_TIMES` times in a row and fills at least `limit` tokens."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._tokens: list[int] = []
        self.append = self._tokens.append
        """Add a token."""

    def is_runaway(self) -> bool:
        """Whether the turn has run away by now."""
        tokens, limit = self._tokens, self._limit
        if len(tokens) < limit:
            return False
        near = tokens[: -min(limit, len(tokens) // _TIMES) - 2 : -1]  # the newest first
        newest, before, unit = near[0], near[1], 0
        for _ in range(near.count(newest) - 1):
            unit = near.index(newest, unit + 1)
            if tokens[-2 - unit] == before and self._ends_in(unit):
                return True
        return False

    def _ends_in(self, unit: int) -> bool:
        """Whether the tokens end in a unit of so many, again and again."""
        tokens, size = self._tokens, max(self._limit, _TIMES * unit)
        # Both ends first: they differ in most texts.
        if tokens[-_GLANCE:] != tokens[-_GLANCE - unit : -unit]:
            return False
        if tokens[-size : _GLANCE - size] != tokens[unit - size : unit - size + _GLANCE]:
            return False
        return tokens[unit - size :] == tokens[-size:-unit]
