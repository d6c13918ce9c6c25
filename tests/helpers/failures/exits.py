"""Scripts that end while streams of the built-in model are open, each in its own way; and how such a process ended."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from engine.support import errors

HERE = Path(__file__).resolve().parents[3]
_SECONDS = 120

_BEGIN = """
import os, random, signal, sys, threading, time
from contextlib import suppress
from engine import Engine, EngineError
llm = Engine.load(n_ctx=1024, n_sequences=4, n_threads=1, preflight=False)
long = "one two three four five six seven eight " * 20
def ask(**options):
    return llm.stream(long, ignore_eos=True, temperature=1.0, **options)
def later():
    time.sleep(random.random() * 0.3)
"""

SCRIPTS = {
    "the script ends": "streams = [ask() for _ in range(3)]\nlater()",
    "the script ends, top-k and penalties": """
streams = [ask(top_k=40, presence_penalty=1.0) for _ in range(3)]
later()
""",
    "a stream was read": """
for number, _ in enumerate(stream := ask()):
    if number > 20: break
other = ask()
""",
    "SIGTERM raises SystemExit": """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
threading.Timer(random.random() * 0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
stream, other = ask(), ask()
stream.result()
""",
    "SIGTERM twice": """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
for wait in (0.2, 0.2 + random.random() * 0.02):
    timer = threading.Timer(wait, os.kill, (os.getpid(), signal.SIGTERM))
    timer.daemon = True
    timer.start()
stream, other = ask(), ask()
for _ in stream: pass
""",
    "Ctrl-C": """
threading.Timer(random.random() * 0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    with ask() as stream:
        for _ in stream: pass
except KeyboardInterrupt:
    sys.exit(3)
""",
    "daemon threads read": """
def read():
    with suppress(EngineError):  # Python dies where a daemon thread writes its traceback at the very end
        for _ in ask(): pass
for _ in range(4): threading.Thread(target=read, daemon=True).start()
later()
""",
    "daemon threads begin turns": """
def talk():
    with suppress(EngineError):
        while True: llm.chat(long, max_tokens=2)
for _ in range(4): threading.Thread(target=talk, daemon=True).start()
later()
""",
    "daemon threads tokenise": """
def cut():
    with suppress(EngineError):
        while True: llm.tokenize(long * 50)
for _ in range(4): threading.Thread(target=cut, daemon=True).start()
stream = ask()
later()
""",
    "sys.exit in a thread": """
stream = ask()
def leave():
    later()
    sys.exit(3)
thread = threading.Thread(target=leave)
thread.start()
thread.join()
""",
    "an error ends the script": "stream = ask()\nlater()\nraise RuntimeError('mine')",
    "os._exit": "streams = [ask() for _ in range(3)]\nlater()\nos._exit(3)",
    "closed while others use it": """
def talk():
    try:
        while True: llm.tokenize(long * 50)
    except Exception as error:
        assert 'closed' in str(error), error
threads = [threading.Thread(target=talk) for _ in range(3)]
for thread in threads: thread.start()
stream = ask()
later()
llm.close()
for thread in threads: thread.join()
""",
    "an event loop is left": """
import asyncio
async def main():
    tasks = [asyncio.create_task(ask()._finish()) for _ in range(3)]
    await asyncio.sleep(random.random() * 0.3)
asyncio.run(main())
""",
}
_ERROR = re.compile(r"[\w.]*Error\b|Fatal|malloc|free\(|GGML_ASSERT|terminate called")
# Threads write their tracebacks in pieces: a line may begin in the middle of a name.
_OURS = "|".join(name for name, value in vars(errors).items() if isinstance(value, type))
_ALLOWED = re.compile(rf"RuntimeError: mine|(?:engine\.errors)?\.?(?:{_OURS}):")


def ended(checkout: Path, script: str, seed: int) -> str:
    """What happened; nothing, where the process ended as it should."""
    code = f"import random; random.seed({seed})\n{_BEGIN}{script}"
    environment = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONFAULTHANDLER": "1"}
    with subprocess.Popen(
        [sys.executable, "-P", "-c", code], stderr=subprocess.PIPE, text=True, env=environment, cwd="/"
    ) as child:
        try:
            said = child.communicate(timeout=_SECONDS)[1]
        except subprocess.TimeoutExpired:
            child.kill()
            return "hung"
    if child.returncode < 0:
        return signal.Signals(-child.returncode).name
    if child.returncode not in (0, 1, 3):
        return f"exit code {child.returncode}"
    told = [line for line in said.splitlines() if _ERROR.match(line) and not _ALLOWED.match(line)]
    return told[0] if told else ""
