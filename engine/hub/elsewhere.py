"""Models that other programs have on this disk, by names that say whose they are: "ollama:...", "lmstudio:..."."""

from collections.abc import Callable
from pathlib import Path

from engine.hub import lmstudio, ollama
from engine.hub.stored import Stored

PREFIXES = (ollama.PREFIX, lmstudio.PREFIX)


def located(model: str, memory: Callable[[], int | None]) -> Path | None:
    """Returns the file of a model of another program; None for a text that names none. Raises ModelLoadError."""
    if model.startswith(ollama.PREFIX):
        return ollama.located(model.removeprefix(ollama.PREFIX))
    if model.startswith(lmstudio.PREFIX):
        return lmstudio.located(model.removeprefix(lmstudio.PREFIX), memory())
    return None


def models() -> list[Stored]:
    """Returns all of them, by name."""
    return [*ollama.models(), *lmstudio.models()]
