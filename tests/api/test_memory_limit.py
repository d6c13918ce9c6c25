"""A process whose address space is limited: what is planned fits into it, and what does not is refused, not killed."""

import subprocess
import sys
from pathlib import Path

import pytest
from files import model_files

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of address space")

CHILD = """
import resource, sys
import numpy  # its own threads take address space
from engine import ContextOverflowError, Engine, ModelLoadError
from engine.llama.lib import library
library()
status = open("/proc/self/status").read()
taken = int(status.partition("VmSize:")[2].split()[0]) << 10
limit = taken + (256 << 20) + (int(sys.argv[2]) << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
options = {"kv_unified": False, "n_threads": 1, "n_threads_batch": 1, "preflight": False, "trust_template": True}
if sys.argv[3:] == ["--unchecked"]:
    Engine.load(sys.argv[1], n_ctx=65536, n_sequences=4, check_memory=False, **options)
    print("loaded")
    raise SystemExit
wanted = {"n_ctx": 65536, "n_sequences": 4} if sys.argv[3:] else {}
try:
    with Engine.load(sys.argv[1], **wanted, **options) as llm:
        done = llm.complete([5] * 1000, max_tokens=4, ignore_eos=True, temperature=0)
        print(llm.n_ctx, llm.inspect().n_sequences, done.usage.completion_tokens)
except (ContextOverflowError, ModelLoadError) as error:
    print("refused:", error)
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """10 KiB of cache for each token: 320 MiB for four conversations of 8,192."""
    shape = model_files.Shape(n_embd=256, n_ff=512, n_layer=10, n_head=4, n_head_kv=4, n_ctx=1 << 17)
    return model_files.write(tmp_path_factory.mktemp("limit") / "m.gguf", shape=shape)


def run(path: Path, mib: int, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CHILD, str(path), str(mib), *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_plan_fits_into_a_limited_address_space(path: Path) -> None:
    done = run(path, 250)
    assert done.returncode == 0, done.stderr
    n_ctx, n_sequences, tokens = map(int, done.stdout.split())
    assert (n_ctx, tokens) == (8192, 4)
    assert n_sequences < 4


def test_what_was_asked_for_and_does_not_fit_is_refused(path: Path) -> None:
    done = run(path, 250, "--large")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("refused: n_ctx=65,536 with n_sequences=4 needs about")


@pytest.mark.parametrize("more", [[], ["--large"]])
def test_weights_beyond_a_limited_address_space_are_refused(path: Path, more: list[str]) -> None:
    done = run(path, 10, *more)
    assert done.returncode == 0, done.stderr
    assert "MiB for its weights" in done.stdout


def test_unchecked_the_limit_is_met(path: Path) -> None:
    """That the others would fail without the plan: what they are refused cannot be had."""
    done = run(path, 250, "--unchecked")
    assert done.returncode != 0
    assert "loaded" not in done.stdout
