"""Limits of a child process on its own resources, which the system enforces as far as it can."""

import sys
import time
from contextlib import suppress
from pathlib import Path

_STATM = Path("/proc/self/statm")
"""Sizes of this process in pages, see proc_pid_statm(5)."""


def limit_resources(**bounds: int) -> None:
    """Limit the resources of this process for good: `AS` (bytes of address space), `CORE`, `FSIZE`, `NOFILE`, `NPROC`
    (see setrlimit(2)). What the system does not know is left out."""
    if sys.platform == "win32":
        return
    import resource

    for name, most in bounds.items():
        if (kind := getattr(resource, f"RLIMIT_{name}", None)) is not None:
            hard = resource.getrlimit(kind)[1]
            bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
            with suppress(OSError, ValueError):  # macOS refuses a bound that its own mappings exceed
                resource.setrlimit(kind, (bound, bound))


def limit_time(seconds: float) -> None:
    """Limit the processor time of what comes next, since the parent, which watches the clock, may have ended."""
    if sys.platform == "win32":
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = int(time.process_time() + seconds) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def limit_growth(more: int | None) -> None:
    """Limit this process's address space to what it has now and as many bytes more; None: to its lasting limit. Only on
    Linux."""
    if not _STATM.exists():
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    bound = hard if more is None else int(_STATM.read_text().split()[0]) * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (bound if hard == resource.RLIM_INFINITY else min(bound, hard), hard))


def resident_bytes() -> int:
    """Returns the bytes of memory that this process takes now; 0 where that is not told (only Linux does)."""
    if not _STATM.exists():
        return 0
    import resource

    return int(_STATM.read_text().split()[1]) * resource.getpagesize()
