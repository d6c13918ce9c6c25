"""A disk that fails: each call of each place in turn. Files that are replaced meet every error, once and from then on;
the other places meet one error at each kind of call. A full run is benchmarks/torture_files.py."""

import errno
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("/proc", allow_module_level=True)

from failures import torture_places
from failures.failing_disk import failing
from failures.torture import Place, tortured
from fakes import hub_server

from engine.hub import cache, fetch, named
from engine.support.errors import ModelLoadError

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


@pytest.mark.parametrize("error", [errno.EIO, errno.EACCES])
def test_a_model_is_removed_and_no_other(tmp_path: Path, error: int) -> None:
    """Whatever call fails, the repository's other model stays, and removing it again does what is left."""
    wanted, other = named("own/repo:Q8_0"), named("own/repo:Q4_0")
    assert wanted is not None
    assert other is not None
    with hub_server.running() as server:
        server.add("own/repo", {"m-Q8_0.gguf": b"8" * 900, "m-Q4_0.gguf": b"4" * 500})
        with torture_places.hub_cache(server, tmp_path / "0"):
            stays = fetch(other).relative_to(tmp_path / "0")
            fetch(wanted)
        at = 0
        while True:
            at += 1
            folder = tmp_path / f"{at}"
            shutil.copytree(tmp_path / "0", folder, symlinks=True)
            with torture_places.hub_cache(server, folder):
                with failing(folder, at, error) as disk, suppress(OSError, ModelLoadError):
                    cache.remove(cache.models_of(wanted))
                assert (folder / stays).read_bytes() == b"4" * 500, disk.failed
                with suppress(ModelLoadError):  # it was removed at once
                    cache.remove(cache.models_of(wanted))
                assert [model.name for model in cache.models()] == ["own/repo:Q4_0"], disk.failed
            if not disk.failed:
                break
    assert at > 10
