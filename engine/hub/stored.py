"""What models in other programs' stores have in common: a record, a bound on what is read, and links that must stay."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from engine.support import paths
from engine.support.errors import ModelLoadError

MOST = 10_000
"""The most files of a store that are looked at: each model has a few."""
_LARGEST = 1 << 20


@dataclass(frozen=True, slots=True)
class Stored:
    """A model of another program. `name` loads it; `path` is its first file, `size` the bytes of all, `quantization`
    what the name says. `problem`: why it cannot be loaded, "" if nothing is known against it."""

    name: str
    path: Path
    size: int = 0
    quantization: str = ""
    problem: str = ""


def inside(store: Path, path: Path, what: str) -> Path:
    """Returns a path of a store, links followed. Raises ModelLoadError for one that leaves the store."""
    try:
        real = path.resolve()
        if real.is_relative_to(store.resolve()):
            return real
    except (OSError, RuntimeError) as error:  # links that go in a circle
        raise ModelLoadError(f"{what}, {path}, cannot be followed ({error}). Remove the link.") from error
    raise ModelLoadError(
        f"{what}, {path}, is a link out of {store}, to {real}; such links are not followed. Pass that path itself if "
        "you know the file."
    )


def small_text(path: Path, what: str) -> bytes:
    """Returns a small file. Raises ModelLoadError for one that is none, is too large or cannot be read."""
    try:
        if not paths.is_file(path):
            raise ModelLoadError(f"{what}, {path}, is not a file.")
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
    except OSError as error:
        raise ModelLoadError(f"{what}, {path}, cannot be read ({error.strerror}); see its permissions.") from error
    if len(data) > _LARGEST:
        raise ModelLoadError(f"{what}, {path}, has more than {_LARGEST:,} bytes.")
    return data


def files(folder: Path, depth: int) -> Iterator[Path]:
    """Yields the files of a folder that are exactly `depth` folders down, by name, at most `MOST`; links to folders are
    not followed. Raises OSError."""
    return islice(_files(folder, depth), MOST)


def _files(folder: Path, depth: int) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            found = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in islice(entries, MOST))
    except (FileNotFoundError, NotADirectoryError):
        return
    for name, is_folder in found:
        if is_folder and depth:
            yield from _files(folder / name, depth - 1)
        elif not is_folder and not depth:
            yield folder / name
