"""Decides which models may be in a memory budget: who is let in, who is unloaded for whom, who waits."""

import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from engine.api.budget import Size, total
from engine.support.errors import EngineError, ModelLoadError


class Resident(Protocol):
    """What a load puts into memory: an engine."""

    @property
    def closed(self) -> bool: ...

    @property
    def in_use(self) -> bool: ...

    @property
    def is_pinned(self) -> bool: ...


R = TypeVar("R", bound=Resident)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request that waits for memory: the model that it needs, what that takes and what is free, and the models in the
    way."""

    model: str
    needs: Size
    free: Size
    behind: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.model!r} waits for {self.needs}; {self.free} are free, behind {', '.join(self.behind)}"


@dataclass(eq=False, slots=True)
class Load(Generic[R]):
    """A model in memory, or on its way there (`engine` is None; `filler` loads it). `users` need it now, and those that
    map to True keep it for a whole block; `used`: when it was used last, as a growing number."""

    name: str
    size: Size
    filler: "Ticket[R] | None" = None
    engine: R | None = None
    users: "dict[Ticket[R], bool]" = field(default_factory=dict["Ticket[R]", bool])
    used: int = 0

    @property
    def busy(self) -> bool:
        return self.engine is None or bool(self.users) or self.engine.in_use

    @property
    def held(self) -> bool:
        """Whether it stays for as long as its user likes, not only until what it computes is done."""
        return any(self.users.values()) or (self.engine is not None and self.engine.is_pinned)


@dataclass(eq=False, slots=True)
class Ticket(Generic[R]):
    """A request's place in the queue. `mine`: what its caller holds. `victims`: what is unloaded for it as soon as it
    is unused; None if it waits for no memory, or for what somebody keeps."""

    name: str
    size: Size
    mine: tuple[Load[R], ...] = ()
    bell: threading.Event = field(default_factory=threading.Event)
    victims: frozenset[Load[R]] | None = None
    waiting: Waiting | None = None


class Queue(Generic[R]):
    """Who waits, in the order of arrival. Any thread may ring at any time, a finalizer too; it does not refer to the
    engines, whose threads refer to it."""

    def __init__(self) -> None:
        self.tickets: dict[Ticket[R], None] = {}

    def ring(self) -> None:
        """Wake all who wait."""
        for ticket in tuple(self.tickets):
            ticket.bell.set()

    def before(self, ticket: Ticket[R]) -> Iterator[Ticket[R]]:
        """Yields the tickets that came before this one."""
        return itertools.takewhile(lambda each: each is not ticket, tuple(self.tickets))


class Admission(Generic[R]):
    """The models in memory, under one budget. Its methods are called with the lock held, and wait for nothing.

    A request waits only for those before it that the same memory helps. What it will get is fixed when it begins to
    wait: who asks for one of these models meanwhile comes after it, unless somebody holds that model anyway. So nobody
    waits for ever for a model that others use without a pause.
    """

    def __init__(self, budget: Size, told: str = "") -> None:
        """told: the budget in words, if it is more than what models may take."""
        self.budget = budget
        self._told = told or str(budget)
        self.lock = threading.RLock()  # a finalizer may end a lease at any point
        self.queue = Queue[R]()
        self.loads: dict[str, Load[R]] = {}
        self.pinned: set[str] = set()
        self.closed = False
        self.leaving: dict[Load[R], Ticket[R] | None] = {}
        """Those whose memory is freed now, with whose ticket they were unloaded."""
        self._uses = itertools.count(1)

    @property
    def used(self) -> Size:
        """What the models in memory take, those on their way in or out included."""
        with self.lock:
            return total(load.size for load in {**dict.fromkeys(self.loads.values()), **self.leaving})

    def admit(self, ticket: Ticket[R], *, hold: bool) -> Load[R] | None:
        """Returns the model of a ticket with its use counted, loaded or (without an engine) to be loaded by the caller;
        None if it has to wait. What is then `leaving`, the caller has to unload before it tries again. Raises
        EngineError once closed, ModelLoadError for a model that can never fit."""
        load = self._admitted(ticket)
        if load is not None:
            load.users[ticket] = hold
            load.used = next(self._uses)
        return load

    def _admitted(self, ticket: Ticket[R]) -> Load[R] | None:
        if self.closed:
            raise EngineError("These engines are closed; make them again.")
        load = self.loads.get(ticket.name)
        ticket.victims = ticket.waiting = None
        if load is not None and load.engine is None:
            return None  # another request loads it
        if load is not None and load.engine is not None and load.engine.closed:  # by its user, or its process died
            self.leave(load, ticket)
            return None
        missing = ticket.size.minus(load.size if load else Size(0))
        if load is not None and missing.within(Size(0)):
            return None if self._gives_way(load, ticket) else load
        self._check_possible(ticket)
        if not self._has_room(ticket, missing):
            return None
        if load is None:
            load = self.loads[ticket.name] = Load(ticket.name, ticket.size, ticket)
        load.size = ticket.size
        return load

    def _kept(self, load: Load[R]) -> bool:
        return load.held or load.name in self.pinned

    def _gives_way(self, load: Load[R], ticket: Ticket[R]) -> bool:
        """Whether a model is wanted out by somebody who waited before this ticket."""
        return not self._kept(load) and any(load in (each.victims or ()) for each in self.queue.before(ticket))

    def _has_room(self, ticket: Ticket[R], missing: Size) -> bool:
        """Whether `missing` fits now. Otherwise note what is in the way; if nobody uses that, it leaves."""
        free = self.budget.minus(self.used)
        earlier = [each.name for each in self.queue.before(ticket) if each.victims is not None]
        if not earlier and missing.within(free):
            return True
        others = [load for load in self.loads.values() if load.name != ticket.name]
        evictable = sorted((load for load in others if not self._kept(load)), key=lambda load: (load.busy, load.used))
        coming = free.plus(total(load.size for load in self.leaving))
        victims: list[Load[R]] = []
        while not missing.within(coming) and len(victims) < len(evictable):
            victims.append(evictable[len(victims)])
            coming = coming.plus(victims[-1].size)
        if missing.within(coming):
            ticket.victims = frozenset(victims)
            if not earlier and not any(load.busy for load in victims):
                for load in victims:
                    self.leave(load, ticket)
        behind = victims or [load for load in others if self._kept(load)] or self.leaving
        names = tuple(dict.fromkeys([*earlier, *(load.name for load in behind)]))
        ticket.waiting = Waiting(ticket.name, missing, free, names)
        return False

    def _check_possible(self, ticket: Ticket[R]) -> None:
        """Raise ModelLoadError for a model that does not fit, whoever finishes: not alone, not beside pinned models,
        not beside those that this very caller holds."""
        kept = [
            load
            for load in self.loads.values()
            if load.name != ticket.name and (load.name in self.pinned or load in ticket.mine)
        ]
        if ticket.size.within(self.budget.minus(total(load.size for load in kept))):
            return
        why = {True: "pinned", False: "held by the caller"}
        beside = ", ".join(f"{load.name!r} ({load.size}, {why[load.name in self.pinned]})" for load in kept)
        way = "unpin it, or end its block, or raise the budget" if kept else "raise the budget, or use a smaller n_ctx"
        raise ModelLoadError(
            f"{ticket.name!r} needs {ticket.size}, which can never fit into the budget of {self._told}"
            f"{f' beside {beside}' if kept else ''}; {way}."
        )

    def leave(self, load: Load[R], ticket: Ticket[R] | None = None) -> None:
        """Take a model out of those in memory; its bytes count until it is `gone`."""
        self.leaving[load] = ticket
        del self.loads[load.name]

    def gone(self, load: Load[R]) -> None:
        """Count a model's bytes no more. Needs no lock."""
        self.leaving.pop(load, None)
        self.queue.ring()

    def release(self, ticket: Ticket[R]) -> None:
        """End all that a ticket has: its place in the queue, its use of a model, and a load that it did not finish. May
        be called again, also where it was interrupted."""
        self.queue.tickets.pop(ticket, None)
        for load in (*self.loads.values(), *self.leaving):
            load.users.pop(ticket, None)
            if load.filler is ticket and load.engine is None:
                if self.loads.get(load.name) is load:
                    del self.loads[load.name]
                self.leaving.pop(load, None)
        self.queue.ring()
