"""One sequence's life: tokens come in one by one, events go out, until something ends it.

Knows: how bytes become text, what ends a generation (end tokens, stops, the token limit), and when reasoning is to be
closed from outside. Does not know: logits, batches, memory, other sequences. This is the one place where detokeniser,
parser, stops and budgets meet.
"""

import codecs
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from engine.events import Event, Finished
from engine.parsing.reader import Piece
from engine.runtime.backend import Vocab
from engine.runtime.stops import ContentStops, OutputStops
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
    - `stop`: strings that end it where they occur in the content; they are not part of it. `stop_anywhere`: where they
      occur in the output.
    - `stop_tokens`: tokens that end it and are not part of it.
    - `ends`: end tokens beside the vocabulary's own; `markers`: end tokens that the parser reads as markers.
    - `ignore_eos`: end tokens do not end it and leave no trace.
    - `reasoning_budget`: reasoning tokens at most; then `reasoning_close` is forced. None for no limit.
    """

    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_anywhere: tuple[str, ...] = ()
    stop_tokens: frozenset[int] = frozenset()
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

    __slots__ = (
        "_closing",
        "_decoder",
        "_hear",
        "_limits",
        "_output_stops",
        "_parser",
        "_stops",
        "_vocab",
        "reasoning_tokens",
        "tokens",
    )

    def __init__(self, vocab: Vocab, parser: Parser, limits: Limits) -> None:
        self._vocab = vocab
        self._parser = parser
        self._limits = limits
        self._stops = ContentStops(limits.stop) if limits.stop else None
        self._output_stops = OutputStops(limits.stop_anywhere) if limits.stop_anywhere else None
        self._hear = self._drawn if self._stops or self._output_stops else parser.feed
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
        named = token in limits.stop_tokens
        if not named and token not in limits.ends and not self._vocab.is_end(token):
            events = self._read(token, self._hear)
        elif named or not limits.ignore_eos:
            return Advance(self._read(token, self._hear) if token in limits.markers else [], (), "stop")
        stops, output_stops = self._stops, self._output_stops
        if (stops is not None and stops.hit) or (output_stops is not None and output_stops.hit):
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
            events += self._hear(rest)
        events += self._let_go()
        if self._output_stops is not None and self._output_stops.hit:
            reason = "stop"
        closing = self._parser.close(reason)
        if self._stops is None:
            return events + closing
        finished = closing.pop() if closing and isinstance(closing[-1], Finished) else Finished(reason)
        events += self._filtered(closing)
        events += self._stops.flush()
        if self._stops.hit:
            finished = Finished("tool_calls" if self._stops.calls else "stop")
        return [*events, finished]

    def _read(self, token: int, feed: Callable[..., list[Event]]) -> list[Event]:
        """Detokenise and feed. A control token first settles bytes that never became a character."""
        if self._parser.in_reasoning:
            self.reasoning_tokens += 1
        data = self._vocab.token_bytes(token)
        if self._vocab.is_special(token):
            rest = self._decoder.decode(b"", final=True)
            events = feed(rest) if rest else []
            return events + feed(data.decode(errors="replace"), True)
        text = self._decoder.decode(data)
        return feed(text) if text else []

    def _drawn(self, text: str, special: bool = False) -> list[Event]:
        """Parse what the model wrote, as far as no stop is or may be in it."""
        stops = self._output_stops
        if stops is None:
            return self._parse(text, special)
        return [event for piece in stops.filter(Piece(text, special)) for event in self._parse(*piece)]

    def _let_go(self) -> list[Event]:
        """Parse what was held back before the parser: no stop comes of it."""
        held = self._output_stops.flush() if self._output_stops is not None else []
        return [event for piece in held for event in self._parse(*piece)]

    def _parse(self, text: str, special: bool = False) -> list[Event]:
        return self._filtered(self._parser.feed(text, special))

    def _filtered(self, events: list[Event]) -> list[Event]:
        return events if self._stops is None else self._stops.filter(events)

    def _enforce_budget(self, events: list[Event]) -> Advance:
        limits = self._limits
        budget = limits.reasoning_budget
        over = self._closing or (budget is not None and self.reasoning_tokens >= budget)
        if not (over and limits.reasoning_close and self._parser.in_reasoning) or self._decoder.getstate()[0]:
            return Advance(events)
        events += self._let_go()
        if not self._parser.in_reasoning:
            return Advance(events)
        self._closing = False
        for token in limits.reasoning_close:
            self.tokens += 1
            events += self._read(token, self._parse)  # no stop: the model did not write it
        return Advance(events, limits.reasoning_close)
