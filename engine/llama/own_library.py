"""A library of the caller's own instead of llama-cpp-python's (`LLAMA_CPP_LIB_PATH`): found, and compared with
llama_cpp's structures.

llama_cpp describes llama.cpp's structures by hand, for one version of its headers; a field that only one side has
shifts those after it, and llama.cpp reads numbers as pointers. So the default parameters, whose values are known, must
be where llama_cpp has its fields, and nothing may be written behind the last one. This cannot detect fields of the same
default that swapped places, or one with default 0 that moved within padding.
"""

import ctypes
import os
import platform
import sys
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.support.child import Child, ChildGoneError, ChildNotStartedError
from engine.support.errors import EngineError

VARIABLE = "LLAMA_CPP_LIB_PATH"
TESTED_VERSION = "0.3.36"
WAY_OUT = (
    f"Unset {VARIABLE} to use the library that llama-cpp-python was compiled with, or let it name the folder of a "
    f"libllama that was built from the llama.cpp that llama-cpp-python {TESTED_VERSION} is written for."
)
_SECONDS = 60.0
_LONGEST_ANSWER = 1 << 16
_NAMES = {"darwin": ("libllama.so", "libllama.dylib"), "win32": ("llama.dll", "libllama.dll")}
"""The file names that llama_cpp looks for; on other systems libllama.so."""
_VERSIONED = "libllama.so.0"
"""Another name of the file in wheels and distributions, which llama_cpp does not look for."""
_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    # llama-model.cpp and llama-context.cpp, in the functions of these names. A field that is not listed is 0 or NULL.
    "llama_model_default_params": {
        "n_gpu_layers": -1,
        "split_mode": 1,
        "load_mode": -1,
        "lazy_mode": 1,
        "use_extra_bufts": True,
    },
    "llama_context_default_params": {
        "n_ctx": 512,
        "n_batch": 2048,
        "n_ubatch": 512,
        "n_seq_max": 1,
        "n_outputs_max_per_seq": 1,
        "n_threads": 4,
        "n_threads_batch": 4,
        "rope_scaling_type": -1,
        "pooling_type": -1,
        "attention_type": -1,
        "flash_attn_type": -1,
        "yarn_ext_factor": -1.0,
        "yarn_attn_factor": -1.0,
        "yarn_beta_fast": -1.0,
        "yarn_beta_slow": -1.0,
        "defrag_thold": -1.0,
        "type_k": 1,
        "type_v": 1,
        "offload_kqv": True,
        "no_perf": True,
        "op_offload": True,
        "swa_full": True,
    },
}
_ROOM = 4096  # bytes, more than any such structure has
_UNWRITTEN = 0xA5


@dataclass(frozen=True, slots=True)
class OwnLibrary:
    """The shared library in the folder that `LLAMA_CPP_LIB_PATH` names."""

    path: Path

    def refused(self, why: object) -> EngineError:
        """Returns the error for a library that is refused."""
        return EngineError(f"The library {self.path}, of {VARIABLE}, is not used: {why}. {WAY_OUT}")

    @contextmanager
    def named_for_import(self) -> Generator[None]:
        """Provide the library under a name that llama_cpp looks for, while that is imported. Raises OSError."""
        if self.path.name in _names():
            yield
            return
        # Loaded by its own path, it finds the libraries next to it; the loader then recognises the link as the same
        # file.
        ctypes.CDLL(str(self.path))
        before = os.environ[VARIABLE]
        with tempfile.TemporaryDirectory(prefix="llama-engine-") as folder:
            (Path(folder) / _names()[0]).symlink_to(self.path)
            os.environ[VARIABLE] = folder
            try:
                yield
            finally:
                os.environ[VARIABLE] = before


def chosen() -> OwnLibrary | None:
    """Returns the library that the environment names; None if the variable is not set. Raises EngineError if there is
    none in that folder."""
    named = os.environ.get(VARIABLE)
    if named is None:
        return None
    folder = Path(named)
    if not named or not folder.is_dir():
        what = "a file; name the folder that it is in" if folder.is_file() else "not a readable folder"
        raise EngineError(f'{VARIABLE}="{named}" is {what}. {WAY_OUT}')
    names = (*_names(), _VERSIONED) if sys.platform.startswith("linux") else _names()
    try:
        path = next((folder / name for name in names if (folder / name).is_file()), None)
        if path is not None:
            return OwnLibrary(path.resolve())
    except OSError as error:
        raise EngineError(f"{VARIABLE}={named} cannot be read ({error}). {WAY_OUT}") from error
    raise EngineError(f"{VARIABLE}={named} contains no {' or '.join(names)}. {WAY_OUT}")


def _names() -> tuple[str, ...]:
    return _NAMES.get(sys.platform, ("libllama.so",))


def try_in_child(own: OwnLibrary) -> None:
    """Let a child load the library and compare its structures. Raises EngineError if it must not be used or the child
    died, ChildNotStartedError if no child can be started."""
    child = Child("engine.llama.lib", "The child process that loaded it", "start Python by its own program")
    try:
        with child.within(_SECONDS):
            answer = child.receive(_LONGEST_ANSWER).decode(errors="replace")
    except ChildNotStartedError:
        raise
    except ChildGoneError as error:
        raise own.refused(str(error).rstrip(".")) from error
    finally:
        child.close()
    if answer:
        raise EngineError(answer)


def difference(lib: Any) -> str | None:
    """Returns the first difference between the library's structures and llama_cpp's; None if none is found."""
    for function, expected in _DEFAULTS.items():
        if found := _misplaced(lib, function, expected):
            return found
    batch = lib.llama_batch_init(1, 0, 1)
    filled = [name for name, *_ in batch._fields_ if getattr(batch, name)]
    if filled != ["token", "pos", "n_seq_id", "seq_id", "logits"]:
        return f"a new llama_batch has values in {', '.join(filled) or 'no field'}, which is another structure"
    lib.llama_batch_free(batch)
    return None


def _misplaced(lib: Any, function: str, expected: Mapping[str, object]) -> str | None:
    structure = getattr(lib, function).restype
    data = _returned(lib, function)
    params = structure.from_buffer_copy(data)
    for name, *_ in structure._fields_:
        value, default = getattr(params, name), expected.get(name)
        if (value != default) if default is not None else bool(value):
            shown = value if isinstance(value, bool | int | float) else "not NULL"
            return (
                f"{structure.__name__}.{name} is {shown} where llama_cpp looks for it, but llama.cpp's default is "
                f"{default or 0}, so the structure is a different one"
            )
    written = len(data.rstrip(bytes([_UNWRITTEN])))
    size = ctypes.sizeof(structure)
    if written > size:
        return f"{structure.__name__} has {written} bytes or more, but llama_cpp knows only {size}"
    return None


def _returned(lib: Any, function: str) -> bytes:
    """Returns the bytes of a function's result and anything written after it. On x86-64 a structure is returned through
    a pointer that the caller passes as first argument; elsewhere only the structure itself is examined."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return bytes(getattr(lib, function)())
    buffer = (ctypes.c_uint8 * _ROOM)(*([_UNWRITTEN] * _ROOM))
    ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)((function, lib._lib))(ctypes.addressof(buffer))
    return bytes(buffer)
