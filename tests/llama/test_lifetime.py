"""The life of C objects: freed by the last of their users, in order when the interpreter ends, and used by nobody then.

Deaths at the end are counted by benchmarks/process_ends.py; what brings them about is told here without luck."""

import subprocess
import sys

import pytest

from engine.llama.lifetime import Shared
from engine.support.errors import EngineError

CLOSED = EngineError("The model is closed.")


def test_what_is_used_is_freed_by_its_last_user() -> None:
    freed: list[int] = []
    shared = Shared(7, freed.append)
    with shared as pointer, shared:
        shared.close(CLOSED)
        shared.close(EngineError("Twice."))
        assert (pointer, freed) == (7, [])
        with pytest.raises(EngineError, match="model is closed"), shared:
            pass
    assert freed == [7]
    unused = Shared(8, freed.append)
    unused.close(CLOSED)
    assert freed == [7, 8]


@pytest.mark.parametrize("first", ["lender", "borrower"])
def test_what_is_lent_is_freed_when_both_are_closed(first: str) -> None:
    freed: list[int] = []
    lender = Shared(7, freed.append)
    borrower = lender.lend()
    one, other = (lender, borrower) if first == "lender" else (borrower, lender)
    one.close(CLOSED)
    assert freed == []
    with other as pointer:
        other.close(CLOSED)
        assert (pointer, freed) == (7, [])
    assert freed == [7]
    with pytest.raises(EngineError, match="model is closed"):
        lender.lend()


def test_no_use_begins_once_the_interpreter_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shared, "_is_leaving", False)
    shared = Shared(7, print)
    Shared.leave()
    with pytest.raises(EngineError, match="takes no more calls"), shared:
        pass


FREED = """
import sys, threading
from engine import Engine
from engine.llama import context, sampling
from engine.llama.lib import library

def watched(what, free):
    def told(*args):
        others = [each for each in threading.enumerate() if each.name == "llama-engine"]
        under = any(each.is_alive() and each is not threading.current_thread() for each in others)
        print(what, "under the engine's thread" if under else "in order", flush=True)
        return free(*args)
    return told

sampling._free = watched("a sampler", sampling._free)
sampling._free_dry = watched("an original", sampling._free_dry)
lib = library()
lib.llama_free = watched("a context", lib.llama_free)
llm = Engine.load(n_ctx=512, n_sequences=2, n_threads=1, preflight=False)
streams = [llm.stream("one two three", ignore_eos=True, top_k=40, dry_multiplier=1.0) for _ in range(2)]
readers = [iter(stream) for stream in streams]
for reader in readers:
    next(reader)
"""


def test_nothing_is_freed_under_the_engines_thread_when_a_script_ends() -> None:
    done = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert set(done.stdout.splitlines()) >= {"a sampler in order", "a context in order"}
    assert "under" not in done.stdout, done.stdout
