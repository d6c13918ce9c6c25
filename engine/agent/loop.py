"""The agent loop: a turn is generated, its calls are run, their results go back, until the model answers.

Knows: how calls become tool messages, when the loop ends, how it is left early. Does not know: models, templates,
sampling: it is given a function from messages to a generation under way.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeAlias

from engine.display import Block, figures, page_html, page_markdown, short
from engine.errors import ContextOverflowError, RequestError
from engine.events import Event, ToolResult
from engine.offloop import off_loop
from engine.streams import TwoWayStream
from engine.tools import ToolOutcome, error_text, is_async, run, run_async
from engine.types import Completion, Message, Tool, ToolCall, blocks_of

RunEnd: TypeAlias = Literal["stop", "length", "cancelled", "deadline", "error", "pending", "max_steps", "overflow"]


class Turn(Protocol):
    """One generation under way, as far as the loop needs it."""

    def __iter__(self) -> Iterator[Event]: ...

    def __aiter__(self) -> AsyncIterator[Event]: ...

    def cancel(self) -> None:
        """Stop it; nothing to do when it is over."""
        ...

    @property
    def completion(self) -> Completion:
        """What it gave; asked for after its last event."""
        ...


Generate: TypeAlias = Callable[[Sequence[Message]], Turn]


@dataclass(frozen=True, slots=True)
class Step:
    """One turn of the model, and what its calls gave."""

    completion: Completion
    results: tuple[ToolResult, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """A run of the agent loop, over or left.

    `messages` is the whole history, the caller's first: continue with `llm.run([*run.messages, ...])`. `stopped` says
    why it ended: "stop", the model answered; "pending", it called a tool that has no function (`pending` holds those
    calls: append their results as tool messages and run again); "max_steps", the last step's calls were run but the
    model has not answered yet; "overflow", the conversation grew beyond the context (shorten `messages` and run
    again, or pass overflow="truncate_oldest"); "error", a turn failed; else the last turn's own end.
    """

    messages: tuple[Message, ...]
    steps: tuple[Step, ...]
    stopped: RunEnd
    pending: tuple[ToolCall, ...] = ()

    @property
    def completion(self) -> Completion:
        """The last turn. Empty, with reason "cancelled", when the run was left before a turn was complete."""
        return self.steps[-1].completion if self.steps else Completion(finish_reason="cancelled")

    def __repr__(self) -> str:
        return f"Run(stopped={self.stopped!r}, {len(self.steps)} steps, content={short(self.completion.content)!r})"

    def _repr_html_(self) -> str:
        return page_html(self._blocks(), figures(step.completion.usage for step in self.steps))

    def _repr_markdown_(self) -> str:
        return page_markdown(self._blocks(), figures(step.completion.usage for step in self.steps))

    def _blocks(self) -> Iterator[Block]:
        for step in self.steps:
            yield from blocks_of(step.completion)
            for result in step.results:
                name = step.completion.tool_calls[result.index].name
                yield Block("result", result.content, name, failed=result.error)
        if self.stopped not in ("stop", self.completion.finish_reason):
            yield Block("notice", f"The run ended: {self.stopped}.", failed=self.stopped != "pending")


class RunStream(TwoWayStream[Run]):
    """A run of the agent loop as it goes: `for`, `async for`, `await` (the Run) and `with`; leaving it early cancels.

    From async code, async tools of one turn run at once, and others in a worker thread, one after the other; from sync
    code all run in order.
    """

    def __init__(self, loop: "_Loop", generate: Generate) -> None:
        super().__init__()
        self._loop = loop
        self._generate = generate

    def __repr__(self) -> str:
        return f"<RunStream: {self._loop.stopped or 'not over'}, {self._loop.step} steps complete>"

    def _read(self) -> Generator[Event, None, None]:
        return _drive(self._loop, self._generate)

    def _read_async(self) -> AsyncGenerator[Event, None]:
        return _drive_async(self._loop, self._generate)

    def _whole(self) -> Run:
        return self.run

    @property
    def run(self) -> Run:
        """What has happened so far; the whole run after its last event."""
        return self._loop.snapshot()

    def cancel(self) -> None:
        """Stop the generation in flight and end the run; from any thread. A tool that is running is not interrupted."""
        self._loop.cancel()


def stream_run(generate: Generate, messages: Sequence[Message], tools: Sequence[Tool], max_steps: int = 8) -> RunStream:
    """Run the loop from these messages on. Raises RequestError for a `max_steps` below 1.

    At most `max_steps` turns are generated. The model's mistakes (an unknown tool, arguments that are not JSON or do
    not fit, a call that was cut off) and a tool's exceptions go back to it as tool messages.
    """
    if max_steps < 1:
        raise RequestError(f"max_steps={max_steps} leaves nothing to do; give at least 1.")
    return RunStream(_Loop(list(messages), {tool.name: tool for tool in tools}, max_steps), generate)


@dataclass(frozen=True, slots=True)
class _Job:
    """One call to be answered: by running its tool, or with what the model reads instead."""

    index: int
    part: int
    call: ToolCall
    work: Tool | ToolOutcome


@dataclass(slots=True)
class _Loop:
    """The state of a run, and its decisions; no generation, no tool is run here."""

    messages: list[Message]
    tools: Mapping[str, Tool]
    max_steps: int
    completions: list[Completion] = field(default_factory=list[Completion])
    results: list[list[ToolResult]] = field(default_factory=list[list[ToolResult]])
    pending: list[ToolCall] = field(default_factory=list[ToolCall])
    stopped: RunEnd | None = None
    cancelled: bool = False
    turn: Turn | None = None

    @property
    def step(self) -> int:
        return len(self.completions)

    def begin(self, generate: Generate) -> Turn | None:
        """The next turn, generating; None when the run is over."""
        if self.stopped is None and self.cancelled:
            self.stopped = "cancelled"
        if self.stopped is None and self.step == self.max_steps:
            self.stopped = "max_steps"
        if self.stopped is not None:
            return None
        try:
            self.turn = generate(tuple(self.messages))
        except Exception as error:
            if not self.outgrown(error):
                raise
            return None
        if self.cancelled:
            self.turn.cancel()
        return self.turn

    def outgrown(self, error: Exception) -> bool:
        """A turn failed; whether because of what the run itself added to the conversation, so that it ends with what it
        has."""
        self.turn = None
        self.stopped = "overflow" if isinstance(error, ContextOverflowError) and self.step else "error"
        return self.stopped == "overflow"

    def marked(self, event: Event) -> Event:
        return replace(event, step=self.step) if self.step else event

    def end(self, completion: Completion) -> list[_Job]:
        """Take a finished turn in; its calls that the loop answers."""
        self.turn = None
        last = self.messages[-1]
        if last.role == "assistant":  # the model went on with it
            self.messages[-1] = last.continued(completion)
        else:
            self.messages.append(completion.message)
        self.completions.append(completion)
        self.results.append([])
        jobs: list[_Job] = []
        reason = completion.finish_reason
        calls = completion.tool_calls
        if reason in ("cancelled", "deadline", "error") or not calls:
            self.stopped = "stop" if reason == "tool_calls" else reason
            return jobs
        parts = [part for part, item in enumerate(completion.parts) if isinstance(item, ToolCall)]
        for index, (part, call) in enumerate(zip(parts, calls, strict=True)):
            work = _work(call, self.tools)
            if isinstance(work, Tool) and work.function is None:
                self.pending.append(call)
                self.stopped = "pending"
            else:
                jobs.append(_Job(index, part, call, work))
        return jobs

    def answer(self, job: _Job, outcome: ToolOutcome) -> ToolResult:
        """Take a call's outcome in, as a tool message and as an event."""
        call = job.call
        self.messages.append(Message(role="tool", tool_call_id=call.id, name=call.name, content=outcome.content))
        result = ToolResult(job.index, call.id, outcome.content, error=outcome.error, part=job.part, step=self.step - 1)
        self.results[-1].append(result)
        return result

    def cancel(self) -> None:
        self.cancelled = True
        if turn := self.turn:
            turn.cancel()

    def snapshot(self) -> Run:
        pairs = zip(self.completions, self.results, strict=True)
        steps = tuple(Step(completion, tuple(results)) for completion, results in pairs)
        return Run(tuple(self.messages), steps, self.stopped or "cancelled", tuple(self.pending))


def _work(call: ToolCall, tools: Mapping[str, Tool]) -> Tool | ToolOutcome:
    """The tool that a call asks for, or what the model reads because the call is at fault."""
    tool = tools.get(call.name)
    if tool is None:
        known = ", ".join(tools) or "none"
        return _refused(f"there is no tool {call.name!r}. The tools are: {known}.")
    match call.error:
        case "truncated":
            return _refused("the call was cut off before its end, so it was not made. Write it again, shorter.")
        case "malformed":
            return _refused("the arguments are not valid JSON, so the call was not made. Write it again.")
        case "invalid_arguments" if tool.function is None:
            reason = tool.check(call.parsed()) if tool.check else None
            return _refused(f"the arguments do not fit: {reason or 'they are not what the tool takes.'}")
        case _:
            # Arguments that do not fit a function are found again when they are bound, and said then.
            return tool


def _refused(reason: str) -> ToolOutcome:
    return ToolOutcome(error_text(reason), error=True)


def _drive(loop: _Loop, generate: Generate) -> Generator[Event, None, None]:
    while (turn := loop.begin(generate)) is not None:
        try:
            for event in turn:
                yield loop.marked(event)
            jobs = loop.end(turn.completion)
        except Exception as error:
            if not loop.outgrown(error):
                raise
            return
        finally:
            turn.cancel()
        for job in jobs:
            work = job.work
            yield loop.answer(job, run(work, job.call.arguments) if isinstance(work, Tool) else work)


async def _drive_async(loop: _Loop, generate: Generate) -> AsyncGenerator[Event, None]:
    one_at_a_time = asyncio.Lock()
    while (turn := await off_loop(lambda: loop.begin(generate), _stop)) is not None:
        try:
            async for event in turn:
                yield loop.marked(event)
            jobs = loop.end(turn.completion)
        except Exception as error:
            if not loop.outgrown(error):
                raise
            return
        finally:
            turn.cancel()
        tasks = [asyncio.create_task(_outcome(job, one_at_a_time)) for job in jobs]
        try:
            for job, task in zip(jobs, tasks, strict=True):
                yield loop.answer(job, await task)
        finally:
            for task in tasks:
                task.cancel()


def _stop(turn: Turn | None) -> None:
    if turn is not None:
        turn.cancel()


async def _outcome(job: _Job, one_at_a_time: asyncio.Lock) -> ToolOutcome:
    work = job.work
    if isinstance(work, ToolOutcome):
        return work
    if is_async(work):
        return await run_async(work, job.call.arguments)
    async with one_at_a_time:
        return await run_async(work, job.call.arguments)
