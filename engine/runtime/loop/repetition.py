"""Notices that a model has run away: that it writes one text again and again."""

_TIMES = 4
_EVERY = 64
"""In tokens: a look costs a few microseconds, so not every token gets one."""
_GLANCE = 16


class Repetition:
    """The tokens of a turn. It has run away if they end in one unit, of at most `limit` tokens, that stands there at
    least `_TIMES` times in a row and fills at least `limit` tokens."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._tokens: list[int] = []
        self.append = self._tokens.append
        """Add a token."""

    def is_runaway(self) -> bool:
        """Whether the turn has run away, after each `_EVERY`th token; otherwise False."""
        tokens, limit = self._tokens, self._limit
        if len(tokens) % _EVERY or len(tokens) < limit:
            return False
        near = tokens[: -limit - 2 : -1]
        newest, unit = near[0], 0
        for _ in range(near.count(newest) - 1):
            unit = near.index(newest, unit + 1)
            if self._ends_in(unit):
                return True
        return False

    def _ends_in(self, unit: int) -> bool:
        """Whether the tokens end in a unit of so many, again and again."""
        tokens, size = self._tokens, max(self._limit, _TIMES * unit)
        if len(tokens) < size:
            return False
        # Both ends first: they differ in most texts.
        if tokens[-_GLANCE:] != tokens[-_GLANCE - unit : -unit]:
            return False
        if tokens[-size : _GLANCE - size] != tokens[unit - size : unit - size + _GLANCE]:
            return False
        return tokens[unit - size :] == tokens[-size:-unit]
