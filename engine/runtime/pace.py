"""How many prefill rows a step may take, learnt from the time that batches took.

Knows: the target, and the speeds seen. Does not know: requests, clocks.
"""

from engine.runtime.backend import TILE

_SMALLEST = 8
_TILE_WORTH = 3
"""Times `seconds` that a whole tile of rows may take; where smaller batches are a waste, times the target."""
_OVERSHOOT = 1.5
"""Times the target that it may take: half of it takes about two thirds as long."""
_CROWD_WORTH = 5
"""Times `seconds` that prefill may take while more wait for their first token than for their next."""
_AGAIN = 16
"""Smaller batches after which a tile that took too long is tried again, unless half of its rows' time would be too long
too; and batches of decodes and prefill together after which decodes are timed alone again."""


class Pace:
    """Sizes prefill so that what it adds to a step takes about `seconds`, in at most `n_batch` rows.

    Longer where less would be waste: as long as two decodes, where those take long already (a large model
    reads all its weights for a single token); and a whole tile of rows may take half as long again, or three times
    `seconds`. Longer too, up to five times `seconds`, where more prompts are being read than there are streams to hold
    up: then prompts and streams share the time by their number, as the readers of either wait.
    """

    def __init__(self, n_batch: int, seconds: float) -> None:
        self._n_batch = n_batch
        self._seconds = seconds
        self._tile = min(TILE, n_batch)
        self._since_tile = 0
        # The last two of each: one that was held up does not count.
        self._tiles = self._decodes = self._pieces = (0.0, 0.0)
        self._width = self._timed = self._mixed = 0
        self._prompts_a_stream = 0.0
        self.rows = self._tile

    def serve(self, prompts: int, streams: int) -> None:
        """So many prompts are being read, while so many streams wait for their next token."""
        self._prompts_a_stream = prompts / streams if streams else 0.0

    def unsure(self, streams: int) -> bool:
        """Whether decodes of so many streams should be timed alone, to tell what prefill adds to them."""
        if self._mixed >= _AGAIN:
            return True
        return self.rows < self._tile and (streams != self._width or self._timed < 2)  # as many as are kept

    def took(self, rows: int, streams: int, seconds: float) -> None:
        """A batch of so many rows of prefill, and decodes of so many streams, took so long."""
        if not rows:
            self._timed = self._timed + 1 if streams == self._width else 1
            self._width, self._mixed = streams, 0
            self._decodes = (self._decodes[1], seconds)
            return
        if streams:
            self._mixed += 1
            seconds -= min(self._decodes)
        self._size(rows, seconds)

    def _size(self, rows: int, seconds: float) -> None:
        """So many rows of prefill took, or added, so long."""
        target = self._target()
        possible = int(target * rows / seconds) if seconds > 0 else self._n_batch
        if rows < self.rows and seconds < target:
            possible = max(possible, self.rows)  # the end of a prompt: so few rows cost more, each, than many
        self._see_tile(rows, seconds)
        if possible < self._tile and self._worth_a_tile(target):
            possible = self._tile
        found = max(min(possible, 2 * max(rows, self.rows), self._n_batch), _SMALLEST)
        # From a tile of rows on, whole ones: one that is half empty costs as much as a full one.
        self.rows = min(round(found / TILE) * TILE, self._n_batch) if found > TILE else found

    def _target(self) -> float:
        """Seconds that prefill may add to a step."""
        decode = min(self._decodes)
        fair = min(self._prompts_a_stream * decode, _CROWD_WORTH * self._seconds)
        return max(self._seconds, 2 * decode, fair)

    def _worth_a_tile(self, target: float) -> bool:
        """Whether a tile of rows may take longer than the target: somewhat, or up to three times `seconds`; up to three
        times the target where its rows take twice as long in smaller batches (a CPU's flash attention, behind many
        cells)."""
        tile = min(self._tiles)
        if tile <= max(_TILE_WORTH * self._seconds, _OVERSHOOT * target):
            return True
        return tile <= min(_TILE_WORTH * target, min(self._pieces) / 2)

    def _see_tile(self, rows: int, seconds: float) -> None:
        """What a whole tile takes, and what its rows take in smaller batches, as far as this batch tells."""
        found = seconds * self._tile / rows
        if rows >= self._tile:
            self._tiles, self._since_tile = (self._tiles[1], found), 0
            return
        if rows >= self.rows:
            self._pieces = (self._pieces[1], found)
        self._since_tile += 1
        if self._since_tile >= _AGAIN:
            self._tiles = (self._tiles[1], min(self._tiles[1], found / 2))
