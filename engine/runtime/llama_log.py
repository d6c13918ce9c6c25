"""llama.cpp's and ggml's log lines, as records of the Python logger "engine.llama".

Knows: their levels, and that a line may come in parts. Does not know: who reads it. Nothing is printed unless the
user configures logging: the logger has a NullHandler, which keeps Python from printing warnings by itself.
"""

import ctypes
import logging
from collections import deque
from typing import Any

LOGGER = logging.getLogger("engine.llama")
LOGGER.addHandler(logging.NullHandler())

# enum ggml_log_level (ggml.h). llama.cpp tells hundreds of details at its INFO level; here they are DEBUG.
_LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.WARNING, 4: logging.ERROR}
_CONTINUE = 5
# A cache without room is an answer of llama_decode's that the engine lives with: it makes room and tries again.
_ORDINARY = b"failed to find a memory slot"


class _Lines:
    """Joins the parts of a line; a line ends with a newline, or when another begins. Keeps the last errors."""

    def __init__(self) -> None:
        self.errors: deque[str] = deque(maxlen=6)
        self._level = logging.DEBUG
        self._parts: list[str] = []

    def write(self, ggml_level: int, text: bytes | None, _user_data: object) -> None:
        """The C callback. Must not raise: ctypes would print the error."""
        if ggml_level != _CONTINUE:
            if self._parts:
                self._flush()
            self._level = _LEVELS.get(ggml_level, logging.DEBUG)
            if self._level == logging.WARNING and text and _ORDINARY in text:
                self._level = logging.DEBUG
        if not text or (self._level < logging.ERROR and not LOGGER.isEnabledFor(self._level)):
            return
        self._parts.append(text.decode("utf-8", "replace"))
        if text.endswith(b"\n"):
            self._flush()

    def _flush(self) -> None:
        line = "".join(self._parts).rstrip()
        self._parts.clear()
        if not line:
            return
        if self._level >= logging.ERROR:
            self.errors.append(line)
        LOGGER.log(self._level, "%s", line)


_lines = _Lines()
# C keeps this pointer for as long as the process lives, so the object must too: hence a module-level constant.
CALLBACK: Any = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(_lines.write)


def forget_errors() -> None:
    """Before an operation whose failure shall be explained by what llama.cpp says from now on."""
    _lines.errors.clear()


def last_errors() -> str:
    """What llama.cpp logged as errors lately, on one line; "" when nothing."""
    return "; ".join(_lines.errors)
