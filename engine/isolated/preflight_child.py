"""What the preflight's child process does: decode on the built-in model, or tell facts about the library, and end.

Knows: the orders, one for each child, and what answers them; both are JSON. Does not know: what becomes of the answer
(`engine.diagnose.preflight`, `engine.diagnose.doctor`). A native fault here ends only the child.
"""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

from engine.child import ends, read_frame, write_frame
from engine.llama import lib

Order: TypeAlias = dict[str, Any]
"""What is to be done: its "task", and what that needs to know."""

BATCH = 64  # rows: the known fault shows from 8 rows on, never with one
SINGLES = 4


def decode(order: Order) -> Any:
    """Load the model, decode one batch of 64 tokens and then single tokens; "ok" when it lived."""
    from engine.llama.model import Model
    from engine.runtime.backend import Row
    from engine.runtime.options import ContextOptions, ModelOptions

    load: dict[str, Any] = order["load"]
    load["tensor_split"] = tuple(load["tensor_split"])
    model = Model.load(Path(order["model"]), ModelOptions(**load))
    context = model.backend(ContextOptions(**order["context"]))
    context.decode([Row(token + 1, token, 0, token == BATCH - 1) for token in range(BATCH)])
    for position in range(BATCH, BATCH + SINGLES):
        context.decode([Row(position + 1, position, 0, True)])
    return "ok"


def tell(_order: Order) -> Any:
    """The facts about the library."""
    return asdict(lib.facts())


_TASKS: Mapping[str, Callable[[Order], Any]] = {"decode": decode, "tell": tell}
"""What may be ordered, by the order's "task"; the answer is sent as JSON."""


def main() -> int:
    """Carry out one order; an ordinary error is a traceback on standard error and exit code 1."""
    orders, answers = ends()
    _no_core_dump()
    order: Order = json.loads(read_frame(orders))
    write_frame(answers, json.dumps(_TASKS[order["task"]](order), default=str).encode())
    return 0


def _no_core_dump() -> None:
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
