"""engine.runtime.cache.state_folder: whatever a stranger left under any name that a store opens."""

import contextlib
import os
import socket
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.runtime.adapters.adapters import BASE
from engine.runtime.cache import state_folder
from engine.runtime.cache.state_file import Origin, SavedState, read_head, write_state
from engine.runtime.cache.state_store import StateStore
from engine.support.errors import RequestError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="modes and owners of POSIX")

ORIGIN = Origin("abc", "0.3.36", "f16", "f16", "auto", "", True, 1)
TOKENS = tuple(range(100))
OURS, FORGED = b"ours" * 100, b"forged" * 100
LOCK = ".llama-engine-states.lock"
SPARSE = 3 << 30
NOBODY = 65534


def keep(store: StateStore, tokens: tuple[int, ...]) -> None:
    store.put(ORIGIN, SavedState(tokens, OURS, BASE))
    store.flush()


class Grounds:
    """A folder of states, and beside it what links lead to."""

    def __init__(self, path: Path) -> None:
        self.root = path / "states"
        keep(StateStore(0, self.root, 1 << 30), TOKENS)
        (self.state,) = self.root.glob("*/*.state")
        self.places = {
            "the folder": self.root,
            "a subfolder": self.state.parent,
            "a state": self.state,
            "a temporary file": self.state.parent / f".{self.state.name[:40]}.abcdefgh",
            "the lock": self.root / LOCK,
        }
        self.victim = path / "victim"
        self.victim.mkdir()
        (self.victim / "file").write_bytes(b"precious")
        self.forge(self.victim / self.state.name)
        self.before = self.look()

    def forge(self, path: Path) -> None:
        write_state(path, ORIGIN, SavedState(TOKENS, FORGED))

    def look(self) -> dict[str, bytes]:
        mine = ("file", self.state.name)
        return {name: (self.victim / name).read_bytes() for name in mine} | {"nothing": b"x" * self.made()}

    def made(self) -> bool:
        """Whether the file was made that a link leads to."""
        return (self.victim / "nothing").exists()

    def folder(self, path: Path) -> None:
        """Make a folder that holds what the store looks for."""
        path.mkdir()
        inner = path / self.state.parent.name if path == self.root else path
        inner.mkdir(exist_ok=True)
        self.forge(inner / self.state.name)


def fifo(grounds: Grounds, path: Path) -> None:
    os.mkfifo(path, 0o600)


def listener(grounds: Grounds, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = Path.cwd()
        os.chdir(path.parent)  # a socket's path is short
        try:
            made.bind(path.name)
        finally:
            os.chdir(here)


def sparse(grounds: Grounds, path: Path) -> None:
    path.touch(0o600)
    os.truncate(path, SPARSE)


def sparse_state(grounds: Grounds, path: Path) -> None:
    """Has a right beginning, and a state that goes on and on."""
    grounds.forge(path)
    os.truncate(path, SPARSE)


def endless_head(grounds: Grounds, path: Path) -> None:
    path.write_bytes(b"llama-engine state 3\n" + (SPARSE - 100).to_bytes(4, "little"))
    os.truncate(path, SPARSE)


def of_mode(mode: int) -> Callable[[Grounds, Path], None]:
    def planted(grounds: Grounds, path: Path) -> None:
        grounds.forge(path)
        path.chmod(mode)

    return planted


def folder_of_mode(mode: int) -> Callable[[Grounds, Path], None]:
    def planted(grounds: Grounds, path: Path) -> None:
        grounds.folder(path)
        path.chmod(mode)

    return planted


def of_another(grounds: Grounds, path: Path) -> None:
    grounds.forge(path)
    os.chown(path, NOBODY, NOBODY)


def folder_of_another(grounds: Grounds, path: Path) -> None:
    grounds.folder(path)
    os.chown(path, NOBODY, NOBODY)


def all_of_another(grounds: Grounds, path: Path) -> None:
    """In a folder of ours lies what another user wrote."""
    grounds.folder(path)
    for each in path.rglob("*"):
        os.chown(each, NOBODY, NOBODY)


KINDS: dict[str, Callable[[Grounds, Path], None]] = {
    "a link to a file": lambda grounds, path: path.symlink_to(grounds.victim / "file"),
    "a link to a state": lambda grounds, path: path.symlink_to(grounds.victim / grounds.state.name),
    "a link to a folder": lambda grounds, path: path.symlink_to(grounds.victim, target_is_directory=True),
    "a link to nothing": lambda grounds, path: path.symlink_to(grounds.victim / "nothing"),
    "a link to a device": lambda grounds, path: path.symlink_to("/dev/zero"),
    "a FIFO": fifo,
    "a socket": listener,
    "a sparse file": sparse,
    "a sparse state": sparse_state,
    "an endless head": endless_head,
    "a file of mode 0664": of_mode(0o664),
    "a file of mode 0666": of_mode(0o666),
    "a folder": lambda grounds, path: path.mkdir(),
    "a folder of mode 0775": folder_of_mode(0o775),
    "a folder of mode 0777": folder_of_mode(0o777),
    "another user's file": of_another,
    "another user's folder": folder_of_another,
    "our folder of another user's things": all_of_another,
}
PLACES = ("the folder", "a subfolder", "a state", "a temporary file", "the lock")
AS_ROOT = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")


def cases() -> Iterator[object]:
    for place in PLACES:
        for kind in KINDS:
            marks = [AS_ROOT] if "another user" in kind else []
            yield pytest.param(place, kind, marks=marks, id=f"{kind} as {place}")


def used(grounds: Grounds, read: list[bytes]) -> None:
    """Do all that a store does with its folder."""
    try:
        store = StateStore(0, grounds.root, 1 << 30)
    except RequestError:
        return
    for _ in range(2):
        for entry in store.entries(ORIGIN):
            state = store.read(ORIGIN, entry)
            if state is not None:
                read.append(state)
        keep(store, (7, *TOKENS))
        keep(store, TOKENS)
    assert store.sizes.files >= 0
    with contextlib.suppress(RequestError):
        store.clear()


@pytest.mark.parametrize(("place", "kind"), [*cases()])
def test_what_a_stranger_left(place: str, kind: str, tmp_path: Path) -> None:
    """It is not used, not followed, not emptied, not waited for, and costs no memory."""
    grounds = Grounds(tmp_path)
    target = grounds.places[place]
    if target.exists():
        target.rename(tmp_path / "away")
    KINDS[kind](grounds, target)
    read: list[bytes] = []
    faults: list[BaseException] = []

    def work() -> None:
        try:
            used(grounds, read)
        except BaseException as error:  # noqa: BLE001 - told below
            faults.append(error)

    tracemalloc.start()
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert not thread.is_alive(), "it hangs"
    assert not faults
    assert set(read) <= {OURS}
    assert grounds.look() == grounds.before
    assert peak < 100 << 20


@pytest.mark.parametrize("place", ["a state", "a temporary file"])
def test_a_store_goes_on_beside_what_a_stranger_left(place: str, tmp_path: Path) -> None:
    """A link or a FIFO under the name of a state costs that state only, and a new one takes its place."""
    grounds = Grounds(tmp_path)
    target = grounds.places[place]
    target.unlink(missing_ok=True)
    fifo(grounds, target)
    store = StateStore(0, grounds.root, 1 << 30)
    keep(store, TOKENS)
    (entry,) = store.entries(ORIGIN)
    assert store.read(ORIGIN, entry) == OURS


def test_a_lock_that_is_not_let_go_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It costs the states that were to be written, once some patience, and nothing after it is free."""
    import fcntl

    monkeypatch.setattr(state_folder, "_PATIENCE", 0.2)
    grounds = Grounds(tmp_path)
    store = StateStore(0, grounds.root, 1 << 30)
    with (grounds.root / LOCK).open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        for number in range(3):
            keep(store, (number, *TOKENS))
        assert caplog.text.count("does not let go of") == 3
        with pytest.raises(RequestError, match="does not let go of"):
            store.clear()
    keep(store, (7, *TOKENS))
    assert {entry.tokens for entry in store.entries(ORIGIN)} == {TOKENS, (7, *TOKENS)}


def test_nobody_else_may_open_the_lock(tmp_path: Path) -> None:
    """Whoever can open it can hold it."""
    grounds = Grounds(tmp_path)
    (grounds.root / LOCK).chmod(0o644)
    keep(StateStore(0, grounds.root, 1 << 30), TOKENS)
    assert (grounds.root / LOCK).stat().st_mode & 0o777 == 0o600


def test_the_way_out_is_a_new_folder(tmp_path: Path) -> None:
    """To take others' rights away would leave what they have put there."""
    tmp_path.chmod(0o777)
    with pytest.raises(RequestError, match="choose a new folder") as caught:
        StateStore(0, tmp_path, 1 << 30)
    assert "chmod" not in str(caught.value)


def test_a_subfolder_that_others_may_write_to(tmp_path: Path) -> None:
    """What is in it is not used, though the file itself would be."""
    grounds = Grounds(tmp_path)
    grounds.state.parent.chmod(0o770)
    store = StateStore(0, grounds.root, 1 << 30)
    assert list(store.entries(ORIGIN)) == []
    keep(store, (7, *TOKENS))
    assert list(grounds.state.parent.iterdir()) == [grounds.state]


@pytest.mark.parametrize("change", [-40, -1, 1, 40, SPARSE])
def test_a_file_is_as_long_as_its_head_says(change: int, tmp_path: Path) -> None:
    """The head alone tells, before anything else is read."""
    grounds = Grounds(tmp_path)
    os.truncate(grounds.state, grounds.state.stat().st_size + change)
    with pytest.raises(RequestError, match="cut off or damaged"):
        read_head(grounds.state, ORIGIN)
