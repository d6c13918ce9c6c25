"""Starts threads; where the system has none left, the error says so."""

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
