"""A turn's constraint: the grammars that its output must match, and when they apply."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from engine.types.prompt import Piece

Holds: TypeAlias = Literal["answer", "calls"]


@dataclass(frozen=True, slots=True)
class TurnGrammar:
    """The grammars of one turn, as text: `opening` while reasoning may still open, `closed` once it may not.

    Each begins where the prompt ends, or where reasoning ended.
    """

    opening: str
    closed: str


@dataclass(frozen=True, slots=True)
class Constraint:
    """A turn's constraint, as it is sent to the process in which the loop runs.

    - `holds`: the grammar applies to the whole answer, or only to calls once one begins (then it is `grammar.closed`).
    - `may_reason`: reasoning may still open. `prefix` is the part of the turn that the prompt already contains.
    - `closes`: the texts that close reasoning; `enders`: markers that end it without closing it. `close`: the text to
      insert to close it. `reserve`: tokens reserved for the answer; reasoning is closed when only these are left.
    - `is_json`: the answer is one JSON text; nothing but it, or calls in its place, is allowed. `close_at_limit`: it is
      completed when its tokens are used up. `only_calls`: the answer is calls, and nothing but them is allowed.
    - `sizes`: the bytes that the compiled grammars take, if that was measured.
    """

    grammar: TurnGrammar
    holds: Holds = "answer"
    may_reason: bool = True
    prefix: tuple[Piece, ...] = ()
    closes: tuple[str, ...] = ()
    enders: tuple[str, ...] = ()
    close: str = ""
    reserve: int = 0
    is_json: bool = False
    close_at_limit: bool = False
    only_calls: bool = False
    sizes: tuple[int, ...] = ()
