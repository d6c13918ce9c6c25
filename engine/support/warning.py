"""Warnings that point at the line of the caller, not at one of ours or of a library."""

import os
import sys
import warnings
from pathlib import Path

from engine.support.errors import EngineWarning

_OURS = str(Path(__file__).parents[1])
_LIBRARY = str(Path(os.__file__).parent)


def warn(message: str, kind: type[Warning] = EngineWarning) -> None:
    """Warn, at the nearest line of a program: not of this package, nor of what calls it for a program, as an HTTP
    client does. Python keeps each text that it has shown: what strangers send belongs into the log instead."""
    level, frame = 2, sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    outside = None
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_OURS):
            outside = outside or level
            if "site-packages" not in name and not name.startswith((_LIBRARY, "<")):
                outside = level
                break
        level, frame = level + 1, frame.f_back
    warnings.warn(message, kind, stacklevel=outside or level)
