"""The child process that a model runs in: takes orders on standard input, sends replies on standard output.

The process ends when its orders end, so that it never outlives its parent.
"""

import itertools
import logging
import pickle
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from threading import Lock, Thread
from typing import Any, BinaryIO

from engine.isolated.answers import encoded
from engine.isolated.protocol import (
    Channel,
    Drop,
    Failed,
    Line,
    Load,
    Loading,
    Open,
    Opened,
    Parts,
    PickledRequest,
    Read,
    Start,
    refusal,
)
from engine.runtime.adapters.adapters import DropAdapter, LoadAdapter
from engine.runtime.loop.request import Cancel, EndReasoning, Reply, Request, Unpin
from engine.runtime.media.media import ChunkAt, MediaChunk, Projector, PromptPart
from engine.runtime.stream.embed_queue import Embed
from engine.support import threads
from engine.support.child import ends, read_frame
from engine.support.errors import EngineError, RequestError
from engine.types.media import Media


class _Forwarding(logging.Handler):
    """Sends log records to the parent, whose loggers handle them."""

    def __init__(self, answers: Channel) -> None:
        super().__init__()
        self._answers = answers

    def emit(self, record: logging.LogRecord) -> None:
        self._answers.send(encoded(Line(record.name, record.levelno, self.format(record))))


class _Worker:
    def __init__(self, orders: BinaryIO, answers: Channel) -> None:
        self._orders = orders
        self._answers = answers
        self._chunks = _Chunks()
        self._compiling = _Compiling()

    def run(self) -> None:
        """Serve until the orders end."""
        from engine.llama.draft import check_draft, load_draft
        from engine.llama.model import Model
        from engine.runtime.loop.runner import Runner

        load: Load = self._next()
        logging.getLogger("engine").addHandler(_Forwarding(self._answers))
        logging.getLogger("engine").setLevel(load.level)
        with ExitStack() as loaded:
            told = self._told if load.tells else None
            model = loaded.enter_context(Model.load(load.path, load.options, progress=told, head=load.head))
            draft: Model | None = None
            if load.draft is not None:
                draft = loaded.enter_context(load_draft(load.draft, load.options))
                check_draft(model, draft)
            self._answers.send(encoded(model.info))
            order: Open = self._next()
            backend = model.backend(order.options, order.projector)
            guessing = model.head(backend) if load.head else draft.backend(order.draft) if draft is not None else None
            self._answers.send(encoded(Opened(backend.info, backend.origin)))
            start: Start = self._next()
            runner = Runner(backend, self._deliver, start.options, guessing)
            try:
                self._serve(runner, backend.projector)
            finally:
                runner.close()

    def _serve(self, runner: Any, projector: Projector | None) -> None:
        """Pass orders on to the runner until they end."""
        while True:
            try:
                order: Any = self._next()
            except EOFError:
                return
            try:
                match order:
                    case PickledRequest(id, request):
                        self._submit(runner, self._chunks.filled(_opened(request)))
                    case Read(id, media) if projector is not None:
                        # It may take seconds, for which other orders do not wait.
                        threads.start(Thread(target=self._read, args=(id, media, projector), daemon=True))
                    case Drop(id):
                        self._chunks.drop(id)
                    case Embed() | LoadAdapter() | DropAdapter():
                        runner.ask(order)
                    case Cancel() | EndReasoning() | Unpin():
                        if not self._compiling.later(order):
                            _tell(runner, order)
                    case _:
                        raise AssertionError(order)
            except EngineError as error:
                self._deliver([refusal(order.id, error)])

    def _submit(self, runner: Any, request: Request) -> None:
        """Submit a request. A grammar may take seconds to compile, for which other orders do not wait."""
        if request.constraint is None:
            runner.submit(request)
            return
        self._compiling.begin(request.id)
        try:
            threads.start(Thread(target=self._submit_compiled, args=(runner, request), daemon=True))
        except BaseException:
            self._compiling.end(request.id)
            raise

    def _submit_compiled(self, runner: Any, request: Request) -> None:
        try:
            runner.submit(request)
        except Exception as error:  # noqa: BLE001 - whatever it is, who asked must hear of it
            self._deliver([refusal(request.id, error)])
        finally:
            for order in self._compiling.end(request.id):
                _tell(runner, order)

    def _read(self, id_: int, media: Media, projector: Projector) -> None:
        try:
            self._answers.send(encoded([Parts(id_, self._chunks.kept(id_, projector.read(media)))]))
        except Exception as error:  # noqa: BLE001 - whatever it is, who asked must hear of it
            self._deliver([refusal(id_, error)])

    def _next(self) -> Any:
        """Returns the next order. Raises EOFError when there are no more."""
        return pickle.loads(read_frame(self._orders))

    def _told(self, fraction: float) -> None:
        self._answers.send(encoded(Loading(fraction)))

    def _deliver(self, replies: Sequence[Reply]) -> None:
        self._answers.send(encoded(list(replies)))


class _Compiling:
    """The requests whose grammars are being compiled, and the orders about them that wait until they are submitted."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._waiting: dict[int, list[Cancel | EndReasoning | Unpin]] = {}

    def begin(self, id_: int) -> None:
        with self._lock:
            self._waiting[id_] = []

    def later(self, order: Cancel | EndReasoning | Unpin) -> bool:
        """Whether the order is about such a request; it is kept then."""
        with self._lock:
            waiting = self._waiting.get(order.id)
            if waiting is not None:
                waiting.append(order)
            return waiting is not None

    def end(self, id_: int) -> list[Cancel | EndReasoning | Unpin]:
        """Returns the orders that waited, in their order."""
        with self._lock:
            return self._waiting.pop(id_)


def _tell(runner: Any, order: Cancel | EndReasoning | Unpin) -> None:
    match order:
        case Cancel(id):
            runner.cancel(id)
        case EndReasoning(id):
            runner.end_reasoning(id)
        case Unpin(id):
            runner.unpin(id)


class _Chunks:
    """The sources of units that the parent holds, by the number of the order that read them."""

    def __init__(self) -> None:
        self._sources: dict[int, list[Any]] = {}

    def kept(self, id_: int, parts: Sequence[PromptPart]) -> tuple[PromptPart, ...]:
        """Returns the parts as the parent gets them: the source of a unit is its number among those of this order."""
        self._sources[id_] = [part.source for part in parts if isinstance(part, MediaChunk)]
        numbers = itertools.count()
        return tuple(replace(part, source=next(numbers)) if isinstance(part, MediaChunk) else part for part in parts)

    def drop(self, id_: int) -> None:
        self._sources.pop(id_, None)

    def filled(self, request: Request) -> Request:
        """Returns a request of the parent's with the sources of its units. Raises EngineError for media that could not
        be read again after the death of another child."""
        media: list[ChunkAt] = []
        for start, unit in request.media:
            id_, number = unit.source
            if id_ not in self._sources:
                raise EngineError("A picture or sound of this request could not be read again; send it again.")
            media.append(ChunkAt(start, replace(unit, source=self._sources[id_][number])))
        return replace(request, media=tuple(media))


def _opened(request: bytes) -> Any:
    try:
        return pickle.loads(request)
    except Exception as error:
        raise RequestError(
            f"The request cannot be read in the model's own process ({type(error).__name__}: {error}). A logits "
            "processor must be defined in a module that can be imported there; or load with isolated=False."
        ) from error


def main() -> int:
    """Serve one parent."""
    orders, pipe = ends()
    answers = Channel(pipe)
    try:
        _Worker(orders, answers).run()
    except EngineError as error:
        answers.send(encoded(Failed(error)))
    except EOFError:
        return 1  # the parent ended before `Start`
    answers.close()
    answers.join()
    return 0
