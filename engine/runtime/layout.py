"""When the sequences of a context have a KV buffer each, and when one for all.

Knows: what the requests under way need at most, and that whatever is held is forgotten when cells are laid out anew.
Does not know: how that is done (the backend), steps, time.

In one buffer any sequence may grow, and prefixes are shared without copying; but on the CPU each token's attention goes
through the cells of all sequences. In a buffer of its own a sequence may grow to its share only, and sixteen long
conversations were decoded about twice as fast (docs/BENCHMARKS.md). So sequences part when enough requests come at once
that say how long they will be and are short enough, and while nobody reads along with any of them yet; and join, for
good, when one comes that is longer: it waits until those under way are through.
"""

import math
from collections.abc import Collection

from engine.runtime.backend import Backend
from engine.runtime.request import Request
from engine.runtime.sequence import Live

_FEWEST = 4
"""Requests at once for which parting may pay."""
_CELLS = 4096
"""Tokens that they may hold at once, for which it pays: with fewer, buffers of their own were faster on a CPU with AMX,
and slower on one without (docs/BENCHMARKS.md)."""


class Layout:
    """Decides, for a loop over `backend`, which must be in the layout that it is made in."""

    def __init__(self, backend: Backend) -> None:
        other = backend.n_ctx_other
        self._share = other if 0 < other < backend.n_ctx_sequence else 0  # 0: as it is now, for good
        self._sequences = backend.n_sequences
        self._is_apart = False

    def parts(self, lives: Collection[Live], held: int) -> bool:
        """Whether the cells, of which `held` are taken, should be laid out apart now for these requests."""
        if self._is_apart or not self._share or len(lives) < _FEWEST:
            return False
        if any(live.first_token is not None and not live.request.patient for live in lives):
            return False
        longest = [_longest(live.request) for live in lives]
        at_once = sum(longest[: self._sequences])
        return max(longest) <= self._share and at_once >= max(_CELLS, held)

    def suits(self, live: Live) -> bool:
        """Whether the request can be served as the cells are laid out now."""
        return not self._is_apart or _longest(live.request) <= self._share

    def changed(self, backend: Backend) -> None:
        """The cells were laid out anew: the other way, unless that could not be done."""
        if self._is_apart or not backend.n_ctx_other:
            self._share, self._is_apart = 0, False
        else:
            self._is_apart = True


def _longest(request: Request) -> float:
    """Tokens that its sequence holds at most: infinite where the request does not say, and for one whose sequence is to
    stay, which is done in one buffer only."""
    limits = request.limits
    if request.pin or limits.max_tokens is None:
        return math.inf
    # Tokens that are forced count as drawn ones, but are not cut short by the limit.
    return len(request.tokens) + limits.max_tokens + len(limits.reasoning_close)


def packs(backend: Backend) -> bool:
    """Whether a batch takes several prompts as well as one: llama.cpp takes them apart again where sequences have
    buffers or states of their own."""
    return backend.mixed_rows > 0 and backend.can_share
