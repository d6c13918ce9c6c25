"""The cells of a KV cache: how many are used, and by how many sequences each."""

from collections.abc import Sequence


class Cells:
    """Counts cells. `most`: as many as the memory states; a cell that several sequences share counts once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._capacity = self._refused = most
        self._holders: list[int] = []
        self._unused: list[int] = []

    @property
    def capacity(self) -> int:
        """Cells that the memory is believed to have."""
        return self._capacity

    @property
    def used(self) -> int:
        """Cells in use."""
        return len(self._holders) - len(self._unused)

    @property
    def free(self) -> int:
        return self._capacity - len(self._holders) + len(self._unused)  # no call: it is asked for each token

    def add(self, number: int) -> list[int]:
        """Returns cells that were not in use, which one sequence holds now."""
        added: list[int] = []
        for _ in range(number):
            if self._unused:
                cell = self._unused.pop()
                self._holders[cell] = 1
            else:
                cell = len(self._holders)
                self._holders.append(1)
            added.append(cell)
        if len(self._holders) - len(self._unused) > self._refused:
            self._refused = self._most  # so the memory has as many after all
        return added

    def share(self, cells: Sequence[int]) -> None:
        """Count one more sequence that holds these cells."""
        for cell in cells:
            self._holders[cell] += 1

    def shared(self, cells: Sequence[int]) -> int:
        """Returns how many of the first of these cells several sequences hold."""
        return next((number for number, cell in enumerate(cells) if self._holders[cell] < 2), len(cells))

    def give_back(self, cells: Sequence[int]) -> None:
        """Count one sequence less that holds these cells."""
        for cell in cells:
            self._holders[cell] -= 1
            if not self._holders[cell]:
                self._unused.append(cell)

    def shrink(self, cells: int) -> None:
        """Lower the capacity, after the memory refused `cells` more cells: it has fewer than it stated."""
        self._capacity = self._refused = min(self._refused, self.used + cells - 1)

    def widen(self) -> bool:
        """Count with all cells again, since a refusal may have had another reason. Returns whether there were
        fewer."""
        before, self._capacity = self._capacity, self._most
        return before < self._capacity

    def check(self, held: Sequence[Sequence[int]]) -> None:
        """Raise AssertionError if the cells that the sequences hold are counted otherwise. For tests."""
        holders = [0] * len(self._holders)
        for cells in held:
            for cell in cells:
                holders[cell] += 1
        assert holders == self._holders, "cells are counted wrongly"
        assert sorted(self._unused) == [cell for cell, count in enumerate(holders) if not count], "a cell leaked"
        assert self.used <= self._most, f"{self.used} cells of {self._most} are in use"
