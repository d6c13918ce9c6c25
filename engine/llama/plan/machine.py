"""The memory and cores that this process may use.

All sizes are bytes.
"""

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

_THREADS = 256 << 20
_BLOCK = 4 << 20
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


def available_memory(root: Path = Path("/")) -> int | None:
    """Returns the memory that is available without swapping, within the limits of this process's cgroups; None if
    unknown.

    Linux: MemAvailable, which includes reclaimable page cache, and each cgroup's limit minus its use (inactive file
    pages are reclaimable), whichever is least. Elsewhere: the free physical pages.
    """
    free = [size for size in (_meminfo(root, "MemAvailable"), *_cgroup_room(root)) if size is not None]
    if free:
        return max(0, min(free))
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def address_space(root: Path = Path("/")) -> int | None:
    """Returns the address space that this process may still use: its limit (RLIMIT_AS) minus what it uses, and minus
    what threads reserve for stacks and allocators; None without a limit. Exceeding it also ends the process, since
    llama.cpp does not survive a failed allocation."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    taken = _field(root / "proc/self/status", "VmSize")
    return None if limit == resource.RLIM_INFINITY or taken is None else max(0, limit - taken - _THREADS)


def anonymous_memory(root: Path = Path("/")) -> int | None:
    """Returns the memory of this process that is not backed by files; None if the system does not report it."""
    return _field(root / "proc/self/status", "RssAnon")


def return_freed_memory() -> None:
    """Give freed memory back to the system where the C library is glibc, which otherwise keeps much of what one thread
    frees from all others. Takes some milliseconds."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


def keep_no_large_blocks() -> None:
    """From now on, give each block of 4 MiB or more back as soon as it is freed; for this whole process, and only where
    the C library is glibc. Left to itself, it raises that limit to 32 MiB at the first large block (mallopt(3))."""
    libc = _glibc()
    if libc is not None:
        libc.mallopt(_M_MMAP_THRESHOLD, _BLOCK)
        libc.mallopt(_M_TRIM_THRESHOLD, _BLOCK)


def _glibc() -> Any:
    libc: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
    return libc if hasattr(libc, "malloc_trim") else None


ONE_THREAD = 16 << 20
"""Bytes of weights that fit into a core's own cache: a second thread would only wait for the first."""


def default_threads(root: Path = Path("/")) -> int:
    """Returns one thread per physical core that this process may use: the products for a single token mostly wait for
    memory, which more threads do not speed up."""
    cores = {
        _read(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") or str(cpu)
        for cpu in _usable_cpus()
    }
    return _within_quota(len(cores), root)


def batch_threads(root: Path = Path("/")) -> int:
    """Returns one thread per logical CPU that this process may use, for batches of many rows, which compute more than
    they wait. Besides, the hyper-threads that a virtual machine shows may be real cores."""
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
    """Returns the value of a line "Name: 123 kB" in bytes."""
    for line in (_read(path) or "").splitlines():
        key, _, value = line.partition(":")
        words = value.split()
        if key == name and words and words[0].isdigit():
            return int(words[0]) * 1024
    return None


def _meminfo(root: Path, name: str) -> int | None:
    return _field(root / "proc/meminfo", name)


def _cgroups(root: Path, controller: str) -> list[tuple[Path, bool]]:
    """Returns the directories of this process's cgroups that may limit `controller`, its own first, up to the root,
    each with whether it is of version 2 (one hierarchy for all controllers, without their names)."""
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
    """Returns the least of the quotas: a group has no more than those above it."""
    quotas: list[int] = []
    for directory, unified in _cgroups(root, "cpu"):
        names = ("cpu.max",) if unified else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        words = " ".join(_read(directory / name) or "" for name in names).split()
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit():
            quotas.append(max(1, int(words[0]) // int(words[1])))
    return min(quotas, default=None)
