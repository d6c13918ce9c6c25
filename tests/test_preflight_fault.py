"""The preflight against a native fault that really ends processes.

The fault that the preflight exists for needs a CPU with AMX. `native/faulty_buffer.cpp` makes its like on any Linux:
preloaded, it gives llama.cpp a place for repacked weights whose matrix products end the process as soon as a batch
has several rows. Everything else is the stock library. Needs a C++ compiler and llama.cpp's source tree, found beside
the templates that LLAMA_CPP_TEMPLATES names.
"""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

TEMPLATES = os.environ.get("LLAMA_CPP_TEMPLATES", "")
COMPILER = shutil.which("g++") or shutil.which("c++")
ASK = """
import sys
from engine import Engine
with Engine.load(n_ctx=512, n_threads=1, n_threads_batch=1, preflight=sys.argv[1] == "on") as llm:
    print(llm.chat("Who are you?", temperature=0, max_tokens=60).content)
"""

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the fault is preloaded with LD_PRELOAD"),
    pytest.mark.skipif(not TEMPLATES, reason="LLAMA_CPP_TEMPLATES does not name llama.cpp's models/templates"),
    pytest.mark.skipif(COMPILER is None, reason="no C++ compiler"),
]


@pytest.fixture(scope="module")
def fault(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, library = Path(TEMPLATES).resolve().parents[1], tmp_path_factory.mktemp("native") / "faulty.so"
    folders = [f"-I{source / folder}" for folder in ("ggml/include", "ggml/src", "ggml/src/ggml-cpu")]
    code = Path(__file__).parent / "native" / "faulty_buffer.cpp"
    subprocess.run(
        [COMPILER or "", "-std=c++17", "-shared", "-fPIC", "-w", "-o", str(library), str(code), *folders, "-ldl"],
        check=True,
    )
    return library


def ask(preflight: str, fault: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    """A question to the built-in model in a process of its own, in which the fault is preloaded."""
    env = {**os.environ, "LD_PRELOAD": str(fault), "LLAMA_ENGINE_CACHE": str(cache)}
    return subprocess.run(
        [sys.executable, "-c", ASK, preflight], capture_output=True, text=True, env=env, timeout=300, check=False
    )


def test_where_the_build_faults_the_model_answers(fault: Path, tmp_path: Path) -> None:
    done = ask("on", fault, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "died by SIGSEGV" in done.stderr
    assert "-U__AMX_INT8__" in done.stderr
    again = ask("on", fault, tmp_path)  # from the record, with the same advice
    assert again.returncode == 0
    assert "died by SIGSEGV" in again.stderr


def test_without_the_preflight_it_dies(fault: Path, tmp_path: Path) -> None:
    done = ask("off", fault, tmp_path)
    assert done.returncode == -signal.SIGSEGV
    assert done.stdout == ""
