"""The agent loop: generates a turn, runs its calls, feeds their results back, until the model answers."""

import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Generic, Protocol, TypeAlias

from engine.agent.circles import ENDED, NOTE, Circle, circle
from engine.agent.execution import Job, answers, answers_async, save, save_async
from engine.agent.limits import RunOptions
from engine.agent.transcript import CallRecord, RunEnd, Transcript
from engine.support.display import Block, Span, counted, page_html, page_markdown, short, timeline_html
from engine.support.errors import ContextOverflowError, EngineError, RequestError
from engine.support.guided import Guided
from engine.support.offloop import off_loop, off_loop_or_undo
from engine.support.printed import Printed
from engine.support.tracing import Span as TracedSpan
from engine.support.tracing import begin as begin_span
from engine.tools import Toolbox, ToolContext, ToolOutcome, error_text, tool_error
from engine.types.answer_formats import Answer_co
from engine.types.blocks import result_block
from engine.types.completion import Completion, blocks_of, ending, figures
from engine.types.events import Event, ToolResult
from engine.types.media import MediaKind
from engine.types.messages import Message, Messages, message_block
from engine.types.parts import TextPart, ToolCall
from engine.types.streams import GeneratedStream
from engine.types.tools import Tool

_log = logging.getLogger("engine.agent")
_RAN_AWAY = error_text(
    "the turn was ended because it repeated itself without an end (repetition_limit), so none of its calls was made. "
    "Write it again, without the repetition."
)


class Turn(Protocol):
    """A running generation, as far as the loop needs it."""

    def __iter__(self) -> Iterator[Event]: ...

    def __aiter__(self) -> AsyncIterator[Event]: ...

    def cancel(self) -> None:
        """Stop the generation; does nothing if it is over."""

    @property
    def completion(self) -> Completion:
        """The result; read after the last event."""
        ...


Generate: TypeAlias = Callable[[Sequence[Message]], Turn]


@dataclass(frozen=True, slots=True, repr=False)
class Step(Guided, Printed):
    """One turn of the model, and the results of its calls."""

    completion: Completion
    results: tuple[ToolResult, ...] = ()


@dataclass(frozen=True, slots=True)
class Run(Guided, Generic[Answer_co]):
    """A run of the agent loop, finished or left early. The answer of a `Run[Invoice]` (`completion.parsed`) is an
    `Invoice`, or None.

    `messages` is the whole history, including the caller's messages: continue with `llm.run([*run.messages, ...])`.
    `stopped` is why it ended: "stop", the model answered; "pending", it called a tool that has no function (`pending`
    holds those calls: append their results as tool messages and run again); "stop_on", a tool that ends the run was
    called; "repeated", the model made the same calls with the same results again and again (`why` says which);
    "max_steps" and "max_total_tokens", the last step's calls were run but the model has not answered yet; "overflow",
    the conversation grew beyond the context (shorten `messages` and run again, or pass overflow="truncate_oldest");
    "error", a turn or a callback failed; otherwise the last turn's finish reason.

    `transcript` is the run in a form that JSON can hold; `llm.run(run.transcript, tools)` resumes it. `running`: calls
    whose tools had not returned when the run was left, or were late: threads cannot be killed.
    """

    messages: tuple[Message, ...]
    steps: tuple[Step, ...]
    stopped: RunEnd
    pending: tuple[ToolCall, ...] = ()
    transcript: Transcript = field(default=Transcript(), repr=False)
    running: tuple[ToolCall, ...] = ()
    why: str = ""

    @property
    def completion(self) -> Completion[Answer_co]:
        """The last turn. Empty, with reason "cancelled", if the run was left before a turn was complete."""
        return self.steps[-1].completion if self.steps else Completion(finish_reason="cancelled")

    @property
    def content(self) -> str:
        """The text of the last turn."""
        return self.completion.content

    @property
    def output(self) -> Answer_co | str:
        """The value of the answer (`completion.parsed`), or its text if no form was asked for."""
        return self.completion.content if self.completion.parsed is None else self.completion.parsed

    def __str__(self) -> str:
        return str(self.completion)

    def __repr__(self) -> str:
        steps = counted(len(self.steps), "step")
        return f"Run(stopped={self.stopped!r}, {steps}, content={short(self.completion.content)!r})"

    @property
    def ending(self) -> str:
        """Why the run ended, in words."""
        return f"{ending(self.stopped)} {self.why}".rstrip()

    @property
    def question(self) -> Message | None:
        """The user's last message; None if there is none."""
        return next((message for message in reversed(self.messages) if message.role == "user"), None)

    def _repr_html_(self) -> str:
        return page_html(self._blocks(), self._figures(), timeline_html(list(self._spans())))

    def _repr_markdown_(self) -> str:
        return page_markdown(self._blocks(), self._figures())

    def _figures(self) -> str:
        return figures(step.completion.usage for step in self.steps)

    def _blocks(self) -> Iterator[Block]:
        if self.question is not None:
            yield message_block(self.question)
        for step in self.steps:
            results = {result.index: result for result in step.results}
            calls = count()
            for block in blocks_of(step.completion):
                if block.kind == "call" and (result := results.get(next(calls))) is not None:
                    inside = result_block(result.content, result.parts, failed=result.error, seconds=result.seconds)
                    yield replace(block, inside=(*block.inside, inside))
                else:
                    yield block
        if self.stopped not in ("stop", self.completion.finish_reason):
            yield Block("notice", self.ending, failed=self.stopped not in ("pending", "stop_on"))

    def _spans(self) -> Iterator[Span]:
        """Yields what took how long, one turn after the other; of the calls of a turn, when they ran."""
        now = 0.0
        for number, step in enumerate(self.steps, 1):
            if usage := step.completion.usage:
                waited = usage.time_to_first_token
                first = now + (usage.prefill_seconds if waited is None else waited)
                end = first + usage.decode_seconds
                yield Span(f"turn {number}", f"{counted(usage.completion_tokens, 'token')}", now, first, end)
                now = end
            calls = step.completion.tool_calls
            ran = [(calls[result.index].name, result.ran) for result in step.results if result.ran is not None]
            for name, (begin, end) in ran:
                yield Span(short(name), "", now + begin, now + begin, now + end)
            now += max((end for _, (_, end) in ran), default=0.0)


class RunStream(GeneratedStream[Run[Answer_co]], Generic[Answer_co]):
    """A run of the agent loop while it goes on: `for`, `async for`, `await` (the Run) and `with`; leaving it early
    cancels.

    From async code, the async tools of one turn run at once, and other tools in a worker thread, one after the other.
    From sync code all run in order. `max_parallel_tools` changes both.
    """

    def __init__(self, loop: "_Loop", generate: Generate) -> None:
        super().__init__()
        self._loop = loop
        self._generate = generate

    def __repr__(self) -> str:
        return f"<RunStream: {self._loop.stopped or 'not over'}, {counted(self._loop.step, 'step')} complete>"

    def _read(self) -> Generator[Event, None, None]:
        return _drive(self._loop, self._generate)

    def _read_async(self) -> AsyncGenerator[Event, None]:
        return _drive_async(self._loop, self._generate)

    def _whole(self) -> Run[Answer_co]:
        return self.run

    @property
    def run(self) -> Run[Answer_co]:
        """The run so far; the complete run after its last event."""
        return self._loop.snapshot()

    def cancel(self) -> None:
        """Stop the current generation and end the run; may be called from any thread. No further tool is called. A
        running tool is not interrupted; its `ToolContext.cancelled` is True from then on."""
        self._loop.cancel()


def stream_run(
    generate: Generate,
    messages: Sequence[Message] | Transcript,
    tools: Sequence[Tool] | Toolbox,
    options: RunOptions | None = None,
    media: frozenset[MediaKind] = frozenset(),
) -> RunStream:
    """Run the loop from these messages on, or resume a transcript. `media`: the kinds of media in tools' results that
    the model takes. Raises RequestError for a name in `stop_on` that is
    not a tool's, and for a transcript of a run that is over. The sources of a `Toolbox` are connected when the stream
    is first read, and released at its end; `generate` reads the tools of each turn from it.

    The model's mistakes (an unknown tool, arguments that are not JSON or do not fit, a call that was cut off) and a
    tool's exceptions go back to it as tool messages. Reading the stream raises CallbackError for a callback that fails.
    """
    options = options or RunOptions()
    toolbox = tools if isinstance(tools, Toolbox) else Toolbox(tools)
    if toolbox.is_fixed:
        options.check_names(toolbox.tools)
    if not isinstance(messages, Transcript):
        return RunStream(_Loop(list(messages), toolbox, options, media), generate)
    loop = _Loop(list(messages.messages), toolbox, options, media)
    loop.resume(messages)
    return RunStream(loop, generate)


@dataclass(slots=True)
class _Loop:
    """The state of a run, and its decisions; generates nothing and runs no tool itself."""

    messages: list[Message]
    toolbox: Toolbox
    options: RunOptions
    media: frozenset[MediaKind] = frozenset()
    completions: list[Completion] = field(default_factory=list[Completion])
    results: list[list[ToolResult]] = field(default_factory=list[list[ToolResult]])
    pending: list[ToolCall] = field(default_factory=list[ToolCall])
    stopped: RunEnd | None = None
    cancelled: bool = False
    turn: Turn | None = None
    first: int = 0  # the number of the first turn here: earlier turns belong to the run that is resumed
    total_tokens: int = 0
    turn_end: int = 0  # number of messages up to and including the last turn's
    records: list[CallRecord] = field(default_factory=list[CallRecord])
    resumed: list[Job] = field(default_factory=list[Job])
    live: dict[int, tuple[Job, ToolContext[Any]]] = field(default_factory=dict[int, tuple[Job, ToolContext[Any]]])
    unfinished: tuple[Message, ...] | None = None  # the history before a last turn that was cut short
    counted: bool = True  # whether every turn came with its usage
    answering: float = 0.0  # when the last turn's calls began to be answered
    ran: dict[int, tuple[float, float]] = field(
        default_factory=dict[int, tuple[float, float]]
    )  # of its calls, by index
    span: TracedSpan = field(default_factory=TracedSpan)  # of OpenTelemetry
    why: str = ""

    @property
    def step(self) -> int:
        return self.first + len(self.completions)

    def resume(self, transcript: Transcript) -> None:
        """Resume a transcript; if it ends in the middle of a turn, the turn's calls are answered first. Raises
        RequestError for one that is over or contradicts itself."""
        transcript.check()
        last = self.messages[-1].role if self.messages else "assistant"
        if last == "assistant" and not transcript.calls:
            raise RequestError(
                f"This transcript's run is over (stopped={transcript.stopped!r}), so there is nothing to resume; go on "
                "with llm.run([*transcript.messages, ...]) and a new message."
            )
        self.first, self.total_tokens = transcript.steps, transcript.total_tokens
        if not transcript.calls:
            return
        self.first -= 1
        message = self.messages[-1]
        self.completions.append(Completion(parts=message.written, finish_reason="tool_calls"))
        self.results.append([])
        self.turn_end = len(self.messages)
        self.records = list(transcript.calls)
        if self.toolbox.is_fixed:
            self._resume_calls()

    def _resume_calls(self) -> None:
        message, records = self.messages[self.turn_end - 1], self.records
        self.resumed = self._jobs(message.tool_calls[-len(records) :], message.parts, records)

    def trace(self) -> None:
        """Begin the run's span, for OpenTelemetry; it ends when the run is left."""
        self.span = begin_span("invoke_agent", "", {"gen_ai.provider.name": "llama-engine"})

    def open(self) -> None:
        """Connect the sources of tools. Raises EngineError if that fails, and RequestError for names that clash and
        names in `stop_on` that are not a tool's."""
        if self.toolbox.is_fixed:
            return
        try:
            self.toolbox.open()
            self.options.check_names(self.toolbox.tools)
        except BaseException:
            self.toolbox.close()
            self.failed()
            raise
        if self.records:
            self._resume_calls()

    def begin(self, generate: Generate) -> Turn | None:
        """Start the next turn and return it; None if the run is over."""
        if self.stopped is None:
            self.stopped = self._limit()
        if self.stopped is not None:
            return None
        self.toolbox.refresh()
        try:
            with self.span.inside():
                self.turn = generate(tuple(self.messages))
        except Exception as error:
            if not self.outgrown(error):
                raise
            return None
        if self.cancelled:
            self.turn.cancel()
        return self.turn

    def _limit(self) -> RunEnd | None:
        if self.cancelled:
            return "cancelled"
        if self.results and any(self._ends(result) for result in self.results[-1]):
            return "stop_on"
        found = self._circle(self.messages)
        if found is not None and found.told and found.times >= ENDED:
            self.why = f"{found}."
            return "repeated"
        if self.step >= self.options.max_steps:
            return "max_steps"
        most = self.options.max_total_tokens
        if most is not None and not self.counted:
            raise EngineError(
                "max_total_tokens cannot be enforced: a turn came without usage. Request it from the server, or leave "
                "max_total_tokens out and set max_steps."
            )
        return "max_total_tokens" if most is not None and self.total_tokens >= most else None

    def _circle(self, messages: Sequence[Message]) -> Circle | None:
        return circle(messages, [tool.name for tool in self.toolbox.tools if tool.repeats])

    def _told(self, message: Message) -> Message:
        """Returns the last result of a turn, with a note if the run goes in a circle, unless the model was told."""
        found = self._circle([*self.messages, message])
        if found is None or found.told:
            return message
        if message.parts:
            return message.model_copy(update={"parts": (*message.parts, TextPart(text=NOTE))})
        return message.model_copy(update={"content": f"{message.content}\n\n{NOTE}"})

    def _ends(self, result: ToolResult) -> bool:
        called = self.completions[-1].parts[result.part]
        return not result.error and isinstance(called, ToolCall) and called.name in self.options.stop_on

    def outgrown(self, error: Exception) -> bool:
        """Record that a turn failed. Returns whether the run itself made the conversation too long, so that it ends
        with what it has."""
        self.turn = None
        self.stopped = "overflow" if isinstance(error, ContextOverflowError) and self.step else "error"
        return self.stopped == "overflow"

    def marked(self, event: Event) -> Event:
        return replace(event, step=self.step) if self.step else event

    def end(self, completion: Completion) -> list[Job]:
        """Add a finished turn. Returns its calls that the loop answers."""
        self.turn = None
        self.records = []
        reason = completion.finish_reason
        if reason in ("cancelled", "deadline", "error"):
            self.unfinished = tuple(self.messages)
        last = self.messages[-1]
        if last.role == "assistant":  # the model continued it
            self.messages[-1] = last.continued(completion.parts)
        else:
            self.messages.append(completion.message)
        self.turn_end = len(self.messages)
        self.completions.append(completion)
        self.results.append([])
        self.total_tokens += completion.usage.total_tokens + completion.usage.summarising_tokens
        self.counted = self.counted and bool(completion.usage)
        calls = completion.tool_calls
        if self.unfinished is not None or not calls:
            self.stopped = "stop" if reason == "tool_calls" else reason
            return []
        ran_away = completion.usage.limit == "repetition"
        record = CallRecord(index=0, state="done", result=_RAN_AWAY, error=True) if ran_away else CallRecord(index=0)
        records = [record.model_copy(update={"index": index}) for index in range(len(calls))]
        return self._jobs(calls, completion.parts, records)

    def _jobs(self, calls: Sequence[ToolCall], parts: Sequence[object], records: Sequence[CallRecord]) -> list[Job]:
        """Returns the calls of a turn that the loop answers; the others become pending."""
        self.records, self.answering, self.ran = list(records), time.monotonic(), {}
        places = [place for place, item in enumerate(parts) if isinstance(item, ToolCall)][-len(calls) :]
        jobs: list[Job] = []
        for record, place, call in zip(records, places, calls, strict=True):
            work = self._recorded(record) or _work(call, self.toolbox.tools)
            if isinstance(work, Tool) and work.function is None:
                self.pending.append(call)
                self.stopped = "pending"
            else:
                jobs.append(Job(record.index, place, call, work))
        return jobs

    def _recorded(self, record: CallRecord) -> ToolOutcome | None:
        """Returns the outcome of a call in a transcript: its result, or that it was interrupted."""
        if record.state == "done":
            return ToolOutcome(record.result or "", record.error, record.parts)
        if record.state == "started" and not self.options.rerun:
            return tool_error("interrupted: the call was made, but its result is not known. It was not made again.")
        return None

    def answer(self, job: Job, outcome: ToolOutcome) -> ToolResult:
        """Add a call's outcome as a tool message. Returns it as an event."""
        call = job.call
        parts = outcome.shown
        message = Message(
            role="tool",
            tool_call_id=call.id,
            name=call.name,
            content=None if parts else outcome.content,
            parts=parts,
        )
        if len(self.results[-1]) + 1 == len(self.records):
            message = self._told(message)
        self.messages.append(message)
        shown = message.content_with(lambda media: f"[{media.about}]")
        ran = self.ran.get(job.index)
        result = ToolResult(job.index, call.id, shown, outcome.error, job.part, self.step - 1, parts, call.name, ran)
        self.results[-1].append(result)
        return result

    # The methods below implement `engine.agent.execution.CallLog`.

    def context(self, job: Job) -> ToolContext[Any]:
        history = tuple(self.messages[: self.turn_end])
        called = history[-1].parts[self._place(job)]
        call = called if isinstance(called, ToolCall) else job.call
        context = ToolContext[Any](self.options.context, call, self.step - 1, history, self.media)
        if self.cancelled:
            context.cancel()
        return context

    def edit(self, job: Job, arguments: str) -> None:
        message = self.messages[self.turn_end - 1]
        parts = list(message.parts)
        parts[self._place(job)] = job.call.model_copy(update={"arguments": arguments, "error": None})
        self.messages[self.turn_end - 1] = Message(role="assistant", name=message.name, parts=tuple(parts))

    def _place(self, job: Job) -> int:
        """Returns the index of the call in the last turn's message, which may have begun before that turn."""
        return len(self.messages[self.turn_end - 1].parts) - len(self.completions[-1].parts) + job.part

    def start(self, job: Job) -> None:
        self.records[job.index] = CallRecord(index=job.index, state="started")

    def done(self, job: Job, outcome: ToolOutcome) -> None:
        if job.index in self.ran:
            self.ran[job.index] = self.ran[job.index][0], time.monotonic() - self.answering
        self.records[job.index] = CallRecord(
            index=job.index,
            state="done",
            result=outcome.content,
            error=outcome.error,
            parts=outcome.shown,
        )

    def begun(self, job: Job, context: ToolContext[Any]) -> None:
        begin = time.monotonic() - self.answering
        self.ran[job.index] = begin, begin
        self.live[id(job)] = job, context

    def returned(self, job: Job) -> None:
        del self.live[id(job)]

    def traced(self, job: Job) -> TracedSpan:
        about = {"gen_ai.tool.name": job.call.name, "gen_ai.tool.call.id": job.call.id, "gen_ai.tool.type": "function"}
        with self.span.inside():
            return begin_span("execute_tool", job.call.name, about)

    def save(self) -> Callable[[], Any] | None:
        keep = self.options.save
        if keep is None:
            return None
        transcript = self.transcript()
        return lambda: transcript.save(keep) if isinstance(keep, str | Path) else keep(transcript)

    def transcript(self) -> Transcript:
        """Returns the run as it is now. In the middle of a step the results are in `calls`, not in `messages`."""
        within = bool(self.records) and len(self.results[-1]) < len(self.records)
        messages = self.messages[: self.turn_end] if within else self.messages
        return Transcript(
            messages=tuple(messages) if self.unfinished is None else self.unfinished,
            calls=tuple(self.records) if within else (),
            steps=self.step if self.unfinished is None else self.step - 1,
            total_tokens=self.total_tokens,
            stopped=self.stopped,
        )

    def cancel(self) -> None:
        self.cancelled = True
        if turn := self.turn:
            turn.cancel()
        for _, context in tuple(self.live.values()):
            context.cancel()

    def failed(self) -> None:
        """Record that the run failed."""
        self.stopped = self.stopped or "error"
        self._end_span()

    def leave(self) -> None:
        """End the run, because it is over or no longer read."""
        if self.stopped is None:
            self.cancel()
        if names := [job.call.name for job, _ in tuple(self.live.values())]:
            _log.warning("The run is over, but these tools still run in their threads: %s.", ", ".join(names))
        self._end_span()

    def _end_span(self) -> None:
        reason = self.stopped or "cancelled"
        self.span.end({"gen_ai.response.finish_reasons": [reason]}, "error" if reason == "error" else "")

    def snapshot(self) -> Run:
        pairs = zip(self.completions, self.results, strict=True)
        steps = tuple(Step(completion, tuple(results)) for completion, results in pairs)
        running = tuple(job.call for job, _ in tuple(self.live.values()))
        stopped = self.stopped or "cancelled"
        pending = tuple(self.pending)
        return Run(Messages(self.messages), steps, stopped, pending, self.transcript(), running, self.why)


def _work(call: ToolCall, tools: Sequence[Tool]) -> Tool | ToolOutcome:
    """Returns the tool that a call asks for, or what the model reads because the call is not valid."""
    tool = next((tool for tool in tools if tool.name == call.name), None)
    if tool is None:
        names = ", ".join(tool.name for tool in tools) or "none"
        return tool_error(f"there is no tool {call.name!r}. The tools are: {names}.")
    match call.error:
        case "truncated":
            return tool_error("the call was cut off before its end, so it was not made. Write it again, shorter.")
        case "malformed":
            return tool_error("the arguments are not valid JSON, so the call was not made. Write it again.")
        case "invalid_arguments" if tool.function is None:
            reason = tool.check(call.parsed()) if tool.check else None
            return tool_error(f"the arguments do not fit: {reason or 'they are not what the tool takes.'}")
        case _:
            # Binding arguments to a function finds those that do not fit again, and reports them.
            return tool


def _drive(loop: _Loop, generate: Generate) -> Generator[Event, None, None]:
    loop.trace()
    loop.open()
    try:
        yield from _results(loop, loop.resumed)
        while (turn := loop.begin(generate)) is not None:
            try:
                for event in turn:
                    yield loop.marked(event)
                jobs = loop.end(turn.completion)
            except Exception as error:
                if not loop.outgrown(error):
                    raise
                break
            finally:
                turn.cancel()
            save(loop)
            yield from _results(loop, jobs)
        save(loop)
    except Exception:
        loop.failed()
        raise
    finally:
        loop.leave()
        loop.toolbox.close()


def _results(loop: _Loop, jobs: Sequence[Job]) -> Generator[Event, None, None]:
    with closing(answers(jobs, loop.options, loop)) as answered:
        for job, outcome in answered:
            yield loop.answer(job, outcome)


async def _drive_async(loop: _Loop, generate: Generate) -> AsyncGenerator[Event, None]:
    loop.trace()
    if not loop.toolbox.is_fixed:
        await off_loop_or_undo(loop.open, lambda _: loop.toolbox.close())
    try:
        async with aclosing(_results_async(loop, loop.resumed)) as results:
            async for event in results:
                yield event
        while (turn := await off_loop_or_undo(lambda: loop.begin(generate), _stop)) is not None:
            try:
                async for event in turn:
                    yield loop.marked(event)
                jobs = loop.end(turn.completion)
            except Exception as error:
                if not loop.outgrown(error):
                    raise
                break
            finally:
                turn.cancel()
            await save_async(loop)
            async with aclosing(_results_async(loop, jobs)) as results:
                async for event in results:
                    yield event
        await save_async(loop)
    except Exception:
        loop.failed()
        raise
    finally:
        loop.leave()
        if not loop.toolbox.is_fixed:
            await off_loop(loop.toolbox.close)


async def _results_async(loop: _Loop, jobs: Sequence[Job]) -> AsyncGenerator[Event, None]:
    async with aclosing(answers_async(jobs, loop.options, loop)) as answered:
        async for job, outcome in answered:
            yield loop.answer(job, outcome)


def _stop(turn: Turn | None) -> None:
    if turn is not None:
        turn.cancel()
