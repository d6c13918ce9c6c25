"""One sequence's life: tokens come in one by one, events go out, until something ends it.

Knows: how bytes become text, what ends a generation (end tokens, stops, the token limit), and when reasoning is to be
closed from outside. Does not know: logits, batches, memory, other sequences. This is the one place where detokeniser,
parser, stops, budgets and grammars meet.
"""

import codecs
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from engine.constraint.guide import Guide, Reading
from engine.constraint.matcher import Matcher
from engine.events import Event, Finished
from engine.parsing.reader import Piece
from engine.runtime.backend import Vocab
from engine.runtime.stops import ContentStops, OutputStops
from engine.types import FinishReason

_Decoder = codecs.getincrementaldecoder("utf-8")


class Parser(Reading, Protocol):
    """What a generation needs of a parser; `engine.parsing.Parser` is one."""

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
    `dropped`: the token itself is no part of the turn. After a `finish` nothing more may come but `close`."""

    events: list[Event]
    forced: tuple[int, ...] = ()
    finish: FinishReason | None = None
    dropped: bool = False


class Generation:
    """Fed with the drawn tokens of one turn.

    `tokens` counts those that became part of it (forced ones too), `reasoning_tokens` those among them that were read
    as reasoning, the marker that closes it included. `guide` says what the grammar of the turn allows and forces.
    """

    __slots__ = (
        "_closing",
        "_decoder",
        "_guide",
        "_hear",
        "_limits",
        "_output_stops",
        "_parser",
        "_stops",
        "_vocab",
        "reasoning_tokens",
        "tokens",
    )

    def __init__(self, vocab: Vocab, parser: Parser, limits: Limits, guide: Guide | None = None) -> None:
        self._vocab = vocab
        self._parser = parser
        self._guide = guide
        self._limits = limits
        self._stops = ContentStops(limits.stop) if limits.stop else None
        self._output_stops = OutputStops(limits.stop_anywhere) if limits.stop_anywhere else None
        self._hear = self._drawn if self._stops or self._output_stops else parser.feed
        self._decoder = _Decoder("replace")
        self._closing = False
        self.tokens = 0
        self.reasoning_tokens = 0

    @property
    def matcher(self) -> Matcher | None:
        """The place in the turn's grammar, while it is in force: the next token must be one that it allows."""
        return self._guide.matcher if self._guide is not None else None

    def start(self) -> Advance:
        """Before the first draw: a budget of 0 closes reasoning that the prompt left open, and a grammar may leave no
        choice of how the turn begins."""
        return self._forward(self._enforce_budget([]))

    def advance(self, token: int) -> Advance:
        """A token was drawn. Raises RequestError where the turn's grammar does not allow it."""
        limits, guide = self._limits, self._guide
        named = token in limits.stop_tokens
        is_end = named or self._is_end(token)
        if guide is not None:
            text = None if is_end else self._vocab.token_bytes(token).decode(errors="replace")
            if others := guide.instead(text):
                after = self._after([event for other in others for event in self._counted(other)])
                return after._replace(forced=(*others, *after.forced), dropped=True)
        if not is_end:
            return self._after(self._counted(token))
        self.tokens += 1
        # Where a grammar is in force, an end token stands only where the turn is whole.
        if named or not limits.ignore_eos or self.matcher is not None:
            marks = self._read(token, self._hear, taken=True) if token in limits.markers else []
            return Advance(marks, (), "stop", dropped=True)
        return self._after([])

    def _is_end(self, token: int) -> bool:
        return token in self._limits.ends or self._vocab.is_end(token)

    def _counted(self, token: int) -> list[Event]:
        self.tokens += 1
        return self._read(token, self._hear)

    def _after(self, events: list[Event]) -> Advance:
        """What follows from what was read."""
        limits, guide = self._limits, self._guide
        stops, output_stops = self._stops, self._output_stops
        if (stops is not None and stops.hit) or (output_stops is not None and output_stops.hit):
            return Advance(events, (), "stop", dropped=True)
        if guide is not None and guide.is_over:
            return Advance(events, (), "stop")
        if limits.max_tokens is not None and self.tokens >= limits.max_tokens:
            return Advance(events, (), "length")
        if limits.reasoning_budget is None and not self._closing and guide is None:
            return Advance(events)
        return self._forward(self._enforce_budget(events))

    def _forward(self, advance: Advance) -> Advance:
        """Append the tokens between which the grammar leaves no choice."""
        guide, limits = self._guide, self._limits
        tokens = guide.forced() if guide is not None else []
        if guide is None or not tokens:
            return advance
        if limits.max_tokens is not None:
            tokens = tokens[: max(0, limits.max_tokens - self.tokens)]
        # A call's end may be an end token (gpt-oss), and then the turn ends there.
        end = next((number for number, token in enumerate(tokens, 1) if self._is_end(token)), None)
        tokens = tokens[:end]
        events, finish = advance.events, advance.finish
        for token in tokens:
            self.tokens += 1
            events += self._read(token, self._hear, taken=True)
        if end is not None or (self._stops is not None and self._stops.hit) or guide.is_over:
            finish = "stop"
        elif limits.max_tokens is not None and self.tokens >= limits.max_tokens:
            finish = "length"
        return advance._replace(events=events, forced=(*advance.forced, *tokens), finish=finish)

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

    def _read(self, token: int, feed: Callable[..., list[Event]], *, taken: bool = False) -> list[Event]:
        """Detokenise and feed. A control token first settles bytes that never became a character. `taken`: the grammar
        knows of the token."""
        guide = self._guide
        if guide is not None and not taken:
            guide.drew(token)
        if self._parser.in_reasoning:
            self.reasoning_tokens += 1
        data, special = self._vocab.token_bytes(token), self._vocab.is_special(token)
        events: list[Event] = []
        if special:
            rest = self._decoder.decode(b"", final=True)
            events = feed(rest) if rest else []
            text = data.decode(errors="replace")
        else:
            text = self._decoder.decode(data)
        if text:
            events += feed(text, special)
        if guide is not None:
            guide.parsed(token, text, special=special)
        return events

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
        if self._guide is not None and limits.max_tokens is not None:
            over = over or self._guide.must_close(limits.max_tokens - self.tokens)
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
