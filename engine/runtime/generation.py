"""One sequence's life: tokens come in one by one, events go out, until something ends it.

Knows: how bytes become text, what ends a generation (end tokens, stop strings, the token limit), and when reasoning
is to be closed from outside. Does not know: logits, batches, memory, other sequences. This is the one place where
detokeniser, parser, stop strings and budgets meet.
"""

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from engine.events import ContentDelta, Event, Finished, ToolCallStart
from engine.runtime.backend import Vocab
from engine.types import FinishReason

_Decoder = codecs.getincrementaldecoder("utf-8")


class Parser(Protocol):
    """What a generation needs of a parser; `engine.parsing.Parser` is one."""

    @property
    def in_reasoning(self) -> bool:
        """Whether the next text belongs to reasoning."""
        ...

    def feed(self, text: str, special: bool = False) -> list[Event]:
        """More output. `special`: the text is one control or user-defined token."""
        ...

    def close(self, finish_reason: FinishReason = "stop") -> list[Event]:
        """The output ended; what was held back, and `Finished` last."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """What ends a generation, or its reasoning.

    - `max_tokens`: tokens drawn at most, the end token included; None for no limit.
    - `stop`: strings that end it where they occur in the content; they are not part of it.
    - `ends`: end tokens beside the vocabulary's own; `markers`: end tokens that the parser reads as markers.
    - `ignore_eos`: end tokens do not end it and leave no trace.
    - `reasoning_budget`: reasoning tokens at most; then `reasoning_close` is forced. None for no limit.
    """

    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ends: frozenset[int] = frozenset()
    markers: frozenset[int] = frozenset()
    ignore_eos: bool = False
    reasoning_budget: int | None = None
    reasoning_close: tuple[int, ...] = ()


class Advance(NamedTuple):
    """What a token led to. `forced` tokens follow it in the sequence without being drawn; they are already parsed.
    After a `finish` nothing more may come but `close`."""

    events: list[Event]
    forced: tuple[int, ...] = ()
    finish: FinishReason | None = None


class Generation:
    """Fed with the drawn tokens of one turn.

    `tokens` counts those that became part of it (forced ones too), `reasoning_tokens` those among them that were read
    as reasoning, the marker that closes it included.
    """

    __slots__ = ("_closing", "_decoder", "_limits", "_parser", "_stops", "_vocab", "reasoning_tokens", "tokens")

    def __init__(self, vocab: Vocab, parser: Parser, limits: Limits) -> None:
        self._vocab = vocab
        self._parser = parser
        self._limits = limits
        self._stops = StopStrings(limits.stop) if limits.stop else None
        self._decoder = _Decoder("replace")
        self._closing = False
        self.tokens = 0
        self.reasoning_tokens = 0

    def start(self) -> Advance:
        """Before the first draw: a budget of 0 closes reasoning that the prompt left open."""
        return self._enforce_budget([])

    def advance(self, token: int) -> Advance:
        """A token was drawn."""
        limits = self._limits
        self.tokens += 1
        events: list[Event] = []
        if token not in limits.ends and not self._vocab.is_end(token):
            events = self._read(token)
        elif not limits.ignore_eos:
            return Advance(self._read(token) if token in limits.markers else [], (), "stop")
        if self._stops is not None and self._stops.hit:
            return Advance(events, (), "stop")
        if limits.max_tokens is not None and self.tokens >= limits.max_tokens:
            return Advance(events, (), "length")
        if limits.reasoning_budget is None and not self._closing:
            return Advance(events)
        return self._enforce_budget(events)

    def end_reasoning(self) -> None:
        """Close reasoning after the next token, if it is open then; without `reasoning_close` this does nothing."""
        self._closing = True

    def close(self, reason: FinishReason) -> list[Event]:
        """The end: what was held back, then `Finished` (its usage is the caller's to fill)."""
        events: list[Event] = []
        if rest := self._decoder.decode(b"", final=True):
            events += self._filtered(self._parser.feed(rest))
        closing = self._parser.close(reason)
        if self._stops is None:
            return events + closing
        finished = closing.pop() if closing and isinstance(closing[-1], Finished) else Finished(reason)
        events += self._filtered(closing)
        events += self._stops.flush()
        if self._stops.hit:
            finished = Finished("tool_calls" if self._stops.calls else "stop")
        return [*events, finished]

    def _read(self, token: int) -> list[Event]:
        """Detokenise and parse. A control token first settles bytes that never became a character."""
        parser = self._parser
        if parser.in_reasoning:
            self.reasoning_tokens += 1
        data = self._vocab.token_bytes(token)
        if self._vocab.is_special(token):
            rest = self._decoder.decode(b"", final=True)
            events = parser.feed(rest) if rest else []
            events += parser.feed(data.decode(errors="replace"), True)
        else:
            text = self._decoder.decode(data)
            if not text:
                return []
            events = parser.feed(text)
        return self._filtered(events)

    def _filtered(self, events: list[Event]) -> list[Event]:
        return events if self._stops is None else self._stops.filter(events)

    def _enforce_budget(self, events: list[Event]) -> Advance:
        limits = self._limits
        budget = limits.reasoning_budget
        over = self._closing or (budget is not None and self.reasoning_tokens >= budget)
        if not (over and limits.reasoning_close and self._parser.in_reasoning) or self._decoder.getstate()[0]:
            return Advance(events)
        self._closing = False
        for token in limits.reasoning_close:
            self.tokens += 1
            events += self._read(token)
        return Advance(events, limits.reasoning_close)


class StopStrings:
    """Ends the content where one of the strings begins. Holds back the shortest text that may still become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._prefixes = {stop[:length] for stop in self._stops for length in range(1, len(stop))}
        self._longest = max(map(len, self._prefixes), default=0)
        self._held: ContentDelta | None = None
        self.hit = False
        self.calls = 0

    def filter(self, events: Iterable[Event]) -> list[Event]:
        """These events, less what is held back or lies behind a stop."""
        out: list[Event] = []
        for event in events:
            if self.hit:
                break
            if isinstance(event, ContentDelta):
                self._content(event, out)
                continue
            out += self.flush()
            out.append(event)
            self.calls += isinstance(event, ToolCallStart)
        return out

    def flush(self) -> list[Event]:
        """What is held back: it became no stop."""
        held, self._held = self._held, None
        return [held] if held is not None else []

    def _content(self, event: ContentDelta, out: list[Event]) -> None:
        held = self._held
        if held is not None and held.part == event.part:
            event = replace(event, text=held.text + event.text)
        elif held is not None:
            out.append(held)
        self._held = None
        text = event.text
        at = min((at for stop in self._stops if (at := text.find(stop)) >= 0), default=-1)
        if at >= 0:
            self.hit = True
            keep = at
        else:
            keep = len(text) - self._may_become_stop(text)
            if keep < len(text):
                self._held = replace(event, text=text[keep:])
        if keep:
            out.append(event if keep == len(text) else replace(event, text=text[:keep]))

    def _may_become_stop(self, text: str) -> int:
        """The length of the longest end of the text that begins a stop string."""
        for length in range(min(self._longest, len(text)), 0, -1):
            if text[-length:] in self._prefixes:
                return length
        return 0
