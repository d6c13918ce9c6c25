"""How many prefill rows a step may take, learnt from the time that batches took.

Knows: the target, and the speeds seen. Does not know: requests, clocks.
"""

from engine.runtime.backend import TILE

_SMALLEST = 8
_TILE_WORTH = 3
"""Times the target that a whole tile of rows may take: half of it takes about two thirds as long."""
_AGAIN = 16
"""Smaller batches after which a tile that took too long is tried again, unless half of its rows' time would be too long
too."""


class Pace:
    """Sizes prefill so that its batch takes about `seconds`, and has at most `n_batch` rows.

    Longer where less would be waste: as long as two decodes, where a single token takes long already (a large model
    reads all its weights for it), and up to three times `seconds` for a whole tile of rows.
    """

    def __init__(self, n_batch: int, seconds: float) -> None:
        self._n_batch = n_batch
        self._seconds = seconds
        self._tile = min(TILE, n_batch)
        self._since_tile = 0
        # The last two of each: one that was held up does not count.
        self._tiles = self._decodes = (0.0, 0.0)
        self.rows = self._tile

    def took(self, rows: int, sequences: int, seconds: float) -> None:
        """A batch of so many rows for so many sequences took so long."""
        if rows == sequences:
            self._decodes = (self._decodes[1], seconds)
            return
        target = max(self._seconds, 2 * min(self._decodes))
        possible = int(target * rows / seconds) if seconds > 0 else self._n_batch
        if rows < self.rows and seconds < target:
            possible = max(possible, self.rows)  # the end of a prompt: so few rows cost more, each, than many
        self._see_tile(rows, seconds)
        if possible < self._tile and min(self._tiles) <= max(_TILE_WORTH * self._seconds, target):
            possible = self._tile
        found = max(min(possible, 2 * max(rows, self.rows), self._n_batch), _SMALLEST)
        # From a tile of rows on, whole ones: one that is half empty costs as much as a full one.
        self.rows = min(round(found / TILE) * TILE, self._n_batch) if found > TILE else found

    def _see_tile(self, rows: int, seconds: float) -> None:
        """What a whole tile takes, as far as this batch tells."""
        found = seconds * self._tile / rows
        if rows >= self._tile:
            self._tiles, self._since_tile = (self._tiles[1], found), 0
            return
        self._since_tile += 1
        if self._since_tile >= _AGAIN:
            self._tiles = (self._tiles[1], min(self._tiles[1], found / 2))
