"""Connects to MCP servers, calls their first tools, and prints as JSON what each took of this process.

Each line that comes in is a server: a URL, or the words of a command, as JSON. An honest server is used after it.
"""

import gc
import json
import sys
import threading
import time
import warnings
from pathlib import Path

from engine import MCP, EngineError
from engine.tools import run as run_tool

SECONDS = 2.0
HONEST = [sys.executable, "-I", str(Path(__file__).with_name("mcp_hostile.py")), "stdio", "honest"]
_MIB = 1 << 20


def used(server: object, limit: float = 60.0) -> tuple[str, float]:
    """What a call gives, or why there is none; and the seconds until then."""
    begun = time.monotonic()
    try:
        with MCP(server, connect_timeout=limit, timeout=limit) as source:
            result = run_tool(source.tools()[0], "{}").content
            seconds = time.monotonic() - begun
        return result, seconds
    except EngineError as error:
        return str(error), time.monotonic() - begun


def memory(field: str) -> int:
    """A field of this process's status, in bytes."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return int(text.partition(f"{field}:")[2].split()[0]) << 10


class Heart(threading.Thread):
    """A thread that would run a hundred times a second; `longest` is the longest time for which this process computed
    and it did not run. (What other processes took of the machine does not count.)"""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.longest = 0.0
        self.start()

    def run(self) -> None:
        last, spent = time.monotonic(), time.process_time()
        while True:
            time.sleep(0.01)
            now, computed = time.monotonic(), time.process_time()
            self.longest = max(self.longest, min(now - last, computed - spent) - 0.01)
            last, spent = now, computed


def measured(server: object, heart: Heart) -> dict[str, object]:
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins here
    base, heart.longest = memory("VmRSS"), 0.0
    result, seconds = used(server, SECONDS)
    longest, grown = heart.longest, memory("VmHWM") - base
    report = {"result": result[:600], "seconds": seconds, "stop": longest, "grown": grown / _MIB}
    return {**report, "honest": used(HONEST)[0]}


def main() -> None:
    warnings.simplefilter("ignore")
    used(HONEST)  # imports what a connection takes
    heart = Heart()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(measured(json.loads(line), heart)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
