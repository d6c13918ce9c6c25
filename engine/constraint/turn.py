"""The grammar of a whole turn: reasoning that may open, then an answer or calls, in the family's own syntax.

Knows: which markers enclose an answer and where calls may begin. Does not know: the inside of a call (each shape of
`engine.parsing` states its own), when a grammar is active (`guide`), llguidance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.constraint.lark import Cut, GrammarText
from engine.families import Format
from engine.parsing import channels, shapes
from engine.parsing.grammar import (
    InOrder,
    Marker,
    Node,
    Pattern,
    Rules,
    Words,
    in_order,
    maybe,
    one_of,
)
from engine.types import Tool

_SPACE = Pattern(r"[ \t\r\n]{0,4}")
_ANYTHING = Pattern("(?s:.*)")


@dataclass(frozen=True, slots=True)
class Answer:
    """What an answer must be: its grammar, and the callers' own grammars by the names of the rules that stand for them.
    `loose_edges`: white space before the answer is not part of it (JSON)."""

    node: Node
    callers: Mapping[str, str] = field(default_factory=dict[str, str])
    loose_edges: bool = True


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a turn may contain besides reasoning: an answer of this kind, calls of these tools, or either; at most
    `most_calls` calls (None: any number)."""

    answer: Answer | None = None
    tools: Sequence[Tool] = ()
    most_calls: int | None = None


@dataclass(frozen=True, slots=True)
class TurnGrammar:
    """The grammars of one turn, as text: `opening` while reasoning may still open, `closed` once it may not.

    Each begins where the prompt ends, or where reasoning ended.
    """

    opening: str
    closed: str


def turn_grammar(format_: Format, allowed: Allowed, cut: Cut, rules: Rules) -> TurnGrammar:
    """Returns the grammars of a turn that may contain what is allowed. `cut` is the vocabulary's; `rules` collects the
    schema keywords that the grammar does not enforce."""
    parts: list[Node] = []
    if allowed.tools:
        parts.append(calls(format_, allowed.tools, rules, allowed.most_calls))
    if allowed.answer is not None:
        parts.append(_answered(format_, allowed.answer, cut))
    closed = one_of(*parts)
    reasoning = _reasoning(format_)
    texts = (closed, one_of(reasoning, closed) if reasoning else closed)
    callers: Mapping[str, str] = allowed.answer.callers if allowed.answer else {}
    written = [GrammarText(cut).text(start, rules.bodies, callers) for start in texts]
    return TurnGrammar(opening=written[1], closed=written[0])


def calls(format_: Format, tools: Sequence[Tool], rules: Rules, most: int | None) -> Node:
    """Returns the grammar of one to `most` calls, with everything that precedes them in a turn."""
    if format_.channels is not None:
        return channels.call_grammar(format_.channels, tools)
    assert format_.tools is not None  # callers have given a format without tools the generic form
    if not format_.tools.parallel:
        most = 1
    if not format_.header[0]:
        return in_order(_lead(format_), shapes.grammar(format_.tools, tools, rules, most=most))
    addressed = (
        in_order(
            Marker(format_.header[0]),
            Words(tool.name),
            Marker(format_.header[1]),
            shapes.grammar(format_.tools, [tool], rules, most=1),
        )
        for tool in tools
    )
    return one_of(*addressed)


def _answered(format_: Format, answer: Answer, cut: Cut) -> Node:
    if format_.channels is not None:
        return channels.answer_grammar(format_.channels, answer.node)
    opening, closing = (Marker(text) for text in format_.content)
    reasoning = format_.reasoning
    said = reasoning is not None and reasoning.close.strip() == format_.content[0].strip()
    is_token = any(isinstance(part, int) for part in cut(opening.text))
    end = maybe(Marker(format_.ends[0])) if format_.ends else InOrder(())
    lead = _lead(format_) if answer.loose_edges else _after_reasoning(format_)
    if not opening.text:
        return in_order(lead, answer.node, end)
    if is_token and not said:
        return in_order(lead, opening, answer.node, closing, end)
    return in_order(lead, one_of(answer.node, in_order(opening, answer.node, closing)), end)


def _lead(format_: Format) -> Node:
    """The white space that templates and models write between reasoning and what follows."""
    return _SPACE if format_.reasoning is not None else InOrder(())


def _after_reasoning(format_: Format) -> Node:
    close = format_.reasoning.close if format_.reasoning else ""
    return maybe(Marker(close[len(close.rstrip()) :])) if close != close.rstrip() else InOrder(())


def _reasoning(format_: Format) -> Node | None:
    """The marker that opens reasoning, then anything: the grammar does not constrain reasoning."""
    if format_.channels is not None:
        return in_order(channels.reasoning_grammar(format_.channels), _ANYTHING)
    if format_.reasoning is None or not format_.reasoning.open.strip():
        return None
    return in_order(_SPACE, Marker(format_.reasoning.open.strip()), _ANYTHING)
