"""What the tests of MCP share: servers, engines, and what a run left behind."""

import contextlib
import socket
import sys
import threading
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from fakes.scripts import wait_until

from engine import MCP, ChatTemplate, Engine, Run
from engine.testing.scripted import ScriptedBackend

_PATIENT: dict[str, Any] = {"timeout": 20}
SCRIPT = Path(__file__).with_name("mcp_stdio.py")


def by_hand(mode: str = "good", file: Path | None = None, **options: Any) -> MCP:
    """The server of mcp_stdio.py, in a process."""
    words = [sys.executable, "-I", str(SCRIPT), mode, *([str(file)] if file else [])]
    return MCP(words, **{**_PATIENT, **options})


def engine(*replies: str, prompts: list[str] | None = None, **options: Any) -> Engine:
    """An engine that writes these, one after the other; `prompts` takes what it reads."""
    left = list(replies)

    def reply(prompt: str) -> str:
        if prompts is not None:
            prompts.append(prompt)
        return left.pop(0)

    return Engine.over(ScriptedBackend(reply, **options), ChatTemplate(None, family="qwen3"))


def results(run: Run) -> list[str]:
    return [result.content for step in run.steps for result in step.results]


@contextlib.contextmanager
def http(server: Any) -> Generator[str]:
    """An `mcp` server object at an address of this machine."""
    import uvicorn

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    config = uvicorn.Config(server.streamable_http_app(), host="127.0.0.1", port=port, log_level="error")
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: running.started)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        running.should_exit = running.force_exit = True
        thread.join(10)


def threads() -> Sequence[str]:
    """The threads of connections that are there."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("llama-engine mcp")]
