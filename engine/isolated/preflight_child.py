"""What the preflight's child process does: decode on the built-in model, or tell facts about the library, and end.

Knows: the two orders and how they are answered on standard output. Does not know: what becomes of the answer
(`engine.preflight`, `engine.doctor`). Run as a module with one argument, the order as JSON. A native fault here ends
only the child.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from engine.llama import lib

BATCH = 64  # rows: the known fault shows from 8 rows on, never with one
SINGLES = 4


def decode(order: dict[str, Any]) -> str:
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


def tell() -> str:
    """The facts about the library, as JSON."""
    return json.dumps(asdict(lib.facts()), default=str)


def main(arguments: Sequence[str]) -> int:
    """Carry out the order; an ordinary error is a traceback on standard error and exit code 1."""
    _no_core_dump()
    order: dict[str, Any] = json.loads(arguments[0])
    print(decode(order) if order["task"] == "decode" else tell())  # noqa: T201
    return 0


def _no_core_dump() -> None:
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
