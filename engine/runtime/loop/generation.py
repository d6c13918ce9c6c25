"""The life of one sequence: takes tokens one by one and returns events, until something ends the generation.

This is the one place where detokeniser, parser, stop strings, budgets and grammars meet.
"""

import codecs
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol

from engine.runtime.guidance.guide import Guide, ParserView
from engine.runtime.guidance.matcher import Matcher
from engine.runtime.loop.backend import Vocab
from engine.runtime.loop.repeats import CallRepeats
from engine.runtime.loop.repetition import LOOK_EVERY, Repetition
from engine.runtime.loop.stops import ContentStops
from engine.types.events import Event, Finished
from engine.types.sampling import FinishReason

_Decoder = codecs.getincrementaldecoder("utf-8")


class Parser(ParserView, Protocol):
    """What a generation needs from a parser; `engine.formats.parsing.Parser` is one."""

    def feed(self, text: str, special: bool = False) -> list[Event]:
        """Parse more output and return its events. `special`: the text is one control or user-defined token."""
        ...

    def close(self, finish_reason: FinishReason = "stop") -> list[Event]:
        """End the output. Returns the events that were held back, and `Finished` last."""
        ...


class NoParser:
    """The parser of a request that generates nothing: a pin, or a text to score."""

    in_reasoning = undecided = False
    answer_start = 0
    call_start = None

    def size(self, text: str, special: bool = False) -> int:  # noqa: ARG002 - the protocol's
        return len(text)

    def feed(self, text: str, special: bool = False) -> list[Event]:  # noqa: ARG002 - the protocol's
        return []

    def close(self, finish_reason: FinishReason = "stop") -> list[Event]:
        return [Finished(finish_reason)]


@dataclass(frozen=True, slots=True)
class Limits:
    """What ends a generation, or its reasoning.

    - `max_tokens`: maximum number of drawn tokens, the end token included; None for no limit.
    - `stop`: strings that end the generation where they occur in the content; they are not part of it.
    - `stop_tokens`: tokens that end the generation and are not part of it.
    - `ends`: end tokens in addition to the vocabulary's own; `markers`: end tokens that the parser reads as markers.
    - `ignore_eos`: end tokens do not end the generation and leave no trace.
    - `calls`: which calls a turn may have: any, "different" ones, or a "single" one. Another ends the generation and is
      not part of it.
    - `repetition`: as many tokens of one text, again and again, end the generation once it has `min_tokens`, or close
      reasoning that a constrained answer follows; not while a grammar is in force. 0 for never, else at least 64.
    - `reasoning_budget`: maximum number of reasoning tokens; then `reasoning_close` is forced. None for no limit.
    """

    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_tokens: frozenset[int] = frozenset()
    ends: frozenset[int] = frozenset()
    markers: frozenset[int] = frozenset()
    ignore_eos: bool = False
    calls: Literal["any", "different", "single"] = "any"
    repetition: int = 0
    min_tokens: int = 0
    reasoning_budget: int | None = None
    reasoning_close: tuple[int, ...] = ()


class Advance(NamedTuple):
    """The result of a token. `forced` tokens follow it in the sequence without being drawn; they are already parsed.
    `dropped`: the token itself is not part of the turn. After a `finish`, only `close` may be called."""

    events: list[Event]
    forced: tuple[int, ...] = ()
    finish: FinishReason | None = None
    dropped: bool = False


class TokenTable(dict[int, tuple[bytes, bool, bool]]):
    """The bytes of each token, whether it is special and whether it ends generation; read once from a vocabulary."""

    def __init__(self, vocab: Vocab) -> None:
        super().__init__()
        self._vocab = vocab

    def __missing__(self, token: int) -> tuple[bytes, bool, bool]:
        vocab = self._vocab
        entry = self[token] = vocab.token_bytes(token), vocab.is_special(token), vocab.is_end(token)
        return entry


class Generation:
    """Turns the drawn tokens of one turn into events.

    `tokens` counts the tokens that became part of the turn (forced ones too), `reasoning_tokens` those that were read
    as reasoning, the closing marker included. `ran_away`: it was ended because it repeated itself. `guide` determines
    what the grammar of the turn allows and forces.
    """

    def __init__(self, tokens: TokenTable, parser: Parser, limits: Limits, guide: Guide | None = None) -> None:
        self._tokens = tokens
        self._parser = parser
        self._guide = guide
        self._limits = limits
        self._stops = ContentStops(limits.stop) if limits.stop else None
        self._repeats = None if limits.calls == "any" else CallRepeats(single=limits.calls == "single")
        self._repetition = Repetition(limits.repetition) if limits.repetition else None
        filters = self._stops is not None or self._repeats is not None
        self._feed = self._filtered_feed if filters else parser.feed
        self._decoder = _Decoder("replace")
        self._closing = False
        self.tokens = 0
        self.reasoning_tokens = 0
        self.ran_away = False
        self.closed_characters = 0

    @property
    def matcher(self) -> Matcher | None:
        """The matcher of the turn's grammar while the grammar is in force: the next token must be one that it
        allows."""
        return self._guide.matcher if self._guide is not None else None

    @property
    def dropped_calls(self) -> int:
        """How many calls were dropped because they repeat another, or because the turn may have only one."""
        return int(self._repeats is not None and self._repeats.hit)

    @property
    def _stopped(self) -> bool:
        """Whether the events so far end the turn."""
        return (self._stops is not None and self._stops.hit) or (self._repeats is not None and self._repeats.hit)

    def start(self) -> Advance:
        """Begin, before the first draw: a budget of 0 closes reasoning that the prompt left open, and the grammar may
        force the first tokens."""
        return self._forward(self._enforce_budget([]))

    def advance(self, token: int) -> Advance:
        """Take a token that was drawn. Raises RequestError if the turn's grammar does not allow it."""
        limits, guide = self._limits, self._guide
        named = token in limits.stop_tokens
        is_end = named or self._is_end(token)
        if guide is not None:
            text = None if is_end else self._tokens[token][0].decode(errors="replace")
            if others := self._others(guide, token, text):
                after = self._after([event for other in others for event in self._read(other)])
                return after._replace(forced=(*others, *after.forced), dropped=True)
        if not is_end:
            return self._after(self._read(token))
        # A grammar that is in force allows an end token only where the turn is complete.
        ends = named or not limits.ignore_eos or self.matcher is not None
        if ends and token in limits.markers:
            return Advance(self._read(token, taken=True), (), self._complete, dropped=True)
        self.tokens += 1
        return Advance([], (), self._complete, dropped=True) if ends else self._after([])

    def _others(self, guide: Guide, token: int, text: str | None) -> list[int] | None:
        """Returns the tokens that replace a drawn one of this text (None: an end token); None if it may stay."""
        if others := guide.instead(text):
            return others
        if self._limits.max_tokens is None:
            return None
        others = guide.closing(token, self._limits.max_tokens - self.tokens)
        if others and guide.is_closed:
            data = b"".join(self._tokens[each][0] for each in others)
            self.closed_characters = len(data.decode(errors="replace"))
        return others

    @property
    def _complete(self) -> FinishReason:
        """Why a turn ends that is complete: by its limit if it is so only since something was closed."""
        return "length" if self._guide is not None and self._guide.was_cut else "stop"

    def _is_end(self, token: int) -> bool:
        return token in self._limits.ends or self._tokens[token][2]

    def _after(self, events: list[Event]) -> Advance:
        """Apply stops, limits and the grammar after a token was read."""
        limits, guide = self._limits, self._guide
        if self._stopped:
            return Advance(events, (), "stop", dropped=True)
        if guide is not None and guide.is_over:
            return Advance(events, (), self._complete)
        if limits.max_tokens is not None and self.tokens >= limits.max_tokens:
            return Advance(events, (), "length")
        if self._repetition is not None and not self.tokens % LOOK_EVERY and self._is_runaway(self._repetition):
            return Advance(events, (), "length")
        if limits.reasoning_budget is None and not self._closing and guide is None:
            return Advance(events)
        return self._forward(self._enforce_budget(events))

    def _is_runaway(self, repetition: Repetition) -> bool:
        """Whether the turn ends because it repeats itself. A grammar may demand just that, and reasoning in front of an
        answer that it holds is closed instead."""
        if not repetition.is_runaway() or self.matcher is not None or self.tokens < self._limits.min_tokens:
            return False
        self._closing = self._guide is not None and self._parser.in_reasoning and bool(self._limits.reasoning_close)
        self.ran_away = not self._closing
        return self.ran_away

    def _forward(self, advance: Advance) -> Advance:
        """Append the tokens that the grammar forces."""
        guide, limits = self._guide, self._limits
        tokens = guide.forced() if guide is not None else []
        if guide is None or not tokens:
            return advance
        left = len(tokens) if limits.max_tokens is None else max(0, limits.max_tokens - self.tokens)
        is_cut, tokens = len(tokens) > left, tokens[:left]  # the grammar has taken them all, and may be over
        # A call's end may be an end token (gpt-oss), and then the turn ends there.
        end = next((number for number, token in enumerate(tokens, 1) if self._is_end(token)), None)
        tokens = tokens[:end]
        events, finish = advance.events, advance.finish
        for token in tokens:
            events += self._read(token, taken=True)
        if end is not None or self._stopped or (guide.is_over and not is_cut):
            finish = self._complete
        elif limits.max_tokens is not None and self.tokens >= limits.max_tokens:
            finish = "length"
        return advance._replace(events=events, forced=(*advance.forced, *tokens), finish=finish)

    def end_reasoning(self) -> None:
        """Close reasoning after the next token, if it is still open then; without `reasoning_close` this does
        nothing."""
        self._closing = True

    def close(self, reason: FinishReason) -> list[Event]:
        """End the generation. Returns the events that were held back, then `Finished` (whose usage the caller fills
        in)."""
        events: list[Event] = []
        if rest := self._decoder.decode(b"", final=True):
            events += self._feed(rest)
        closing = self._parser.close(reason)
        finished = closing.pop() if closing and isinstance(closing[-1], Finished) else Finished(reason)
        events += self._filtered(closing)
        if self._repeats is not None:
            events += self._unstopped(self._repeats.flush())
        if self._stops is not None:
            events += self._stops.flush()
            if self._stops.hit:
                finished = replace(finished, reason="tool_calls" if self._stops.calls else "stop")
        return [*events, finished]

    def _read(self, token: int, *, taken: bool = False) -> list[Event]:
        """Count, detokenise and feed. A control token first flushes bytes that never became a character. `taken`: the
        grammar has accepted the token already."""
        guide, feed = self._guide, self._feed
        if guide is not None and not taken:
            guide.drew(token)
        self.tokens += 1
        if self._repetition is not None:
            self._repetition.append(token)
        if self._parser.in_reasoning:
            self.reasoning_tokens += 1
        data, special, _ = self._tokens[token]
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

    def _filtered_feed(self, text: str, special: bool = False) -> list[Event]:
        return self._filtered(self._parser.feed(text, special))

    def _filtered(self, events: list[Event]) -> list[Event]:
        return self._unstopped(events if self._repeats is None else self._repeats.filter(events))

    def _unstopped(self, events: list[Event]) -> list[Event]:
        return events if self._stops is None else self._stops.filter(events)

    def _enforce_budget(self, events: list[Event]) -> Advance:
        limits = self._limits
        budget = limits.reasoning_budget
        over = self._closing or (budget is not None and self.reasoning_tokens >= budget)
        if self._guide is not None and limits.max_tokens is not None:
            over = over or self._guide.must_close(limits.max_tokens - self.tokens)
        if not (over and limits.reasoning_close and self._parser.in_reasoning) or self._decoder.getstate()[0]:
            return Advance(events)
        self._closing = False
        for token in limits.reasoning_close:
            events += self._read(token)
        return Advance(events, limits.reasoning_close)
