"""How many threads decode while other programs hold the processors.

Where a thread of llama.cpp has no processor, the others wait for it at every operation and burn theirs: two threads
beside one busy program may decode a tenth of what one thread does. No setting of OpenMP's waiting suits both that and
an idle machine.
"""

import logging
import os
import time
from collections.abc import Callable
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from engine.runtime.loop.config import ContextOptions

_log = logging.getLogger("engine.llama")

_LOOK = 0.25
"""Seconds between two looks, at least."""
_STALE = 2.0
"""Seconds after which a look says nothing of now, if this process computed little meanwhile: it waited."""
_CALM = 2.0
"""Seconds for which others must have left a processor free before a thread is given back."""
_NOISE = 0.35
"""Processors that others may use without counting: a desktop always computes a little."""


class Use(NamedTuple):
    """What was used so far, in seconds of processor time: by all programs on our processors, and by this process;
    `processors`: how many we may use."""

    all: float
    own: float
    processors: int


def processor_use(root: Path = Path("/")) -> Use | None:
    """Returns what was used so far; None where the system does not say it (not Linux)."""
    try:
        lines = (root / "proc/stat").read_text(encoding="ascii").splitlines()
        ours = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        ticks = os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None
    rows = [line.split() for line in lines if line.startswith("cpu")]
    # user, nice, system, then idle and waiting for disks, which are free, then interrupts (proc(5))
    busy = [sum(map(int, (*row[1:4], *row[6:8]))) / ticks for row in rows if row[0] in ours]
    return Use(sum(busy), time.process_time(), len(busy)) if busy else None


class ThreadRule:
    """Decides how many threads decode: as many as others leave processors, at least one and at most `most` (for a
    token, for a batch). A thread is taken away at once, and given back when others left its processor free for two
    seconds."""

    def __init__(
        self,
        most: tuple[int, int],
        use: Callable[[], Use | None] = processor_use,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._use = use
        self._clock = clock
        self._looked = clock()
        self._last = use()
        self._free = self._last.processors if self._last is not None else max(most)
        self._calm_since: float | None = None
        self.threads = most
        """The threads that decode now: for a token, for a batch."""

    def changed(self) -> bool:
        """Whether `threads` has changed, to be asked before each decode; looks at the machine now and then."""
        now = self._clock()
        if self._last is None or now - self._looked < _LOOK:
            return False
        before, use, seconds = self._last, self._use(), now - self._looked
        self._last, self._looked = use, now
        if use is None or (seconds > _STALE and use.own - before.own < seconds / 10):
            return False
        others = max(0.0, (use.all - before.all) - (use.own - before.own)) / seconds
        self._follow(use.processors - max(0, ceil(others - _NOISE)), now)
        threads = (self._limited(self._most[0]), self._limited(self._most[1]))
        was, self.threads = self.threads, threads
        return threads != was

    def _follow(self, free: int, now: float) -> None:
        if free <= self._free:
            self._free, self._calm_since = free, None
        elif self._calm_since is None:
            self._calm_since = now
        elif now - self._calm_since >= _CALM:
            self._free, self._calm_since = free, None

    def _limited(self, most: int) -> int:
        return max(1, min(most, self._free))


class ContextThreads:
    """The threads of one llama_context: as many as `params` say, or as the rule says where the caller chose none."""

    def __init__(self, lib: Any, context: int, options: ContextOptions, params: Any) -> None:
        self._lib = lib
        self._context = context
        self.now = int(params.n_threads), int(params.n_threads_batch)
        """The threads that decode now: for a token, for a batch."""
        is_chosen = options.n_threads is not None or options.n_threads_batch is not None
        self.rule = None if is_chosen or max(self.now) == 1 else ThreadRule(self.now)

    def follow(self) -> None:
        """Follow the rule; to be called before each decode, in the thread that decodes."""
        if self.rule is None or not self.rule.changed():
            return
        self.now = one, many = self.rule.threads
        _log.info("decoding with %d threads (batches: %d): as many as others leave processors", one, many)
        self._lib.llama_set_n_threads(self._context, one, many)
