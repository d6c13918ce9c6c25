"""The only importer of llama_cpp: its low-level functions, facts about the library, its log and its return codes.

Nothing is printed unless the user configures logging: the logger "engine.llama" has a NullHandler, which keeps Python
from printing warnings by itself.
"""

import atexit
import ctypes
import logging
import os
import re
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import Any

from engine.llama.amx import leave_out_amx
from engine.llama.own_library import (
    TESTED_VERSION,
    VARIABLE,
    OwnLibrary,
    chosen,
    difference,
    try_in_child,
)
from engine.runtime.loop.backend import ContextInfo
from engine.runtime.loop.config import amx_wanted
from engine.runtime.stream.process import OwnerProcess
from engine.support.child import ChildNotStartedError, ends, write_frame
from engine.support.errors import ContextOverflowError, DecodeError, EngineError, RequestError
from engine.support.warning import warn

LOGGER = logging.getLogger("engine.llama")
LOGGER.addHandler(logging.NullHandler())

# enum ggml_log_level (ggml.h). llama.cpp logs hundreds of details at its INFO level; here they are DEBUG.
_LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.WARNING, 4: logging.ERROR}
_CONTINUE = 5
# A full cache is an expected result of llama_decode: the engine makes room and tries again.
_ORDINARY = (
    b"failed to find a memory slot",  # it looks for one in another place
    b" attribute to USER_DEFINED (16)",  # gpt-oss's markers, in each vocabulary that has them
    b"special_eog_ids contains both",  # likewise
    b"possible training context overflow",  # of a pool: the engine warns by itself
)


class _Lines:
    """Joins the parts of log lines; a line ends with a newline, or when another begins. Keeps the last errors."""

    def __init__(self) -> None:
        self.errors: deque[str] = deque(maxlen=6)
        self._level = logging.DEBUG
        self._parts: list[str] = []

    def write(self, ggml_level: int, text: bytes | None, _user_data: object) -> None:
        """The C callback. Must not raise: ctypes would print the error."""
        if ggml_level != _CONTINUE:
            if self._parts:
                self._flush()
            self._level = _LEVELS.get(ggml_level, logging.DEBUG)
            if self._level == logging.WARNING and text and any(known in text for known in _ORDINARY):
                self._level = logging.DEBUG
        if not text or (self._level < logging.ERROR and not LOGGER.isEnabledFor(self._level)):
            return
        self._parts.append(text.decode("utf-8", "replace"))
        if text.endswith(b"\n"):
            self._flush()

    def _flush(self) -> None:
        line = "".join(self._parts).rstrip()
        self._parts.clear()
        if not line:
            return
        if self._level >= logging.ERROR:
            self.errors.append(line)
        LOGGER.log(self._level, "%s", line)


_lines = _Lines()
# C keeps this pointer for as long as the process lives, so the object must too: hence a module-level constant.
CALLBACK: Any = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(_lines.write)


def forget_errors() -> None:
    """Clear the logged errors, before an operation whose failure the next ones will explain."""
    _lines.errors.clear()
    if hasattr(sys.modules.get("llama_cpp"), "__version__"):  # its last line: the package has run
        _take_log()


@cache
def _take_log() -> None:
    """Take llama.cpp's log back from the package llama_cpp, which takes it when it is imported."""
    library().llama_log_set(CALLBACK, None)


def last_errors() -> str:
    """Returns the last errors that llama.cpp logged, on one line; "" if there are none."""
    return "; ".join(_lines.errors)


@cache
def library() -> Any:
    """Returns the module `llama_cpp.llama_cpp` (its ctypes functions are untyped, hence Any). A library that
    `LLAMA_CPP_LIB_PATH` names is loaded by a child process first.

    Raises EngineError if it cannot be loaded, or is not the llama.cpp that llama_cpp describes.
    """
    return load(tried())


@cache
def mtmd() -> Any:
    """Returns the module `llama_cpp.mtmd_cpp`, which reads pictures and sounds. Raises EngineError if its library
    cannot be loaded."""
    own, _ = tried(), library()
    if own is not None:  # libllama must be the same for both
        os.environ.setdefault("MTMD_CPP_LIB", str(own.path.parent))
    try:
        module: Any = import_module("llama_cpp.mtmd_cpp")
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        beside = f" It must lie beside {own.path}." if own is not None else ""
        raise EngineError(
            f"libmtmd, which reads pictures and sounds, cannot be loaded ({error}).{beside} Leave projector out, or "
            f"install llama-cpp-python=={TESTED_VERSION} again."
        ) from error
    _take_log()
    module.mtmd_log_set(CALLBACK, None)
    return module


@cache
def tried() -> OwnLibrary | None:
    """Returns the library that `LLAMA_CPP_LIB_PATH` names, after a child process has loaded it; None if it is not set.

    Warns (`EngineWarning`) if no child can be started. Raises EngineError if the library must not be used.
    """
    own = chosen()
    if own is not None:
        try:
            try_in_child(own)
        except ChildNotStartedError as error:
            told = f"The library {own.path} is loaded without having been tried in a child process first: {error}"
            warn(told)
    return own


@cache
def may_have_used_amx() -> bool:
    """Whether a `llama_cpp.Llama` of this process may have its weights laid out for AMX: unless `LLAMA_ENGINE_AMX`
    forbids it, and nobody has imported llama_cpp before this was first asked."""
    return amx_wanted() or "llama_cpp" in sys.modules


@cache
def _home() -> OwnerProcess:
    """The process that loaded the library."""
    return OwnerProcess()


def check_devices() -> None:
    """Raise EngineError in a fork of the process that loaded the library, if that found a GPU: what drivers have set up
    does not survive a fork, and CUDA ends a process that goes on with it."""
    lib = library()
    if not _home().is_here and lib.llama_supports_gpu_offload():
        raise EngineError(
            "This process is a fork of one that had set up the GPU, which cannot be used after a fork. Load the first "
            'model after the fork, or start processes with multiprocessing.set_start_method("spawn").'
        )


def load(own: OwnLibrary | None) -> Any:
    """Import llama_cpp in this process, with a library of the caller's own or with the one that it was compiled with,
    and set it up. Raises what `library` raises."""
    _ = may_have_used_amx()
    module = _imported(own)
    if (version := library_version()) != TESTED_VERSION:
        LOGGER.warning(
            "llama-cpp-python %s is installed, but %s is the version tested; its structures change between releases, "
            "so if anything fails: pip install llama-cpp-python==%s",
            version,
            TESTED_VERSION,
            TESTED_VERSION,
        )
    atexit.register(_close_sinks)
    if own is not None and (why := difference(module)) is not None:
        raise own.refused(why)
    module.llama_log_set(CALLBACK, None)
    _ = _home()
    module.llama_backend_init()
    _load_backends(module, own)
    if not amx_wanted():
        leave_out_amx(module._lib)
    return module


def main() -> int:
    """In a child: load the library that the environment names, and reply with the error's message, or ""."""
    _, answers = ends()
    message = ""
    try:
        load(chosen())
    except EngineError as error:
        message = str(error)
    write_frame(answers, message.encode())
    return 0


def _imported(own: OwnLibrary | None) -> Any:
    """Returns llama_cpp's module of functions."""
    try:
        with own.named_for_import() if own else nullcontext():
            if "llama_cpp" not in sys.modules and (folders := _folders()):
                _ = _alone("llama_cpp._ctypes_extensions", folders)
                return _alone("llama_cpp.llama_cpp", folders)
            import llama_cpp.llama_cpp as lib
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        if own is not None and not isinstance(error, ImportError):
            raise own.refused(error) from error
        lacks = f" It holds no library: let {VARIABLE} name the folder of one, or compile it."
        raise EngineError(
            f"llama-cpp-python cannot be loaded ({error}).{lacks if isinstance(error, FileNotFoundError) else ''} To "
            f"install it: pip install --force-reinstall --no-cache-dir llama-cpp-python=={TESTED_VERSION}"
        ) from error
    return lib


def _folders() -> Sequence[str]:
    """Returns the folders of the package llama_cpp, which is not imported; none if there is no such package."""
    found = find_spec("llama_cpp")
    return (found and found.submodule_search_locations) or ()


def _alone(name: str, folders: Sequence[str]) -> Any:
    """Returns a module of llama_cpp without having run the package around it, which imports jinja2, a database of
    caches and more for its class Llama. A later `import llama_cpp` runs it, and finds this same module."""
    found = PathFinder.find_spec(name, folders)
    if found is None or found.loader is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return sys.modules.setdefault(name, module)  # whole, so that no other thread imports half of it


def _load_backends(module: Any, own: OwnLibrary | None) -> None:
    """Load the backends of a library that keeps them in separate files, one for each level of processor, say: llama.cpp
    looks for these next to the program, which is Python. Raises EngineError if there are none."""
    lib = module._lib
    if not hasattr(lib, "ggml_backend_dev_count") or lib.ggml_backend_dev_count():
        return
    folder = Path(lib._name).parent if own is None else own.path.parent
    if hasattr(lib, "ggml_backend_load_all_from_path"):
        prototype = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
        prototype(("ggml_backend_load_all_from_path", lib))(os.fsencode(folder))
    if not lib.ggml_backend_dev_count():
        why = f"it computes with backends, but {folder} has none that can be loaded"
        if own is not None:
            raise own.refused(why)
        raise EngineError(f"This build of llama-cpp-python cannot be used: {why}. Install it again.")


def _close_sinks() -> None:
    """Close the null device, which the package llama_cpp opens twice on import and never closes, to avoid a
    ResourceWarning at exit."""
    utilities = sys.modules.get("llama_cpp._utils")
    for name in ("outnull_file", "errnull_file"):
        if (sink := getattr(utilities, name, None)) is not None:
            sink.close()


@cache
def nextn() -> Any:
    """Returns the module of llama_cpp with the functions for hidden states, `llama_set_embeddings_nextn` and
    `llama_get_embeddings_nextn_ith`; None if it or the library lacks them: they are not in llama.h, and may change."""
    library()
    try:
        import llama_cpp.llama_cpp_ext as extension
    except (ImportError, AttributeError) as error:
        LOGGER.debug("There are no hidden states for a model's own head: %s", error)
        return None
    finally:
        _take_log()
    return extension


@cache
def brief(name: str, result: Any = None) -> Any:
    """Returns a function of the library that holds the GIL while it runs. `result`: its result type, if not as
    declared.

    For calls of microseconds: if another thread computes, releasing the GIL and taking it again costs up to the
    interpreter's switch interval (5 ms) each time. Never for functions that may wait for other threads.
    """
    lib = library()
    function = getattr(lib, name)
    return ctypes.PYFUNCTYPE(result or function.restype, *function.argtypes)((name, lib._lib))


@dataclass(frozen=True, slots=True)
class Device:
    """One device on which llama.cpp can compute. Memory in bytes, when it was queried."""

    name: str
    description: str
    is_gpu: bool
    memory_free: int
    memory_total: int


@dataclass(frozen=True, slots=True)
class LibraryFacts:
    """Facts about the installed llama.cpp, for `doctor`."""

    version: str
    path: Path
    system_info: str
    supports_gpu_offload: bool
    devices: tuple[Device, ...]


def facts() -> LibraryFacts:
    """Returns facts about the installed library. Loads it."""
    lib = library()
    return LibraryFacts(
        version=library_version(),
        path=library_path(),
        system_info=lib.llama_print_system_info().decode("utf-8", "replace").strip(),
        supports_gpu_offload=bool(lib.llama_supports_gpu_offload()),
        devices=devices(),
    )


_AMX = frozenset(("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"))
_AVX2 = frozenset(("Q4_0", "Q4_K", "IQ4_NL", "MXFP4"))
_ARM = frozenset(("Q4_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4", "Q8_0"))


@cache
def repacked_types() -> frozenset[str]:
    """Returns the tensor types that this build repacks for this CPU on load (ggml-cpu/repack.cpp,
    ggml-cpu/amx/common.h), according to the features that llama.cpp reports."""
    told = library().llama_print_system_info().decode("utf-8", "replace")
    found = {name.split()[-1] for name in told.split(" = 1")[:-1]}
    types = _AMX if "AMX_INT8" in found and amx_wanted() else frozenset[str]()
    if "REPACK" in found:
        types |= _AVX2 if "AVX2" in found else _ARM if found & {"DOTPROD", "MATMUL_INT8"} else frozenset()
        types |= {"Q2_K"} if "AVX512" in found else frozenset()
    return types


def library_version() -> str:
    """Returns the version of the installed llama-cpp-python, as the package's own file states it; "?" if none does."""
    if (package := sys.modules.get("llama_cpp")) is not None:
        return str(getattr(package, "__version__", "?"))
    found = find_spec("llama_cpp")
    text = Path(found.origin).read_text("utf-8") if found is not None and found.origin else ""
    stated = re.search(r'^__version__ = "(.+)"', text, re.MULTILINE)
    return stated[1] if stated else "?"


def library_path() -> Path:
    """Returns the path of the loaded shared library."""
    path = Path(library()._lib._name)
    own = tried()
    return own.path if own is not None else path


def devices(module: Any = None) -> tuple[Device, ...]:
    """Returns the devices that ggml found, including the CPU; empty if the library does not export the functions.
    `module`: llama_cpp's, while it is being set up."""
    try:
        count, get, kind, name, about, memory = _device_functions((module or library())._lib)
    except AttributeError:
        return ()
    found: list[Device] = []
    for index in range(count()):
        device = get(index)
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        memory(device, ctypes.byref(free), ctypes.byref(total))
        texts = [function(device).decode("utf-8", "replace") for function in (name, about)]
        # enum ggml_backend_dev_type: 0 CPU, 1 GPU, 2 integrated GPU, 3 accelerator
        found.append(Device(texts[0], texts[1], kind(device) in (1, 2), free.value, total.value))
    return tuple(found)


def _device_functions(dll: Any) -> tuple[Any, ...]:
    """Bind functions of ggml-backend.h, which llama-cpp-python does not; libllama's handle also resolves symbols of its
    dependencies."""
    size_p = ctypes.POINTER(ctypes.c_size_t)
    table: list[tuple[str, list[Any], Any]] = [
        ("ggml_backend_dev_count", [], ctypes.c_size_t),
        ("ggml_backend_dev_get", [ctypes.c_size_t], ctypes.c_void_p),
        ("ggml_backend_dev_type", [ctypes.c_void_p], ctypes.c_int),
        ("ggml_backend_dev_name", [ctypes.c_void_p], ctypes.c_char_p),
        ("ggml_backend_dev_description", [ctypes.c_void_p], ctypes.c_char_p),
        ("ggml_backend_dev_memory", [ctypes.c_void_p, size_p, size_p], None),
    ]
    return tuple(ctypes.CFUNCTYPE(result, *arguments)((symbol, dll)) for symbol, arguments, result in table)


def init_error(n_ctx: int) -> EngineError:
    """Returns the error for a context that could not be made."""
    said = last_errors() or "no reason given"
    if "alloc" in said:
        return ContextOverflowError(
            f"llama.cpp could not allocate a context of {n_ctx:,} tokens ({said}); pass a smaller n_ctx or n_batch, or "
            "offload fewer layers."
        )
    return RequestError(f"llama.cpp could not make a context with these options ({said}); change what it names.")


def decode_error(code: int, rows: int, info: ContextInfo) -> DecodeError:
    """Returns the error for a return code of llama_decode."""
    if code == 1:  # no row was evaluated then
        return DecodeError(
            f"The KV cache of {info.cells:,} tokens has no room for {rows} more; end or trim a sequence, or load with "
            f"a larger {'kv_tokens' if info.kv_tokens else 'n_ctx'}=.",
            "no_slot",
        )
    if code == 2:
        return DecodeError(f"A decode of {rows} rows was aborted.", "aborted")
    said = last_errors() or "no reason given"
    if code == -1:
        return DecodeError(f"llama.cpp rejected a batch of {rows} rows ({said}).", "invalid")
    return DecodeError(
        f"llama.cpp failed with code {code} on a batch of {rows} rows ({said}); if it goes on, run "
        "`llama-engine doctor`."
    )
