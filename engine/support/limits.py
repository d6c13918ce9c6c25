"""Limits of a child process on its own resources, which the system enforces as far as it can."""

import sys
import time
from contextlib import suppress


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
