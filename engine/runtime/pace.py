"""How many prefill rows a step may take, learnt from the time that batches took.

Knows: the target, and the speeds seen. Does not know: requests, clocks.
"""

from engine.runtime.backend import TILE

_SMALLEST = 8


class Pace:
    """Sizes prefill so that its batch takes about `seconds`, and has at most `n_batch` rows.

    Up to twice as long where less would be waste: where a single token takes long already (a large model reads all its
    weights for it), and for a whole tile of rows, whose half takes about two thirds as long. A tile that took longer is
    tried again when its half would be in time.
    """

    def __init__(self, n_batch: int, seconds: float) -> None:
        self._n_batch = n_batch
        self._seconds = seconds
        self._decode_seconds = 0.0
        self._tile_seconds = 0.0
        self.rows = min(TILE, n_batch)

    def took(self, rows: int, sequences: int, seconds: float) -> None:
        """A batch of so many rows for so many sequences took so long."""
        if rows == sequences:
            self._decode_seconds = seconds
            return
        target = max(self._seconds, 2 * self._decode_seconds)
        possible = int(target * rows / seconds) if seconds > 0 else self._n_batch
        if rows < self.rows and seconds < target:
            possible = max(possible, self.rows)  # the end of a prompt: so few rows cost more, each, than many
        if rows >= TILE:
            self._tile_seconds = seconds * TILE / rows
        if possible < TILE and (self._tile_seconds <= 2 * target or possible >= TILE // 2):
            possible = TILE
        found = max(min(possible, 2 * max(rows, self.rows), self._n_batch), _SMALLEST)
        # From a tile of rows on, whole ones: one that is half empty costs as much as a full one.
        self.rows = min(round(found / TILE) * TILE, self._n_batch) if found > TILE else found
