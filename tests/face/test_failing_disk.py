"""A disk that fails: each call of each place in turn. Files that are replaced meet every error, once and from then on;
the other places meet one error at each kind of call. A full run is tests/bench/torture_files.py."""

import errno
import sys
from collections.abc import Iterator

import pytest

if sys.platform != "linux":
    pytest.skip("/proc", allow_module_level=True)

import torture_places
from torture import Place, tortured

PLACES = (*torture_places.BATCHES, *torture_places.STATES, *torture_places.RECORDS, *torture_places.SESSIONS)


@pytest.mark.parametrize("place", torture_places.WRITTEN, ids=lambda place: place.name)
def test_files_that_are_replaced(place: Place) -> None:
    """The file is the old one or the new one, an error says which, and nothing stays open or lies beside it."""
    count = tortured(place)
    assert not count.faults, "\n".join(count.faults)
    assert count.named > 40


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
def test_places_with_files_of_their_own(place: Place) -> None:
    """An error is told by name, or costs only what is optional; the next call does all that is left."""
    count = tortured(place, (errno.EIO,), (False,), alike=False)
    assert not count.faults, "\n".join(count.faults)
    assert count.failed > 1


@pytest.fixture(scope="module")
def of_the_hub() -> Iterator[dict[str, Place]]:
    with torture_places.hub_places() as places:
        yield {place.name: place for place in places}


@pytest.mark.parametrize("name", ["a download", "a download resumed", "a model in the cache", "the list of models"])
def test_the_cache_of_models(of_the_hub: dict[str, Place], name: str) -> None:
    count = tortured(of_the_hub[name], (errno.EIO,), (False,), alike=False)
    assert not count.faults, "\n".join(count.faults)
    assert count.failed > 1
