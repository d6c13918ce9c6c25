"""engine.runtime.cache.state_store: budgets, files of strangers, damage, two processes."""

import os
import pickle
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from engine.runtime.adapters.adapters import BASE, Adapters
from engine.runtime.cache import state_store
from engine.runtime.cache.state_file import Origin, SavedState, write_state
from engine.runtime.cache.state_store import OriginStates, StateStore, Stored
from engine.support.errors import RequestError

ORIGIN = Origin("abc", "0.3.36", "f16", "f16", "auto", "", True, 1)
OTHER = replace(ORIGIN, model="def")
TOKENS = tuple(range(100))


class Memory:
    """One sequence with a state."""

    def __init__(self, state: bytes) -> None:
        self.state = state
        self.saves = 0

    def state_size(self, sequence: int) -> int:
        return len(self.state)

    def save(self, sequence: int) -> bytes:
        self.saves += 1
        return self.state


def shelf(store: StateStore, origin: Origin = ORIGIN) -> OriginStates:
    return OriginStates(store, lambda: origin)


def keep(store: StateStore, tokens: tuple[int, ...], size: int = 1000, origin: Origin = ORIGIN) -> None:
    shelf(store, origin).keep(tokens, BASE, Memory(bytes([tokens[0] % 256]) * size), 0, None)
    store.flush()


def held(store: StateStore, origin: Origin = ORIGIN) -> set[tuple[int, ...]]:
    return {entry.tokens for entry in store.entries(origin)}


def files(path: Path) -> list[Path]:
    return sorted(path.glob("*/*.state"))


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> StateStore:
    """A store with room for three states of 1,000 bytes, in memory or on disk."""
    return StateStore(3_500) if request.param == "memory" else StateStore(0, tmp_path / "states", 7_000)


def test_a_state_is_found_by_its_tokens(store: StateStore) -> None:
    keep(store, TOKENS)
    (entry,) = store.entries(ORIGIN)
    assert entry.tokens == TOKENS
    assert store.read(ORIGIN, entry) == bytes(1000)
    assert held(store, OTHER) == set()
    found = shelf(store).find(lambda _: 70, 64, None)
    assert found is not None
    assert found[1] == 70
    assert shelf(store).find(lambda _: 70, 71, None) is None
    assert shelf(store).find(lambda _: 70, 64, 0) is None, "a part of a state that cannot be cut is of no use"


def test_the_least_recently_used_goes_first(store: StateStore) -> None:
    for number in range(3):
        keep(store, (number, *TOKENS))
        if store.durable:  # the clock of a file system may be coarse
            path = next(e.path for e in store.entries(ORIGIN) if e.tokens[0] == number)
            assert path is not None
            os.utime(path, (number, number))
    first = next(entry for entry in store.entries(ORIGIN) if entry.tokens[0] == 0)
    store.read(ORIGIN, first)
    keep(store, (3, *TOKENS))
    assert {tokens[0] for tokens in held(store)} == {0, 2, 3}


def test_a_longer_state_takes_the_place_of_its_beginning(store: StateStore) -> None:
    keep(store, TOKENS)
    keep(store, (*TOKENS, 5))
    assert held(store) == {(*TOKENS, 5)}
    memory = Memory(bytes(1000))
    shelf(store).keep(TOKENS, BASE, memory, 0, None)
    assert (held(store), memory.saves) == ({(*TOKENS, 5)}, 0)
    keep(store, TOKENS, origin=OTHER)
    assert held(store, OTHER) == {TOKENS}


def test_states_of_other_adapters_stand_beside_each_other(store: StateStore) -> None:
    several = [BASE, Adapters((("a", 1.0),)), Adapters((("a", 0.5),))]
    for number, adapters in enumerate(several):
        shelf(store).keep(TOKENS, adapters, Memory(bytes([number]) * 1000), 0, None)
        store.flush()
    assert {entry.adapters for entry in store.entries(ORIGIN)} == set(several)
    for entry in store.entries(ORIGIN):
        assert store.read(ORIGIN, entry) == bytes([several.index(entry.adapters)]) * 1000


def test_states_that_cannot_be_cut_stand_beside_each_other(store: StateStore) -> None:
    for tokens in ((*TOKENS, 5), TOKENS):
        shelf(store).keep(tokens, BASE, Memory(bytes(1000)), 0, 0)
        store.flush()
    assert held(store) == {TOKENS, (*TOKENS, 5)}


def test_a_state_larger_than_the_budget_is_not_saved(store: StateStore) -> None:
    memory = Memory(bytes(10_000))
    shelf(store).keep(TOKENS, BASE, memory, 0, None)
    assert (memory.saves, held(store)) == (0, set())


def test_a_state_too_large_for_the_memory_drives_nothing_out_of_it(tmp_path: Path) -> None:
    store = StateStore(3_500, tmp_path / "states", 100_000)
    keep(store, TOKENS)
    keep(store, (7, *TOKENS), 10_000)
    assert store.sizes[:3] == (1, 1000, 2)


FORKS = """
import os, sys
from pathlib import Path
sys.path[:0] = [sys.argv[2]]
from test_state_store import keep, TOKENS
from engine.runtime.cache.state_store import StateStore
store = StateStore(0, Path(sys.argv[1]), 100_000)
keep(store, TOKENS)
if os.fork() == 0:
    keep(store, (7, *TOKENS))
    os._exit(0)
print(os.waitstatus_to_exitcode(os.wait()[1]), store.sizes.files)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_writes_too(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKS, str(tmp_path / "states"), str(Path(__file__).parent)]
    assert subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.split() == ["0", "2"]


def test_the_budgets_hold_over_a_thousand_states(tmp_path: Path) -> None:
    store = StateStore(20_000, tmp_path / "states", 50_000)
    for number in range(1000):
        keep(store, (number, *TOKENS[: number % 90]), 10 * (number % 150))
        assert store.sizes.memory <= 20_000
        if number % 50 == 0:
            assert sum(path.stat().st_size for path in (tmp_path / "states").rglob("*") if path.is_file()) <= 50_000
    assert store.sizes.disk <= 50_000
    assert store.sizes.files > 10
    assert store.sizes.states > 10
    store.clear()
    assert store.sizes == (0, 0, 0, 0)


def test_another_process_finds_what_is_on_disk(tmp_path: Path) -> None:
    one, two = (StateStore(0, tmp_path / "states", 100_000) for _ in range(2))
    assert held(two) == set()
    keep(one, TOKENS)
    (entry,) = two.entries(ORIGIN)
    assert two.read(ORIGIN, entry) == bytes(1000)
    one.clear()
    assert two.read(ORIGIN, entry) is None
    assert held(two) == set()
    again = pickle.loads(pickle.dumps(one))
    keep(again, TOKENS)
    assert held(one) == {TOKENS}


def test_only_this_user_may_read_states(tmp_path: Path) -> None:
    keep(StateStore(0, tmp_path / "a" / "states", 100_000), TOKENS)
    (path,) = files(tmp_path / "a" / "states")
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert (tmp_path / "a" / "states").stat().st_mode & 0o777 == 0o700
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(RequestError, match="Others may write"):
        StateStore(0, tmp_path / "open", 100_000)


def test_the_callers_own_files_stay(tmp_path: Path) -> None:
    """Whatever lies in the folder, only our states are deleted."""
    store = StateStore(0, tmp_path, 6_000)
    keep(store, TOKENS)
    (ours,) = files(tmp_path)
    theirs = [
        tmp_path / "notes.txt",
        tmp_path / "model.state",
        tmp_path / ("0" * 64 + ".state"),
        tmp_path / "work" / ("0" * 64 + ".state"),
        ours.parent / "notes.txt",
        ours.parent / "x.state",
        ours.parent / ".hidden",
    ]
    (tmp_path / "work").mkdir()
    (tmp_path / "elsewhere").mkdir()
    kept = tmp_path / "elsewhere" / ("1" * 64 + ".state")
    (tmp_path / ("f" * 32)).symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    for path in (*theirs, kept):
        path.write_bytes(bytes(10_000))
    for number in range(10):
        keep(store, (number, *TOKENS))
    store.clear()
    assert all(path.exists() for path in (*theirs, kept))
    assert not ours.exists()


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    store = StateStore(0, tmp_path / "states", 20_000)
    keep(store, TOKENS)
    (path,) = files(tmp_path / "states")
    left = path.parent / f".{path.name[:40]}.abcdefgh"
    left.write_bytes(bytes(50_000))
    keep(store, (7, *TOKENS))
    assert not left.exists()
    assert len(files(tmp_path / "states")) == 2


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "tokens", "renamed", "no file"])
def test_damaged_states_are_refused_and_deleted(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    store = StateStore(0, tmp_path / "states", 100_000)
    keep(store, TOKENS)
    (entry,) = store.entries(ORIGIN)
    (path,) = files(tmp_path / "states")
    data = bytearray(path.read_bytes())
    if damage == "cut":
        del data[-100:]
    elif damage == "flipped":
        data[-50] ^= 1
    elif damage == "empty":
        data.clear()
    elif damage == "tokens":
        write_state(path, ORIGIN, SavedState((*TOKENS[:-1], 7), b"x"))
        data = bytearray(path.read_bytes())
    elif damage == "renamed":
        write_state(path, OTHER, SavedState(TOKENS, b"x"))
        data = bytearray(path.read_bytes())
    path.write_bytes(data)
    if damage == "no file":
        path.unlink()
    assert store.read(ORIGIN, entry) is None
    assert path.exists() == (damage == "tokens"), "a sound state of other tokens is not used for these"
    assert ("deleted" in caplog.text) == (damage not in ("tokens", "no file"))
    fresh = StateStore(0, tmp_path / "states", 100_000)
    assert all(entry.tokens != TOKENS for entry in fresh.entries(ORIGIN))


def test_a_file_that_is_no_state_is_no_entry(tmp_path: Path) -> None:
    store = StateStore(0, tmp_path / "states", 100_000)
    keep(store, TOKENS)
    (path,) = files(tmp_path / "states")
    (path.parent / ("0" * 64 + ".state")).write_bytes(b"llama-engine state 2\n" + b"\xff" * 100)
    (path.parent / ("1" * 64 + ".state")).mkdir()
    assert held(StateStore(0, tmp_path / "states", 100_000)) == {TOKENS}


def test_a_full_or_missing_disk_costs_only_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = StateStore(10_000, tmp_path / "states", 100_000)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("engine.runtime.cache.state_folder.write_state", full)
        keep(store, TOKENS)
    assert "No space left" in caplog.text
    assert store.sizes[:3] == (1, 1000, 0)


def test_sizes_that_make_no_sense(tmp_path: Path) -> None:
    for bad in (-1, 1.5, True, "1GB"):
        with pytest.raises(RequestError, match="memory="):
            StateStore(bad)  # pyright: ignore[reportArgumentType]
    with pytest.raises(RequestError, match="both: path"):
        StateStore(0, tmp_path)
    with pytest.raises(RequestError, match="both: path"):
        StateStore(0, disk=100)
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="cannot be a folder"):
        StateStore(0, tmp_path / "file", 100)
    assert Stored((1,)).path is None


WRITER = """
import sys
from pathlib import Path
from dataclasses import replace
sys.path[:0] = [sys.argv[2]]
from test_state_store import keep, TOKENS
from engine.runtime.cache.state_store import StateStore
store = StateStore(0, Path(sys.argv[1]), 50_000)
most = 0
for number in range(150):
    keep(store, (int(sys.argv[3]) + number, *TOKENS), 3_000)
    most = max(most, store.sizes.disk)
print(most)
"""


def test_two_processes_keep_one_budget(tmp_path: Path) -> None:
    here = str(Path(__file__).parent)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "states"), here, str(start)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for start in (0, 1000)
    ]
    most = [int(process.communicate(timeout=60)[0]) for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert max(most) <= 50_000
    store = StateStore(0, tmp_path / "states", 50_000)
    assert store.sizes.files >= 8
    for entry in store.entries(ORIGIN):
        assert store.read(ORIGIN, entry) == bytes([entry.tokens[0] % 256]) * 3_000


def test_a_state_whose_writer_cannot_start_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(state_store, "_UNWRITTEN", 1500)
    store = StateStore(0, tmp_path / "states", 10_000)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        keep(store, (1, 2))
    store.flush()
    assert held(store) == set()
    keep(store, (3, 4))
    store.flush()
    assert held(store) == {(3, 4)}
