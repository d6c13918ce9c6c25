"""Which orders a child still has to answer, and which of them another child may be asked again after its death."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.support.nothing import nothing


@dataclass(slots=True, eq=False)
class PendingRequest:
    """An order without its final reply.

    `checked` completes the events of its replies, `forget` cancels the timer of its deadline, `answer` gets each reply
    besides the reader. `told`: later orders about it. `is_shown`: its reader has seen a part of the answer.
    """

    id: int
    order: Any
    checked: Callable[[Any], Any] | None = None
    forget: Callable[[], object] = nothing
    answer: Callable[[Any], object] = nothing
    told: list[Any] = field(default_factory=list[Any])
    is_shown: bool = False
    is_cancelled: bool = False


class PendingRequests:
    """The orders of one model's process, across the deaths of its children.

    After a death, what was under way and has shown nothing is sent again, one order at a time, so that the order which
    kills the child is found; newer orders wait until those are answered. Callers hold one lock; only `get` may be
    called without it.
    """

    def __init__(self) -> None:
        self._owed: dict[int, PendingRequest] = {}
        self._sent: dict[int, PendingRequest] = {}
        self._again: OrderedDict[int, PendingRequest] = OrderedDict()
        self._new: OrderedDict[int, PendingRequest] = OrderedDict()
        self._alone: int | None = None

    def __len__(self) -> int:
        return len(self._owed)

    def get(self, id_: int) -> PendingRequest | None:
        """Returns an order that has no final reply yet."""
        return self._owed.get(id_)

    def add(self, owed: PendingRequest) -> None:
        """Enter an order; `due` says when to send it."""
        self._owed[owed.id] = self._new[owed.id] = owed

    def due(self) -> Sequence[PendingRequest]:
        """Returns the orders to send now; they count as sent."""
        due: list[PendingRequest] = []
        if self._alone is None and self._again:
            self._alone, first = self._again.popitem(last=False)
            due.append(first)
        while self._alone is None and self._new:
            due.append(self._new.popitem(last=False)[1])
        self._sent.update((owed.id, owed) for owed in due)
        return due

    def end(self, id_: int) -> PendingRequest | None:
        """Strike out an order that is over; returns None if it was not owed."""
        for orders in (self._sent, self._again, self._new):
            orders.pop(id_, None)
        if self._alone == id_:
            self._alone = None
        return self._owed.pop(id_, None)

    def withdrawn(self) -> Sequence[PendingRequest]:
        """Strike out and return the cancelled orders that were not sent."""
        waiting = (*self._again.values(), *self._new.values())
        return [owed for owed in waiting if owed.is_cancelled and self.end(owed.id)]

    def death(self) -> Sequence[PendingRequest]:
        """The child is dead. Strike out and return the orders that are not sent again: those that have shown a part of
        their answer, that were cancelled, or that were alone in the child."""
        under_way = list(self._sent.values())
        lost = [owed for owed in under_way if owed.is_shown or owed.is_cancelled or owed.id == self._alone]
        for owed in lost:
            self.end(owed.id)
        again = [owed for owed in under_way if owed.id in self._owed]
        self._again = OrderedDict((owed.id, owed) for owed in (*again, *self._again.values()))
        self._sent.clear()
        self._alone = None
        return lost

    def clear(self) -> Sequence[PendingRequest]:
        """Strike out and return everything."""
        return [owed for id_ in list(self._owed) if (owed := self.end(id_))]
