"""What the tests of the in-process client share: engines whose events are written down, and engines over scripts."""

import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from cases.parsing_cases import CASES, FAMILIES
from fakes import scripts
from fakes.scripts import backend_of
from hypothesis import strategies as st

from engine import Engine
from engine.support.errors import RequestError
from engine.types.completion import Completion, Usage
from engine.types.events import (
    ContentDelta,
    Event,
    Finished,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    fold,
)
from engine.types.sampling import FinishReason, TokenLogprob

ASK: list[Any] = [{"role": "user", "content": "Hi."}]
PING: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "ping",
        "description": "Pings.",
        "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}},
    },
}
CALL = '<think>\nI ping.\n</think>\n\nSee: <tool_call>\n{"name": "ping", "arguments": {"x": 1}}\n</tool_call>'


def scripted(
    replies: Sequence[str] | Callable[[str], str] = lambda _: CALL, options: Any = None, **more: Any
) -> Engine:
    return scripts.scripted(replies, options=options, **more)


def wait_until_idle(llm: Engine) -> None:
    """Returns once nothing runs any more, which must be soon."""
    until = time.monotonic() + 5
    while llm.metrics.running or not all(each.closed for each in backend_of(llm).samplers):
        assert time.monotonic() < until, f"{llm.metrics.running} turns still run"
        time.sleep(0.002)


class Watched:
    """An engine whose prompts and turns are written down, in the order in which they were asked for."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.prompts: list[str] = []
        self.restored: list[tuple[int, ...]] = []
        self.options: list[dict[str, Any]] = []
        self.choices = self._choices
        self.stream_complete = engine.stream_complete
        self.embedder = engine.embedder
        self.decider = engine.decider

    @property
    def info(self) -> Any:
        return self._engine.info

    @property
    def family(self) -> Any:
        return self._engine.family

    @property
    def sampling(self) -> Any:
        return self._engine.sampling

    def _choices(self, messages: Any, n: int, tools: Any, **options: Any) -> Sequence[Any]:
        prompt = self._engine.render(messages, tools, **options)
        self.prompts.append(prompt.text)
        self.restored.append(prompt.restored)
        self.options.append(options)
        return self._engine.choices(messages, n, tools, **options)


class WrittenStream:
    """A turn whose events are there already."""

    def __init__(self, events: Sequence[Event], logprobs: Sequence[TokenLogprob] = ()) -> None:
        self._events = events
        self._logprobs = logprobs
        self.restored: tuple[int, ...] = ()
        self.cancelled = False
        self._taken = 0

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events)

    async def _each(self) -> AsyncIterator[Event]:
        for event in self._events:
            yield event

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._each()

    async def _whole(self) -> Completion:
        return self.result()

    def __await__(self) -> Generator[object, None, Completion]:
        return self._whole().__await__()

    def result(self, timeout: float | None = None) -> Completion:
        return fold(self._events).model_copy(update={"logprobs": tuple(self._logprobs)})

    def listen(self, arrived: Callable[[], None]) -> None:
        arrived()

    def take(self) -> Sequence[Event] | None:
        if self.over:
            return None
        self._taken += 1
        return self._events[self._taken - 1 : self._taken]

    @property
    def over(self) -> bool:
        return self._taken == len(self._events)

    def logprobs_from(self, start: int) -> tuple[TokenLogprob, ...]:
        return tuple(self._logprobs[start:])

    def cancel(self) -> None:
        self.cancelled = True


class WrittenEngine:
    """An engine that says `turns`, whatever it is asked; `asked` is the last request."""

    def __init__(self, *turns: Sequence[Event]) -> None:
        self.turns: list[Sequence[Event]] = list(turns)
        self.asked: dict[str, Any] = {}
        self.logprobs: Sequence[TokenLogprob] = ()
        self.family = SimpleNamespace(name="written")
        self.sampling = SimpleNamespace(values={})
        self.choices = self._choices
        self.stream_complete = self._stream_complete
        self.embedder: Any = None
        self.decider: Any = None

    @property
    def info(self) -> Any:
        raise RequestError("no file")

    def _choices(self, messages: Any, n: int, tools: Any, **options: Any) -> list[WrittenStream]:
        self.asked = {"messages": messages, "n": n, "tools": tools, **options}
        return [WrittenStream(turn, self.logprobs) for turn in self.turns[:n]]

    def _stream_complete(self, prompt: Any, **options: Any) -> WrittenStream:
        self.asked = {"prompt": prompt, **options}
        return WrittenStream(self.turns[0])


def golden_turns(letter: str, first: int) -> Iterator[tuple[str, list[Event]]]:
    """Every sixth output of tests/golden from this one on, of the families with this initial, in pieces of seven
    characters."""
    for case in CASES[first::6]:
        if case.family.startswith(letter):
            parser = case.parser()
            events = [
                event for cut in range(0, len(case.output), 7) for event in parser.feed(case.output[cut : cut + 7])
            ]
            yield str(case), [*events, *parser.close(case.finish)]


INITIALS = sorted({family[0] for family in FAMILIES})
_texts = st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=6), min_size=1, max_size=4)
_part = st.one_of(
    st.tuples(st.just("reasoning"), _texts),
    st.tuples(st.just("content"), _texts),
    st.tuples(
        st.just("call"),
        st.lists(st.sampled_from(["{", " ", "\n", '"a', '": 1', "}", "x", "é"]), max_size=6),
        st.sampled_from(["ping", "get_weather", ""]),
        st.booleans(),
        st.booleans(),
        st.sampled_from([None, "truncated", "malformed", "invalid_arguments", "unknown_tool"]),
    ),
)
_ends: list[FinishReason] = ["stop", "length", "tool_calls", "deadline"]
USAGE = Usage(prompt_tokens=11, cached_tokens=4, completion_tokens=7, reasoning_tokens=3)


@st.composite
def turns(draw: st.DrawFn) -> list[Event]:
    """Any turn that keeps the contract of events: parts in order; a call's fragments concatenate to its arguments, but
    for white space around them; its id at its start or at its end; the last one cut off, maybe."""
    events: list[Event] = []
    calls = 0
    for number, part in enumerate(draw(st.lists(_part, max_size=6))):
        match part:
            case ("call", fragments, name, late, stripped, error):
                id_ = f"call_{calls}"
                events.append(ToolCallStart(calls, "" if late else id_, name, number))
                events += [ToolCallDelta(calls, text, number) for text in fragments]
                whole = "".join(fragments)
                events.append(
                    ToolCallEnd(calls, whole.strip() if stripped else whole, error, number, id=id_ if late else None)
                )
                calls += 1
            case _:
                kind, texts = part
                delta = ReasoningDelta if kind == "reasoning" else ContentDelta
                events += [delta(text, number) for text in texts]
    return [*events, Finished(draw(st.sampled_from(_ends)), USAGE)]
