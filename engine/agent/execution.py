"""Runs the calls of one turn: one after the other or several at once, each after approval and within its time limit."""

import asyncio
import json
import queue
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast

from engine.agent.callbacks import call, call_async, in_thread
from engine.agent.limits import RunOptions
from engine.support import threads
from engine.support.errors import CallbackError, EngineError
from engine.support.tracing import Span
from engine.tools import ToolContext, ToolOutcome, is_async, run, run_async, tool_error, unfit
from engine.tools.json_values import plain_json
from engine.types.parts import ToolCall
from engine.types.tools import Tool

_GRACE = 1.0
"""Seconds that a cancelled async tool has to end."""


@dataclass(frozen=True, slots=True)
class Job:
    """One call to answer: `work` is the tool to run, or the outcome if no tool is to run."""

    index: int
    part: int
    call: ToolCall
    work: Tool | ToolOutcome


class CallLog(Protocol):
    """Records what happens to the calls, and makes their contexts. Its methods may be called from any thread."""

    @property
    def cancelled(self) -> bool:
        """Whether no further call may begin."""
        ...

    def context(self, job: Job) -> ToolContext[Any]:
        """Returns the context for the tool of this call."""
        ...

    def edit(self, job: Job, arguments: str) -> None:
        """Record that the call is made with other arguments."""

    def start(self, job: Job) -> None:
        """Record that the tool is about to be called."""

    def done(self, job: Job, outcome: ToolOutcome) -> None:
        """Record the outcome, which the model will read."""

    def begun(self, job: Job, context: ToolContext[Any]) -> None:
        """Record that the tool's code starts running."""

    def returned(self, job: Job) -> None:
        """Record that the tool's code has returned, even if nothing waited for it any more."""

    def traced(self, job: Job) -> Span:
        """Begin the span of a call whose tool's code starts running, for OpenTelemetry."""
        ...

    def save(self) -> Callable[[], Any] | None:
        """Returns a function that saves the transcript as it is now; None without `save=`."""
        ...


Answered: TypeAlias = tuple[Job, ToolOutcome]


def answers(jobs: Sequence[Job], options: RunOptions, book: CallLog) -> Generator[Answered, None, None]:
    """Yields the outcomes of the calls, in their order; calls that had not begun when the run was cancelled have none.
    Raises CallbackError for a callback that fails."""
    return _threaded(jobs, options, book) if options.needs_threads else _direct(jobs, options, book)


async def answers_async(jobs: Sequence[Job], options: RunOptions, book: CallLog) -> AsyncGenerator[Answered, None]:
    """Same as `answers`, on an event loop. If left early, cancels async tools and waits for them; threads go on."""
    step = _Step(options, book)
    tasks = [asyncio.create_task(step.outcome(job)) for job in jobs]
    try:
        for job, task in zip(jobs, tasks, strict=True):
            if (outcome := await task) is not None:
                yield job, outcome
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            # Each waits for its tool, no longer than `_GRACE`; what they raise now is dropped.
            await asyncio.gather(*tasks, return_exceptions=True)


def _direct(jobs: Sequence[Job], options: RunOptions, book: CallLog) -> Generator[Answered, None, None]:
    for job in jobs:
        if book.cancelled or (outcome := _run_here(job, options, book)) is None:
            return
        book.done(job, outcome)
        save(book)
        yield job, outcome


def _run_here(job: Job, options: RunOptions, book: CallLog) -> ToolOutcome | None:
    """Returns what the model reads; None if the run was cancelled before the call began."""
    if (outcome := _outcome_so_far(job)) is not None:
        return outcome
    arguments = job.call.arguments
    if options.approve is not None:
        decision = _decision(job, options.approve, call("approve", options.approve, job.call))
        if isinstance(decision, ToolOutcome):
            return decision
        arguments = _edited(job, book, decision)
    if book.cancelled:
        return None
    book.start(job)
    save(book)
    context = book.context(job)
    book.begun(job, context)
    try:
        with _traced(job, book) as done:
            return done(run(cast("Tool", job.work), arguments, context))
    finally:
        book.returned(job)


@contextmanager
def _traced(job: Job, book: CallLog) -> Generator[Callable[[ToolOutcome], ToolOutcome]]:
    """A span around a tool's code, which ends with the outcome that the block hands in, or with its exception."""
    span, failed = book.traced(job), ""

    def done(outcome: ToolOutcome) -> ToolOutcome:
        nonlocal failed
        failed = "tool_error" if outcome.error else ""
        return outcome

    try:
        with span.inside():
            yield done
    except BaseException as error:
        failed = type(error).__name__
        raise
    finally:
        span.end(failed=failed)


def save(book: CallLog) -> None:
    """Save the transcript as it is now, if the run has `save=`. Raises CallbackError."""
    if (work := book.save()) is not None:
        call("save", work)


async def save_async(book: CallLog) -> None:
    """Same as `save`, on an event loop."""
    if (work := book.save()) is not None:
        await call_async("save", work)


def _threaded(jobs: Sequence[Job], options: RunOptions, book: CallLog) -> Generator[Answered, None, None]:
    """Yields the outcomes from an event loop in a thread of its own."""
    out: queue.SimpleQueue[Answered | BaseException | None] = queue.SimpleQueue()
    started: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()

    async def pump() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        started.put(lambda: loop.call_soon_threadsafe(task.cancel))
        source = answers_async(jobs, options, book)
        try:
            async for answered in source:
                out.put(answered)
        finally:
            await source.aclose()

    def body() -> None:
        end: BaseException | None = None
        try:
            asyncio.run(pump())
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            end = error
        started.put(lambda: None)  # in case the event loop never ran
        out.put(end)

    thread = threading.Thread(target=copy_context().run, args=(body,), name="llama-engine tools", daemon=True)
    threads.start(thread)
    stop = started.get()
    try:
        while (item := out.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        with suppress(RuntimeError):  # its event loop is closed: the thread is done
            stop()
        thread.join()


def _outcome_so_far(job: Job) -> ToolOutcome | None:
    """Returns what the model reads if no tool is to be called, otherwise None."""
    return job.work if isinstance(job.work, ToolOutcome) else unfit(job.work, job.call.arguments)


def _decision(job: Job, approve: object, decision: object) -> ToolOutcome | str | None:
    """Returns the meaning of `approve`'s result: None (go on), a denial, or other arguments as JSON text."""
    if decision is True:
        return None
    if decision is False:
        return tool_error("the call was denied.")
    if isinstance(decision, str):
        return tool_error(f"the call was denied: {decision}")
    own = getattr(approve, "__qualname__", type(approve).__name__)
    if isinstance(decision, dict):
        try:
            return json.dumps(plain_json(cast("object", decision)), ensure_ascii=False)
        except ValueError as error:
            raise CallbackError(f"approve={own} returned arguments that are not JSON: {error}.") from error
    raise CallbackError(
        f"approve={own} returned {decision!r} for the call of {job.call.name!r}; return True, False, the reason for a "
        "denial, or a dictionary of arguments."
    )


def _edited(job: Job, book: CallLog, arguments: str | None) -> str:
    """Returns the arguments of an approved call, and records those that `approve` replaced."""
    if arguments is None:
        return job.call.arguments
    book.edit(job, arguments)
    return arguments


class _Step:
    """Runs the calls of one turn on an event loop."""

    def __init__(self, options: RunOptions, book: CallLog) -> None:
        self._options = options
        self._book = book
        self._asking = asyncio.Lock()
        self._saving = asyncio.Lock()
        most = options.max_parallel_tools
        self._any = asyncio.Semaphore(most) if most else None
        self._sync = asyncio.Lock()

    async def outcome(self, job: Job) -> ToolOutcome | None:
        """Returns what the model reads; None if the run was cancelled before the call began."""
        if (outcome := await self._run(job)) is not None:
            self._book.done(job, outcome)
            await self._save()
        return outcome

    async def _run(self, job: Job) -> ToolOutcome | None:
        if (outcome := _outcome_so_far(job)) is not None:
            return outcome
        tool, arguments = cast("Tool", job.work), job.call.arguments
        if (approve := self._options.approve) is not None:
            async with self._asking:
                if self._book.cancelled:
                    return None
                decision = _decision(job, approve, await call_async("approve", approve, job.call))
            if isinstance(decision, ToolOutcome):
                return decision
            arguments = _edited(job, self._book, decision)
        async with self._slot(tool):
            if self._book.cancelled:
                return None
            self._book.start(job)
            await self._save()
            return await self._in_time(job, tool, arguments)

    @asynccontextmanager
    async def _slot(self, tool: Tool) -> AsyncGenerator[None, None]:
        if self._any is not None:
            async with self._any:
                yield
        elif is_async(tool):
            yield
        else:
            async with self._sync:
                yield

    async def _save(self) -> None:
        async with self._saving:
            await save_async(self._book)

    async def _in_time(self, job: Job, tool: Tool, arguments: str) -> ToolOutcome:
        context = self._book.context(job)
        task = asyncio.create_task(self._called(job, tool, arguments, context))
        seconds = self._options.tool_timeout
        try:
            in_time, _ = await asyncio.wait({task}, timeout=seconds)
        finally:
            if not task.done():
                context.cancel()
                task.cancel()
                _ = await asyncio.wait({task}, timeout=_GRACE)
        if in_time:
            return tool_error("the tool was cancelled.") if task.cancelled() else task.result()
        still = "" if is_async(tool) and task.done() else " It may still be running."
        return tool_error(f"the tool did not return within {seconds:g} seconds.{still}")

    async def _called(self, job: Job, tool: Tool, arguments: str, context: ToolContext[Any]) -> ToolOutcome:
        book = self._book

        def watched(work: Callable[[], Any]) -> Awaitable[Any]:
            def body() -> Any:
                try:
                    return work()
                finally:
                    book.returned(job)

            book.begun(job, context)
            try:
                return in_thread(body)
            except EngineError:
                book.returned(job)  # it has not begun
                raise

        with _traced(job, book) as done:
            if not is_async(tool):
                return done(await run_async(tool, arguments, context, watched))
            book.begun(job, context)
            try:
                return done(await run_async(tool, arguments, context))
            finally:
                book.returned(job)
