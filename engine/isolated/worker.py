"""The child process that a model runs in: orders in on standard input, answers out on standard output.

Knows: the order of things (load, open, start, then requests) and that both directions are pickles, one behind the
other. Does not know: who asks (`engine.runtime.isolation`), what a step does. It ends when its orders end, so that none
outlives its parent.
"""

import logging
import os
import pickle
import signal
from collections.abc import Sequence
from logging.handlers import QueueHandler
from queue import SimpleQueue
from typing import Any, BinaryIO

from engine.errors import EngineError, RequestError
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
from engine.runtime.request import Cancel, Close, EndReasoning, Reply, Save, Unpin


class _Forwarding(QueueHandler):
    """Log records go to the parent, whose loggers decide about them."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(SimpleQueue())  # not used: see enqueue
        self._channel = channel

    def enqueue(self, record: logging.LogRecord) -> None:
        self._channel.send(Line(record))


class _Worker:
    def __init__(self, orders: BinaryIO, answers: Channel) -> None:
        self._orders = orders
        self._answers = answers

    def run(self) -> None:
        """Until the orders end."""
        from engine.llama.model import Model
        from engine.runtime.runner import Runner

        load: Load = self._next()
        logging.getLogger("engine").addHandler(_Forwarding(self._answers))
        logging.getLogger("engine").setLevel(load.level)
        with Model.load(load.path, load.options, progress=self._told if load.tells else None) as model:
            self._answers.send(model.info)
            order: Open = self._next()
            backend = model.backend(order.options)
            self._answers.send(Opened(backend.info, backend.origin))
            start: Start = self._next()
            runner = Runner(backend, self._deliver, start.options)
            try:
                self._serve(runner)
            finally:
                runner.close()

    def _serve(self, runner: Any) -> None:
        """Pass on what comes, to the end."""
        while True:
            try:
                order: Any = self._next()
            except EOFError:
                return
            try:
                match order:
                    case Parcel(id, request):
                        runner.submit(_opened(request))
                    case Save(id, pin):
                        runner.save(id, pin)
                    case Cancel(id):
                        runner.cancel(id)
                    case EndReasoning(id):
                        runner.end_reasoning(id)
                    case Unpin(id):
                        runner.unpin(id)
                    case Close():
                        return
                    case _:
                        raise AssertionError(order)
            except EngineError as error:
                self._deliver([refusal(order.id, error)])

    def _next(self) -> Any:
        """The next order. Raises EOFError when there are no more."""
        return pickle.load(self._orders)

    def _told(self, fraction: float) -> None:
        self._answers.send(Loading(fraction))

    def _deliver(self, replies: Sequence[Reply]) -> None:
        self._answers.send([reply._replace(error=portable(reply.error)) for reply in replies])


def _opened(request: bytes) -> Any:
    try:
        return pickle.loads(request)
    except Exception as error:
        raise RequestError(
            f"The request cannot be read in the model's own process ({type(error).__name__}: {error}). A logits "
            "processor must be a function of a module that can be imported there; or load with isolated=False."
        ) from error


def portable(error: Exception | None) -> Exception | None:
    """An error that can be pickled: as it is, or what it says."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - whatever an exception's own code raises
        return EngineError(f"{type(error).__name__}: {error}")
    return error


def main() -> int:
    """Serve one parent. What libraries print goes to standard error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    orders, answers = os.fdopen(os.dup(0), "rb"), Channel(os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)
    answers.send(GREETING)
    try:
        _Worker(orders, answers).run()
    except EngineError as error:
        answers.send(Failed(error))
    except EOFError:
        return 1  # the parent has gone before it had all it wanted
    answers.close()
    answers.join()
    return 0
