"""The places of the package that have files of their own, for a disk that fails."""

from collections.abc import Callable
from pathlib import Path

from torture import Place

from engine.output_file import write_file


def _is(name: str, old: bytes | None, new: bytes) -> Callable[[Path], bool]:
    """Whether a file has its new content; anything but the old or the new is damage."""

    def check(folder: Path) -> bool:
        path = folder / name
        found = path.read_bytes() if path.exists() else None
        assert found in (old, new), f"{name} has {found!r}"
        return found == new

    return check


OLD, NEW = b"old " * 5000, b"new " * 5000


def _linked(folder: Path) -> None:
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "file").write_bytes(OLD)
    (folder / "link").symlink_to("elsewhere/file")


def _still_linked(folder: Path) -> bool:
    assert (folder / "link").is_symlink(), "the link is gone"
    return _is("link", OLD, NEW)(folder)


WRITTEN = (
    Place(
        "a file replaced",
        prepare=lambda folder: (folder / "file").write_bytes(OLD),
        act=lambda folder: write_file(folder / "file", NEW[:100], NEW[100:]),
        new=_is("file", OLD, NEW),
        files="file",
        errors=(OSError,),
    ),
    Place(
        "a new file",
        act=lambda folder: write_file(folder / "file", NEW),
        new=_is("file", None, NEW),
        files="file",
        errors=(OSError,),
    ),
    Place(
        "a file behind a link",
        prepare=_linked,
        act=lambda folder: write_file(folder / "link", NEW),
        new=_still_linked,
        files="link|elsewhere/file",
        errors=(OSError,),
    ),
)
