"""Modules that children run in place of the preflight's own, and that end in every way a child can."""

import itertools
import json
import sys
import textwrap
from pathlib import Path


class StandIn:
    """A module that children run, and that notes their orders in a file. `answer(value)` is what its body says."""

    def __init__(self, folder: Path, body: str) -> None:
        self._seen = folder / "orders.jsonl"
        self.module = f"stand_in_{next(_numbers)}"
        opening = (
            "import json, os, signal, sys, time\n"
            "from engine.support.child import ends, read_frame, write_frame\n"
            "def main():\n"
            "    orders, pipe = ends()\n"
            "    order = json.loads(read_frame(orders))\n"
            f"    open({str(self._seen)!r}, 'a').write(json.dumps(order) + '\\n')\n"
            "    answer = lambda value: write_frame(pipe, json.dumps(value).encode())\n"
        )
        text = opening + textwrap.indent(textwrap.dedent(body), "    ")
        (folder / f"{self.module}.py").write_text(text, encoding="utf-8")
        if str(folder) not in sys.path:
            sys.path.append(str(folder))

    @property
    def orders(self) -> list[dict[str, dict[str, object]]]:
        if not self._seen.exists():
            return []
        return [json.loads(line) for line in self._seen.read_text(encoding="utf-8").splitlines()]


_numbers = itertools.count()
