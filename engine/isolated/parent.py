"""A model in a child process: takes the place of `llama` and `runner` in this process.

A native fault ends only the child. Python threads of the caller cannot slow its decodes down, since it has its own GIL.
The child can execute nothing here: its replies are read as plain data (`engine.isolated.answers`).
"""

import itertools
import logging
import os
import pickle
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, Self, TypeVar

from engine.child import Child, ChildGoneError
from engine.deadlines import call_later
from engine.errors import EngineError, ModelLoadError, RequestError
from engine.isolated.answers import decoded
from engine.isolated.protocol import (
    Channel,
    Drop,
    Failed,
    Line,
    Load,
    Loading,
    Open,
    Opened,
    Parcel,
    Parts,
    Read,
    Start,
    ending,
    refusal,
)
from engine.llama.lib import library
from engine.llama.lifetime import Shared
from engine.llama.model import ModelInfo
from engine.llama.projector_file import ProjectorFile
from engine.llama.vocab import LlamaVocab
from engine.media import Media
from engine.runtime.adapters import DropAdapter, LoadAdapter
from engine.runtime.config import ContextOptions, LoopOptions, ModelOptions
from engine.runtime.media import MOST_ROWS, Part, Unit
from engine.runtime.request import Cancel, Command, EndReasoning, Reply, Save, TurnRequest, Unpin
from engine.runtime.state_file import Origin
from engine.runtime.vectors import Embed

_Answer = TypeVar("_Answer")
_log = logging.getLogger("engine.isolation")
_GRACE = 1.0
"""Seconds that a child has, after a deadline or after `close`, to report how its requests ended."""
_LOGGERS = ("engine", "engine.llama", "engine.runner")


class _Link:
    """The child and both directions of communication. Only one thread at a time may call `receive`."""

    def __init__(self) -> None:
        self.child = Child("engine.isolated.worker", "The model's process", "load with isolated=False", as_here=True)
        self.orders = Channel(self.child.orders)
        weakref.finalize(self, self.orders.close)

    def send(self, order: object) -> None:
        """Queue an order. Raises EngineError in a fork of this process. If the child is gone, `receive` raises the
        error."""
        self.child.check_owner()
        self.orders.send(pickle.dumps(order, pickle.HIGHEST_PROTOCOL))

    def receive(self) -> Any:
        """Returns the next reply. Raises EngineError if the child is gone, or if its reply cannot be read."""
        while True:
            try:
                answer = decoded(self.child.receive())
            except ChildGoneError as error:
                raise EngineError(f"{str(error).removesuffix('.')}; load the model again.") from error
            except Exception as error:
                self.child.kill()
                message = f"The model's process sent an unreadable reply ({type(error).__name__}: {error})"
                raise EngineError(f"{message}; load the model again.") from error
            if not isinstance(answer, Line):
                return answer
            logger = logging.getLogger(answer.logger)
            if logger.isEnabledFor(answer.level):
                logger.handle(logger.makeRecord(answer.logger, answer.level, "", 0, answer.text, (), None))

    def close(self) -> None:
        """Let the child end, and kill it if it does not; may be called twice."""
        self.orders.close()
        self.child.close()


class IsolatedModel:
    """Weights, loaded in a child process; their vocabulary is loaded in this process too."""

    def __init__(self, link: _Link, info: ModelInfo) -> None:
        self._link = link
        self._info = info
        self._vocabulary = _Vocabulary(info.path)

    @classmethod
    def load(
        cls,
        path: str | Path,
        options: ModelOptions,
        *,
        progress: Callable[[float], bool | None] | None = None,
        draft: Path | None = None,
        head: bool = False,
    ) -> Self:
        """Load the weights, and those of a draft model or of the model's own head. Raises what `Model.load`
        and `check_draft` raise, and EngineError if the child dies."""
        link = _Link()
        try:
            level = min(logging.getLogger(name).getEffectiveLevel() for name in _LOGGERS)
            link.send(Load(Path(path), options, level, progress is not None, draft, head))
            while isinstance(answer := link.receive(), Loading):
                if progress is not None and progress(answer.fraction) is False:
                    raise ModelLoadError(f"Loading {path} was stopped by its progress callback.")
            return cls(link, _expected(ModelInfo, answer))
        except BaseException:
            link.child.kill()
            link.close()
            raise

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def vocab(self) -> LlamaVocab:
        return self._vocabulary.vocab

    def backend(
        self,
        options: ContextOptions | None = None,
        draft: ContextOptions | None = None,
        projector: ProjectorFile | None = None,
    ) -> "IsolatedContext":
        """Make the child's only context, with a projector if there is one, and the draft model's. Raises what
        `Model.backend` raises, and EngineError if the child dies."""
        self._link.send(Open(options or ContextOptions(), draft, projector))
        return IsolatedContext(self._link, self.vocab, _expected(Opened, self._link.receive()))

    def close(self) -> None:
        """Free the child and the vocabulary; may be called twice."""
        self._link.close()
        self._vocabulary.close()


class _Vocabulary:
    """A model file's tokens, without its weights."""

    def __init__(self, path: Path) -> None:
        lib = library()
        params = lib.llama_model_default_params()
        params.vocab_only = True
        handle = lib.llama_model_load_from_file(os.fsencode(path), params)
        if not handle:
            raise ModelLoadError(
                f"The vocabulary of {path} could not be read a second time; check whether the file is being changed."
            )
        shared = Shared(handle, lib.llama_model_free)
        self._free = weakref.finalize(self, shared.close, ModelLoadError("The model is closed; load it again."))
        self.vocab = LlamaVocab(shared)

    def close(self) -> None:
        self._free()


class IsolatedContext:
    """What a service needs to know about the child's context."""

    def __init__(self, link: _Link, vocab: LlamaVocab, opened: Opened) -> None:
        self._link = link
        self.vocab = vocab
        self.info = opened.info
        self.origin: Origin = opened.origin

    def runner(self, deliver: Callable[[Sequence[Reply]], None], options: LoopOptions) -> "IsolatedRunner":
        """Start the loop in the child."""
        self._link.send(Start(options))
        return IsolatedRunner(self._link, deliver)


class IsolatedRunner:
    """The runner in the child, with the methods of `Runner`: submits requests, and delivers replies in a thread of its
    own.

    Ends here what the child does not end in time: a request whose deadline is over, and all requests on `close`.
    """

    def __init__(self, link: _Link, deliver: Callable[[Sequence[Reply]], None]) -> None:
        self._link = link
        self._deliver = deliver
        self._waiting: dict[int, _Kept] = {}
        self._reads = itertools.count(-1, -1)  # the service's ids are positive
        self._gate = threading.Lock()
        self._delivering = threading.Lock()
        self._refusal: EngineError | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._read, name="llama-engine", daemon=True)
        self._thread.start()

    def submit(self, request: TurnRequest) -> None:
        """Accept a request. Raises EngineError after `close`, or when the child died; RequestError if the request
        cannot be pickled."""
        checked = getattr(request.parser, "checked", None)
        parcel = Parcel(request.id, _pickled(request))
        self._accept(parcel, request.id, _Kept(None if checked is None else checked()), request.deadline)

    def save(self, id_: int, pin: int) -> None:
        """Ask for the state of the prefix that request `pin` pinned. Raises EngineError like `submit`."""
        self._accept(Save(id_, pin), id_, _Kept())

    def embed(self, request: Embed) -> None:
        """Ask for vectors. Raises EngineError like `submit`."""
        self._accept(request, request.id, _Kept())

    def change_adapters(self, order: LoadAdapter | DropAdapter) -> None:
        """Ask for an adapter to be loaded or dropped in the child. Raises EngineError like `submit`."""
        self._accept(order, order.id, _Kept())

    def read(self, media: Media) -> Sequence[Part]:
        """Returns a picture or a sound as the model reads it, read by the child. Raises what `LlamaProjector.read`
        raises, and EngineError like `submit`."""
        id_, answers = next(self._reads), SimpleQueue[list[Part] | Reply]()
        self._accept(Read(id_, media), id_, _Kept(answer=answers.put))
        answer = answers.get()
        if not isinstance(answer, Reply):
            return answer
        raise answer.error or EngineError("The engine was closed before the picture or sound was read.")

    def _unit(self, unit: Unit) -> Unit:
        if not 0 < unit.rows <= MOST_ROWS:  # each row becomes a number here
            raise EngineError(f"The model's process reports a picture or sound of {unit.rows} rows. Load it again.")
        return replace(unit, source=_Chunk(unit.source, lambda number: self._tell(Drop(number))))

    def unpin(self, id_: int) -> None:
        """Allow what a request pinned to be forgotten."""
        self._tell(Unpin(id_))

    def cancel(self, id_: int) -> None:
        """End a request at the next chunk boundary. Does nothing if it is over."""
        self._tell(Cancel(id_))

    def end_reasoning(self, id_: int) -> None:
        """Close a request's reasoning after its next token."""
        self._tell(EndReasoning(id_))

    @property
    def closed(self) -> bool:
        """Whether `submit` refuses requests: after `close`, or when the child died."""
        return self._refusal is not None

    def close(self) -> None:
        """Cancel what runs, end the child, join the thread; may be called twice. A child that is stuck is killed."""
        with self._gate:
            self._closed = True
            self._refusal = self._refusal or EngineError("The engine is closed; load it again.")
        self._link.orders.close()  # which tells the child to end
        if threading.current_thread() is not self._thread:
            self._thread.join(_GRACE)
            if self._thread.is_alive():
                self._link.child.kill()
                self._thread.join()

    def _tell(self, order: Command | Drop) -> None:
        if self._link.child.is_ours and not self._closed:
            self._link.send(order)

    def _accept(self, order: Parcel | Read | Command, id_: int, kept: "_Kept", deadline: float | None = None) -> None:
        self._link.child.check_owner()
        with self._gate:
            if self._refusal is not None:
                raise self._refusal
            if deadline is not None:
                kept = kept._replace(forget=call_later(deadline + _GRACE, lambda: self._expired(id_)))
            self._waiting[id_] = kept
        self._link.send(order)

    def _read(self) -> None:
        try:
            while True:
                replies: list[Reply | Parts] = self._link.receive()
                with self._delivering:
                    self._deliver([completed for reply in replies for completed in self._completed(reply)])
        except EngineError as error:
            self._over(error)
        except BaseException as fault:  # noqa: BLE001 - whatever broke it, all waiting requests must end
            _log.error("The thread that reads from the model's process broke.", exc_info=fault)
            self._link.child.kill()
            self._over(EngineError(f"The engine broke ({type(fault).__name__}: {fault}); load the model again."))

    def _over(self, error: EngineError) -> None:
        """End all waiting requests after the child is gone."""
        with self._gate:
            self._refusal = reported = self._refusal or error
            left, self._waiting = self._waiting, {}
        ends = {id_: ending(id_, "cancelled") if self._closed else refusal(id_, reported) for id_ in left}
        for id_, kept in left.items():
            kept.forget()
            kept.answer(ends[id_])
        with self._delivering:
            self._deliver([*ends.values()])
        self._link.close()

    def _expired(self, id_: int) -> None:
        """End a request that the child has not ended, after its deadline and the grace period."""
        with self._delivering:
            with self._gate:
                if self._waiting.pop(id_, None) is None:
                    return
            self._deliver([ending(id_, "deadline")])
        self._tell(Cancel(id_))

    def _completed(self, reply: Reply | Parts) -> Sequence[Reply]:
        """Returns the reply, its events completed by the callables that stayed here; an error reply if they fail, and
        nothing for a request that has ended."""
        kept = self._waiting.get(reply.id)
        if kept is None:
            return ()
        if isinstance(reply, Parts):
            parts = [self._unit(part) if isinstance(part, Unit) else part for part in reply.parts]
            del self._waiting[reply.id]
            kept.answer(parts)
            return ()
        kept.answer(reply)
        try:
            completed = reply if kept.checked is None else reply._replace(events=kept.checked(reply.events))
        except Exception as error:  # noqa: BLE001 - the caller's code: the check of a tool's arguments
            self._tell(Cancel(reply.id))
            completed = refusal(reply.id, error)
        if completed.final:
            self._waiting.pop(reply.id, None)
            kept.forget()
        return (completed,)


class _Kept(NamedTuple):
    """The parts of a request that stay here: `checked` completes its events, `forget` cancels the timer of its
    deadline, `answer` gets the reply to a `Read`."""

    checked: Callable[[Any], Any] | None = None
    forget: Callable[[], object] = int
    answer: Callable[[list[Part] | Reply], object] = id


class _Chunk:
    """A chunk of the child's projector, which `drop` forgets there together with this object. Crosses as its number."""

    def __init__(self, number: int, drop: Callable[[int], None]) -> None:
        self._number = number
        weakref.finalize(self, drop, number).atexit = False

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (self._number,)


def _expected(kind: type[_Answer], answer: Any) -> _Answer:
    if isinstance(answer, Failed):
        raise answer.error
    if not isinstance(answer, kind):
        raise EngineError(f"The model's process sent a {type(answer).__name__} instead of a {kind.__name__}.")
    return answer


def _pickled(request: TurnRequest) -> bytes:
    try:
        return pickle.dumps(request, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise RequestError(
            f"The request cannot be sent to the model's own process ({error}). A logits processor must be a function "
            "defined in a module, neither a lambda nor a closure; or load with isolated=False."
        ) from error
