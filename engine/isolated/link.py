"""The pipes to a model's child, and the same orders to set up the next child after its death."""

import logging
import pickle
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from engine.isolated.answers import decoded
from engine.isolated.protocol import Channel, Failed, Line, Load, Loading, Open, Opened, Start
from engine.llama.model import ModelInfo
from engine.support.child import Child, ChildGoneError
from engine.support.errors import EngineError, ModelLoadError

_Answer = TypeVar("_Answer")
AGAIN = "load the model again"


class Link:
    """The child and both directions of communication. Only one thread at a time may call `receive`."""

    def __init__(self) -> None:
        self._set_up: list[tuple[Load | Open | Start, ModelInfo | Opened | None]] = []
        self._lock = threading.Lock()
        self._shut = False
        self._connect()

    def _connect(self) -> None:
        self.child = Child("engine.isolated.worker", "The model's process", "load with isolated=False", as_here=True)
        try:
            # A child that missed an order must not end in order: it would report that the others were cancelled.
            self.orders = Channel(self.child.orders, self.child.process.kill)
        except EngineError:
            self.child.kill()
            raise
        self._end = weakref.finalize(self, self.orders.close)

    def load(self, order: Load, progress: Callable[[float], bool | None] | None) -> ModelInfo:
        """Let the child load the weights. Raises what `Model.load` raises, and EngineError if the child dies."""
        self.send(order)
        while isinstance(answer := self.receive(), Loading):
            if progress is not None and progress(answer.fraction) is False:
                raise ModelLoadError(f"Loading {order.path} was stopped by its progress callback.")
        info = expected(ModelInfo, answer)
        self._set_up.append((order._replace(tells=False), info))
        return info

    def open(self, order: Open) -> Opened:
        """Let the child make its context. Raises what `Model.backend` raises, and EngineError if the child dies."""
        self.send(order)
        opened = expected(Opened, self.receive())
        self._set_up.append((order, opened))
        return opened

    def start(self, order: Start) -> None:
        """Let the child serve requests."""
        self.send(order)
        self._set_up.append((order, None))

    def send(self, order: object) -> None:
        """Queue an order. Raises EngineError in a fork of this process. If the child is gone, `receive` raises the
        error."""
        self.child.check_owner()
        self.orders.send(pickle.dumps(order, pickle.HIGHEST_PROTOCOL))

    def receive(self) -> Any:
        """Returns the next reply. Raises ChildGoneError if the child is gone, or if its reply cannot be read."""
        while True:
            try:
                answer = decoded(self.child.receive())
            except ChildGoneError:
                raise
            except Exception as error:
                self.child.kill()
                message = f"The model's process sent an unreadable reply ({type(error).__name__}: {error})"
                raise ChildGoneError(f"{message}.") from error
            if not isinstance(answer, Line):
                return answer
            logger = logging.getLogger(answer.logger)
            if logger.isEnabledFor(answer.level):
                logger.handle(logger.makeRecord(answer.logger, answer.level, "", 0, answer.text, (), None))

    def begin_again(self) -> None:
        """Start another child and set it up like the one that died. Raises ChildGoneError if it dies too, or after
        `shut`; EngineError if it does not become the same."""
        self._end()
        self.child.close()
        with self._lock:
            if self._shut:
                raise ChildGoneError("The engine is closed.")
            self._connect()
        for order, answer in self._set_up:
            self.send(order)
            if answer is not None and expected(type(answer), self.receive()) != answer:
                raise EngineError(f"The model is not what it was: its file, or this machine, has changed; {AGAIN}.")

    def shut(self) -> None:
        """Tell the child to end, and start no other."""
        with self._lock:
            self._shut = True
            self.orders.close()

    def close(self) -> None:
        """Let the child end, and kill it if it does not; may be called twice."""
        self.shut()
        self.child.close()


def expected(kind: type[_Answer], answer: Any) -> _Answer:
    """Returns the child's answer to a setting-up order. Raises the error that it reports, and EngineError for an
    answer of another kind."""
    if isinstance(answer, Failed):
        raise answer.error
    if not isinstance(answer, kind):
        raise EngineError(f"The model's process sent a {type(answer).__name__} instead of a {kind.__name__}.")
    return answer
