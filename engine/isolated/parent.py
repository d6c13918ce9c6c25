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
from typing import Self

from engine.isolated.link import AGAIN, Link
from engine.isolated.pending import PendingRequest, PendingRequests
from engine.isolated.protocol import Drop, Load, Open, Parts, PickledRequest, Read, Start, ending, refusal
from engine.llama.gguf.projector_file import ProjectorFile
from engine.llama.lib import library
from engine.llama.lifetime import Shared
from engine.llama.model import ModelInfo
from engine.llama.vocab import LlamaVocab
from engine.runtime.adapters.adapters import DropAdapter, LoadAdapter
from engine.runtime.loop.backend import ContextInfo
from engine.runtime.loop.config import ContextOptions, LoopOptions, ModelOptions
from engine.runtime.loop.request import Cancel, EndReasoning, Reply, Request, Unpin
from engine.runtime.media.media import MOST_ROWS, MediaChunk, PromptPart
from engine.runtime.stream.embed_queue import Embed
from engine.support import threads
from engine.support.child import ChildGoneError
from engine.support.deadlines import call_later
from engine.support.errors import EngineError, ModelLoadError, RequestError
from engine.types.media import Media

_log = logging.getLogger("engine.isolation")
_GRACE = 1.0
"""Seconds that a child has, after a deadline or after `close`, to report how its requests ended."""
_MOST_DEATHS = 5
"""Deaths in a row, without an answer between them, after which no other child is started."""
_WHILE = {
    True: "while it wrote this answer; the model is loaded again by itself, so ask again",
    False: "twice over this request, which is not sent again; the model is loaded again by itself",
}
_LOGGERS = ("engine", "engine.llama", "engine.runner")


class IsolatedModel:
    """Weights, loaded in a child process; their vocabulary is loaded in this process too."""

    def __init__(self, link: Link, info: ModelInfo) -> None:
        self._link = link
        self.info = info
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
        link = Link()
        try:
            level = min(logging.getLogger(name).getEffectiveLevel() for name in _LOGGERS)
            return cls(link, link.load(Load(Path(path), options, level, progress is not None, draft, head), progress))
        except BaseException as error:
            link.child.kill()
            link.close()
            if isinstance(error, ChildGoneError):
                raise _to_load_again(error) from error
            raise

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
        try:
            opened = self._link.open(Open(options or ContextOptions(), draft, projector))
        except ChildGoneError as error:
            raise _to_load_again(error) from error
        return IsolatedContext(self._link, self.vocab, opened.info)

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
        self._free = weakref.finalize(self, shared.close, EngineError("The model is closed; load it again."))
        self.vocab = LlamaVocab(shared)

    def close(self) -> None:
        self._free()


class IsolatedContext:
    """What a service needs to know about the child's context."""

    def __init__(self, link: Link, vocab: LlamaVocab, info: ContextInfo) -> None:
        self._link = link
        self.vocab = vocab
        self.info = info

    def runner(self, deliver: Callable[[Sequence[Reply]], None], options: LoopOptions) -> "IsolatedRunner":
        """Start the loop in the child."""
        self._link.start(Start(options))
        return IsolatedRunner(self._link, deliver)


class IsolatedRunner:
    """The runner in the child, with the methods of `Runner`: submits requests, and delivers replies in a thread of its
    own.

    If the child dies, another one takes its place: with its adapters, without its prefixes and pins. Requests that have
    shown nothing are sent again. Ends here what a child does not end: those that have shown something, a request
    whose deadline is over, and all requests on `close`.
    """

    def __init__(self, link: Link, deliver: Callable[[Sequence[Reply]], None]) -> None:
        self._link = link
        self._deliver = deliver
        self._ledger = PendingRequests()
        self._adapters: list[LoadAdapter] = []
        self._sources: weakref.WeakValueDictionary[int, _Source] = weakref.WeakValueDictionary()
        self._own_ids = itertools.count(-1, -1)  # the service's ids are positive
        self._gate = threading.Lock()
        self._delivering = threading.Lock()
        self._refusal: EngineError | None = None
        self._closed = False
        self._serves = True
        self._deaths = 0
        self.restarts = 0
        """How many children took the place of one that died."""
        self._thread = threading.Thread(target=self._run, name="llama-engine", daemon=True)
        try:
            threads.start(self._thread)
        except EngineError:
            link.close()
            raise

    def submit(self, request: Request) -> None:
        """Accept a request. Raises EngineError after `close`, or when the engine is broken; RequestError if the request
        cannot be pickled."""
        checked = getattr(request.parser, "checked", None)
        owed = PendingRequest(
            request.id, PickledRequest(request.id, _pickled(request)), None if checked is None else checked()
        )
        self._accept(owed, request.deadline)

    def ask(self, order: Embed | LoadAdapter | DropAdapter) -> None:
        """Ask for vectors, or for an adapter to be loaded or dropped in the child. Raises EngineError like `submit`."""
        self._accept(PendingRequest(order.id, order))

    def read(self, media: Media) -> Sequence[PromptPart]:
        """Returns a picture or a sound as the model reads it, read by the child. Raises what `LlamaProjector.read`
        raises, and EngineError like `submit`."""
        order = Read(next(self._own_ids), media)
        source = self._sources[order.id] = _Source(order, lambda: self._tell(Drop(order.id)))
        self._accept(PendingRequest(order.id, order, answer=source.take))
        answer = source.answers.get()
        if isinstance(answer, Reply):
            raise answer.error or EngineError("The engine was closed before the picture or sound was read.")
        return [_here(part, source) if isinstance(part, MediaChunk) else part for part in answer.parts]

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
        """Whether `submit` refuses requests: after `close`, or when the engine is broken."""
        return self._refusal is not None

    @property
    def in_own_thread(self) -> bool:
        """Whether the caller is in the thread that delivers replies, where waiting for one would never end."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """Cancel what runs, end the child, join the thread; may be called twice. A child that is stuck is killed."""
        with self._gate:
            self._closed = True
            self._refusal = self._refusal or EngineError("The engine is closed; load it again.")
        self._link.shut()  # which tells the child to end
        if not self.in_own_thread:
            self._thread.join(_GRACE)
            if self._thread.is_alive():
                self._link.child.kill()
                self._thread.join()

    def _tell(self, order: Cancel | EndReasoning | Unpin | Drop) -> None:
        """Send an order that needs no reply. Takes no lock, since a destructor may call it anywhere."""
        if (owed := self._ledger.get(order.id)) is not None:
            owed.told.append(order)
            owed.is_cancelled = owed.is_cancelled or isinstance(order, Cancel)
        orders = self._link.orders  # before the question whether this child serves: never those of one that is set up
        if self._serves and self._link.child.is_ours and not self._closed:
            orders.send(pickle.dumps(order, pickle.HIGHEST_PROTOCOL))

    def _accept(self, owed: PendingRequest, deadline: float | None = None) -> None:
        self._link.child.check_owner()
        with self._gate:
            if self._refusal is not None:
                raise self._refusal
            if deadline is not None:
                owed.forget = call_later(deadline + _GRACE, lambda: self._expired(owed.id))
            self._ledger.add(owed)
            self._send_due()

    def _send_due(self) -> None:
        """Send what is due, with what was told about it. The caller holds the gate."""
        for owed in self._ledger.due() if self._serves else ():
            for order in (owed.order, *owed.told):
                self._link.send(order)

    def _run(self) -> None:
        try:
            while True:
                try:
                    replies: list[Reply | Parts] = self._link.receive()
                except ChildGoneError as error:
                    self._begin_again(error)
                    continue
                with self._delivering:
                    self._deliver([completed for reply in replies for completed in self._completed(reply)])
                self._withdraw()
        except EngineError as error:
            self._over(error)
        except BaseException as fault:  # noqa: BLE001 - whatever broke it, all waiting requests must end
            _log.error("The thread that reads from the model's process broke.", exc_info=fault)
            self._link.child.kill()
            self._over(EngineError(f"The engine broke ({type(fault).__name__}: {fault}); {AGAIN}."))

    def _begin_again(self, error: ChildGoneError) -> None:
        """Start another child in place of one that died, until one lives. Raises EngineError after `close`, after too
        many deaths in a row, and if the next child is not the same."""
        while True:
            with self._gate:
                self._serves = False
                self._deaths += 1
                lost = self._ledger.death()
            died = str(error).removesuffix(".")
            for owed in lost:
                self._finish(owed, self._last(owed, EngineError(f"{died} {_WHILE[owed.is_shown]}.")))
            if self._closed or self._deaths > _MOST_DEATHS:
                raise _to_load_again(error)
            _log.warning("%s; it is started again. Requests that wait for it: %d.", died, len(self._ledger))
            try:
                self._link.begin_again()
                self._load_again()
                self.restarts += 1
                break
            except ChildGoneError as another:
                error = another
        with self._gate:
            self._serves = True
            self._send_due()
        self._withdraw()

    def _load_again(self) -> None:
        """Give a new child the adapters and the media that the old one had. Raises EngineError for an adapter that
        cannot be loaded any more."""
        adapters = [order._replace(id=next(self._own_ids)) for order in self._adapters]
        held = [source.order for at in self._sources.valuerefs() if (source := at()) is not None]  # others add to it
        media = [order for order in held if self._ledger.get(order.id) is None]
        orders = {order.id: order for order in (*adapters, *media)}
        for order in orders.values():
            self._link.send(order)
        while orders:
            for reply in self._link.receive():
                order = orders.pop(reply.id)
                if isinstance(reply, Reply) and isinstance(order, LoadAdapter) and reply.error is not None:
                    raise EngineError(f"{order.path} cannot be loaded again ({reply.error}); {AGAIN}.")

    def _last(self, owed: PendingRequest, error: EngineError) -> Reply:
        if owed.is_cancelled or self._closed:
            return ending(owed.id, "cancelled")
        return refusal(owed.id, error)

    def _over(self, error: EngineError) -> None:
        """End all waiting requests after the last child is gone."""
        with self._gate:
            self._refusal = reported = self._refusal or error
            left = self._ledger.clear()
        for owed in left:
            self._finish(owed, self._last(owed, reported))
        self._link.close()

    def _withdraw(self) -> None:
        """End the requests that were cancelled before they were sent."""
        with self._gate:
            withdrawn = self._ledger.withdrawn()
        for owed in withdrawn:
            self._finish(owed, ending(owed.id, "cancelled"))

    def _expired(self, id_: int) -> None:
        """End a request that the child has not ended, after its deadline and the grace period."""
        with self._gate:
            owed = self._ledger.end(id_)
            self._send_due()
        if owed is not None:
            self._finish(owed, ending(id_, "deadline"))
            self._tell(Cancel(id_))

    def _finish(self, owed: PendingRequest, last: Reply) -> None:
        """Deliver the last reply to a request that was struck out."""
        owed.forget()
        owed.answer(last)
        with self._delivering:
            self._deliver([last])

    def _completed(self, reply: Reply | Parts) -> Sequence[Reply]:
        """Returns the reply, its events completed by the callables that stayed here; an error reply if they fail, and
        nothing for a request that has ended."""
        owed = self._ledger.get(reply.id)
        if owed is None:
            return ()
        owed.answer(reply)
        if isinstance(reply, Parts):
            self._struck_out(owed)
            return ()
        try:
            completed = reply if owed.checked is None else reply._replace(events=owed.checked(reply.events))
        except Exception as error:  # noqa: BLE001 - the caller's code: the check of a tool's arguments
            self._tell(Cancel(reply.id))
            completed = refusal(reply.id, error)
        owed.is_shown = owed.is_shown or bool(completed.events or completed.logprobs)
        if completed.final:
            if not self._struck_out(owed):
                return ()
            owed.forget()
            if completed.error is None:
                self._deaths = 0
                self._note_adapter(owed.order)
        return (completed,)

    def _struck_out(self, owed: PendingRequest) -> bool:
        with self._gate:
            was_owed = self._ledger.end(owed.id) is not None
            self._send_due()
        return was_owed

    def _note_adapter(self, order: object) -> None:
        """Remember which adapters a next child needs."""
        if isinstance(order, LoadAdapter):
            self._adapters.append(order)
        elif isinstance(order, DropAdapter):
            self._adapters = [loaded for loaded in self._adapters if loaded.key != order.key]


class _Source:
    """A picture or sound that the child reads; `drop` is called when nothing here refers to it any more."""

    def __init__(self, order: Read, drop: Callable[[], None]) -> None:
        self.order = order
        self.answers: SimpleQueue[Parts | Reply] = SimpleQueue()
        weakref.finalize(self, drop).atexit = False

    def take(self, answer: Parts | Reply) -> None:
        """Pass on the answer to the order. Until it comes, the order refers to this object by this method."""
        self.answers.put(answer)


class _Chunk:
    """A chunk of the child's projector. Crosses as the number of its source, and its own there."""

    def __init__(self, source: _Source, number: int) -> None:
        self._source = source
        self._number = number

    def __reduce__(self) -> tuple[type[tuple[int, int]], tuple[tuple[int, int]]]:
        return tuple, ((self._source.order.id, self._number),)


def _here(unit: MediaChunk, source: _Source) -> MediaChunk:
    if not 0 < unit.rows <= MOST_ROWS:  # each row becomes a number here
        raise EngineError(f"The model's process reports a picture or sound of {unit.rows} rows. Load it again.")
    return replace(unit, source=_Chunk(source, unit.source))


def _to_load_again(error: ChildGoneError) -> EngineError:
    return EngineError(f"{str(error).removesuffix('.')}; {AGAIN}.")


def _pickled(request: Request) -> bytes:
    try:
        return pickle.dumps(request, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise RequestError(
            f"The request cannot be sent to the model's own process ({error}). A logits processor must be a function "
            "defined in a module, neither a lambda nor a closure; or load with isolated=False."
        ) from error
