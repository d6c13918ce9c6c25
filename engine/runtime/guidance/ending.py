"""Closes a JSON answer that would be cut by its limit of tokens."""

from collections.abc import Sequence
from itertools import chain, takewhile
from time import thread_time

from engine.runtime.guidance.matcher import Matcher, masks
from engine.support.errors import RequestError

_IN_STRING = ('"',)
_BETWEEN = ("}", "]", '"', "\n", ",", ":", "0", "null", "false", "{", "[")
"""What is tried first, in this order: what closes or goes on, then the shortest value of each kind. A line break stands
before what closes, where the answer is laid out over lines."""
_CLOSERS = frozenset(b'"]} \n')
_MOST_TOKENS = 256
_FEW_BYTES = 32
"""A way that takes no more single bytes need not look where each of them leads."""
_MOST_LOOKS = 200
"""At what may follow a byte, on one way."""
_MOST_SECONDS = 2.0
"""Of processor time that one turn may spend on looking for endings: the engine's thread serves others, too. Then the
answer is closed at once."""
_EARLY = 2
"""While required members are missing, the model gets this many times as many tokens for them as the shortest take."""
_LONG = 48
"""In bytes: a string, list or object that is longer may be closed early."""


class Closer:
    """Watches the tokens of one JSON answer: one after which it could not be completed any more is replaced by what
    completes it. Where members that the schema requires are still missing, a long string, list or object is closed a
    little earlier, so that the model itself writes them.

    `closed`: the answer was completed this way; `closed_early`: something in it was closed so.
    """

    def __init__(self) -> None:
        self.closed = self.closed_early = False
        self._looks: int | None = None
        self._spent = 0.0
        self._ending = list[int]()
        """What completed the answer where it was looked for last."""

    def instead(self, matcher: Matcher, token: int, left: int) -> list[int] | None:
        """Returns the tokens that replace a drawn one; None if it may stay. `left`: tokens that may still be drawn, it
        included."""
        waits = self._looks is not None and left > self._looks and not _goes_on(matcher, token)
        if waits or matcher.json is None or not matcher.json.is_open or self._spent > _MOST_SECONDS:
            return None
        began = thread_time()
        found = self._instead(matcher, token, left)
        self._spent += thread_time() - began
        if found is None and self._spent > _MOST_SECONDS and len(self._ending) <= left:
            found = self._ending
            self.closed = bool(found)
        return found or None

    def _instead(self, matcher: Matcher, token: int, left: int) -> list[int] | None:
        assert matcher.json is not None, "only a JSON answer is closed"
        shortest = self._ending = self._from(matcher, left // _EARLY) or []
        if not shortest or len(shortest) > left:
            self._looks = left // 2
            return None
        self._looks = max(left // 2, (_EARLY + 1) * len(shortest) + 16)
        if left <= _EARLY * len(shortest) and matcher.json.run > _LONG and (head := _closers(matcher, shortest)):
            self.closed_early = True
            return head
        then = matcher.copy()
        if not then.consume(token):
            return None
        rest = self._from(then, left - 1)
        if rest is not None and len(rest) < left:
            self._looks = max(self._looks, (_EARLY + 1) * len(rest) + 16)
            return None
        self.closed = True
        return shortest

    def _from(self, matcher: Matcher, most: int) -> list[int] | None:
        """Returns an ending from here: the one known, where it still is one of so many tokens at most."""
        known = self._ending
        return known if len(known) <= most and _completes(matcher, known) else ending(matcher)


def _goes_on(matcher: Matcher, token: int) -> bool:
    """Whether this token begins a further member or item, behind which a schema may demand much."""
    data = matcher.table.bytes[token]
    in_string = matcher.json is not None and matcher.json.in_string
    return b"," in data and (not in_string or b'"' in data)


def _closers(matcher: Matcher, tokens: Sequence[int]) -> list[int]:
    """Returns those of the tokens that only close what is open, if others follow them."""
    count = sum(1 for _ in takewhile(lambda token: {*matcher.table.bytes[token]} <= _CLOSERS, tokens))
    return list(tokens[:count]) if count < len(tokens) else []


def ending(matcher: Matcher) -> list[int] | None:
    """Returns few tokens that complete a JSON answer: what is open is closed, and required members get the shortest
    values. None if none were found. Changes nothing."""
    try:
        return _Way(matcher.copy(), _FEW_BYTES).found() or _Way(matcher.copy(), _MOST_TOKENS, _MOST_LOOKS).found()
    except RequestError:  # too ambiguous on this way, which the model need not go
        return None


def _completes(matcher: Matcher, tokens: Sequence[int]) -> bool:
    if not tokens or len(matcher.allowed(tokens)) < len(tokens):
        return False
    then = matcher.copy()
    return all(map(then.consume, tokens)) and then.accepts and then.json is not None and not then.json.is_open


class _Way:
    """Looks for an ending from a place of its own, over so many single bytes at most; of these the first that is
    allowed, or, with looks, the first that leads on."""

    def __init__(self, matcher: Matcher, most: int, looks: int = 0) -> None:
        self._matcher = matcher
        self._left = most
        self._looks = looks
        self._seen: set[bytes] = set()
        """What could follow at places of this way."""

    def found(self) -> list[int] | None:
        matcher = self._matcher
        assert matcher.json is not None, "only a JSON answer is closed"
        found: list[int] = []
        while matcher.json.is_open or not matcher.accepts:
            new = matcher.forced() or self._next(_IN_STRING if matcher.json.in_string else _BETWEEN)
            if not new or len(found) > _MOST_TOKENS:
                return None
            found += new
        return found

    def _next(self, first: Sequence[str]) -> list[int]:
        """Advance by the first of these texts that is allowed, else by a single byte."""
        matcher, table = self._matcher, self._matcher.table
        for wanted in (table.tokens(each) for each in first):
            if wanted and len(matcher.allowed(wanted)) == len(wanted) and all(map(matcher.consume, wanted)):
                return wanted
        self._left -= 1
        single = (token for token in table.single_bytes if matcher.allowed([token]))
        if self._looks:
            several = list(single)
            single = chain(filter(self._leads_on, several), several)
        token = next(single, None) if self._left >= 0 else None
        return [token] if token is not None and matcher.consume(token) else []

    def _leads_on(self, token: int) -> bool:
        """Whether behind this token something can follow that could not so far: letters for ever lead to no "@"."""
        if not self._looks:
            return False
        self._looks -= 1
        then = self._matcher.copy()
        if not then.consume(token):
            return False
        (follows,) = masks([then])
        before = len(self._seen)
        self._seen.add(follows.tobytes())
        return len(self._seen) > before
