"""Starts the turns of a request, and combines their events into one response."""

import secrets
from codecs import getincrementaldecoder
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Protocol, TypeAlias

from engine.openai.parameters import Json
from engine.openai.problems import Problem, problem_of
from engine.openai.request import Request
from engine.support.errors import EngineError, NoSuchReasoningError, RequestError
from engine.support.warning import warn
from engine.types.completion import Completion
from engine.types.events import ContentDelta, Event, Finished, ToolCallDelta, ToolCallEnd, ToolCallStart
from engine.types.sampling import TokenLogprob

FINGERPRINT = f"llama-engine-{version('llama-engine')}"
"""OpenAI's `system_fingerprint`: what generated an answer."""


class TurnStream(Protocol):
    """What is read from one turn; `engine.runtime.stream.stream.Stream` is one."""

    def __await__(self) -> Generator[object, None, Completion]: ...

    def result(self, timeout: float | None = None) -> Completion: ...

    def listen(self, arrived: Callable[[], None]) -> None: ...

    def take(self) -> Sequence[Event] | None: ...

    @property
    def over(self) -> bool: ...

    def logprobs_from(self, start: int) -> tuple[TokenLogprob, ...]: ...

    @property
    def restored(self) -> Sequence[int]: ...

    def cancel(self) -> None: ...


class EngineLike(Protocol):
    """What a request needs from an engine; `engine.Engine` is one."""

    @property
    def choices(self) -> Callable[..., Sequence[TurnStream]]:
        """`choices(messages, n, tools, **options)`: n turns over one conversation."""
        ...

    @property
    def stream_complete(self) -> Callable[..., TurnStream]:
        """`stream_complete(prompt, **options)`: the continuation of a raw prompt."""
        ...

    @property
    def embedder(self) -> Any:
        """Makes vectors: `engine.turns.embedding.Embedder`."""
        ...

    @property
    def decider(self) -> Any:
        """Answers typed questions: `engine.turns.decisions.Decider`."""
        ...

    @property
    def info(self) -> Any: ...

    @property
    def sampling(self) -> Any:
        """How answers are drawn where a request does not say it."""
        ...

    @property
    def family(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class CallStart:
    """The beginning of a call as clients expect it: with its id. `arguments`: of a call whose id came at its end."""

    index: int
    id: str
    name: str
    part: int
    arguments: str = ""


ClientEvent: TypeAlias = Event | CallStart


class _Calls:
    """Turns the events of one turn's calls into those that clients expect: `CallStart` in place of `ToolCallStart`, and
    no white space around arguments."""

    def __init__(self) -> None:
        self._late: ToolCallStart | None = None
        self._sent: list[str] = []
        self._space = ""

    def events(self, event: Event) -> Iterator[ClientEvent]:
        match event:
            case ToolCallStart(index, id_, name, part):
                self._sent, self._space = [], ""
                self._late = None if id_ else event
                if id_:
                    yield CallStart(index, id_, name, part)
            case ToolCallDelta(index, text, part):
                if self._late is None and (text := self._trimmed(text)):
                    yield ToolCallDelta(index, text, part)
            case ToolCallEnd(index):
                rest = event.arguments.strip().removeprefix("".join(self._sent))
                if self._late is not None:
                    yield CallStart(index, event.id or made_id(), self._late.name, event.part, rest)
                elif rest:
                    yield ToolCallDelta(index, rest, event.part)
                yield event
            case _:
                yield event

    def _trimmed(self, text: str) -> str:
        """Returns what a fragment adds; white space is held back until something follows it."""
        text = self._space + text if self._sent else text.lstrip()
        stripped = text.rstrip()
        self._space = text[len(stripped) :]
        if stripped:
            self._sent.append(stripped)
        return stripped


def made_id() -> str:
    """Returns an id for a call to which the model gave none."""
    return f"call_{secrets.token_hex(12)}"


class Projection(Protocol):
    """How an endpoint writes the turns of one request."""

    def opening(self) -> Iterable[bytes]:
        """Yields what a stream sends before anything is generated."""
        ...

    def event(self, choice: int, event: ClientEvent, logprobs: Sequence[TokenLogprob]) -> Iterable[bytes]:
        """Yields what an event adds to a stream; `logprobs` are those of the tokens since the last event."""
        ...

    def closing(self) -> Iterable[bytes]:
        """Yields what a stream sends when all turns are over."""
        ...

    def failed(self, problem: Problem) -> Iterable[bytes]:
        """Yields the end of a stream that cannot go on."""
        ...

    def whole(self, completions: Sequence[Completion]) -> Json:
        """Returns the response that is not streamed."""
        ...


@dataclass(frozen=True, slots=True)
class Turn:
    """The turns that answer one request. `start` begins them with these options of the engine; `notes` say what was
    done otherwise than asked for."""

    request: Request
    start: Callable[[Mapping[str, Any]], Sequence[TurnStream]]
    projection: Projection
    notes: list[str] = field(default_factory=list[str])

    def begin(self) -> Sequence[TurnStream]:
        """Start the turns. Raises Problem for what the engine refuses."""
        options = self.request.options
        try:
            try:
                return self.start(options)
            except RequestError as error:
                if (again := without_effort(options, error)) is None:
                    raise
                streams = self.start(again)
                self.notes.append(no_efforts(self.request.names["reasoning"]))
                return streams
        except EngineError as error:
            raise self.problem(error) from error

    def problem(self, error: EngineError) -> Problem:
        return problem_of(error, self.request.names)

    def headers(self) -> dict[str, str]:
        """Warn about fields without effect, and about notes. Returns the headers that tell a client the same. Called
        once the turns have begun."""
        headers = ignored_fields(self.request)
        if self.notes:
            headers["x-note"] = "; ".join(self.notes)
            warn(f"A field of the request has another effect here: {headers['x-note']}.")
        return headers

    def whole(self, completions: Sequence[Completion]) -> Json:
        """Returns the response of finished turns. Raises Problem if the model did not end them itself."""
        for completion in completions:
            _check_end(completion.finish_reason)
        return self.projection.whole(completions)


def ignored_fields(request: Request) -> dict[str, str]:
    """Warn about fields without effect, and return the header that tells a client the same."""
    if not request.ignored:
        return {}
    for name in request.ignored:  # Python keeps each text that it warned of: as many as there are fields
        warn(f"The field {name} of the request has no effect here (docs/reference/openai-fields.md says why).")
    return {"x-ignored-fields": ", ".join(request.ignored)}


def without_effort(options: Mapping[str, Any], error: object) -> dict[str, Any] | None:
    """Returns the options with reasoning on if this error of theirs is that the model has no efforts, else None.
    Clients send an effort to any model, so one that has only on and off gets "on"."""
    asked = isinstance(options.get("reasoning"), str)
    return {**options, "reasoning": True} if asked and isinstance(error, NoSuchReasoningError) else None


def no_efforts(name: str) -> str:
    """Returns the note on an effort, given in the field of this name, that became "on"."""
    return f"{name}: this model has no efforts, so reasoning is on"


class StreamReader:
    """Reads the turns of one streamed request. `arrived` is called whenever there is something to read."""

    def __init__(self, turn: Turn, streams: Sequence[TurnStream]) -> None:
        self._turn = turn
        self._projection = turn.projection
        self._streams = streams
        self._calls = [_Calls() for _ in streams]
        self._tells = "logprobs" in turn.request.options
        self._logprobs = [0] * len(streams)
        self._ended: set[int] = set()
        self._closed = False

    def data(self, arrived: Callable[[], None]) -> Iterator[bytes | None]:
        """Yields the stream's data, None where its reader has to wait for a call of `arrived`, and b"" where others
        should have their turn."""
        for stream in self._streams:
            stream.listen(arrived)
        try:
            yield from self._projection.opening()
            while not all(stream.over for stream in self._streams):
                yield None
                for number, stream in enumerate(self._streams):
                    while (events := stream.take()) is not None:
                        events = _joined(events) if self._tells else events
                        content = next((at for at, each in enumerate(events) if isinstance(each, ContentDelta)), 0)
                        for at, event in enumerate(events):
                            yield from self._event(number, event, is_told=at >= content)
                        yield b""
            if len(self._ended) < len(self._streams):
                raise _broken()
            yield from self._projection.closing()
        except (Problem, EngineError) as error:
            if not self._closed:
                problem = error if isinstance(error, Problem) else self._turn.problem(error)
                yield from self._projection.failed(problem)

    def _event(self, choice: int, event: Event, *, is_told: bool) -> Iterator[bytes]:
        """Yields what an event adds to the stream, with the log-probabilities of the new tokens if `is_told`. Raises
        Problem if the model did not end the turn itself."""
        if isinstance(event, Finished):
            if event.reason == "error":
                return  # the stream raises the error
            _check_end(event.reason)
            self._ended.add(choice)
        for each in self._calls[choice].events(event):
            for part, logprobs in _parted(each, self._new_logprobs(choice) if is_told else ()):
                yield from self._projection.event(choice, part, logprobs)

    def _new_logprobs(self, choice: int) -> tuple[TokenLogprob, ...]:
        if not self._tells:
            return ()
        entries = self._streams[choice].logprobs_from(self._logprobs[choice])
        self._logprobs[choice] += len(entries)
        return entries

    def close(self) -> None:
        """End the turns; nothing more is yielded. May be called from any thread."""
        self._closed = True
        cancel(self._streams)


def _joined(events: Sequence[Event]) -> list[Event]:
    """Returns events with content in one piece where several follow one another: forced tokens come together."""
    joined: list[Event] = []
    for event in events:
        last = joined[-1] if joined else None
        if isinstance(event, ContentDelta) and isinstance(last, ContentDelta) and event.part == last.part:
            joined[-1] = ContentDelta(last.text + event.text, event.part)
        else:
            joined.append(event)
    return joined


def _parted(
    event: ClientEvent, entries: Sequence[TokenLogprob]
) -> Iterator[tuple[ClientEvent, Sequence[TokenLogprob]]]:
    """Yields an event in parts, so that the tokens of content spell its text: clients take them for it. Tokens of
    something else (the end of reasoning, white space) have an empty part."""
    if not isinstance(event, ContentDelta) or not entries:
        yield event, entries
        return
    data = event.text.encode(errors="surrogatepass")
    decoder = getincrementaldecoder("utf-8")("surrogatepass")
    places = _places(data, entries)
    first, last = min(places, default=len(entries)), max(places, default=len(entries) - 1) + 1
    parts, begun, done, told = [(b"", entries[:first])], 0, 0, first
    for number in range(first, last):
        if places[number] > done:
            parts += [(data[begun:done], entries[told:number]), (data[done : places[number]], ())]
            begun, told = places[number], number
        done = places[number] + len(entries[number].bytes)
    parts += [(data[begun:done], entries[told:last]), (data[done:], ()), (b"", entries[last:])]
    for text, logprobs in parts:
        if text or logprobs:
            yield ContentDelta(decoder.decode(text), event.part), logprobs


def _places(data: bytes, entries: Sequence[TokenLogprob]) -> dict[int, int]:
    """Returns the numbers of the tokens that spell a text, which follow one another, and where each begins in it. They
    are sought from the end: what comes before content is unlike it, as the end of reasoning is."""
    places: dict[int, int] = {}
    end = len(data)
    for number in reversed(range(len(entries))):
        start = data.rfind(bytes(entries[number].bytes), 0, end)
        if start >= 0:
            places[number] = end = start
        elif places:
            break
    return places


def cancel(streams: Iterable[TurnStream]) -> None:
    """Cancel the turns that still run."""
    for stream in streams:
        stream.cancel()


def _check_end(reason: str) -> None:
    if reason == "cancelled":
        raise Problem(503, "The engine cancelled the turn; perhaps the engine was closed.", code="cancelled")
    if reason == "error":
        raise _broken()


def _broken() -> Problem:
    return Problem(500, "The turn ended with an error of the engine.", code="engine_error")
