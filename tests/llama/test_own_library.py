"""A library of the caller's own, right and wrong in every way that was thought of: it is tried in a child process, and
refused by name.

Wrong ones are made with a C compiler: small libraries that stand before the real one, whose other functions they have
by linking to it.
"""

import ctypes
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.llama import own_library
from engine.llama.lib import library
from engine.llama.own_library import VARIABLE, chosen, difference, try_in_child
from engine.support.errors import EngineError

COMPILER = shutil.which("cc") or shutil.which("gcc")
STRUCTURES = {
    "llama_model_params": "llama_model_default_params",
    "llama_context_params": "llama_context_default_params",
}
SHIFTED = """
#define llama_context_default_params declared
#include "llama.h"
#undef llama_context_default_params
struct shifted { uint32_t new_field; struct llama_context_params rest; };
struct shifted llama_context_default_params(void) {
    struct shifted params = { 7, { .n_ctx = 512, .n_batch = 2048, .n_ubatch = 512 } };
    return params;
}
"""
LONGER = """
#include <stdint.h>
#include <string.h>
#define llama_model_default_params declared
#include "llama.h"
#undef llama_model_default_params
struct longer { struct llama_model_params known; uint64_t new_field; };
struct longer llama_model_default_params(void) {
    struct longer params;
    memset(&params, 0, sizeof params);
    params.known.n_gpu_layers = -1;
    params.known.split_mode = 1;
    params.known.load_mode = -1;
    params.known.lazy_mode = 1;
    params.known.use_extra_bufts = 1;
    params.new_field = 0;
    return params;
}
"""
UNSEEN = {
    "llama_model_params": [
        *("c_bool at 6", "c_int at 6", "c_float at 6"),  # main_gpu moves into the padding behind it
        *("c_bool at 14", "c_bool at 15", "c_bool at 16"),  # before no_host, no_alloc and load_mtp
        *("without no_host", "without no_alloc", "without load_mtp"),
    ],
    "llama_context_params": ["c_bool at 33", "without kv_unified"],
}
"""Changes that move nothing but fields of a default of 0, and those within padding: no default shows them."""
LACKING = "long llama_max_devices(void) { return 1; }"
DEADLY = "#include <stdlib.h>\n__attribute__((constructor)) static void die(void) { abort(); }"
LATE = "#include <unistd.h>\n__attribute__((constructor)) static void wait(void) { sleep(600); }"
USED = """
import json
from engine.llama import lib
from engine import Engine
with Engine.load(n_ctx=512) as llm:
    answer = llm.chat("What is 127 times 46?", temperature=0, max_tokens=8).usage.completion_tokens
print(json.dumps([str(lib.library_path()), answer]))
"""
REFUSED = """
import sys
from engine import Engine, EngineError
try:
    Engine.load(preflight=sys.argv[1] == "on")
except EngineError as error:
    print(error)
print("llama_cpp" in sys.modules)
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the names and the making of libraries are Linux's")


def installed() -> Path:
    spec = find_spec("llama_cpp")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "lib"


def compiled(folder: Path, code: str, *, complete: bool = True) -> Path:
    """A folder whose libllama.so is made from this code; `complete`: with the real one's functions behind it."""
    if COMPILER is None or "LLAMA_CPP_TEMPLATES" not in os.environ:
        pytest.skip("needs a C compiler, and LLAMA_CPP_TEMPLATES to name llama.cpp's models/templates")
    source = Path(os.environ["LLAMA_CPP_TEMPLATES"]).resolve().parents[1]
    (folder / "own.c").write_text(code, encoding="utf-8")
    real = [f"-L{installed()}", "-Wl,--no-as-needed", "-lllama", f"-Wl,-rpath,{installed()}"] if complete else []
    includes = [f"-I{source / part}" for part in ("include", "ggml/include")]
    subprocess.run(
        [COMPILER, "-shared", "-fPIC", "-w", "-o", "libllama.so", "own.c", *includes, *real], cwd=folder, check=True
    )
    return folder


def tried(monkeypatch: pytest.MonkeyPatch, folder: Path | str) -> None:
    monkeypatch.setenv(VARIABLE, str(folder))
    own = chosen()
    assert own is not None
    try_in_child(own)


def run(script: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, VARIABLE: str(folder)}
    return subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, env=env, timeout=300, check=False
    )


def test_a_copy_of_the_right_library_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "lib"
    shutil.copytree(installed(), folder)
    tried(monkeypatch, folder)
    (folder / "libllama.so").unlink()  # as wheels and distributions have it
    done = run(USED, folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [str(folder / "libllama.so.0"), 8]


@pytest.mark.parametrize("preflight", ["on", "off"])
def test_a_wrong_library_never_reaches_this_process(tmp_path: Path, preflight: str) -> None:
    done = run(REFUSED, compiled(tmp_path, DEADLY), preflight)
    assert done.returncode == 0, done.stderr
    told, imported = done.stdout.splitlines()
    assert "died by SIGABRT" in told
    assert str(tmp_path / "libllama.so") in told
    assert f"Unset {VARIABLE}" in told
    assert imported == "False"


@pytest.mark.parametrize(
    ("code", "complete", "said"),
    [
        pytest.param(LACKING, False, "undefined symbol: llama_", id="lacks functions"),
        pytest.param(SHIFTED, True, "llama_context_params.n_ctx is 7 where llama_cpp looks for it", id="shifted"),
        pytest.param(
            LONGER, True, "llama_model_params has 8[0-9] bytes or more, but llama_cpp knows only 80", id="longer"
        ),
    ],
)
def test_what_is_another_library_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, said: str, *, complete: bool
) -> None:
    folder = compiled(tmp_path, code, complete=complete)
    with pytest.raises(EngineError, match=rf"{folder}.*is not used: .*{said}.*Unset {VARIABLE}"):
        tried(monkeypatch, folder)


def test_one_that_does_not_come_to_an_end_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(own_library, "_SECONDS", 2.0)
    folder, begun = compiled(tmp_path, LATE), time.monotonic()
    with pytest.raises(EngineError, match=r"did not finish within 2 seconds.*Unset"):
        tried(monkeypatch, folder)
    assert time.monotonic() - begun < 60


def test_what_is_no_library_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "libllama.so").write_text("no library", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    cases = {
        tmp_path / "text": "file too short|invalid ELF header",
        tmp_path / "text" / "libllama.so": "is a file; name the folder",
        tmp_path / "empty": "contains no libllama.so or libllama.so.0",
        tmp_path / "missing": "is not a readable folder",
        "": "is not a readable folder",
    }
    for folder, said in cases.items():
        with pytest.raises(EngineError, match=rf"(?s){VARIABLE}.*({said}).*Unset {VARIABLE}"):
            tried(monkeypatch, folder)


def test_without_a_compiled_library_the_error_says_what_to_do(tmp_path: Path) -> None:
    shutil.copytree(installed().parent, tmp_path / "llama_cpp", ignore=shutil.ignore_patterns("lib", "__pycache__"))
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{REFUSED}"
    env = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", script, "off"], capture_output=True, text=True, env=env, timeout=300, check=False
    )
    assert f"let {VARIABLE} name the folder" in done.stdout, done.stdout + done.stderr


class Changed:
    """llama_cpp's module over a library in which one structure has other fields: `fields`, in C's order."""

    def __init__(self, structure: str, fields: list[tuple[str, Any]], values: Mapping[str, object]) -> None:
        real = library()
        built: Any = type(structure, (ctypes.Structure,), {"_fields_": fields})()
        for name, value in values.items():
            if name in dict(fields):
                setattr(built, name, value)
        self._function, self._data = STRUCTURES[structure], bytes(built)
        declared = {name: SimpleNamespace(restype=getattr(real, name).restype) for name in STRUCTURES.values()}
        declared["llama_init_from_model"] = SimpleNamespace(argtypes=[ctypes.c_void_p, real.llama_context_params])
        same = ("_lib", "llama_batch_init", "llama_batch_free")
        self.module = SimpleNamespace(
            llama_context_params=real.llama_context_params, **declared, **{name: getattr(real, name) for name in same}
        )

    def difference(self, monkeypatch: pytest.MonkeyPatch) -> str | None:
        """What is found, where the function returns what it would with these fields."""
        returned = own_library._returned  # pyright: ignore[reportPrivateUsage]

        def changed(lib: Any, function: str) -> bytes:
            return self._data.ljust(4096, b"\xa5") if function == self._function else returned(lib, function)

        with monkeypatch.context() as patch:
            patch.setattr(own_library, "_returned", changed)
            return difference(self.module)


def changes(structure: Any) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """Each way to insert one field, with the types that llama.cpp uses, and to leave one out."""
    fields = list(structure._fields_)
    for place in range(len(fields) + 1):
        for kind in (ctypes.c_bool, ctypes.c_int32, ctypes.c_float, ctypes.c_size_t, ctypes.c_void_p):
            yield f"{kind.__name__} at {place}", [*fields[:place], ("new_field", kind), *fields[place:]]
    for place in range(len(fields)):
        yield f"without {fields[place][0]}", [*fields[:place], *fields[place + 1 :]]


@pytest.mark.parametrize("name", STRUCTURES)
def test_each_field_that_is_inserted_or_left_out_is_seen(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    structure = getattr(library(), name)
    defaults = own_library._DEFAULTS[STRUCTURES[name]]  # pyright: ignore[reportPrivateUsage]
    seen, harmless, unseen = 0, 0, list[str]()
    for about, fields in changes(structure):
        built: Any = type(name, (ctypes.Structure,), {"_fields_": fields})
        kept = dict(fields)
        same = ctypes.sizeof(built) == ctypes.sizeof(structure) and all(
            other in kept and getattr(built, other).offset == getattr(structure, other).offset
            for other, *_ in structure._fields_
        )
        found = Changed(name, fields, dict(defaults)).difference(monkeypatch)
        if same:  # in what was padding: everything that llama_cpp knows is where it was
            harmless += 1
            assert found is None, about
        elif found:
            seen += 1
        else:
            unseen.append(about)
    assert (unseen, seen > 90, harmless < 5) == (UNSEEN[name], True, True)


def test_a_default_that_is_another_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = random.Random(1)
    for name, function in STRUCTURES.items():
        structure = getattr(library(), name)
        defaults = dict(own_library._DEFAULTS[function])  # pyright: ignore[reportPrivateUsage]
        for field, kind in structure._fields_:
            if kind in (ctypes.c_bool, ctypes.c_int32, ctypes.c_uint32, ctypes.c_float):
                other = not defaults.get(field) if kind is ctypes.c_bool else numbers.randrange(10, 99)
                found = Changed(name, list(structure._fields_), {**defaults, field: other}).difference(monkeypatch)
                assert found, field
                assert f"{name}.{field} is {other}" in found


def test_the_library_that_is_installed_has_no_difference() -> None:
    assert difference(library()) is None
