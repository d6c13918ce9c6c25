"""A model in a child process: what `llama` and `runner` are in this one.

Knows: the child, how its end is read, and what of a request stays here (callables). Does not know: what the child does
with an order (`engine.runtime.worker`), why somebody wants it apart. A native fault ends only the child; and Python
threads of the caller cannot hold up its decodes, since it has an interpreter lock of its own.
"""

import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from engine.errors import EngineError, ModelLoadError, RequestError
from engine.isolated.protocol import (
    GREETING,
    Channel,
    Failed,
    Line,
    Load,
    Loading,
    Open,
    Opened,
    Parcel,
    Start,
    refusal,
)
from engine.llama.lib import library
from engine.llama.lifetime import Shared
from engine.llama.model import ModelInfo
from engine.llama.vocab import LlamaVocab
from engine.runtime.options import ContextOptions, LoopOptions, ModelOptions
from engine.runtime.request import Cancel, Close, Command, EndReasoning, Reply, Request, Save, Unpin
from engine.runtime.state_file import Origin

_log = logging.getLogger("engine.isolation")
_PATIENCE = 10.0
"""Seconds that a child has to end after it was told to."""
_LOGGERS = ("engine", "engine.llama", "engine.runner")


# The standard library first, then our path: what is put before it there may have its modules' names.
_START = (
    "import json, logging.handlers, pickle, queue, signal, sys, threading; sys.path[:] = json.loads(sys.argv[1]); "
    "from engine.isolated.worker import main; sys.exit(main())"
)


class _Child:
    """The process and both directions. `receive` has one caller at a time."""

    def __init__(self) -> None:
        if getattr(sys, "frozen", False) or not sys.executable:
            raise EngineError("This program cannot start a Python process for the model; load with isolated=False.")
        paths = json.dumps([entry or str(Path.cwd()) for entry in sys.path])
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START, paths],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0 if os.name == "posix" else None,  # Ctrl-C is for this process alone
        )
        orders: Any = self._process.stdin
        self._orders = Channel(orders)
        self._answers: Any = self._process.stdout
        self._end = weakref.finalize(self, _end, os.getpid(), self._process, self._orders)
        _pipes.update((orders, self._answers))

    def send(self, order: object) -> None:
        """Leave an order. When the child is gone, its reader says so."""
        if self._end.alive:
            self._orders.send(order)

    def greeted(self) -> None:
        """Skip what a start-up file printed before the first answer. Raises EngineError when the child is gone."""
        seen = b""
        while not seen.endswith(GREETING):
            byte = self._answers.read(1)
            if not byte:
                raise self._gone()
            seen = (seen + byte)[-len(GREETING) :]

    def receive(self) -> Any:
        """The next answer. Raises EngineError when the child is gone, or what it says cannot be read."""
        while True:
            try:
                answer: Any = pickle.load(self._answers)
            except (EOFError, OSError, ValueError) as error:
                raise self._gone() from error
            except Exception as error:
                self.kill()
                said = f"The model's process sent what cannot be read ({type(error).__name__}: {error})"
                raise EngineError(f"{said}; load the model again.") from error
            if not isinstance(answer, Line):
                return answer
            logger = logging.getLogger(answer.record.name)
            if logger.isEnabledFor(answer.record.levelno):
                logger.handle(answer.record)

    def _gone(self) -> EngineError:
        """It has closed its side, so it is about to end."""
        return EngineError(f"The model's process {self._ending()}; load the model again.")

    def _ending(self) -> str:
        try:
            code = self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            return "does not answer any more"
        if code >= 0:
            return f"ended with exit code {code}"
        try:
            return f"died by {signal.Signals(-code).name}"
        except ValueError:
            return f"died by signal {-code}"

    def kill(self) -> None:
        """Do not wait for what it does."""
        self._process.kill()
        self._end()

    def close(self) -> None:
        """Let it end; twice is fine."""
        self._end()


def _end(owner: int, process: "subprocess.Popen[bytes]", orders: Channel) -> None:
    if os.getpid() != owner:
        return  # a fork has copies of everything, but this is not its child
    orders.close()
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    orders.join()
    if process.stdout is not None:
        process.stdout.close()


_pipes: "weakref.WeakSet[Any]" = weakref.WeakSet()


def _leave_to_the_parent() -> None:
    """A fork lets go of our ends of the pipes: a child ends when nobody holds them any more."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for pipe in list(_pipes):
        if not pipe.closed:
            os.dup2(nowhere, pipe.fileno())
    os.close(nowhere)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_the_parent)


class IsolatedModel:
    """Weights, loaded in a child process; their vocabulary is read here too. A context manager, like `Model`."""

    def __init__(self, child: _Child, info: ModelInfo) -> None:
        self._child = child
        self._info = info
        self._vocabulary = _Vocabulary(info.path)

    @classmethod
    def load(
        cls, path: str | Path, options: ModelOptions, *, progress: Callable[[float], bool | None] | None = None
    ) -> Self:
        """Raises what `Model.load` raises, and EngineError when the child dies."""
        child = _Child()
        try:
            level = min(logging.getLogger(name).getEffectiveLevel() for name in _LOGGERS)
            child.send(Load(Path(path), options, level, progress is not None))
            child.greeted()
            while isinstance(answer := child.receive(), Loading):
                if progress is not None and progress(answer.fraction) is False:
                    raise ModelLoadError(f"Loading {path} was stopped by its progress callback.")
            return cls(child, _unless_failed(answer))
        except BaseException:
            child.kill()
            raise

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def vocab(self) -> LlamaVocab:
        return self._vocabulary.vocab

    def backend(self, options: ContextOptions | None = None) -> "IsolatedContext":
        """A context there, the only one. Raises what `Model.backend` raises, and EngineError when the child dies."""
        self._child.send(Open(options or ContextOptions()))
        return IsolatedContext(self._child, self.vocab, _unless_failed(self._child.receive()))

    def close(self) -> None:
        """Free both; twice is fine."""
        self._child.close()
        self._vocabulary.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Vocabulary:
    """A model file's tokens, without its weights."""

    def __init__(self, path: Path) -> None:
        lib = library()
        params = lib.llama_model_default_params()
        params.vocab_only = True
        handle = lib.llama_model_load_from_file(os.fsencode(path), params)
        if not handle:
            raise ModelLoadError(
                f"The vocabulary of {path} could not be read a second time; is the file being changed?"
            )
        shared = Shared(handle, lib.llama_model_free)
        self._free = weakref.finalize(self, shared.close, ModelLoadError("The model is closed; load it again."))
        self.vocab = LlamaVocab(shared)

    def close(self) -> None:
        self._free()


class IsolatedContext:
    """What a service needs to know of the child's context."""

    def __init__(self, child: _Child, vocab: LlamaVocab, opened: Opened) -> None:
        self._child = child
        self.vocab = vocab
        self.info = opened.info
        self.origin: Origin = opened.origin

    def runner(self, deliver: Callable[[Sequence[Reply]], None], options: LoopOptions) -> "IsolatedRunner":
        """Let the child's loop run."""
        self._child.send(Start(options))
        return IsolatedRunner(self._child, deliver)


class IsolatedRunner:
    """The runner in the child: submits, and delivers what comes, in a thread of its own; as `Runner` does."""

    def __init__(self, child: _Child, deliver: Callable[[Sequence[Reply]], None]) -> None:
        self._child = child
        self._deliver = deliver
        self._waiting: dict[int, Callable[[Any], Any] | None] = {}  # what completes the events of each request
        self._gate = threading.Lock()
        self._refusal: EngineError | None = None
        self._thread = threading.Thread(target=self._read, name="llama-engine", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> None:
        """Accept a request. Raises EngineError after `close`, or when the child died; RequestError for one that cannot
        be sent."""
        checked = getattr(request.parser, "checked", None)
        parcel = Parcel(request.id, _pickled(request))
        self._accept(parcel, request.id, None if checked is None else checked())

    def save(self, id_: int, pin: int) -> None:
        """Ask for the state of what request `pin` pinned. Raises EngineError like `submit`."""
        self._accept(Save(id_, pin), id_, None)

    def unpin(self, id_: int) -> None:
        """What a request pinned need not stay."""
        self._child.send(Unpin(id_))

    def cancel(self, id_: int) -> None:
        """End a request at the next chunk boundary. One that is over is left alone."""
        self._child.send(Cancel(id_))

    def end_reasoning(self, id_: int) -> None:
        """Close a request's reasoning after its next token."""
        self._child.send(EndReasoning(id_))

    def close(self) -> None:
        """Cancel what runs, end the child, join the thread; twice is fine. A child that is stuck is ended by force."""
        with self._gate:
            if self._refusal is None:
                self._refusal = EngineError("The engine is closed; load it again.")
        self._child.send(Close())
        if threading.current_thread() is not self._thread:
            self._thread.join(_PATIENCE)
            if self._thread.is_alive():
                self._child.kill()
                self._thread.join()

    def _accept(self, order: Parcel | Command, id_: int, checked: Callable[[Any], Any] | None) -> None:
        with self._gate:
            if self._refusal is not None:
                raise self._refusal
            self._waiting[id_] = checked
        self._child.send(order)

    def _read(self) -> None:
        try:
            while True:
                replies: list[Reply] = self._child.receive()
                self._deliver([completed for reply in replies for completed in self._completed(reply)])
        except EngineError as error:
            self._over(error)
        except BaseException as fault:  # noqa: BLE001 - whatever broke it, those who wait must hear of it
            _log.error("The thread that reads from the model's process broke.", exc_info=fault)
            self._child.kill()
            self._over(EngineError(f"The engine broke ({type(fault).__name__}: {fault}); load the model again."))

    def _over(self, error: EngineError) -> None:
        """The child is gone: tell everyone who waits."""
        with self._gate:
            self._refusal = said = self._refusal or error
            left, self._waiting = list(self._waiting), {}
        self._deliver([refusal(id_, said) for id_ in left])
        self._child.close()

    def _completed(self, reply: Reply) -> Sequence[Reply]:
        """The reply with what stayed here; none to a request that has ended by what went wrong in that."""
        if reply.id not in self._waiting:
            return ()
        checked = self._waiting.pop(reply.id) if reply.final else self._waiting[reply.id]
        if checked is None:
            return (reply,)
        try:
            return (reply._replace(events=checked(reply.events)),)
        except Exception as error:  # noqa: BLE001 - the caller's code: the check of a tool's arguments
            self._waiting.pop(reply.id, None)
            self._child.send(Cancel(reply.id))
            return (refusal(reply.id, error),)


def _unless_failed(answer: Any) -> Any:
    if isinstance(answer, Failed):
        raise answer.error
    return answer


def _pickled(request: Request) -> bytes:
    try:
        return pickle.dumps(request, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise RequestError(
            f"The request cannot be sent to the model's own process ({error}). A logits processor must be a function "
            "of a module, neither a lambda nor a closure; or load with isolated=False."
        ) from error
