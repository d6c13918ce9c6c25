"""What a fork of this process finds: no lock that is held forever."""

import subprocess
import sys
from pathlib import Path

import pytest

import engine

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="forks of POSIX")

FORK = """
import importlib, os, sys, threading
from contextlib import suppress

for name in sys.argv[1:]:
    with suppress(ImportError):  # of an extra that is not installed
        importlib.import_module(name)
kinds = (type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Semaphore)


def locks():
    for name, module in list(sys.modules.items()):
        for key, value in list(vars(module).items()) if name.startswith("engine.") else ():
            if isinstance(value, kinds):
                yield f"{name}.{key}", value
            elif type(value).__module__.startswith("engine."):
                inner = getattr(value, "__dict__", {}).items()
                yield from ((f"{name}.{key}.{part}", lock) for part, lock in inner if isinstance(lock, kinds))


def hold():
    for _, lock in found:
        while lock.acquire(blocking=False) and isinstance(lock, (kinds[0], threading.Semaphore)):
            pass
    held.set()
    over.wait()


found, held, over = list(locks()), threading.Event(), threading.Event()
holder = threading.Thread(target=hold)
holder.start()
held.wait()
if not (child := os.fork()):
    still = [name for name, lock in locks() if not lock.acquire(blocking=False)]
    print(len(found), *still, flush=True)
    os._exit(0)
os.waitpid(child, 0)
over.set()
"""


def test_no_lock_of_a_module_is_held_in_a_fork() -> None:
    """By a thread of the parent, which the fork does not have."""
    package = Path(engine.__file__).parent
    modules = [
        ".".join(("engine", *path.relative_to(package).with_suffix("").parts))
        for path in sorted(package.rglob("*.py"))
        if "threading." in path.read_text(encoding="utf-8") and path.parent.name not in ("plugins", "cli")
    ]
    done = subprocess.run(
        [sys.executable, "-c", FORK, *modules], capture_output=True, text=True, check=True, timeout=100
    )
    number, *still = done.stdout.split()
    assert int(number) >= 4, "the locks were not found"
    assert not still
