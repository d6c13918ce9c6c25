"""`llama-engine chat` over a script, as a program: `python scripted_chat.py SCRIPT [ARGUMENT..]`.

SCRIPT is a JSON file: {"replies": [..], "delay": seconds of a token}.
"""

import argparse
import json
import sys
from pathlib import Path

from engine import ChatTemplate, Engine
from engine.cli import commands, main
from engine.testing import ByteVocab, ScriptedBackend

VOCAB = ByteVocab(["<|im_start|>", "<think>", "</think>", "<tool_call>", "</tool_call>"], end=["<|im_end|>"])


def run(script: Path, arguments: list[str]) -> int:
    """Chat; returns the exit code."""
    told = json.loads(script.read_text(encoding="utf-8"))
    replies = iter(told["replies"])

    def load(_: argparse.Namespace) -> Engine:
        backend = ScriptedBackend(
            lambda _: next(replies), vocab=VOCAB, delay=told.get("delay", 0.0), n_ctx=1 << 17, n_batch=4096
        )
        return Engine(backend, ChatTemplate(None, family="qwen3", control_tokens=VOCAB.control_tokens))

    commands.load = load
    commands.greeting = lambda _: "hello"
    return main(["chat", *arguments])


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), sys.argv[2:]))
