"""A cell that loads a model, run again: the engine that it made before is still open while the new one is loaded."""

import gc
import sys
from pathlib import Path
from typing import Any
from weakref import ref

from engine.support.errors import RequestError
from engine.support.screens import notebook

_loaded: dict[int, ref[Any]] = {}
"""The models in this process's memory that something still refers to."""


def remember(loaded: object) -> None:
    """Count a model among those that are open, until it is closed or nothing refers to it."""
    key = id(loaded)
    _loaded[key] = ref(loaded, lambda _: _loaded.pop(key, None))


def _open() -> list[Any]:
    """Returns what is open of a file, not over a backend alone."""
    there = (each() for each in list(_loaded.values()))
    return [loaded for loaded in there if loaded is not None and not loaded.closed and loaded.info is not None]


def held_by_open(path: Path) -> str:
    """Returns what engines of this process keep in memory beside a file that does not fit, as sentences."""
    held: list[str] = []
    for loaded in _open():
        same = ", this file" if _has(loaded, path) else ""
        held.append(f"{Path(loaded.info.path).name} ({loaded.info.size_bytes / 1e6:,.0f} MB{same})")
    if not held:
        return ""
    what = f"{len(held)} engines are" if len(held) > 1 else "an engine is"
    return (
        f" In this process {what} open: {', '.join(held[:_TOLD])}. Use what is open, or call its close() first: a cell "
        "that is run again still has its engine of before."
    )


_TOLD = 8


def tell_open(kind: type, path: Path) -> None:
    """Free engines with this file that nothing can reach any more, which else waits for Python's collector. In a
    notebook, name the variables whose open engines (of class `kind`) have it in memory."""
    if any(_has(loaded, path) for loaded in _open()):
        gc.collect()
    screen = notebook()
    if screen is None:
        return
    names: dict[str, Any] = sys.modules["IPython"].get_ipython().user_ns
    for name, value in list(names.items()):
        if not name.startswith("_") and type(value) is kind and _has(value, path):
            size = value.info.size_bytes / 1e6
            screen.line(
                f"{name} is open already and keeps {path.name} in memory ({size:,.0f} MB) until the new one is loaded. "
                f"To free it first, call {name}.close() before this line."
            )


def _has(llm: Any, path: Path) -> bool:
    try:
        return not llm.closed and Path(llm.info.path).samefile(path)
    except (RequestError, OSError):  # it has no file, or that is gone
        return False
