"""A disk that fails: each call of each place in turn, with each error, once and from then on. A full run is
tests/bench/torture_files.py."""

import sys

import pytest

if sys.platform != "linux":
    pytest.skip("/proc", allow_module_level=True)

import torture_places
from torture import Place, tortured


@pytest.mark.parametrize("place", torture_places.WRITTEN, ids=lambda place: place.name)
def test_files_that_are_replaced(place: Place) -> None:
    """The file is the old one or the new one, an error says which, and nothing stays open or lies beside it."""
    count = tortured(place)
    assert not count.faults, "\n".join(count.faults)
    assert count.named > 40
