"""Tries options in a child process on the built-in model, because a native fault would end the caller's process.

The known fault: llama.cpp compiled by gcc 12 for a CPU with AMX dies in the first decode of a batch with several rows;
weights that are not laid out for AMX (`amx=False`) never reach that code. That compiler assumes that `ldtilecfg` reads
8 of its 64 bytes (amxtileintrin.h, `_tile_loadconfig`) and removes the stores of the others as dead; with dead store
elimination switched off, it compiles AMX correctly.

If layers are offloaded, the child tries the drivers of the device too. Flash attention and the attention of a device
can be computed in other ways: those are the remedies there.
"""

import hashlib
import importlib.util
import json
import logging
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from pydantic import TypeAdapter

from engine.llama.gguf.rope import YARN
from engine.llama.lib import tried
from engine.llama.own_library import TESTED_VERSION, VARIABLE
from engine.runtime.loop.config import CACHE_TYPES, ContextOptions, ModelOptions
from engine.support import _data
from engine.support.child import Child, ChildGoneError, signal_name
from engine.support.errors import EngineError
from engine.support.output_file import write_file
from engine.support.warning import warn

Outcome: TypeAlias = Literal["sound", "remedied", "faulty", "unknown"]
Remedy: TypeAlias = Literal["amx", "use_extra_bufts", "flash_attn", "offload_kqv"]
_REMEDIES: dict[Remedy, object] = {
    "amx": False,
    "use_extra_bufts": False,
    "flash_attn": "off",
    "offload_kqv": False,
}
"""Options that make llama.cpp run other code, and their values; tried in this order."""

OF_WEIGHTS: tuple[Remedy, ...] = ("amx", "use_extra_bufts")
_KEEP_DEAD_STORES = "-fno-tree-dse -fno-dse"
_WITHOUT_AMX = ("-DCMAKE_C_FLAGS=-U__AMX_INT8__", "-DCMAKE_CXX_FLAGS=-U__AMX_INT8__")
_OF_A_DEVICE = "a newer driver of the device, or n_gpu_layers=0, may make it unnecessary"
PRICES: dict[Remedy, str] = {
    "amx": "Prompts are read up to 4 times, answers written up to 2.3 times slower than with AMX",
    "use_extra_bufts": "Prompts and answers are slower; on a CPU with AMX 4 times and 2.3 times",
    "flash_attn": f"That costs speed; {_OF_A_DEVICE}",
    "offload_kqv": f"That costs speed; {_OF_A_DEVICE}",
}
"""What a remedy costs. Measured with SmolLM2-135M and `use_extra_bufts=False`."""
CHILD = "engine.isolated.preflight_child"
_SECONDS = 120.0
_SECONDS_WITH_DEVICE = 600.0  # the driver may have to compile every program first
_LONGEST_ANSWER = 1 << 20
# A fault of the code. SIGKILL, SIGTERM and SIGINT come from outside (the memory killer, a user) and prove nothing.
_FAULTS = frozenset({"SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT", "SIGTRAP", "SIGSYS"})
_WINDOWS_FAULT = 0xC0000000  # NTSTATUS values of severity "error" are exit codes there
_OF_DEVICES = ("GGML_", "CUDA_", "HIP_", "ROCR_", "HSA_", "VK_", "ZE_", "ONEAPI_", "SYCL_")
"""Prefixes of environment variables by which ggml and the drivers choose devices and ways to compute."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the children showed.

    `sound`: the options work as they are. `remedied`: a child died, but works with the option `remedy` changed.
    `faulty`: each remedy died too, or was already applied. `unknown`: no child gave an answer. `reason` is one
    sentence; `cached`: an earlier process found it out.
    """

    outcome: Outcome
    reason: str
    cached: bool = False
    remedy: Remedy | None = None


_RECORD = TypeAdapter(Verdict)


def prepare(model: ModelOptions, context: ContextOptions) -> tuple[ModelOptions, ContextOptions]:
    """Returns the options to load with in this process, after a child has tried them; to be called before the first
    decode.

    Warns (`EngineWarning`) where a remedy is applied: once for a build; then the log says so. Raises EngineError if no
    options are known to be safe, or if `LLAMA_CPP_LIB_PATH` names a library that must not be used.
    """
    tried()
    verdict = examine(model, context)
    if verdict.outcome == "sound":
        return model, context
    if verdict.outcome == "faulty":
        raise EngineError(
            f"llama.cpp would end this process: {verdict.reason} {_way_out(model)}, or pass preflight=False to take "
            "the risk."
        )
    if verdict.remedy is None:
        message = (
            f"The preflight could not check this llama-cpp-python build: {verdict.reason} To be safe the model is "
            "loaded with use_extra_bufts=False, which makes prefill slower; preflight=False loads it with the given "
            "options."
        )
    else:
        message = f"In the preflight {verdict.reason} That option is applied. {PRICES[verdict.remedy]}."
        if verdict.remedy in OF_WEIGHTS:
            message += f" A build that works ends it: {rebuild_command(cure_amx=True)}"
    if verdict.remedy is not None and _told(verdict.remedy):
        _log.info("%s", message)
    else:
        warn(message)
    return _with(verdict.remedy or "use_extra_bufts", model, context)


def _told(remedy: Remedy) -> bool:
    """Whether a user of this build has been told of the remedy; from now on that is so."""
    path = cache_directory() / "preflight" / f"told-{_digest([_library_files(), processor(), remedy])}"
    if path.is_file():
        return True
    _write(path, b"")
    return False


def _with(remedy: Remedy, model: ModelOptions, context: ContextOptions) -> tuple[ModelOptions, ContextOptions]:
    change = cast("dict[str, Any]", {remedy: _REMEDIES[remedy]})
    if remedy in OF_WEIGHTS:
        return replace(model, **change), context
    return model, replace(context, **change)


def _way_out(model: ModelOptions) -> str:
    cure = f"{rebuild_command(cure_amx=True)} (that cures the known fault of gcc 12 on CPUs with AMX)"
    if model.n_gpu_layers:
        return f"Load with n_gpu_layers=0, which leaves the device out; update its driver; or rebuild it: {cure}"
    return f"Rebuild it: {cure}"


def check_loaded(model: ModelOptions, context: ContextOptions) -> None:
    """Check weights that this process has already loaded with these options, before the first decode.

    No remedy can be applied then. Raises EngineError if a child died; warns (`EngineWarning`) if no child gave an
    answer.
    """
    verdict = examine(model, context)
    if verdict.outcome == "unknown":
        message = "The preflight could not check this llama-cpp-python build, which has loaded the weights already: "
        warn(message + verdict.reason)
    elif verdict.outcome != "sound":
        raise EngineError(
            f"llama.cpp would end this process: {verdict.reason} Weights that are loaded already cannot be changed; "
            "load the file with Engine.load, which applies the option that works. To fix the build: "
            f"{rebuild_command(cure_amx=True)} (for the known fault of gcc 12 on CPUs with AMX; weights that are not "
            "quantised are not affected: pass preflight=False)."
        )


def examine(
    model: ModelOptions, context: ContextOptions, *, child: str | None = None, directory: Path | None = None
) -> Verdict:
    """Returns the verdict on these options: from an earlier process, otherwise from children.

    `child`: the module that they run, instead of the preflight's own. `directory`: where verdicts are kept.
    """
    model, context = reduced(model, context)
    directory = directory or cache_directory() / "preflight"
    path = directory / f"{key(model, context)}.json"
    if verdict := read(path):
        return verdict
    verdict = _try(model, context, child)
    if verdict.outcome != "unknown":
        write(path, verdict)
    return verdict


def rebuild_command(
    arguments: Sequence[str] = (), *, cure_amx: bool = False, python: str = "", windows: bool = sys.platform == "win32"
) -> str:
    """Returns the shell command that compiles llama-cpp-python again with these CMake arguments.

    `cure_amx`: avoid the known fault on CPUs with AMX. With gcc the build keeps AMX, which is faster; with other
    compilers it goes without, since no fix is known for them.
    """
    variables: dict[str, str] = {}
    if cure_amx and gcc_version() is not None:
        variables["CXXFLAGS"] = _KEEP_DEAD_STORES
    elif cure_amx:
        arguments = (*arguments, *_WITHOUT_AMX)
    if arguments:
        variables["CMAKE_ARGS"] = " ".join(arguments)
    setting = '$env:{}="{}"; ' if windows else '{}="{}" '
    pip = f"{python} -m pip" if python else "pip"
    line = f"{pip} install --force-reinstall --no-cache-dir --no-binary llama-cpp-python "
    line += f"llama-cpp-python=={TESTED_VERSION}"
    return "".join(setting.format(*variable) for variable in variables.items()) + line


def gcc_version() -> int | None:
    """Returns the major version of the C compiler that builds use by default; None if there is none, or it is not
    gcc."""
    compiler = os.environ.get("CC") or "cc"
    path = shutil.which(compiler) or shutil.which("gcc")
    if path is None:
        return None
    try:
        about = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    if "clang" in about:
        return None
    found = re.search(r"\b(\d+)\.\d+\.\d+", about)
    return int(found[1]) if found else None


def cache_directory() -> Path:
    """Returns the directory of this package's cache; `LLAMA_ENGINE_CACHE` overrides the platform's place. For a user
    without a home directory, the directory cannot be written to."""
    if chosen := os.environ.get("LLAMA_ENGINE_CACHE"):
        return Path(chosen)
    try:
        home = Path.home()
    except RuntimeError:
        home = Path(os.devnull)
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = home / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    return base / "llama-engine"


def processor() -> tuple[str, tuple[str, ...]]:
    """Returns the CPU's name and its feature flags from the kernel; no flags without /proc/cpuinfo."""
    fields: dict[str, str] = {}
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            fields.setdefault(name.strip(), value.strip())
    name = fields.get("model name") or platform.processor() or platform.machine()
    return name, tuple((fields.get("flags") or fields.get("Features") or "").split())


def reduced(model: ModelOptions, context: ContextOptions) -> tuple[ModelOptions, ContextOptions]:
    """Returns the options for the child: a small context, but everything that selects other code unchanged, such as the
    number of sequences. One thread: on a busy machine the threads of so small a model wait for one another many times
    longer than they compute."""
    n_sequences = context.n_sequences or 4
    small = replace(
        context,
        n_ctx=256,
        n_batch=max(64, n_sequences),
        kv_tokens=256 + 32 * n_sequences if context.kv_unified else None,
        checkpoint_mib=0,
        n_threads=1,
        n_threads_batch=1,
        rope_freq_base=0.0,
        rope_freq_scale=0.0,
        **dict.fromkeys(YARN),
        control_vectors=(),
        check_memory=False,
    )
    return replace(model, use_mlock=False, check_memory=False), small


def _try(model: ModelOptions, context: ContextOptions, child: str | None) -> Verdict:
    first = _run(child, model, context)
    if first.fault is None:
        return Verdict("sound" if first.answered else "unknown", first.said)
    died = f"a child process died by {first.fault} while it decoded a batch with this llama-cpp-python build"
    remedies = _remedies(model, context)
    ends: list[str] = []
    unknown = False
    for remedy in remedies:
        named = f"{remedy}={_REMEDIES[remedy]!r}".replace("'", '"')
        end = _run(child, *_with(remedy, model, context))
        if end.answered:
            return Verdict("remedied", f"{died}; it works with {named}.", remedy=remedy)
        unknown = unknown or end.fault is None
        ends.append(f"with {named} {end.said}")
    if not ends:
        return Verdict("faulty", f"{died}, with use_extra_bufts=False.")
    return Verdict("unknown" if unknown else "faulty", f"{died}; {' '.join(ends)}")


def _remedies(model: ModelOptions, context: ContextOptions) -> list[Remedy]:
    """Returns the remedies that are not applied yet and may help: without a device, attention runs on the CPU."""
    found: list[Remedy] = []
    if model.use_extra_bufts:
        found += OF_WEIGHTS if model.amx else OF_WEIGHTS[1:]
    if model.n_gpu_layers:
        if context.flash_attn != "off" and CACHE_TYPES[context.type_v][1] >= 2:
            found.append("flash_attn")
        if context.offload_kqv:
            found.append("offload_kqv")
    return found


@dataclass(frozen=True, slots=True)
class _End:
    """How a child ended: with an answer, by a fault (its signal's name), or neither."""

    answered: bool
    fault: str | None
    said: str


def _run(child: str | None, model: ModelOptions, context: ContextOptions) -> _End:
    try:
        path = _data.builtin_model()
        order = {"task": "decode", "model": str(path), "load": asdict(model), "context": asdict(context)}
        answer = ask_child(order, child, _SECONDS_WITH_DEVICE if model.n_gpu_layers else None)
    except ChildFaultError as error:
        return _End(False, error.fault, f"it died by {error.fault} too.")
    except EngineError as error:
        return _End(False, None, f"the child process gave no answer: {error}")
    if answer == "ok":
        return _End(True, None, "batches of several sequences and single tokens were decoded in a child process.")
    return _End(False, None, f"the child process answered {answer!r}.")


class ChildFaultError(EngineError):
    """A child died by a fault of the code that it ran. `fault`: its signal's name, or Windows' exception code."""

    def __init__(self, message: str, fault: str) -> None:
        super().__init__(message)
        self.fault = fault


def ask_child(order: Mapping[str, object], child: str | None = None, seconds: float | None = None) -> Any:
    """Returns a child's reply to an order of `engine.isolated.preflight_child`; the child then ends. Raises
    ChildFaultError if it died by a fault, ChildNotStartedError if none can be started, EngineError if it gave no reply
    for another reason, such as the time limit."""
    process = Child(child or CHILD, "The child process of the preflight", "pass preflight=False to load without one")
    try:
        with process.within(seconds or _SECONDS):
            process.send(json.dumps(dict(order)).encode())
            return json.loads(process.receive(_LONGEST_ANSWER))
    except ChildGoneError as error:
        fault = None if process.late else _fault(process.process.wait())
        if fault is None:
            raise
        raise ChildFaultError(str(error), fault) from error
    except ValueError as error:
        raise EngineError(f"The child process of the preflight sent a reply that is not JSON ({error}).") from error
    finally:
        process.close()


def _fault(returncode: int) -> str | None:
    if returncode >= _WINDOWS_FAULT:
        return f"exception {returncode:#x}"
    name = signal_name(returncode)
    return name if name in _FAULTS else None


def key(model: ModelOptions, context: ContextOptions, file: object = None) -> str:
    """Returns a digest of everything that determines the verdict: the library's files, the CPU, what chooses the
    devices, the options, and the file tried."""
    devices = sorted((name, value) for name, value in os.environ.items() if name.startswith(_OF_DEVICES))
    return _digest([_library_files(), processor(), devices, asdict(model), asdict(context), file])


def _digest(facts: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def _library_files() -> list[tuple[str, int, int]]:
    """Returns path, size and modification time (ns) of llama.cpp's shared libraries, found without loading them;
    nothing if they cannot be read."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        spec = importlib.util.find_spec("llama_cpp")
        places = list(spec.submodule_search_locations or ()) if spec else []
        folder = str(Path(places[0]) / "lib") if places else None
    if folder is None or not Path(folder).is_dir():
        return []
    try:
        stats = [(path, path.stat()) for path in sorted(Path(folder).iterdir()) if path.is_file()]
    except OSError as error:
        _log.info("the libraries in %s cannot be read (%s)", folder, error)
        return []
    return [(str(path), stat.st_size, stat.st_mtime_ns) for path, stat in stats]


def read(path: Path) -> Verdict | None:
    """Returns an earlier verdict. A file that cannot be read, or is not a verdict, counts as absent."""
    try:
        if not path.is_file():  # reading a pipe would block
            return None
        verdict = _RECORD.validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        _log.info("the preflight's record %s is not usable (%s); checking again", path, error)
        return None
    if verdict.outcome == "unknown" or (verdict.outcome == "remedied") != (verdict.remedy is not None):
        return None
    return replace(verdict, cached=True)


def write(path: Path, verdict: Verdict) -> None:
    """Write a verdict whole or not at all. A failure is not an error, it only makes the next start slower."""
    _write(path, _RECORD.dump_json(verdict))


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file():
            path.unlink(missing_ok=True)  # a pipe, which `write_file` would leave there
        write_file(path, data)
    except OSError as error:
        _log.info("the preflight's record %s could not be kept (%s)", path, error)
