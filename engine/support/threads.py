"""Starts threads, where the system has any left, and sets locks free in forks."""

import os
from collections.abc import Callable
from threading import Thread

from engine.support.errors import EngineError


def start(thread: Thread) -> None:
    """Start a thread. Raises EngineError if the system has none left, or the interpreter ends: what was made for the
    thread is the caller's to undo."""
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        raise EngineError(
            f"The thread {thread.name!r} cannot be started ({error}): end other threads or processes of this user, or "
            "raise their limit (ulimit -u, or the container's limit of processes), and try again."
        ) from error


def after_fork(function: Callable[[], None]) -> Callable[[], None]:
    """Let a function be called in each fork of this process, where the system has forks: to replace locks, whose copies
    may stay held forever, since the threads that hold them are not copied."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)
    return function
