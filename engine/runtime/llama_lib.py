"""The only importer of llama_cpp: its low-level functions, ready for use, and facts about the library.

Knows: how the shared library is found and set up once per process (log routing, backend initialisation). Does not know:
models, contexts. llama_cpp is imported on the first call of `library`, never when this module is imported.
"""

import atexit
import ctypes
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from engine.errors import EngineError
from engine.runtime import llama_log

TESTED_VERSION = "0.3.36"
_log = logging.getLogger("engine.llama")


@cache
def library() -> Any:
    """The module `llama_cpp.llama_cpp` (its ctypes functions are untyped, hence Any). Raises EngineError when it
    cannot load."""
    try:
        import llama_cpp.llama_cpp as lib
        from llama_cpp import __version__ as version
    except (ImportError, OSError, RuntimeError) as error:
        raise EngineError(
            f"llama-cpp-python cannot be loaded ({error}); install it with: "
            f"pip install llama-cpp-python=={TESTED_VERSION}"
        ) from error
    if version != TESTED_VERSION:
        _log.warning(
            "llama-cpp-python %s is installed, but %s is the version tested; its structures change between releases, "
            "so if anything fails: pip install llama-cpp-python==%s",
            version,
            TESTED_VERSION,
            TESTED_VERSION,
        )
    atexit.register(_close_sinks)
    module: Any = lib
    module.llama_log_set(llama_log.CALLBACK, None)
    module.llama_backend_init()
    return module


def _close_sinks() -> None:
    """llama_cpp opens the null device twice when it is imported, and never closes it: a ResourceWarning at the end."""
    from llama_cpp import _utils

    for name in ("outnull_file", "errnull_file"):
        if (sink := getattr(_utils, name, None)) is not None:
            sink.close()


@cache
def brief(name: str, result: Any = None) -> Any:
    """A function of the library that keeps Python's lock while it runs. `result`: its type, if not as declared.

    For calls of microseconds: giving the lock up and waiting for it again costs up to the interpreter's switch interval
    (5 ms) each time when another thread computes. Never for what may wait for other threads.
    """
    lib = library()
    function = getattr(lib, name)
    return ctypes.PYFUNCTYPE(result or function.restype, *function.argtypes)((name, lib._lib))


@dataclass(frozen=True, slots=True)
class Device:
    """One device that llama.cpp can compute on. Memory in bytes, at the time of asking."""

    name: str
    description: str
    is_gpu: bool
    memory_free: int
    memory_total: int


@dataclass(frozen=True, slots=True)
class LibraryFacts:
    """What `doctor` tells about the installed llama.cpp."""

    version: str
    path: Path
    system_info: str
    supports_gpu_offload: bool
    max_devices: int
    devices: tuple[Device, ...]


def facts() -> LibraryFacts:
    """Facts about the library that is installed. Loads it."""
    lib = library()
    return LibraryFacts(
        version=library_version(),
        path=library_path(),
        system_info=lib.llama_print_system_info().decode("utf-8", "replace").strip(),
        supports_gpu_offload=bool(lib.llama_supports_gpu_offload()),
        max_devices=int(lib.llama_max_devices()),
        devices=devices(),
    )


def made_apart(
    make: Callable[[], int | None], free: Callable[[int], object], stop: Callable[[], object] | None = None
) -> int | None:
    """Make what is freed by `free`, and whose address `make` returns, in a thread that ends with it.

    llama.cpp repacks weights for AMX with OpenMP. libgomp keeps a thread's workers for as long as it lives, and lets
    threads wait spinning for one another only while there are no more of them than processors: with workers left
    behind by the caller's thread a small model's decode took 1.2 to 1.7 times as long (docs/BENCHMARKS.md).

    The caller waits in Python, where Ctrl-C reaches it; raised in a callback from C it would be lost. Then `stop` is
    called, and what is made all the same is freed.
    """
    made: list[int | None] = []
    with ThreadPoolExecutor(1, "llama-engine-load") as thread:
        thread.submit(int).result()  # one that is interrupted while it starts would not be waited for
        try:
            thread.submit(lambda: made.append(make())).result()
            return made[0]
        except BaseException:
            if stop is not None:
                stop()
            thread.shutdown()  # waits for what was begun
            for address in filter(None, made):
                free(address)
            raise


def library_version() -> str:
    """The version of llama-cpp-python that is installed."""
    library()
    import llama_cpp

    return llama_cpp.__version__


def library_path() -> Path:
    """The shared library that is loaded."""
    return Path(library()._lib._name)


def devices() -> tuple[Device, ...]:
    """The devices that ggml found; the CPU is one of them. Empty where the library does not export the functions."""
    try:
        count, get, kind, name, about, memory = _device_functions(library()._lib)
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
    """ggml-backend.h, which llama-cpp-python does not bind; libllama's handle resolves its dependencies' symbols
    too."""
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
