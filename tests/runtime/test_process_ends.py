"""Forks of a process that has an engine, and its end while streams are open. Long: benchmarks/process_ends.py."""

import subprocess
import sys

import pytest
from failures.exits import HERE, SCRIPTS, ended

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and forks of POSIX")

FORK = """
import asyncio, os, signal, sys, traceback
from engine import Engine, EngineError
from engine.llama.lib import library
lib, freed = library(), []
free = lib.llama_free
lib.llama_free = lambda context: (freed.append(os.getpid()), free(context))
llm = Engine.load(n_ctx=512, n_sequences=4, n_threads=1, preflight=False, isolated={isolated})
pinned = llm.pin([{{"role": "system", "content": "Be kind."}}])
stream = llm.stream("one two three", ignore_eos=True)
other, third = llm.stream("four", ignore_eos=True), llm.stream("five", ignore_eos=True)
events = iter(stream)
next(events)

def read():
    for _ in events: pass

async def read_async():
    async for _ in third: pass

async def wait():
    await third

calls = {{
    "chat": lambda: llm.chat("x"),
    "stream": lambda: llm.stream("x"),
    "choices": lambda: llm.choices("x", 2),
    "generate": lambda: llm.generate(["x"]),
    "complete": lambda: llm.complete("x"),
    "run": lambda: llm.run("x"),
    "achat": lambda: asyncio.run(llm.achat("x")),
    "pin": lambda: llm.pin([{{"role": "system", "content": "x"}}]),
    "render": lambda: llm.render("x"),
    "explain": lambda: llm.explain("x"),
    "tokenize": lambda: llm.tokenize("x"),
    "detokenize": lambda: llm.detokenize([5]),
    "for": read,
    "result": lambda: other.result(),
    "async for": lambda: asyncio.run(read_async()),
    "await": lambda: asyncio.run(wait()),
}}
child = os.fork()
if not child:
    signal.alarm(100)
    wrong = []
    for name, call in calls.items():
        try:
            call()
            wrong.append(name)
        except EngineError as error:
            if "fork" not in str(error):
                wrong.append(f"{{name}}: {{error}}")
        except BaseException as error:
            wrong.append(f"{{name}}: {{error!r}}")
    stream.cancel()
    pinned.release()
    llm.close()
    if os.getpid() in freed:
        wrong.append("a context of the parent was freed")
    try:
        with Engine.load(n_ctx=256, n_threads=1, preflight=False) as mine:
            if not mine.chat("Hello!", temperature=0).content:
                wrong.append("an engine of its own")
    except EngineError as error:  # a GPU's driver does not survive a fork
        if not library().llama_supports_gpu_offload():
            wrong.append(str(error))
    print(*wrong, sep="\\n", flush=True)
    sys.exit(len(wrong))
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
stream.cancel()
assert llm.chat("Hello!", temperature=0).content == "Hello! How can I help?"
pinned.release()
sys.exit(status)
"""


@pytest.mark.parametrize("isolated", [False, True])
def test_a_fork_is_told_that_the_engine_is_not_its_own(isolated: bool) -> None:
    """Every call raises EngineError there at once, reading a stream that was open too; the parent goes on."""
    code = FORK.format(isolated=isolated)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stdout + done.stderr[-3000:]


SOME = ("the script ends", "SIGTERM twice", "Ctrl-C", "daemon threads begin turns", "daemon threads tokenise")


@pytest.mark.parametrize("name", SOME)
def test_a_process_ends_with_streams_open(name: str) -> None:
    assert ended(HERE, SCRIPTS[name], seed=1) == ""
