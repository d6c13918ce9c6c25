"""A request that the engine carries out: turns begun, and their events made into one answer.

Knows: what an engine must have for that (`EngineLike`), and how a turn's events, errors and ends reach a projection.
Does not know: which endpoint it is, how an answer travels; no thread and no event loop.
"""

import secrets
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from engine.errors import EngineError
from engine.events import Event, Finished
from engine.openai.problems import Problem, problem_of
from engine.types import Completion, TokenLogprob

Json: TypeAlias = dict[str, Any]


class TurnStream(Protocol):
    """What is read of one turn; `engine.runtime.stream.Stream` is one."""

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
    """The id of a call that the model gave none."""
    return f"call_{secrets.token_hex(12)}"


class CallText:
    """The arguments of one call as they come, without the white space around them."""

    def __init__(self) -> None:
        self._said: list[str] = []
        self._space = ""

    def more(self, text: str) -> str:
        """What a fragment adds; white space waits for what follows it."""
        text = self._space + text if self._said else text.lstrip()
        said = text.rstrip()
        self._space = text[len(said) :]
        return self._say(said)

    def rest(self, arguments: str) -> str:
        """What is left of the whole arguments at the call's end."""
        return self._say(arguments.strip().removeprefix("".join(self._said)))

    def _say(self, text: str) -> str:
        if text:
            self._said.append(text)
        return text


class EngineLike(Protocol):
    """What is asked of an engine; `engine.Engine` is one."""

    @property
    def choices(self) -> Callable[..., Sequence[TurnStream]]:
        """`choices(messages, n, tools, **options)`: n turns over one conversation."""
        ...

    @property
    def info(self) -> Any: ...

    @property
    def family(self) -> Any: ...


class Projection(Protocol):
    """What an endpoint makes of the turns of one request."""

    def opening(self) -> Iterable[bytes]:
        """What a stream says before anything is generated."""
        ...

    def event(self, choice: int, event: Event, logprobs: Sequence[TokenLogprob]) -> Iterable[bytes]:
        """What an event adds to a stream; `logprobs` are those of the tokens drawn since the last one."""
        ...

    def closing(self) -> Iterable[bytes]:
        """What a stream says when all turns are over."""
        ...

    def failed(self, problem: Problem) -> Iterable[bytes]:
        """How a stream that cannot go on ends."""
        ...

    def whole(self, completions: Sequence[Completion]) -> Json:
        """The answer that is not streamed."""
        ...


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, read: what the engine is asked for. `names`: the engine's name of an option to the field that gave
    it, for messages about it."""

    engine: EngineLike
    messages: Sequence[Any]
    tools: Sequence[Any]
    n: int
    options: Mapping[str, Any]
    names: Mapping[str, str]

    def begin(self) -> Sequence[TurnStream]:
        """Let the engine begin. Raises Problem for what it refuses."""
        try:
            return self.engine.choices(self.messages, self.n, self.tools, **self.options)
        except EngineError as error:
            raise self.problem(error) from error

    def problem(self, error: EngineError) -> Problem:
        return problem_of(error, self.names)


class Reading:
    """The turns of one streamed request, as their events come."""

    def __init__(self, ask: Ask, projection: Projection, streams: Sequence[TurnStream], *, logprobs: bool) -> None:
        self.streams = streams
        self._ask = ask
        self._projection = projection
        self._wants_logprobs = logprobs
        self._seen = [0] * len(streams)
        self._ended: set[int] = set()

    def opening(self) -> Iterable[bytes]:
        return self._projection.opening()

    def event(self, choice: int, event: Event) -> Iterable[bytes]:
        """Raises Problem for an end that is none of the model's."""
        found: tuple[TokenLogprob, ...] = ()
        if isinstance(event, Finished):
            if event.reason == "error":
                return ()  # the stream raises what it was
            _check_end(event.reason)
            self._ended.add(choice)
        if self._wants_logprobs:
            found = self.streams[choice].logprobs_from(self._seen[choice])
            self._seen[choice] += len(found)
        return self._projection.event(choice, event, found)

    def arrived(self) -> Iterable[bytes]:
        """What all turns add that have something to read, without waiting."""
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
    """The answer of turns that are over. Raises Problem for an end that is none of the model's."""
    for completion in completions:
        _check_end(completion.finish_reason)
    return projection.whole(completions)


def cancel(streams: Iterable[TurnStream]) -> None:
    """End what still runs of them."""
    for stream in streams:
        stream.cancel()


def _check_end(reason: str) -> None:
    if reason == "cancelled":
        raise Problem(503, "The turn was cancelled on the engine's side: it was closed, perhaps.", code="cancelled")
    if reason == "error":
        raise _broken()


def _broken() -> Problem:
    return Problem(500, "The turn ended by an error of the engine's.", code="engine_error")
