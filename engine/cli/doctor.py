"""Facts about this machine's installation: library and build, CPU, offload, preflight, the command that rebuilds,
caches.

A child process asks llama.cpp, so that a build which dies while loading still gets a report.
"""

import importlib.metadata
import platform
import shutil
import sys
from ctypes.util import find_library
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.isolated import preflight
from engine.isolated.preflight import Verdict
from engine.llama.lib import Device, LibraryFacts
from engine.llama.plan.machine import batch_threads, default_threads
from engine.runtime.loop.config import AMX_VARIABLE, ContextOptions, ModelOptions, amx_wanted
from engine.support import _data
from engine.support.errors import EngineError
from engine.support.report import RowReport

# Flags of /proc/cpuinfo that determine llama.cpp's speed, x86-64 and then Arm.
_TELLING = (
    "avx avx2 avx_vnni fma f16c avx512f avx512_vnni avx512_bf16 amx_tile amx_int8 amx_bf16 "
    "asimd asimddp i8mm bf16 sve sve2 sme"
)
WHEELS = "https://github.com/abetlen/llama-cpp-python#installation"
_OFFLOAD = {"Metal": ("-DGGML_METAL=on",), "CUDA": ("-DGGML_CUDA=on",), "Vulkan": ("-DGGML_VULKAN=on",), "CPU": ()}


@dataclass(frozen=True, slots=True)
class Machine:
    """What determines the best build of llama-cpp-python for this machine."""

    system: str
    architecture: str
    nvidia: bool = False
    cuda_compiler: bool = False
    vulkan: bool = False
    amx: bool = False
    gcc: int | None = None

    @classmethod
    def here(cls) -> "Machine":
        """Returns this machine: programs on the PATH, drivers, CPU flags."""
        nvidia = shutil.which("nvidia-smi") is not None or Path("/proc/driver/nvidia/version").exists()
        vulkan = find_library("vulkan") is not None or find_library("vulkan-1") is not None
        return cls(
            system=platform.system(),
            architecture=platform.machine(),
            nvidia=nvidia,
            cuda_compiler=shutil.which("nvcc") is not None,
            vulkan=vulkan and shutil.which("glslc") is not None,
            amx="amx_int8" in preflight.processor()[1],
            gcc=preflight.gcc_version(),
        )

    @property
    def backend(self) -> str:
        """The fastest kind of build that this machine has the hardware for."""
        if self.system == "Darwin" and self.architecture == "arm64":
            return "Metal"
        if self.nvidia:
            return "CUDA"
        return "Vulkan" if self.vulkan else "CPU"

    @property
    def arguments(self) -> tuple[str, ...]:
        """CMake arguments of that build."""
        return _OFFLOAD[self.backend]

    def needs_cure(self, *, faulted: bool) -> bool:
        """Whether a build here would die of the known fault on CPUs with AMX. `faulted`: the present build died in the
        preflight."""
        return self.amx and (faulted or (self.gcc is not None and self.gcc <= 12))


@dataclass(frozen=True, slots=True)
class Diagnosis(RowReport):
    """Everything that `llama-engine doctor` reports. `library` is None if llama.cpp could not be asked; `library_error`
    says why."""

    engine_version: str
    python: str
    system: str
    cpu: str
    cpu_features: tuple[str, ...]
    machine: Machine
    library: LibraryFacts | None
    library_error: str
    verdict: Verdict
    rebuild: str
    builtin_model: Path | None
    hub_cache: Path
    own_cache: Path
    threads: tuple[int, int]
    """The default number of threads for single tokens, and for many at once."""

    def rows(self) -> list[tuple[str, str]]:
        return [
            ("llama-engine", self.engine_version),
            ("Python", f"{self.python} on {self.system}"),
            *self._library_rows(),
            ("CPU", self.cpu),
            ("CPU features", self._features()),
            ("CPU threads", self._threads()),
            ("preflight", self._preflight()),
            ("rebuild", self.rebuild),
            *self._rebuild_notes(),
            ("prebuilt wheels", f"{WHEELS} (llama-cpp-python's own; not verified by this project)"),
            ("built-in model", str(self.builtin_model) if self.builtin_model else "missing: reinstall llama-engine"),
            ("models cached in", f"{self.hub_cache}{'' if self.hub_cache.is_dir() else ' (nothing there yet)'}"),
            ("own cache", str(self.own_cache)),
        ]

    def _library_rows(self) -> list[tuple[str, str]]:
        if self.library is None:
            return [("llama-cpp-python", f"could not be asked: {self.library_error}")]
        devices = [_device(device) for device in self.library.devices]
        return [
            ("llama-cpp-python", f"{self.library.version} at {self.library.path}"),
            ("build", " ".join(self.library.system_info.split())),
            ("GPU offload", "this build can" if self.library.supports_gpu_offload else "not in this build"),
            ("devices", "; ".join(devices) or "unknown"),
        ]

    def _features(self) -> str:
        amx = "AMX present" if self.machine.amx else "no AMX"
        if self.machine.amx and not amx_wanted():
            amx += f", left out by {AMX_VARIABLE}=0"
        return f"{' '.join(self.cpu_features) or 'unknown'} ({amx})"

    def _threads(self) -> str:
        one, many = self.threads
        advice = "; fewer while other programs hold the processors (n_threads= fixes it)" if one > 1 else ""
        return f"{one} for a token, {many} for a prompt{advice}"

    def _preflight(self) -> str:
        earlier = " (found by an earlier run)" if self.verdict.cached else ""
        remedy = self.verdict.remedy
        price = "" if remedy is None else f" {preflight.PRICES[remedy]}."
        end = " The line below ends it." if remedy in preflight.OF_WEIGHTS else ""
        return f"{self.verdict.outcome}: {self.verdict.reason}{earlier}{price}{end}"

    def _rebuild_notes(self) -> list[tuple[str, str]]:
        what = f"compiles llama-cpp-python for this machine: a {self.machine.backend} build"
        if self.machine.backend == "CUDA" and not self.machine.cuda_compiler:
            what += "; it needs the CUDA toolkit, whose nvcc is not on the PATH"
        return [("", what)]


def diagnose() -> Diagnosis:
    """Collect the facts. Starts up to three child processes; reports a broken installation instead of raising."""
    machine = Machine.here()
    cpu, flags = preflight.processor()
    library, error = _ask_library()
    verdict = preflight.examine(ModelOptions(), ContextOptions())
    cure_amx = verdict.remedy == "amx" or machine.needs_cure(faulted=verdict.outcome in ("remedied", "faulty"))
    return Diagnosis(
        engine_version=_version(),
        python=platform.python_version(),
        system=platform.platform(terse=True),
        cpu=cpu,
        cpu_features=tuple(flag for flag in _TELLING.split() if flag in flags),
        machine=machine,
        library=library,
        library_error=error,
        verdict=verdict,
        rebuild=preflight.rebuild_command(machine.arguments, cure_amx=cure_amx, python=sys.executable or ""),
        builtin_model=_builtin_model(),
        hub_cache=hub_cache(),
        own_cache=preflight.cache_directory(),
        threads=(default_threads(), batch_threads()),
    )


def hub_cache() -> Path:
    """Returns the directory in which huggingface_hub keeps models."""
    from engine.hub.api import cache_directory  # imports huggingface_hub, which other commands do not need

    try:
        return cache_directory()
    except RuntimeError:  # this user has no home directory
        return Path("~/.cache/huggingface/hub")


def _ask_library() -> tuple[LibraryFacts | None, str]:
    """Returns the library's facts from a child, or why there are none."""
    try:
        data: dict[str, Any] = preflight.ask_child({"task": "tell"})
    except EngineError as error:
        return None, str(error)
    data["path"] = Path(data["path"])
    data["devices"] = tuple(Device(**device) for device in data["devices"])
    return LibraryFacts(**data), ""


def _builtin_model() -> Path | None:
    try:
        return _data.builtin_model()
    except EngineError:
        return None


def _version() -> str:
    try:
        return importlib.metadata.version("llama-engine")
    except importlib.metadata.PackageNotFoundError:
        return "unknown (not installed)"


def _device(device: Device) -> str:
    if not device.memory_total:
        return f"{device.name} ({device.description})"
    free, total = device.memory_free / 2**30, device.memory_total / 2**30
    return f"{device.name} ({device.description}, {free:.1f} of {total:.1f} GiB free)"
