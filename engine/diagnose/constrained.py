"""A turn's constraint, and its effect on an output: where its grammar came into force, what it forced, what it
refuses.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from engine.constraint.guide import Constraint, Guide, Holds
from engine.constraint.matcher import Compiler
from engine.constraint.trial import Controls
from engine.errors import RequestError
from engine.parsing import Parser, Piece
from engine.runtime.backend import Vocab
from engine.runtime.generation import Advance, Generation, Limits, TokenTable

Drawn: TypeAlias = Literal["free", "held", "forced", "refused"]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive tokens of an output, as text. `kind`: drawn before the grammar was in force ("free") or under it
    ("held"), left without a choice ("forced"), or not allowed by it ("refused", with everything after it)."""

    kind: Drawn
    text: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Constrained:
    """A turn's constraint.

    - `holds`: "answer" if the grammar applies to everything after reasoning, "calls" if only to calls.
    - `grammar`: in the form that llguidance takes, JSON of Lark grammars and schemas. `opening`: the same for a turn in
      which reasoning may still open; None if it may not.
    - `reserve`: tokens reserved for the answer; `close` ends reasoning when only they are left.
    - `woke`: tokens of the output before the grammar was first in force; None if it never was.
    - `forced`: tokens of the output that were not drawn.
    - `output`: the output in stretches, if one was given; `refused` says why it could not have been written.
    """

    holds: Holds
    grammar: str
    opening: str | None
    reserve: int
    close: str
    woke: int | None = None
    forced: int = 0
    output: tuple[Stretch, ...] | None = None
    refused: str | None = None

    def lines(self) -> Iterator[str]:
        """Yields the lines of the report."""
        what = "the answer" if self.holds == "answer" else "calls, once one begins"
        yield f"constraint: holds {what}; {self.reserve:,} tokens are kept for it"
        if self.woke is not None:
            yield f"  in force after {self.woke:,} tokens of the output; {self.forced:,} tokens were forced"
        for stretch in self.output or ():
            yield f"  {stretch.kind:<17} {stretch.text!r}"
        if self.refused:
            yield f"  refused: {self.refused}"
        for part in json.loads(self.opening or self.grammar)["grammars"]:
            text = part.get("lark_grammar") or f"{part['name']}: {json.dumps(part['json_schema'], ensure_ascii=False)}"
            yield from (f"  | {line}" for line in text.splitlines())


def constrained(
    constraint: Constraint, parser: Parser, vocab: Vocab, output: str | Sequence[Piece] | None = None
) -> Constrained:
    """Returns the constraint, and its effect on an output. In an output given as a string, the texts of control tokens
    are control tokens. `parser` is at the prompt's end, and is used up.

    Raises RequestError for a grammar that cannot be enforced.
    """
    found = Constrained(
        constraint.holds,
        constraint.grammar.closed,
        constraint.grammar.opening if constraint.may_reason and constraint.holds == "answer" else None,
        constraint.reserve,
        constraint.close,
    )
    constraint.check(Controls.of(vocab))
    compiler = Compiler(vocab)
    guide = Guide(constraint, compiler, parser)
    if output is None:
        return found
    pieces = [Piece(output, True)] if isinstance(output, str) else output
    tokens = [
        token
        for piece in pieces
        for token in (compiler.table.marked(piece.text) if piece.special else compiler.table.tokens(piece.text))
    ]
    again = _Again(Generation(TokenTable(vocab), parser, Limits(), guide), vocab, tokens)
    again.run()
    return Constrained(
        found.holds,
        found.grammar,
        found.opening,
        found.reserve,
        found.close,
        guide.woke,
        sum(stretch.tokens for stretch in again.stretches if stretch.kind == "forced"),
        tuple(again.stretches),
        again.refused,
    )


class _Again:
    """Generates an output again, token by token, with a generation that forces what it forced then."""

    def __init__(self, generation: Generation, vocab: Vocab, output: list[int]) -> None:
        self.stretches: list[Stretch] = []
        self.refused: str | None = None
        self._generation = generation
        self._vocab = vocab
        self._left = output

    def run(self) -> None:
        goes_on = self._force(self._generation.start())
        while goes_on and self._left:
            goes_on = self._draw()
        if self._left:
            self._note("refused", self._left)

    def _draw(self) -> bool:
        token = self._left[0]
        kind: Drawn = "free" if self._generation.matcher is None else "held"
        try:
            advance = self._generation.advance(token)
        except RequestError:
            self.refused = f"{self._text([token])!r} is not allowed here"
            return False
        if advance.dropped and advance.forced:
            self.refused = f"{self._text([token])!r} would be replaced by {self._text(advance.forced)!r}"
            return False
        del self._left[0]
        self._note(kind, [token])
        return self._force(advance)

    def _force(self, advance: Advance) -> bool:
        """Remove the forced text from the output, in whatever tokens it is spelt. Returns False if the turn ends, or if
        the output differs from the forced text."""
        wanted, at, got = b"".join(map(self._vocab.token_bytes, advance.forced)), 0, b""
        while len(got) < len(wanted) and at < len(self._left):
            got += self._vocab.token_bytes(self._left[at])
            at += 1
        if not got.startswith(wanted):
            if not wanted.startswith(got):
                self.refused = f"only {wanted.decode(errors='replace')!r} may follow"
            return False
        if advance.forced:
            self._note("forced", advance.forced)
            rest = got[len(wanted) :].decode(errors="replace")
            self._left[:at] = self._vocab.tokenize(rest, special=False) if rest else []
        if advance.finish is not None and self._left:
            self.refused = "the turn is over, so nothing may follow"
        return advance.finish is None

    def _note(self, kind: Drawn, tokens: Sequence[int]) -> None:
        text, count = self._text(tokens), len(tokens)
        last = self.stretches[-1] if self.stretches else None
        if last is not None and last.kind == kind:
            text, count = last.text + text, last.tokens + count
            self.stretches.pop()
        self.stretches.append(Stretch(kind, text, count))

    def _text(self, tokens: Sequence[int]) -> str:
        return b"".join(map(self._vocab.token_bytes, tokens)).decode(errors="replace")
