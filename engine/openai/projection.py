"""Starts the turns of a request and combines their events into one response."""

import secrets
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Protocol, TypeAlias

from engine.errors import EngineError, RequestError
from engine.events import Event, Finished
from engine.openai.problems import Problem, problem_of
from engine.types import Completion, TokenLogprob

Json: TypeAlias = dict[str, Any]
FINGERPRINT = f"llama-engine-{version('llama-engine')}"
"""OpenAI's `system_fingerprint`: what generated an answer."""


class TurnStream(Protocol):
    """What is read from one turn; `engine.runtime.stream.Stream` is one."""

    def __iter__(self) -> Iterator[Event]: ...

    def __aiter__(self) -> AsyncIterator[Event]: ...

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


def made_id() -> str:
    """Returns an id for a call to which the model gave none."""
    return f"call_{secrets.token_hex(12)}"


class CallText:
    """The arguments of one call as they arrive, without the white space around them."""

    def __init__(self) -> None:
        self._sent: list[str] = []
        self._space = ""

    def more(self, text: str) -> str:
        """Returns what a fragment adds; white space is held back until something follows it."""
        text = self._space + text if self._sent else text.lstrip()
        stripped = text.rstrip()
        self._space = text[len(stripped) :]
        return self._send(stripped)

    def rest(self, arguments: str) -> str:
        """Returns the rest of the complete arguments, at the call's end."""
        return self._send(arguments.strip().removeprefix("".join(self._sent)))

    def _send(self, text: str) -> str:
        if text:
            self._sent.append(text)
        return text


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
        """Makes vectors: `engine.vectors.Embedder`."""
        ...

    @property
    def info(self) -> Any: ...

    @property
    def family(self) -> Any: ...


def default_sampling(engine: EngineLike) -> Mapping[str, float]:
    """Returns how an engine samples if a request does not say: the family's defaults over the filters that are off."""
    off = {"temperature": 1.0, "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    return {**off, **engine.family.sampling}


class Projection(Protocol):
    """How an endpoint writes the turns of one request."""

    def opening(self) -> Iterable[bytes]:
        """Yields what a stream sends before anything is generated."""
        ...

    def event(self, choice: int, event: Event, logprobs: Sequence[TokenLogprob]) -> Iterable[bytes]:
        """Yields what an event adds to a stream; `logprobs` are those of the tokens drawn since the last event."""
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


class Request(Protocol):
    """One request that was read, and can be started. `notes`: what the client is told of its fields."""

    @property
    def notes(self) -> Sequence[str]: ...

    def begin(self) -> Sequence[TurnStream]:
        """Start the turns. Raises Problem for what the engine refuses."""
        ...

    def problem(self, error: EngineError) -> Problem: ...


@dataclass(frozen=True, slots=True)
class Ask:
    """A conversation: the arguments of the engine's `choices`. `names`: the request field of each engine option, for
    error messages."""

    engine: EngineLike
    messages: Sequence[Any]
    tools: Sequence[Any]
    n: int
    options: Mapping[str, Any]
    names: Mapping[str, str]
    notes: list[str] = field(default_factory=list[str])

    def begin(self) -> Sequence[TurnStream]:
        """Start the turns. Raises Problem for what the engine refuses."""
        try:
            return self._begin(self.options)
        except EngineError as error:
            raise self.problem(error) from error

    def _begin(self, options: Mapping[str, Any]) -> Sequence[TurnStream]:
        try:
            return self.engine.choices(self.messages, self.n, self.tools, **options)
        except RequestError as error:
            if (again := without_effort(options, error)) is None:
                raise
            streams = self.engine.choices(self.messages, self.n, self.tools, **again)
            self.notes.append(no_efforts(self.names["reasoning"]))
            return streams

    def problem(self, error: EngineError) -> Problem:
        return problem_of(error, self.names)


def without_effort(options: Mapping[str, Any], error: object) -> dict[str, Any] | None:
    """Returns the options with reasoning on if this error of theirs is that the model has no efforts, else None.
    Clients send an effort to any model, so one that has only on and off gets "on"."""
    effort = options.get("reasoning")
    refused = isinstance(error, RequestError) and str(error).startswith(f"reasoning={effort!r}")
    return {**options, "reasoning": True} if refused and isinstance(effort, str) else None


def no_efforts(name: str) -> str:
    """Returns the note on an effort, given in the field of this name, that became "on"."""
    return f"{name}: this model has no efforts, so reasoning is on"


class Reading:
    """Reads the turns of one streamed request."""

    def __init__(self, ask: Request, projection: Projection, streams: Sequence[TurnStream], *, logprobs: bool) -> None:
        self.streams = streams
        self._ask = ask
        self._projection = projection
        self._wants_logprobs = logprobs
        self._seen = [0] * len(streams)
        self._ended: set[int] = set()

    def opening(self) -> Iterable[bytes]:
        return self._projection.opening()

    def event(self, choice: int, event: Event) -> Iterable[bytes]:
        """Yields what an event adds to the stream. Raises Problem if the model did not end the turn itself."""
        found: tuple[TokenLogprob, ...] = ()
        if isinstance(event, Finished):
            if event.reason == "error":
                return ()  # the stream raises the error
            _check_end(event.reason)
            self._ended.add(choice)
        if self._wants_logprobs:
            found = self.streams[choice].logprobs_from(self._seen[choice])
            self._seen[choice] += len(found)
        return self._projection.event(choice, event, found)

    def arrived(self) -> Iterable[bytes]:
        """Yields what the unread events of all turns add to the stream, without waiting."""
        for number, stream in enumerate(self.streams):
            while (events := stream.take()) is not None:
                for event in events:
                    yield from self.event(number, event)

    @property
    def over(self) -> bool:
        """Whether all events of all turns were read."""
        return all(stream.over for stream in self.streams)

    def closing(self) -> Iterable[bytes]:
        if len(self._ended) < len(self.streams):
            return self.failed(_broken())
        return self._projection.closing()

    def failed(self, error: Problem | EngineError) -> Iterable[bytes]:
        return self._projection.failed(error if isinstance(error, Problem) else self._ask.problem(error))

    def cancel(self) -> None:
        cancel(self.streams)


def whole(projection: Projection, completions: Sequence[Completion]) -> Json:
    """Returns the response of finished turns. Raises Problem if the model did not end them itself."""
    for completion in completions:
        _check_end(completion.finish_reason)
    return projection.whole(completions)


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
