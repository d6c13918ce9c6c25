"""`Engines`: several models under one memory budget, loaded when used and unloaded when others need the room."""

import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeAlias

from engine.api import loading
from engine.api.adapter_loader import AdapterSource
from engine.api.admission import Admission, Load, Ticket, Waiting
from engine.api.budget import Bytes, Size, budgeted
from engine.api.clients import async_openai_client, openai_client
from engine.api.engine import Engine
from engine.api.source import Loaded
from engine.llama.gguf.gguf import GgufFile, read_gguf
from engine.llama.gguf.projector_file import ProjectorFile
from engine.llama.plan.machine import keep_no_large_blocks
from engine.llama.plan.plan import Machine, Plan, this_machine
from engine.runtime.cache.state_store import StateStore
from engine.runtime.loop.config import KEPT_STATES
from engine.runtime.loop.metrics import Metrics
from engine.support.afterwards import Afterwards
from engine.support.display import counted
from engine.support.errors import (
    ContextOverflowError,
    EngineError,
    ModelLoadError,
    NotCopied,
    RequestError,
    WaitTimeoutError,
    did_you_mean,
    shown,
)
from engine.support.offloop import is_unwanted, off_loop, off_loop_or_undo
from engine.support.printed import Printed
from engine.turns.options import NGRAM, LoadArguments, check_arguments, settings
from engine.turns.reasoning_memory import ReasoningMemory
from engine.turns.summary import Summaries

ModelLike: TypeAlias = str | Path | Mapping[str, Any] | None
"""A model as `Engine.load` takes it, or a dictionary of `model` and further options of `Engine.load`."""
_log = logging.getLogger("engine.engines")
_TOLD = 1 << 20  # less is 0 MiB in words
_WAKE_SECONDS = 0.25


@dataclass(frozen=True, slots=True, repr=False)
class ModelState(Printed):
    """A model of `Engines`: whether it is in memory, the `size` that is counted for it there, whether it is in use or
    pinned, and how often it was loaded."""

    name: str
    loaded: bool
    size: Size
    in_use: bool
    pinned: bool
    loads: int


_Load: TypeAlias = Load[Loaded]


class _Held(threading.local):
    """What the `use` blocks around the caller keep in memory, by their tickets."""

    def __init__(self) -> None:
        self.loads: dict[Ticket[Loaded], _Load] = {}


_held = _Held()


class _Shared:
    """One of several models: the source of its handle."""

    def __init__(self, engines: "Engines", name: str) -> None:
        self.engines = engines
        self.name = name
        self.lease = partial(engines.lease, name)
        self.lease_for_vectors = partial(engines.lease, name, vectors=True)

    @property
    def metrics(self) -> Metrics:
        return self.engines.metrics(self.name)

    @property
    def closed(self) -> bool:
        return self.engines.closed

    def close(self) -> None:
        self.engines.unload(self.name)


class EngineHandle(Engine):
    """A model of `Engines` by name: an `Engine` that is loaded when it is used, and may be unloaded between two calls.

    A turn, a request for vectors and a pinned prefix keep it in memory until they are over. `close` unloads it, if
    nobody uses it, and the next use loads it again; `metrics` are those since it was loaded last, which reading them
    does not do; it is `closed` when its `Engines` are.
    """

    def __init__(self, engines: "Engines", name: str) -> None:
        super().__init__(_Shared(engines, name))
        self.name = name
        self._state = partial(engines.state, name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(value for _, value in self._facts())}>"

    def _facts(self) -> list[tuple[str, str]]:
        state = self._state()
        where = f"loaded, {state.size}" if state.loaded else "not loaded"
        return [("model", self.name), ("state", where)]


class _Model:
    """A model as the caller described it, and how it is loaded."""

    def __init__(self, name: str, given: ModelLike, machine: Machine, states: StateStore) -> None:
        self.name = name
        self._machine = machine
        options: dict[str, Any] = dict(given) if isinstance(given, Mapping) else {"model": given}
        self._given = options.pop("model", None)
        self._revision = options.pop("revision", None)
        self._arguments: dict[str, Any] = {
            key: options.pop(key) for key in LoadArguments.__annotations__ if key in options
        }
        _ = check_arguments(revision=self._revision, **self._arguments)
        draft = options.pop("draft", None)
        if draft not in (None, NGRAM):
            raise RequestError(
                f"draft={shown(draft)} is not possible for {name!r}: a draft model or head is not counted in the "
                'budget of several models. Write draft="ngram", or load it by Engine.load.'
            )
        isolated = self._arguments.get("isolated", False)  # in memory, its states would end with its process
        options = {"states": states.on_disk() if isolated else states, **options}
        self._options = {**options, "draft": draft}
        self._settings = settings(options, draft)
        self._planning = threading.Lock()
        self._planned: tuple[GgufFile, Plan, ProjectorFile | None] | None = None
        self._vectors = Size(0)
        self._memory: tuple[ReasoningMemory, Summaries] | None = None
        self.loads = 0
        self.metrics = Metrics()
        """Those of the last loading that is over."""

    def size(self, *, vectors: bool) -> Size:
        """Returns what the planner says that the model takes with its context, and with the one for vectors. Raises
        what `Engine.load` raises, with this budget as the machine's memory."""
        with self._planning:
            try:
                file, made, seeing = self._plan()
                if vectors and not file.embeds and self._vectors == Size(0):
                    need = loading.planned_vectors(file, made, self._machine)
                    self._vectors = Size(need.host, need.device)
            except (ModelLoadError, ContextOverflowError) as error:
                raise type(error)(f"{self.name!r}, with the budget as this machine's memory: {error}") from error
        tables = made.need.weights.tables if self._arguments.get("isolated") else 0  # in both processes
        adapters = AdapterSource(file).named(self._arguments.get("adapters"))
        needed = Size(made.need.host + tables + sum(each.size_bytes for each in adapters.values()), made.need.device)
        if seeing is not None:
            needed = needed.plus(Size(*seeing.places(on_device=bool(made.model.n_gpu_layers))))
        return needed.plus(self._vectors) if vectors else needed

    def _exactly(self, path: Path) -> tuple[str | Path | None, str | None]:
        """Returns the name and revision under which the planned file is loaded, with what belongs to it on the Hub."""
        if not loading.is_on_hub(self._given):
            return (None if self._given is None else path), None
        from engine.hub import exactly

        return exactly(path)

    def _plan(self) -> tuple[GgufFile, Plan, ProjectorFile | None]:
        if self._planned is None:
            self._given, self._revision = loading.resolved(self._given, self._revision, lambda: self._machine)
            path = loading.located(self._given, self._revision, lambda: self._machine.available)
            file = read_gguf(path)
            chosen = self._arguments.get("projector")
            seeing = loading.projector_file(chosen, file, self._settings, self._machine)
            self._planned = file, loading.planned(file, self._settings, self._machine, projector=seeing), seeing
        return self._planned

    def loaded(self, wanted: Callable[[], bool], changed: Callable[[], object]) -> Loaded:
        """Load the model as it was planned; the load stops when it is not `wanted` any more. `changed` is called when
        it may be unused. Raises what `Engine.load` raises."""
        file, made, seeing = self._plan()
        progress = self._arguments.get("progress")
        chosen: dict[str, Any] = {"n_ctx": made.n_ctx, "n_gpu_layers": made.model.n_gpu_layers}
        if not file.embeds:
            chosen["n_sequences"] = made.context.n_sequences

        def go_on(share: float) -> bool:
            return wanted() and (progress is None or progress(share) is not False)

        options: dict[str, Any] = {**self._options, **chosen, **self._arguments, "progress": go_on}
        if seeing is not None:
            options["projector"] = seeing.path
        model, revision = self._exactly(file.path)
        engine: Engine | None = None
        try:
            engine = Engine.load(model, revision=revision, **options)
            loaded = engine.source
            assert isinstance(loaded, Loaded), "it is of its own"
            if self._memory is not None:
                loaded.turns.memory, loaded.turns.summaries = self._memory
            self._memory = loaded.turns.memory, loaded.turns.summaries
            loaded.service.when_idle(changed)
            self.loads += 1
            return loaded
        except BaseException:
            if engine is not None:
                engine.close()
            raise


class Engines(NotCopied, Mapping[str, EngineHandle]):
    """Several models by name, under one memory budget; a context manager; thread-safe.

    `engines["name"]` is an `Engine` that is loaded when it is used. Where a model does not fit beside the others, those
    that were used longest ago are unloaded: never one that is in use or pinned. If those in use leave no room, the
    request waits.
    """

    _instead = Engine._instead

    def __init__(
        self,
        models: Mapping[str, ModelLike],
        *,
        budget: Bytes | Mapping[str, Bytes] | None = None,
        timeout: float | None = None,
        on_wait: Callable[[Waiting], object] | None = None,
        states: StateStore | None = None,
    ) -> None:
        """models: `{name: model}`; nothing is loaded yet. budget: bytes of the machine's memory for all of them, such
        as "12GiB" (where there are GPUs, their free memory counts besides); `{"cpu": .., "cuda0": ..}` for each device;
        None: the memory that is available now, but for a tenth. timeout: seconds that a request waits for memory; None
        waits for ever. on_wait: called in the thread of a request that begins to wait. states: where what models have
        read is kept while they are unloaded; its memory is part of the budget; None: in memory, an eighth of the budget
        or 256 MiB. Raises RequestError for options and budgets that are not valid.
        """
        if not models:
            raise RequestError('There are no models; pass {"name": "model.gguf", ..}.')
        machine, size = budgeted(budget, this_machine())
        states = StateStore(min(KEPT_STATES, size.host // 8)) if states is None else states
        self.budget = size
        """The memory for all models, and for what they have read."""
        kept = Size(states.memory)
        size = size.minus(kept)
        machine = replace(machine, available=size.host)
        told = f"{self.budget} ({kept} of it for kept states)" if kept.host >= _TOLD else ""
        self._admission = Admission[Loaded](size, told)
        keep_no_large_blocks()
        self._models = {name: _Model(name, model, machine, states) for name, model in models.items()}
        self._handles = {name: EngineHandle(self, name) for name in models}
        self._timeout = timeout
        self._on_wait = on_wait

    openai_client = openai_client
    async_openai_client = async_openai_client

    def __getitem__(self, name: str) -> EngineHandle:
        """Returns the model's engine, without loading it. Raises KeyError."""
        try:
            return self._handles[name]
        except KeyError:
            raise KeyError(_unknown(name, self._models)) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._handles)

    def __len__(self) -> int:
        return len(self._handles)

    @property
    def used(self) -> Size:
        """What the planner says that the models in memory take, those on their way in or out included."""
        return self._admission.used

    @property
    def closed(self) -> bool:
        return self._admission.closed

    def state(self, name: str) -> ModelState:
        """Returns a model's state."""
        model, admission = self._model(name), self._admission
        with admission.lock:
            load = admission.loads.get(name)
            return ModelState(
                name,
                loaded=load is not None and load.engine is not None,
                size=Size(0) if load is None else load.size,
                in_use=load is not None and load.busy,
                pinned=name in admission.pinned,
                loads=model.loads,
            )

    def metrics(self, name: str) -> Metrics:
        """Returns what a model has done since it was loaded last; loads nothing."""
        model, admission = self._model(name), self._admission
        with admission.lock:
            load = admission.loads.get(name)
            engine = None if load is None else load.engine
        return model.metrics if engine is None else engine.metrics

    @contextmanager
    def use(self, name: str, *, timeout: float | None = None) -> Generator[EngineHandle]:
        """Keep a model in memory for a block, and give its engine. `timeout`: as for all, unless given. Raises what
        `Engine.load` raises, ModelLoadError for a model that can never fit, WaitTimeoutError."""
        ticket = self._ticket(name)
        done = Afterwards(lambda: (_held.loads.pop(ticket, None), self._release(ticket)))
        with done, done:
            _held.loads[ticket] = self._acquire(ticket, timeout, hold=True)
            yield self._handles[name]

    @asynccontextmanager
    async def ause(  # the limit holds in the thread that waits, too
        self,
        name: str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> AsyncGenerator[EngineHandle]:
        """`use` for an event loop, `async with`: the model is waited for and loaded in another thread."""
        ticket = await off_loop(self._ticket, name)

        def acquire() -> None:
            try:
                self._acquire(ticket, timeout, hold=True)
            except BaseException:
                self._release(ticket)
                raise

        await off_loop_or_undo(acquire, lambda _: self._release(ticket))
        done = Afterwards(partial(self._release, ticket))
        with done, done:
            yield self._handles[name]

    @contextmanager
    def lease(self, name: str, *, vectors: bool = False) -> Generator[Loaded]:
        """Keep a model in memory for one call. `vectors`: with a context for vectors. Raises what `use` raises."""
        ticket = self._ticket(name, vectors=vectors)
        done = Afterwards(partial(self._release, ticket))
        with done, done:
            load = self._acquire(ticket)
            assert load.engine is not None, "it was filled"
            yield load.engine

    def load(self, name: str) -> EngineHandle:
        """Load a model now, so that its next use need not wait. Raises what `use` raises."""
        with self.lease(name):
            return self._handles[name]

    async def aload(self, name: str) -> EngineHandle:
        """`load` for an event loop."""
        return await off_loop(self.load, name)

    def unload(self, name: str) -> bool:
        """Unload a model, unless it is in use; returns whether it is out of memory."""
        admission, done = self._admission, Afterwards(self._unload)
        with done, done, admission.lock:
            load = admission.loads.get(self._model(name).name)
            if load is not None and not load.busy:
                admission.leave(load)
        return load is None or admission.loads.get(name) is not load

    def pin(self, name: str) -> None:
        """Never unload this model to make room, until `unpin`. It is not loaded by this."""
        self._admission.pinned.add(self._model(name).name)

    def unpin(self, name: str) -> None:
        """Let this model be unloaded again."""
        self._admission.pinned.discard(self._model(name).name)
        self._admission.queue.ring()

    def close(self) -> None:
        """Cancel what runs and free the memory of all models; who waits gets an error. Can be called more than once."""
        admission = self._admission
        done = Afterwards(self._unload)
        with done, done, admission.lock:
            admission.closed = True
            for load in list(admission.loads.values()):
                admission.leave(load)

    async def aclose(self) -> None:
        """`close` for an event loop."""
        await off_loop(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        loaded = sum(self.state(name).loaded for name in self)
        return f"<{type(self).__name__}: {counted(len(self), 'model')}, {loaded} loaded, {self.used} of {self.budget}>"

    def _model(self, name: str) -> _Model:
        if (model := self._models.get(name)) is None:
            raise RequestError(_unknown(name, self._models))
        return model

    def _ticket(self, name: str, *, vectors: bool = False) -> Ticket[Loaded]:
        """Returns what a caller takes a model with. All that it takes is noted under its ticket, so that `_release`
        gives it back, whatever line an interrupt came at."""
        return Ticket(name, self._model(name).size(vectors=vectors), tuple(_held.loads.values()))

    def _acquire(self, ticket: Ticket[Loaded], timeout: float | None = None, *, hold: bool = False) -> _Load:
        """Returns a model in memory, which stays there until `_release`. Waits, and loads it, as necessary."""
        queue = self._admission.queue
        timeout = self._timeout if timeout is None else timeout
        end = None if timeout is None else time.monotonic() + timeout
        told = False
        queue.tickets[ticket] = None
        while (load := self._try(ticket, hold=hold)) is None:
            if ticket.waiting is not None and not told:
                told = True
                self._tell(ticket.waiting)
            _wait(ticket, end)
        queue.tickets.pop(ticket, None)
        queue.ring()
        if load.engine is None:
            self._fill(load)
        return load

    def _try(self, ticket: Ticket[Loaded], *, hold: bool) -> _Load | None:
        """`admit`, once what has to be unloaded for it is unloaded."""
        while True:
            ticket.bell.clear()
            with self._admission.lock:
                load = self._admission.admit(ticket, hold=hold)
            if load is not None or not self._admission.leaving:
                return load
            self._unload()

    def _unload(self) -> None:
        """Free the memory of models that leave: all of them, since whoever began it may have been interrupted."""
        for load in tuple(self._admission.leaving):
            try:
                if load.engine is not None:
                    load.engine.close()
                    self._models[load.name].metrics = load.engine.metrics
                    _log.info("%r was unloaded: %s", load.name, load.size)
                self._admission.gone(load)
            except Exception:
                self._admission.gone(load)
                raise

    def _fill(self, load: _Load) -> None:
        """Load the weights. If that fails, the model is as before, and the next request tries again."""
        admission = self._admission
        _log.info("%r is loaded: %s", load.name, load.size)
        engine: Loaded | None = None
        try:
            engine = self._models[load.name].loaded(lambda: not admission.closed, admission.queue.ring)
            with admission.lock:
                load.engine = engine
                if not admission.closed:
                    return
            raise EngineError("These engines were closed while the model was loaded; make them again.")
        except BaseException:
            if engine is not None:
                engine.close()
            raise
        finally:
            admission.queue.ring()

    def _release(self, ticket: Ticket[Loaded]) -> None:
        with self._admission.lock:
            self._admission.release(ticket)
        if ticket in self._admission.leaving.values():  # whom an interrupt kept from unloading them
            self._unload()

    def _tell(self, waiting: Waiting) -> None:
        _log.info("%s", waiting)
        if self._on_wait is not None:
            self._on_wait(waiting)


def _wait(ticket: Ticket[Loaded], end: float | None) -> None:
    """Wait until something has changed. Raises WaitTimeoutError at the end, EngineError if nobody waits any more."""
    left = _WAKE_SECONDS if end is None else min(_WAKE_SECONDS, end - time.monotonic())
    if left <= 0:
        reason = f": {ticket.waiting}" if ticket.waiting else ""
        raise WaitTimeoutError(f"{ticket.name!r} was not there in time{reason}. Try again later.")
    ticket.bell.wait(left)
    if is_unwanted():
        raise EngineError(f"The task that waited for {ticket.name!r} was cancelled.")


def _unknown(name: object, known: Iterable[str]) -> str:
    listed = f"they are {', '.join(map(repr, known))}"
    return f"There is no model {shown(name)}; {did_you_mean(str(name), known, listed)}"
