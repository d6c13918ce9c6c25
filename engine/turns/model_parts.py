"""What one loaded model's turns, scores, vectors and decisions are made with, and how those who need them get them."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeAlias

from engine.llama.model import ModelInfo
from engine.runtime.stream.service import Service
from engine.turns.turns import Turns


@dataclass(frozen=True, slots=True)
class ModelParts:
    """The parts of a loaded model. `info`: None for a backend without a file."""

    service: Service
    turns: Turns
    info: ModelInfo | None


Lease: TypeAlias = Callable[[], AbstractContextManager[ModelParts]]
"""Loads the model if it is not in memory, and keeps it there for a `with`. What runs at its end keeps it, too, so it is
taken for each turn, not for a row of them: between two turns another model may need the memory."""
