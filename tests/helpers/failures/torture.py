"""What a place that has files of its own does when a call of them fails: each call in turn, with each error, once and
from then on. `tortured` counts what happened; `benchmarks/torture_files.py` and the tests print or check that."""

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count as count_from
from pathlib import Path
from typing import Any, NamedTuple

from failures.failing_disk import SHORT, Disk, failing

ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EROFS)


@dataclass(frozen=True)
class Place:
    """`prepare` makes a folder on a good disk; `act` is what the disk fails, and returns an answer; `answer` is the
    right one. `new` says whether the files are as after an `act` that met no failure, and raises AssertionError where
    they are neither that nor as before. `files`: the names that may be there. `errors`: those that are documented.
    `optional`: the answer needs no file, so that a failure need not leave one."""

    name: str
    act: Callable[[Path], object]
    new: Callable[[Path], bool]
    files: str
    errors: tuple[type[Exception], ...]
    answer: object = None
    prepare: Callable[[Path], object] = lambda _: None
    optional: bool = False


@dataclass
class Count:
    """What happened, over all calls that failed. `left`: temporary files that are still there after another call;
    `refused`: those that the disk would not delete."""

    failed: int = 0
    named: int = 0
    went_on: int = 0
    damaged: int = 0
    left: int = 0
    refused: int = 0
    leaked: int = 0
    faults: list[str] = field(default_factory=list[str])
    """What was wrong, in words."""


def tortured(
    place: Place,
    errors: Iterable[int] = (*ERRORS, SHORT),
    lasts: Iterable[bool] = (False, True),
    *,
    alike: bool = True,
) -> Count:
    """Fail every call of a place, one after the other, until none is left; without `alike` only the first of those that
    do the same to the same file."""
    count = Count()
    with tempfile.TemporaryDirectory() as name:
        prepared = Path(os.path.realpath(name)) / "prepared"
        prepared.mkdir()
        place.prepare(prepared)
        for error in errors:
            for lasting in lasts:
                if error != SHORT or not lasting:
                    for at in count_from(1) if alike else _different(place, prepared):
                        if not _reached(place, prepared, (at, error, lasting), count):
                            break
    return count


def _different(place: Place, prepared: Path) -> list[int]:
    """Returns the numbers of the first calls of each kind and file."""
    with _copied(prepared) as folder, failing(folder, 0, errno.EIO) as disk:
        place.act(folder)
    calls = [re.sub(r"\.\w{8}$", ".*", call) for call in disk.calls]
    return sorted({call: number for number, call in reversed(list(enumerate(calls, 1)))}.values())


def _reached(place: Place, prepared: Path, fault: tuple[int, int, bool], count: Count) -> bool:
    """Act with a call that fails; returns whether there were so many calls."""
    at, error, lasting = fault
    with _copied(prepared) as folder:
        with failing(folder, at, error, lasting=lasting) as disk:
            ended, leaked = _acted(place, folder)
        if disk.failed:
            _judge(place, folder, disk, ended, leaked, count)
    return len(disk.calls) >= at


@contextmanager
def _copied(prepared: Path) -> Generator[Path]:
    folder = prepared.with_name("folder")
    shutil.copytree(prepared, folder, symlinks=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _acted(place: Place, folder: Path) -> tuple[Any, int]:
    """Returns what `act` returned or raised, and how many descriptors it left open."""
    before = _descriptors()
    ended: Any
    try:
        ended = place.act(folder)
    except Exception as error:  # noqa: BLE001 - which one is judged
        ended = _Raised(isinstance(error, place.errors), type(error).__name__, str(error))
    return ended, len(_descriptors() - before)


class _Raised(NamedTuple):
    is_documented: bool
    kind: str
    message: str


def _judge(place: Place, folder: Path, disk: Disk, ended: Any, leaked: int, count: Count) -> None:
    """Count how a call of `act` ended, whose disk failed; then act again on a good one."""
    count.failed += 1
    wrong: list[str] = []
    if not isinstance(ended, _Raised):
        count.went_on += 1
        if ended != place.answer:
            wrong.append(f"the answer is {ended!r}")
    elif ended.is_documented and str(folder) in ended.message:
        count.named += 1
    else:
        wrong.append(f"it ended by {ended.kind}: {ended.message}")
    try:
        if not place.new(folder) and not isinstance(ended, _Raised) and not place.optional:
            wrong.append("it went on, but the files are as before")
        again, _ = _acted(place, folder)
        assert again == place.answer, f"then the answer is {again!r}"
        assert place.new(folder), "then the files are as before"
    except (AssertionError, OSError, ValueError) as error:
        count.damaged += 1
        wrong.append(f"damaged: {error!r}")
    found = [name for name in _names(folder) if not re.fullmatch(place.files, name)]
    left = [name for name in found if f"unlink {name}" not in disk.failed]
    count.left += bool(left)
    count.refused += len(found) > len(left)
    count.leaked += leaked
    wrong += [f"left behind: {left}"] * bool(left) + [f"{leaked} descriptors leaked"] * bool(leaked)
    if wrong:
        word = errno.errorcode.get(disk.error, "short")
        lasting = " and all after it" if disk.lasting else ""
        count.faults.append(f"{place.name}: {word} at {disk.failed[0]}{lasting}: {'; '.join(wrong)}")


def _names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


def _descriptors() -> set[str]:
    """Those of files; sockets of a server are its own."""
    links = ((path.name, _link(path)) for path in Path("/proc/self/fd").iterdir())
    return {name for name, link in links if link.startswith("/")}


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except FileNotFoundError:  # the folder's own
        return ""
