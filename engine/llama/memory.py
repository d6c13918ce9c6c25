"""The memory and cores that this machine has, and how much memory a model and a context will take.

Knows: /proc and cgroups on Linux, os.sysconf elsewhere; what llama.cpp allocates, from the model's header. Does not
know: ctypes. The KV cache is filled with zeros and Linux overcommits, so a context that is too large ends in the
kernel killing the process, never in an error; hence this. All sizes are bytes.
"""

import os
from pathlib import Path
from typing import NamedTuple

from engine.llama.gguf import GgufFile
from engine.runtime.options import CACHE_TYPES, ContextOptions


def available_memory(root: Path = Path("/")) -> int | None:
    """Memory that can be taken without swapping, within the limits of this process's cgroups; None when nothing tells.

    Linux: MemAvailable, since the kernel counts reclaimable page cache in it; then each cgroup's limit less what it
    uses (its inactive file pages are reclaimable). Elsewhere: the free physical pages.
    """
    free = [size for size in (_meminfo(root, "MemAvailable"), *_cgroup_room(root)) if size is not None]
    if free:
        return max(0, min(free))
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def anonymous_memory(root: Path = Path("/")) -> int | None:
    """Memory of this process that is not backed by files; None where the system does not tell."""
    return _field(root / "proc/self/status", "RssAnon")


def default_threads(root: Path = Path("/")) -> int:
    """One thread per physical core that this process may use: a single token's products mostly wait for memory, which
    more threads do not make faster."""
    cores = {
        _read(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") or str(cpu)
        for cpu in _usable_cpus()
    }
    return _within_quota(len(cores), root)


def batch_threads(root: Path = Path("/")) -> int:
    """One thread per logical CPU that this process may use, for many rows at once, which compute more than they wait.
    What a virtual machine takes for hyper-threads of one core may be cores, too."""
    return _within_quota(len(_usable_cpus()), root)


def _usable_cpus() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _within_quota(threads: int, root: Path) -> int:
    quota = _cpu_quota(root)
    return max(1, min(threads, quota) if quota else threads)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None


def _field(path: Path, name: str) -> int | None:
    """A line "Name:   123 kB" in bytes."""
    for line in (_read(path) or "").splitlines():
        key, _, value = line.partition(":")
        words = value.split()
        if key == name and words and words[0].isdigit():
            return int(words[0]) * 1024
    return None


def _meminfo(root: Path, name: str) -> int | None:
    return _field(root / "proc/meminfo", name)


def _cgroups(root: Path, controller: str) -> list[tuple[Path, bool]]:
    """The directories of this process's cgroups that may limit `controller`, own one first, up to the root; whether
    each is of version 2 (one hierarchy for all controllers, whose names are not given)."""
    found: list[tuple[Path, bool]] = []
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / controllers
        here = base / path.lstrip("/")
        found += [(directory, not controllers) for directory in (here, *here.parents) if directory.is_relative_to(base)]
    return found


def _cgroup_room(root: Path) -> list[int]:
    room: list[int] = []
    for directory, unified in _cgroups(root, "memory"):
        limit = _read(directory / ("memory.max" if unified else "memory.limit_in_bytes"))
        used = _read(directory / ("memory.current" if unified else "memory.usage_in_bytes"))
        if limit and used and limit.isdigit() and used.isdigit():
            room.append(int(limit) - int(used) + _inactive_file(directory, unified=unified))
    return room


def _inactive_file(directory: Path, *, unified: bool) -> int:
    name = "inactive_file" if unified else "total_inactive_file"
    for line in (_read(directory / "memory.stat") or "").splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.isdigit():
            return int(value)
    return 0


def _cpu_quota(root: Path) -> int | None:
    for directory, unified in _cgroups(root, "cpu"):
        names = ("cpu.max",) if unified else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        words = " ".join(_read(directory / name) or "" for name in names).split()
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit():
            return max(1, int(words[0]) // int(words[1]))
    return None


_F32 = 4
CELLS = 256
"""What llama.cpp rounds a context up to a multiple of."""
RESERVE = 0.1
"""The share of the memory that is never planned with: other processes, and the estimate's error."""
_CHECKPOINTS = 8  # of one conversation, at most (engine.runtime.prefix)
_FIXED = 32 << 20  # graphs, tables, the allocator
_OPERATIONS_A_BYTE = 20
"""Arithmetic operations of prefill in the time that copying a byte takes; rough: CPUs have fewer, GPUs more."""


class Cells(NamedTuple):
    """The KV cache of a context for `sequences` conversations: `buffers` of `each` cells, one or as many."""

    buffers: int
    each: int
    sequences: int

    @property
    def total(self) -> int:
        return self.buffers * self.each


def cells_of(options: ContextOptions, n_ctx: int, n_sequences: int) -> Cells:
    """The cells for conversations of `n_ctx` tokens; llama.cpp makes each buffer a multiple of 256."""
    wanted = max(options.kv_tokens or 0, n_ctx, 1) if options.kv_unified else n_ctx
    buffers = 1 if options.kv_unified else n_sequences
    return Cells(buffers, -(-max(wanted, 1) // CELLS) * CELLS, n_sequences)


class Footprint(NamedTuple):
    """The memory of one context: its KV cache and recurrent states, with checkpoints of these; its compute and output
    buffers."""

    cache: int
    compute: int

    @property
    def total(self) -> int:
        return self.cache + self.compute


def estimate(model: GgufFile, options: ContextOptions, cells: Cells) -> Footprint:
    """What a context of these cells takes."""
    return Footprint(_cache(model, options, cells), _compute(model, options, cells))


def copy_cost(model: GgufFile, options: ContextOptions, cells: Cells) -> int:
    """Tokens whose evaluation takes about as long as copying a sequence: between buffers, llama.cpp copies all cells of
    it, empty ones too; in one buffer, none."""
    if cells.buffers == 1:
        return 0
    size = _kept(model, options, cells) // cells.buffers
    computed = max(model.parameters - model.n_vocab * model.n_embd, 1)  # embeddings are looked up
    return size * _OPERATIONS_A_BYTE // (2 * computed)


def largest_context(model: GgufFile, options: ContextOptions, n_sequences: int, limit: int, room: int) -> int:
    """The largest `n_ctx` up to `limit`, in steps of 256, for which everything takes at most `room`; 0 where not even
    the smallest does."""
    low, high = 0, -(-limit // CELLS)
    while low < high:
        middle = (low + high + 1) // 2
        if estimate(model, options, cells_of(options, middle * CELLS, n_sequences)).total <= room:
            low = middle
        else:
            high = middle - 1
    return min(low * CELLS, limit)


def checkpoint_bytes(model: GgufFile, options: ContextOptions, n_sequences: int) -> int:
    """What checkpoints of recurrent states may take: eight for each conversation, as far as the option allows."""
    each = model.recurrent_state * _F32
    return min(options.checkpoint_mib << 20, _CHECKPOINTS * each * n_sequences)


def _cache(model: GgufFile, options: ContextOptions, cells: Cells) -> int:
    return _kept(model, options, cells) + checkpoint_bytes(model, options, cells.sequences)


def _kept(model: GgufFile, options: ContextOptions, cells: Cells) -> int:
    bytes_k, bytes_v = CACHE_TYPES[options.type_k][1], CACHE_TYPES[options.type_v][1]
    window = cells.total
    if model.sliding_window and not options.swa_full:
        seen = model.sliding_window * (cells.sequences if cells.buffers == 1 else 1) + options.rows_at_once
        window = min(window, -(-seen // CELLS) * CELLS * cells.buffers)
    total = 0.0
    for layer in model.layers:
        total += (layer.keys * bytes_k + layer.values * bytes_v) * (window if layer.windowed else cells.total)
    return int(total) + model.recurrent_state * _F32 * cells.sequences


def _compute(model: GgufFile, options: ContextOptions, cells: Cells) -> int:
    """Buffers of the largest micro-batch: activations, the attention mask, scores without flash attention, and
    logits."""
    rows = min(options.rows_at_once, cells.total)
    outputs = max(min(options.n_outputs(cells.sequences), rows), cells.sequences)
    activations = rows * (6 * model.n_embd + 3 * model.n_ff) * _F32
    mask = rows * cells.each * (_F32 + 2)
    scores = rows * cells.each * model.n_head * _F32 if options.flash_attn == "off" else 0
    # Once as the graph's result, once in the buffer that logits are read from.
    logits = 2 * outputs * model.n_vocab * _F32
    return activations + mask + scores + logits + _FIXED
