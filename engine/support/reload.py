"""A cell that loads a model, run again: the engine that it made before is still open while the new one is loaded."""

import sys
from pathlib import Path
from typing import Any

from engine.support.errors import RequestError
from engine.support.screens import notebook


def tell_open(kind: type, path: Path) -> None:
    """In a notebook, name the variables whose open engines (of class `kind`) have this file in memory."""
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
