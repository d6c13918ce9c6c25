"""Saved states that somebody changed, under a right digest, restored in an engine of a process of its own."""

import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[3]
_SECONDS = 300
_WORDS = (0, 1, 2, 7, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)  # what a count or a position may be written as
_HEAD = 400
"""Bytes at the beginning, where counts and positions stand."""


@dataclass
class Outcome:
    """What became of forged states; `died` is how the process did, if it did."""

    refused: int = 0
    restored: int = 0
    wrong: tuple[str, ...] = ()
    died: str = ""


def mutants(state: bytes, rng: random.Random, count: int) -> Iterator[bytes]:
    """States like this one: cut, lengthened, with other bytes, and with other numbers where numbers stand."""
    for number in range(count):
        data = bytearray(state)
        kind = number % 5
        if kind == 0:
            del data[rng.randrange(len(data)) :]
        elif kind == 1:
            at = 4 * rng.randrange(min(_HEAD, len(data)) // 4)
            data[at : at + 4] = rng.choice(_WORDS).to_bytes(4, "little")
        elif kind == 2:
            at = rng.randrange(min(_HEAD, len(data)))
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 3:
            at = rng.randrange(len(data))
            data[at:at] = rng.randbytes(rng.choice((1, 4, 8, 64)))
        else:
            for _ in range(rng.choice((1, 8))):
                at = rng.randrange(len(data))
                data[at : at + 4] = rng.choice((rng.randbytes(4), b"\xff\xff\xff\xff"))
        yield bytes(data)


def attack(model: Path, seed: int, count: int) -> Outcome:
    """Restore `count` changed states in a child; what it said, and how it ended."""
    order = json.dumps([str(model), seed, count])
    paths = os.pathsep.join((str(HERE), str(Path(__file__).parents[1])))
    code = "import sys; from attacks import forged_states; forged_states.child(*__import__('json').loads(sys.argv[1]))"
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONFAULTHANDLER": "1"}
    command = [sys.executable, "-P", "-c", code, order]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_SECONDS, env=environment, cwd="/"
        )
    except subprocess.TimeoutExpired:
        return Outcome(died="hung")
    if done.returncode:
        return Outcome(died=f"exit code {done.returncode}: {done.stderr.strip()[-1500:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return Outcome(found["refused"], found["restored"], tuple(found["wrong"]))


def child(model: str, seed: int, count: int) -> None:
    """In the child. A state that is taken must serve a turn or end it with an EngineError."""
    from engine import Engine, StateStore
    from engine.runtime.cache.state_file import Origin, SavedState, read_state
    from engine.support.errors import EngineError

    rng, refused, restored, wrong = random.Random(seed), 0, 0, list[str]()
    base: dict[str, Any] = {"n_ctx": 256, "n_sequences": 1, "n_threads": 1, "preflight": False}
    with tempfile.TemporaryDirectory() as directory:
        with Engine.load(model, states=StateStore(0, directory, 1 << 30), **base) as llm:
            tokens = llm.tokenize("one two three four five six " * 4, add_bos=True)
            llm.complete(tokens, temperature=0, max_tokens=1, ignore_eos=True)
        path = max(Path(directory).glob("*/*.state"), key=lambda each: each.stat().st_size)
        head = json.JSONDecoder().raw_decode(path.read_bytes().partition(b"\n")[2][4:].decode(errors="replace"))[0]
        origin = Origin(**head["origin"])
        saved = read_state(path, origin)
    store = StateStore()
    asked = [*saved.tokens, 5, 6]
    with Engine.load(model, states=store, **base) as llm:

        def cached(state: bytes) -> int:
            """Ask for what only this state holds; returns how much of the prompt came from it."""
            with contextlib.suppress(EngineError):
                llm.complete([9] * 200, max_tokens=1, ignore_eos=True)
            store.clear()
            store.put(origin, SavedState(saved.tokens, state))
            answer = llm.complete(asked, temperature=0, max_tokens=4, ignore_eos=True)
            assert answer.usage is not None
            return answer.usage.cached_tokens

        for number, state in enumerate(mutants(saved.state, rng, count)):
            try:
                if cached(state):
                    restored += 1
                else:
                    refused += 1
            except EngineError:
                restored += 1
            except BaseException as error:  # noqa: BLE001 - that is what is looked for
                wrong.append(f"mutant {number}: {type(error).__name__}: {str(error)[:200]}")
            if not cached(saved.state):
                wrong.append(f"after mutant {number} the whole state is not used")
    sys.stdout.write(json.dumps({"refused": refused, "restored": restored, "wrong": wrong}))
