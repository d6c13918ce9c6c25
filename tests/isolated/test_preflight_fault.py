"""The preflight against a native fault that really ends processes.

The fault that the preflight exists for needs a CPU with AMX and a build by gcc 12; `TestThisMachinesOwn` meets it so.
`native/faulty_buffer.cpp` makes its like on any Linux: preloaded, it gives llama.cpp a place for repacked weights whose
matrix products end the process as soon as a batch has several rows. Everything else is the stock library. That needs a
C++ compiler and llama.cpp's source tree, found beside the templates that LLAMA_CPP_TEMPLATES names.
"""

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine.isolated import preflight
from engine.runtime.loop.config import AMX_VARIABLE, ContextOptions, ModelOptions

TEMPLATES = os.environ.get("LLAMA_CPP_TEMPLATES", "")
COMPILER = shutil.which("g++") or shutil.which("c++")
CONFIGURED = 0x1122334455667788
LOADED = """
import sys
from engine import Engine
with Engine.load(n_ctx=512, n_threads=1, n_threads_batch=1, preflight=sys.argv[1] == "on") as llm:
    print(llm.chat("Who are you?", temperature=0, max_tokens=60).content)
"""
ADOPTED = """
import sys
from llama_cpp import Llama
from engine import Engine, EngineError
from engine.support import _data
llama = Llama(str(_data.builtin_model()), n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False)
try:
    llm = Engine.from_llama(llama, preflight=sys.argv[1] == "on")
except EngineError as error:
    print("refused:", error)
else:
    print(llm.chat("Who are you?", temperature=0, max_tokens=60).content)
"""
LAYOUTS = """
from itertools import takewhile
from engine.llama.amx import _layouts, leave_out_amx
from engine.llama.lib import library
layouts, name = _layouts(library()._lib)
names = lambda: [name(each).decode() for each in takewhile(bool, layouts)]
print(names())
leave_out_amx(library()._lib)
leave_out_amx(library()._lib)
print(names())
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fault is one of Linux builds, and preloaded")


@pytest.fixture(scope="module")
def fault(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not TEMPLATES or COMPILER is None:
        pytest.skip("needs a C++ compiler, and LLAMA_CPP_TEMPLATES to name llama.cpp's models/templates")
    source, library = Path(TEMPLATES).resolve().parents[1], tmp_path_factory.mktemp("native") / "faulty.so"
    folders = [f"-I{source / folder}" for folder in ("ggml/include", "ggml/src", "ggml/src/ggml-cpu")]
    code = Path(__file__).with_name("faulty_buffer.cpp")
    subprocess.run(
        [COMPILER, "-std=c++17", "-shared", "-fPIC", "-w", "-o", str(library), str(code), *folders, "-ldl"], check=True
    )
    return library


def ask(
    script: str, checked: str, cache: Path, fault: Path | None = None, *, variable: str = ""
) -> subprocess.CompletedProcess[str]:
    """A question to the built-in model in a process of its own, with the preflight "on" or "off"."""
    env = {**os.environ, "LLAMA_ENGINE_CACHE": str(cache), AMX_VARIABLE: variable}
    if fault is not None:
        env["LD_PRELOAD"] = str(fault)
    return subprocess.run(
        [sys.executable, "-c", script, checked], capture_output=True, text=True, env=env, timeout=300, check=False
    )


def test_where_the_build_faults_the_model_answers(fault: Path, tmp_path: Path) -> None:
    done = ask(LOADED, "on", tmp_path, fault)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "died by SIGILL" in done.stderr
    assert re.search("-fno-dse|-U__AMX_INT8__", done.stderr)
    again = ask(LOADED, "on", tmp_path, fault)  # from the record
    assert (again.returncode, again.stdout, again.stderr) == (0, done.stdout, ""), "told once"


def test_without_the_preflight_it_dies(fault: Path, tmp_path: Path) -> None:
    done = ask(LOADED, "off", tmp_path, fault)
    assert done.returncode == -signal.SIGILL
    assert done.stdout == ""


def test_amx_is_left_out_alone(fault: Path, tmp_path: Path) -> None:
    """Other layouts than AMX's stay, in their order; where there is no AMX, nothing changes."""
    assert ask(LAYOUTS, "", tmp_path, fault).stdout == "['AMX', 'CPU_REPACK']\n['CPU_REPACK']\n"
    assert ask(LAYOUTS, "", tmp_path, fault, variable="0").stdout == "['CPU_REPACK']\n['CPU_REPACK']\n"


def test_the_variable_leaves_amx_out_without_a_word(fault: Path, tmp_path: Path) -> None:
    for checked in ("on", "off"):
        done = ask(LOADED, checked, tmp_path, fault, variable="0")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.strip()
    adopted = ask(ADOPTED, "on", tmp_path, fault, variable="0")
    assert adopted.stdout.startswith("refused: "), "the Llama was loaded before the variable was read"
    first = "from engine.llama.lib import library\nlibrary()\n" + ADOPTED
    assert ask(first, "on", tmp_path, fault, variable="0").stdout.strip()
    assert not ask(first, "on", tmp_path, fault, variable="0").stdout.startswith("refused: ")


def test_weights_that_are_loaded_already_are_refused(fault: Path, tmp_path: Path) -> None:
    done = ask(ADOPTED, "on", tmp_path, fault)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("refused: ")
    assert "load the file with Engine.load" in done.stdout
    assert ask(ADOPTED, "off", tmp_path, fault).returncode == -signal.SIGILL


class TestThisMachinesOwn:
    @pytest.fixture(autouse=True)
    def faults_here(self, own_cache: Path) -> None:
        if preflight.examine(ModelOptions(amx=True), ContextOptions()).remedy != "amx":
            pytest.skip("this build of llama.cpp works on this CPU")

    def test_the_model_answers(self, tmp_path: Path) -> None:
        done = ask(LOADED, "on", tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()
        assert re.search("-fno-dse|-U__AMX_INT8__", done.stderr)

    def test_without_the_preflight_it_dies(self, tmp_path: Path) -> None:
        done = ask(LOADED, "off", tmp_path)
        assert -done.returncode in (signal.SIGILL, signal.SIGSEGV)
        assert done.stdout == ""

    def test_weights_that_are_loaded_already_are_refused(self, tmp_path: Path) -> None:
        assert ask(ADOPTED, "on", tmp_path).stdout.startswith("refused: ")


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="tiles are Intel's")
def test_the_cure_keeps_the_tile_configuration(tmp_path: Path) -> None:
    """Of the 64 bytes that `ldtilecfg` reads, gcc 12 stores 8 unless it is told to keep dead stores."""
    version = preflight.gcc_version()
    line = preflight.rebuild_command(cure_amx=True, windows=False)
    flags = re.search('CXXFLAGS="(.*?)"', line)
    if version is None or version < 11 or flags is None or COMPILER is None:
        pytest.skip("no gcc that knows tiles")
    source = tmp_path / "tiles.cpp"
    source.write_text(
        "#include <immintrin.h>\n"
        f"void set() {{ unsigned long long tiles[8] = {{1, 0, 0, 0, 0, 0, {CONFIGURED}ULL, 0}};\n"
        "    _tile_loadconfig(tiles); }\n",
        encoding="utf-8",
    )
    assert str(CONFIGURED) in assembly(source, *flags[1].split())
    if version <= 12:
        assert str(CONFIGURED) not in assembly(source)


def assembly(source: Path, *flags: str) -> str:
    """What the compiler makes of it, optimised as llama.cpp is."""
    assert COMPILER is not None, "the caller has looked"
    command = [COMPILER, "-O3", "-mamx-tile", *flags, "-S", "-o", "-", str(source)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
