"""Decides when a turn's grammar is active: not while the model reasons, but from where its answer or a call begins."""

from collections import deque
from dataclasses import replace
from typing import NamedTuple, Protocol

from engine.runtime.guidance.ending import Closer
from engine.runtime.guidance.json_text import JsonPlace
from engine.runtime.guidance.matcher import Compiler, Matcher, check
from engine.runtime.guidance.vocabulary import Vocabulary
from engine.support.errors import RequestError
from engine.types.constraint import Constraint

_REMEMBERED = 256
"""In tokens: no marker, and no beginning of a call up to its name, takes more."""
_LONGEST_MARK = 200


class ParserView(Protocol):
    """What a guide needs of the turn's parser: see `engine.formats.parsing.Parser`. Positions are counted as its `fed`
    counts."""

    @property
    def in_reasoning(self) -> bool: ...
    @property
    def undecided(self) -> bool: ...
    @property
    def answer_start(self) -> int: ...
    @property
    def call_start(self) -> int | None: ...
    def size(self, text: str, special: bool = False) -> int: ...


def check_constraint(constraint: Constraint, vocabulary: Vocabulary) -> Constraint:
    """Try in a child process what `compile_constraint` does, with the grammar that all other grammars of the turn are
    made of: what they add is the family's own text. Returns the constraint with the sizes that were found. Raises
    RequestError for a grammar that cannot be enforced, or is not compiled in time."""
    (verdict,) = check([constraint.grammar.closed], vocabulary)
    return replace(constraint, sizes=(verdict.size,) * len(_grammars(constraint)))


def compile_constraint(constraint: Constraint, compiler: Compiler) -> None:
    """Compile the grammars, which have been checked. Raises RequestError for one that cannot be enforced."""
    grammars = _grammars(constraint)
    for grammar, size in zip(grammars, constraint.sizes or (0,) * len(grammars), strict=True):
        compiler.compiled(grammar, size)


def _grammars(constraint: Constraint) -> list[str]:
    """Returns the grammars that a turn may need."""
    opens = constraint.may_reason and constraint.holds == "answer"
    return [constraint.grammar.closed, *([constraint.grammar.opening] if opens else [])]


class _Read(NamedTuple):
    """A piece of the turn, and where it began; `token` if the model wrote it."""

    start: int
    text: str
    special: bool
    token: int | None = None


class Guide:
    """Applies one turn's constraint, token by token. Made in the process in which the loop runs.

    `woke`: the number of tokens drawn before the grammar first became active; None until then.
    """

    def __init__(self, constraint: Constraint, compiler: Compiler, parser: ParserView) -> None:
        """Raise RequestError for a grammar that cannot be enforced, and for a prefill that the grammar does not
        allow."""
        self._constraint = constraint
        self._parser = parser
        self._table = compiler.table
        self._closed = self._watched(compiler.compiled(constraint.grammar.closed))
        self._closer = Closer() if constraint.close_at_limit else None
        self._matcher: Matcher | None = None
        sizes = [parser.size(piece.text, piece.special) for piece in constraint.prefix]
        self._place = -sum(sizes)
        self._recent: deque[_Read] = deque(maxlen=_REMEMBERED)
        for piece in constraint.prefix:
            self._note(piece.text, piece.special, None)
        self._tokens = 0
        self.woke: int | None = None
        self._dozes = constraint.may_reason and parser.undecided
        if constraint.holds == "answer" and not parser.in_reasoning and not self._dozes:
            opening = compiler.compiled(constraint.grammar.opening) if constraint.may_reason else self._closed
            self._begin(self._watched(opening.copy()))

    @property
    def matcher(self) -> Matcher | None:
        """The state of the grammar for the next draw; None while it is not active."""
        return self._matcher

    @property
    def is_over(self) -> bool:
        """Whether the turn is complete: nothing can follow."""
        if self.is_closed:
            return True
        return self._constraint.holds == "answer" and self._matcher is not None and self._matcher.is_over

    @property
    def is_closed(self) -> bool:
        """Whether the answer was completed for want of tokens."""
        return self._closer is not None and self._closer.closed

    @property
    def was_cut(self) -> bool:
        """Whether something in the answer was closed for want of tokens."""
        return self._closer is not None and (self._closer.closed or self._closer.closed_early)

    def closing(self, token: int, left: int) -> list[int] | None:
        """Returns the tokens that replace a drawn one after which the answer could not be completed in time; None if it
        may stay. `left`: tokens that may still be drawn, it included."""
        if self._closer is None or self._matcher is None:
            return None
        return self._closer.instead(self._matcher, token, left)

    def must_close(self, left: int) -> bool:
        """Whether reasoning must be closed now to leave room for the answer. `left`: tokens that may still be drawn."""
        return left <= self._constraint.reserve and self._parser.in_reasoning

    def drew(self, token: int) -> None:
        """Advance the grammar by a drawn token, before it is parsed. Raises RequestError if the grammar does not allow
        it."""
        if self._matcher is not None and not self._matcher.consume(token):
            raise RequestError(
                f"The constraint cannot be held: {self._matcher.error or 'it does not allow the drawn token'}. "
                "Simplify its schema or grammar; a logits processor or logit_bias must leave a token that it allows."
            )

    def parsed(self, token: int, text: str, *, special: bool) -> None:
        """Take note that the token was fed to the parser as this text; activate or deactivate the grammar
        accordingly."""
        self._tokens += 1
        self._note(text, special, token)
        parser = self._parser
        self._dozes = self._dozes and parser.undecided
        if self._matcher is not None and parser.call_start is not None:
            self._matcher.json = None  # a call is no answer: nothing of it is made up where its tokens are used up
        if self._constraint.holds == "calls":
            self._follow_call()
        elif self._matcher is not None and parser.in_reasoning:
            self._matcher = None
        elif self._matcher is None and not parser.in_reasoning and not self._dozes:
            self._wake()

    def forced(self) -> list[int]:
        """Returns the tokens that must follow; the grammar has already advanced past them."""
        if self._matcher is None or self._matcher.is_over:
            return []
        return self._matcher.forced()

    def instead(self, text: str | None) -> list[int] | None:
        """Returns the tokens that replace a drawn token of this text (None: an end token). It is replaced if it would
        end the turn inside reasoning, or end reasoning and continue with text that the answer may not begin with.
        Returns None if the drawn token may stay."""
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
        """Activate the grammar inside a call if the call began as the grammar allows; deactivate it after the call."""
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

    def _watched(self, matcher: Matcher) -> Matcher:
        if self._constraint.is_json:
            matcher.json = JsonPlace()
        return matcher

    def _begin(self, matcher: Matcher) -> None:
        for read in self._since(self._parser.answer_start):
            if not self._consume(matcher, read):
                raise RequestError(
                    f"The constraint does not allow the beginning of the answer ({read.text!r}); change the prefill, "
                    "or leave the constraint out."
                )
        self._matcher = matcher
        self._woken()

    def _wake(self) -> None:
        """Activate the grammar where reasoning ended. What the model wrote since is data: if the grammar does not allow
        it, the answer begins behind it."""
        matcher = self._closed.copy()
        if not all(self._consume(matcher, read) for read in self._since(self._parser.answer_start)):
            matcher = self._closed.copy()
        self._matcher = matcher
        self._woken()

    def _woken(self) -> None:
        self.woke = self._tokens if self.woke is None else self.woke

    def _since(self, start: int) -> list[_Read]:
        """Returns the pieces from that position on; a piece that begins before it is cut there."""
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
