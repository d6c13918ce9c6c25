"""`llama-engine chat` over a script, as a program: `python scripted_chat.py SCRIPT [ARGUMENT..]`.

SCRIPT is a JSON file: {"replies": [..], "delay": seconds of a token}.
"""

import argparse
import json
import sys
from pathlib import Path

from fakes.scripts import scripted

from engine import Engine
from engine.cli import commands, main


def run(script: Path, arguments: list[str]) -> int:
    """Chat; returns the exit code."""
    told = json.loads(script.read_text(encoding="utf-8"))
    replies = iter(told["replies"])

    def load(_: argparse.Namespace) -> Engine:
        return scripted(lambda _: next(replies), delay=told.get("delay", 0.0), n_ctx=1 << 17, n_batch=4096)

    commands.load = load
    commands.greeting = lambda _: "hello"
    return main(["chat", *arguments])


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), sys.argv[2:]))
