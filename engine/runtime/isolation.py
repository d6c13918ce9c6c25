"""A model in a child process: what `llama` and `runner` are in this one.

Knows: the child, how its end is read, and what of a request stays here (callables). Does not know: what the child does
with an order (`engine.runtime.worker`), why somebody wants it apart. A native fault ends only the child; and Python
threads of the caller cannot hold up its decodes, since it has an interpreter lock of its own.
"""

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
from engine.runtime.channel import Channel, Failed, Line, Load, Loading, Open, Opened, Parcel, Start, refusal
from engine.runtime.llama import ModelInfo
from engine.runtime.llama_lib import library
from engine.runtime.llama_vocab import LlamaVocab
from engine.runtime.options import ContextOptions, ModelOptions
from engine.runtime.requests import Cancel, Close, Command, EndReasoning, Reply, Request, Save, Unpin
from engine.runtime.state_file import Origin

_PATIENCE = 10.0
"""Seconds that a child has to end after it was told to."""
_LOGGERS = ("engine", "engine.llama", "engine.runner")


class _Child:
    """The process and both directions. `answers` has one reader at a time."""

    def __init__(self) -> None:
        if getattr(sys, "frozen", False) or not sys.executable:
            raise EngineError("This program cannot start a Python process for the model; load with isolated=False.")
        paths = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "engine.runtime.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths},
        )
        stdin: Any = self._process.stdin
        self._orders = Channel(stdin)
        self._answers: Any = self._process.stdout
        self._end = weakref.finalize(self, _end, self._process, self._orders)

    def send(self, order: object) -> None:
        """Leave an order. When the child is gone, its reader says so."""
        if not self._end.alive:
            return
        try:
            self._orders.send(order)
        except (OSError, ValueError):
            return

    def receive(self) -> Any:
        """The next answer. Raises EngineError when the child is gone."""
        while True:
            try:
                answer: Any = pickle.load(self._answers)
            except (EOFError, OSError, ValueError, pickle.UnpicklingError) as error:
                raise EngineError(f"The model's process {self.ending()}; load the model again.") from error
            if not isinstance(answer, Line):
                return answer
            logger = logging.getLogger(answer.record.name)
            if logger.isEnabledFor(answer.record.levelno):
                logger.handle(answer.record)

    def ending(self) -> str:
        """How it ended, in words. It has closed its side, so it is about to."""
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


def _end(process: "subprocess.Popen[bytes]", orders: Channel) -> None:
    orders.close()
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


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
        self._open = [handle]
        self._free = weakref.finalize(self, lib.llama_model_free, handle)
        opened = self._open

        def pointer() -> int:
            if not opened:
                raise ModelLoadError("The model is closed; load it again.")
            return int(lib.llama_model_get_vocab(opened[0]))

        self.vocab = LlamaVocab(pointer)

    def close(self) -> None:
        self._open.clear()
        self._free()


class IsolatedContext:
    """What a service needs to know of the child's context."""

    def __init__(self, child: _Child, vocab: LlamaVocab, opened: Opened) -> None:
        self._child = child
        self.vocab = vocab
        self.n_ctx_sequence = opened.n_ctx_sequence
        self.origin: Origin = opened.origin

    def runner(self, deliver: Callable[[Sequence[Reply]], None], *, longest_draft: int = 0) -> "IsolatedRunner":
        """Let the child's loop run."""
        self._child.send(Start(longest_draft))
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
        """Cancel what runs, end the child, join the thread; twice is fine."""
        with self._gate:
            if self._refusal is None:
                self._refusal = EngineError("The engine is closed; load it again.")
        self._child.send(Close())
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _accept(self, order: "Parcel | Command", id_: int, checked: Callable[[Any], Any] | None) -> None:
        with self._gate:
            if self._refusal is not None:
                raise self._refusal
            self._waiting[id_] = checked
        self._child.send(order)

    def _read(self) -> None:
        while True:
            try:
                replies: list[Reply] = self._child.receive()
            except EngineError as error:
                self._over(error)
                return
            self._deliver([self._completed(reply) for reply in replies])

    def _over(self, error: EngineError) -> None:
        """The child is gone: tell everyone who waits."""
        with self._gate:
            self._refusal = said = self._refusal or error
            left, self._waiting = list(self._waiting), {}
        self._deliver([refusal(id_, said) for id_ in left])
        self._child.close()

    def _completed(self, reply: Reply) -> Reply:
        checked = self._waiting.pop(reply.id, None) if reply.final else self._waiting.get(reply.id)
        return reply if checked is None else reply._replace(events=checked(reply.events))


def _unless_failed(answer: Any) -> Any:
    if isinstance(answer, Failed):
        raise answer.error
    return answer


def _pickled(request: Request) -> bytes:
    try:
        return pickle.dumps(request, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise RequestError(
            f"The request cannot be sent to the model's own process ({error}). A logits processor must be a function "
            "of a module, neither a lambda nor a closure; or load with isolated=False."
        ) from error
