"""How many prefill rows a step may take, learnt from the time that batches took.

Knows: the target, and the speeds seen. Does not know: requests, clocks.
"""

from engine.runtime.backend import TILE

_SMALLEST = 8
_OF_A_TILE = 0.75
"""What a whole tile takes of what its rows would take in smaller batches, at most (two thirds were measured)."""
_AGAIN = 16
"""Smaller batches after which a tile that took too long may be tried again."""


class Pace:
    """Sizes prefill so that its batch takes about `seconds`, and has at most `n_batch` rows.

    Longer where less would be waste: as long as two decodes, where a single token takes long already (a large model
    reads all its weights for it), and twice `seconds` for a whole tile of rows. A tile that took longer is tried again
    when smaller batches show that it may not.
    """

    def __init__(self, n_batch: int, seconds: float) -> None:
        self._n_batch = n_batch
        self._seconds = seconds
        self._decode_seconds = 0.0
        self._tile_seconds = 0.0
        self._since_tile = 0
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
        self._tiles(rows, seconds)
        if possible < TILE and self._tile_seconds <= max(2 * self._seconds, target):
            possible = TILE
        found = max(min(possible, 2 * max(rows, self.rows), self._n_batch), _SMALLEST)
        # From a tile of rows on, whole ones: one that is half empty costs as much as a full one.
        self.rows = min(round(found / TILE) * TILE, self._n_batch) if found > TILE else found

    def _tiles(self, rows: int, seconds: float) -> None:
        """What a whole tile takes, as far as this batch tells."""
        found = seconds * TILE / rows
        if rows >= TILE:
            self._tile_seconds, self._since_tile = found, 0
            return
        self._since_tile += 1
        if self._since_tile >= _AGAIN:
            self._tile_seconds = min(self._tile_seconds, _OF_A_TILE * found)
