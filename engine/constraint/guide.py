"""When a turn's grammar is in force: asleep while the model reasons, awake from where its answer, or a call, begins.

Knows: the parser's word on reasoning and calls, and which tokens stand behind the place where the answer began. Does
not know: logits, what the grammar says, how calls are read.
"""

from collections import deque
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeAlias

from engine.constraint.matcher import Compiler, Matcher
from engine.constraint.turn import TurnGrammar
from engine.errors import RequestError
from engine.parsing.reader import Piece

Holds: TypeAlias = Literal["answer", "calls"]

_REMEMBERED = 256
"""Tokens: no marker, and no beginning of a call that its name decides, is spelt in more."""
_LONGEST_MARK = 200


class Reading(Protocol):
    """What a guide needs of the turn's parser: see `engine.parsing.Parser`, by whose `fed` places are counted."""

    @property
    def in_reasoning(self) -> bool: ...
    @property
    def undecided(self) -> bool: ...
    @property
    def answer_start(self) -> int: ...
    @property
    def call_start(self) -> int | None: ...
    def size(self, text: str, special: bool = False) -> int: ...


@dataclass(frozen=True, slots=True)
class Constraint:
    """A turn's constraint as it crosses to where the loop runs.

    - `holds`: the whole answer is held to the grammar, or only calls once one begins (`grammar.closed` then).
    - `may_reason`: reasoning may open yet. `prefix` is what the prompt holds of the turn.
    - `closes`: the texts that end reasoning; `enders`: those that the parser takes for what follows reasoning that
      nobody closed. `close`: what closes it from outside. `reserve`: tokens kept for the answer; reasoning is closed
      when only they are left.
    """

    grammar: TurnGrammar
    holds: Holds = "answer"
    may_reason: bool = True
    prefix: tuple[Piece, ...] = ()
    closes: tuple[str, ...] = ()
    enders: tuple[str, ...] = ()
    close: str = ""
    reserve: int = 0

    def compile(self, compiler: Compiler) -> None:
        """Have the grammars ready. Raises RequestError for one that cannot be enforced."""
        compiler.compiled(self.grammar.closed)
        if self.may_reason and self.holds == "answer":
            compiler.compiled(self.grammar.opening)


class _Read(NamedTuple):
    """A piece of the turn, and where it began; `token` where the model wrote it."""

    start: int
    text: str
    special: bool
    token: int | None = None


class Guide:
    """One turn's constraint at work. Made where the loop runs.

    `woke`: how many tokens were drawn when the grammar was first in force; None before.
    """

    def __init__(self, constraint: Constraint, compiler: Compiler, parser: Reading) -> None:
        """Raises RequestError for a grammar that cannot be enforced, and for a prefill that it does not allow."""
        self._constraint = constraint
        self._parser = parser
        self._table = compiler.table
        self._closed = compiler.compiled(constraint.grammar.closed)
        self._matcher: Matcher | None = None
        sizes = [parser.size(*piece) for piece in constraint.prefix]
        self._place = -sum(sizes)
        self._recent: deque[_Read] = deque(maxlen=_REMEMBERED)
        for piece in constraint.prefix:
            self._note(piece.text, piece.special, None)
        self._tokens = 0
        self.woke: int | None = None
        self._dozes = constraint.may_reason and parser.undecided
        if constraint.holds == "answer" and not parser.in_reasoning and not self._dozes:
            opening = compiler.compiled(constraint.grammar.opening) if constraint.may_reason else self._closed
            self._wake(opening.copy(), parser.answer_start)

    @property
    def matcher(self) -> Matcher | None:
        """The place in the grammar while it is in force, for the next draw."""
        return self._matcher

    @property
    def is_over(self) -> bool:
        """Whether the turn is whole: nothing can follow."""
        return self._constraint.holds == "answer" and self._matcher is not None and self._matcher.is_over

    def must_close(self, left: int) -> bool:
        """Whether reasoning must end now, so that the answer has room. `left`: tokens that may still be drawn."""
        return left <= self._constraint.reserve and self._parser.in_reasoning

    def drew(self, token: int) -> None:
        """A token that the grammar allows became part of the turn, and is about to be parsed. Raises RequestError where
        it does not allow it."""
        if self._matcher is not None and not self._matcher.consume(token):
            raise RequestError(
                f"The constraint cannot be held: {self._matcher.error or 'it does not allow what was drawn'}. Simplify "
                "its schema or grammar; a logits processor or logit_bias must leave a token that it allows."
            )

    def parsed(self, token: int, text: str, *, special: bool) -> None:
        """The token was fed to the parser as this text: sleep or wake as it says."""
        self._tokens += 1
        self._note(text, special, token)
        parser = self._parser
        self._dozes = self._dozes and parser.undecided
        if self._constraint.holds == "calls":
            self._follow_call()
        elif self._matcher is not None and parser.in_reasoning:
            self._matcher = None
        elif self._matcher is None and not parser.in_reasoning and not self._dozes:
            self._wake(self._closed.copy(), parser.answer_start)

    def forced(self) -> list[int]:
        """The tokens that must follow; the grammar has taken them in."""
        if self._matcher is None or self._matcher.is_over:
            return []
        return self._matcher.forced()

    def instead(self, text: str | None) -> list[int] | None:
        """The tokens to take in place of one of this text (None: an end token), where that would end reasoning and go
        on with what the answer may not begin with, or end the turn there; None for any other."""
        if self._constraint.holds == "calls" or self._matcher is not None or not self._parser.in_reasoning:
            return None
        if text is None:
            return self._table.marked(self._constraint.close)
        before = "".join(read.text for read in self._recent)[-_LONGEST_MARK:]
        for mark in (*self._constraint.closes, *self._constraint.enders):
            at = (before + text).find(mark, max(0, len(before) - len(mark) + 1))
            if at < 0:
                continue
            closes = mark in self._constraint.closes
            end = at + len(mark) - len(before)
            rest = text[end:] if closes else (before + text)[at:]
            if rest and not self._allows(rest):
                return self._table.marked(text[:end] if closes else self._constraint.close)
            return None
        return None

    def _allows(self, text: str) -> bool:
        matcher = self._closed.copy()
        parts = self._table.marks.cut(text)
        return all(matcher.consume(part) if isinstance(part, int) else matcher.consume_text(part) for part in parts)

    def _note(self, text: str, special: bool, token: int | None) -> None:
        self._recent.append(_Read(self._place, text, special, token))
        self._place += self._parser.size(text, special)

    def _follow_call(self) -> None:
        """Hold the call under way, if it began as one of the declared tools' calls does."""
        start = self._parser.call_start
        if start is None:
            self._matcher = None
        elif self._matcher is None:
            matcher = self._closed.copy()
            if all(self._consume(matcher, read) for read in self._since(start)):
                self._matcher = matcher
                self._woken()
        elif self._matcher.is_over:
            self._matcher = None

    def _wake(self, matcher: Matcher, start: int) -> None:
        for read in self._since(start):
            if not self._consume(matcher, read):
                raise RequestError(
                    f"What the answer begins with ({read.text!r}) is not what its constraint allows; change the "
                    "prefill, or leave the constraint out."
                )
        self._matcher = matcher
        self._woken()

    def _woken(self) -> None:
        self.woke = self._tokens if self.woke is None else self.woke

    def _since(self, start: int) -> list[_Read]:
        """What was read from that place on; of a piece that it falls into, the text behind it."""
        found: list[_Read] = []
        for read in self._recent:
            if read.start >= start:
                found.append(read)
            elif not read.special and (tail := read.text[start - read.start :]):
                found.append(_Read(start, tail, special=False))
        return found

    def _consume(self, matcher: Matcher, read: _Read) -> bool:
        token = self._table.marks.tokens.get(read.text) if read.special and read.token is None else read.token
        return matcher.consume_text(read.text) if token is None else matcher.consume(token)
