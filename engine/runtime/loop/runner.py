"""The one thread that owns the context: takes commands from a queue and delivers replies once per step."""

import logging
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Protocol, runtime_checkable

from engine.runtime.adapters.adapters import DropAdapter, LoadAdapter
from engine.runtime.guidance.guide import compile_constraint
from engine.runtime.loop.backend import Backend, ContextInfo, Vocab
from engine.runtime.loop.config import LoopOptions
from engine.runtime.loop.loop import Loop
from engine.runtime.loop.request import (
    Cancel,
    Close,
    Command,
    Encoded,
    EndReasoning,
    Reply,
    Request,
    Unpin,
)
from engine.runtime.media.media import PromptPart
from engine.runtime.stream.embed_queue import Embed
from engine.support import threads
from engine.support.errors import EngineError
from engine.types.events import Finished
from engine.types.media import Media

_log = logging.getLogger("engine.runner")


class LoopHandle(Protocol):
    """Submits requests to a loop, in whichever process it runs; `Runner` documents each method."""

    @property
    def closed(self) -> bool: ...
    @property
    def restarts(self) -> int: ...
    @property
    def in_own_thread(self) -> bool: ...
    def submit(self, request: Request) -> None: ...
    def ask(self, order: Embed | LoadAdapter | DropAdapter) -> None: ...
    def unpin(self, id_: int) -> None: ...
    def cancel(self, id_: int) -> None: ...
    def end_reasoning(self, id_: int) -> None: ...
    def close(self) -> None: ...


class RemoteHandle(LoopHandle, Protocol):
    """A handle of a loop in another process, which has the projector too: `read` is that of `Projector`."""

    def read(self, media: Media) -> Sequence[PromptPart]: ...


@runtime_checkable
class RemoteContext(Protocol):
    """A context whose loop does not run in this process."""

    @property
    def vocab(self) -> Vocab: ...
    @property
    def info(self) -> ContextInfo: ...
    def runner(self, deliver: Callable[[Sequence[Reply]], None], options: LoopOptions) -> RemoteHandle: ...


class Runner:
    """Runs a loop over a backend in a thread of its own, until `close`; owns the backend and `draft`, which guesses for
    it.

    `deliver` is called in that thread with the replies of one step; it must neither raise nor wait. Every request that
    was accepted gets exactly one final reply, also when the runner is closed or its loop breaks.
    """

    restarts = 0  # a loop in this process ends with it

    def __init__(
        self,
        backend: Backend,
        deliver: Callable[[Sequence[Reply]], None],
        options: LoopOptions | None = None,
        draft: Backend | None = None,
    ) -> None:
        self._deliver = deliver
        self._backend = backend
        self._draft = draft
        self._inbox: SimpleQueue[Command] = SimpleQueue()
        self._loop = Loop(backend, options, draft=draft, encoded=lambda: self._inbox.put(Encoded()))
        self._gate = threading.Lock()
        self._refusal: EngineError | None = None
        self._open: set[int] = set()  # what was accepted and has no final reply yet
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="llama-engine", daemon=True)
        try:
            threads.start(self._thread)
        except EngineError as error:  # the backend is ours, and nobody would free it
            self._refusal = error
            self._free()
            raise

    def submit(self, request: Request) -> None:
        """Accept a request. Compiles its grammar here, to spare the loop's thread that time. Raises EngineError after
        `close` or if the loop broke, RequestError for a grammar that cannot be enforced."""
        if request.constraint is not None:
            compile_constraint(request.constraint, self._loop.compiler)
        self._accept(request)

    def unpin(self, id_: int) -> None:
        """Allow what a request pinned to be forgotten."""
        self._inbox.put(Unpin(id_))

    def ask(self, order: Embed | LoadAdapter | DropAdapter) -> None:
        """Ask for vectors, or for an adapter to be loaded or dropped; the reply has the order's id. Raises EngineError
        like `submit`."""
        self._accept(order)

    def _accept(self, command: Request | Embed | LoadAdapter | DropAdapter) -> None:
        with self._gate:
            if self._refusal is not None:
                raise self._refusal
            self._open.add(command.id)
            self._inbox.put(command)

    def cancel(self, id_: int) -> None:
        """End a request at the next chunk boundary, or in the middle of a chunk of its own if the backend can stop.

        Does nothing if the request is over.
        """
        self._inbox.put(Cancel(id_))
        self._loop.interrupt(id_)

    def end_reasoning(self, id_: int) -> None:
        """Close a request's reasoning after its next token, if its limits have a `reasoning_close`."""
        self._inbox.put(EndReasoning(id_))

    @property
    def closed(self) -> bool:
        """Whether `submit` refuses requests: after `close`, or when the loop broke."""
        return self._refusal is not None

    @property
    def in_own_thread(self) -> bool:
        """Whether the caller is in the thread that delivers replies, where waiting for one would never end."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """Cancel what runs, free the backend and wait for the thread's end. May be called twice; from the thread itself
        it does not wait.

        `Thread.join` alone is not enough: interrupted by a signal handler's exception, it takes the thread for ended
        (threading.py of CPython 3.11, `_wait_for_tstate_lock`).
        """
        with self._gate:
            if self._refusal is None:
                self._refusal = EngineError("The engine is closed; load it again.")
            self._inbox.put(Close())
        self._loop.interrupt()
        if not self.in_own_thread:
            self._ended.wait()
            self._thread.join()

    def _run(self) -> None:
        loop = self._loop
        try:
            while self._carry_out():
                loop.step()
                self._hand_over(loop.drain())
            loop.cancel_all()
            loop.keep_states()
        except BaseException as fault:  # noqa: BLE001 - whatever broke the loop, its readers must be told
            self._break(fault)
        try:
            for reply in loop.drain():  # one by one: that one fails keeps no other
                self._last_word(reply)
            for id_ in sorted(self._open):
                self._last_word(Reply(id_, (Finished("error"),), final=True, error=self._refusal))
        finally:
            self._free()

    def _free(self) -> None:
        try:
            self._loop.close()
            self._backend.close()
            if self._draft is not None:
                self._draft.close()
        finally:
            self._ended.set()

    def _carry_out(self) -> bool:
        """Carry out the commands in the queue; with nothing else to do, wait for one, or for a deadline. Returns False
        after a `Close`."""
        inbox, loop = self._inbox, self._loop
        while not loop.busy or not inbox.empty():
            try:
                command = inbox.get(timeout=loop.patience)
            except Empty:
                return True
            if isinstance(command, Request):
                loop.submit(command)
            elif isinstance(command, Cancel):
                loop.cancel(command.id)
            elif isinstance(command, EndReasoning):
                loop.end_reasoning(command.id)
            elif isinstance(command, Unpin):
                loop.unpin(command.id)
            elif isinstance(command, Embed):
                loop.embed(command)
            elif isinstance(command, LoadAdapter | DropAdapter):
                loop.change_adapters(command)
            elif isinstance(command, Encoded):
                continue
            else:
                return False
            self._hand_over(loop.drain())
        return True

    def _hand_over(self, replies: Sequence[Reply]) -> None:
        if replies:
            self._deliver(replies)
            self._open.difference_update(reply.id for reply in replies if reply.final)

    def _last_word(self, reply: Reply) -> None:
        """Deliver a reply when the loop has ended. Nobody is left to tell that this failed, but the log."""
        self._open.discard(reply.id)
        try:
            self._deliver([reply])
        except Exception:  # noqa: BLE001 - whatever it is, the others' last replies follow
            _log.exception("The last reply to request %d was not delivered.", reply.id)

    def _break(self, fault: BaseException) -> None:
        """Refuse further requests, and end all present ones with the error."""
        _log.error("The engine's loop broke.", exc_info=fault)
        refusal = EngineError(f"The engine's loop broke ({type(fault).__name__}: {fault}); load the model again.")
        refusal.__cause__ = fault
        with self._gate:
            self._refusal = refusal
        self._loop.abandon(refusal)
