"""The grammar of a whole turn: reasoning that may open, then an answer or calls, in the family's own syntax."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.formats.families import Format, MarkedSyntax, ToolSyntax, WholeSyntax
from engine.formats.grammar.indented_json import indented
from engine.formats.grammar.lark import Cut, GrammarText
from engine.formats.grammar.nodes import (
    NOTHING,
    InOrder,
    JsonText,
    Marker,
    Node,
    Pattern,
    Rules,
    edges,
    in_order,
    maybe,
    one_of,
)
from engine.formats.parsing import channels, shapes
from engine.types.constraint import TurnGrammar
from engine.types.sampling import JsonLayout
from engine.types.tools import Tool

_SPACE = Pattern(r"[ \t\r\n]{0,4}")
_ANYTHING = Pattern("(?s:.*)")


@dataclass(frozen=True, slots=True)
class Answer:
    """What an answer must be: its grammar, and the callers' own grammars by the names of the rules that stand for them.
    `exact`: white space at its ends belongs to it, so that the grammar allows none but the template's."""

    node: Node
    callers: Mapping[str, str] = field(default_factory=dict[str, str])
    exact: bool = False

    @property
    def is_json(self) -> bool:
        """Whether the answer is JSON under a schema."""
        return isinstance(self.node, JsonText)

    def written(self, layout: JsonLayout | None, rules: Rules) -> Node:
        """Returns the grammar of its text. JSON without a layout has either: the model begins it."""
        if not isinstance(self.node, JsonText) or layout == "compact":
            return self.node
        lines = indented(self.node.schema, rules)
        if lines is None:
            return self.node
        return lines if layout == "indented" else one_of(lines, self.node)


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a turn may contain besides reasoning: an answer of this kind, calls of these tools, or either; at most
    `most_calls` calls (None: any number). `begun`: the grammar begins at a call's own markers, not at a heading before
    them. `reasoned`: where reasoning can no longer open, it has been closed, rather than never opened. `layout`:
    how an answer of JSON is laid out (None: as the model begins it)."""

    answer: Answer | None = None
    tools: Sequence[Tool] = ()
    most_calls: int | None = None
    begun: bool = False
    reasoned: bool = True
    layout: JsonLayout | None = None


def turn_grammar(format_: Format, allowed: Allowed, cut: Cut, rules: Rules) -> TurnGrammar:
    """Returns the grammars of a turn that may contain what is allowed. `cut` is the vocabulary's; `rules` collects the
    schema keywords that the grammar does not enforce."""
    parts: list[Node] = []
    if allowed.tools:
        parts.append(calls(format_, allowed.tools, rules, allowed.most_calls, begun=allowed.begun))
    after = first = parts
    if allowed.answer is not None:
        node = allowed.answer.written(allowed.layout, rules)
        after = [*parts, _answered(format_, node, cut, exact=allowed.answer.exact)]
        first = [*parts, _answered(format_, node, cut, exact=allowed.answer.exact, reasoned=False)]
    closed = one_of(*(after if allowed.reasoned else first))
    starts = (_opening(format_, one_of(*first), one_of(*after)) or closed, closed)
    callers: Mapping[str, str] = allowed.answer.callers if allowed.answer else {}
    written = [GrammarText(cut).text(start, rules.bodies, callers) for start in starts]
    return TurnGrammar(*written)


def _opening(format_: Format, first: Node, after: Node) -> Node | None:
    """Returns the grammar of a turn that may reason: what may stand first, and what may stand after reasoning that the
    model closes without having opened it. None if no marker opens reasoning."""
    reasoning, skipped = _reasoning(format_), _skipped_reasoning(format_)
    if reasoning is None:
        return None
    if first == after:
        return one_of(reasoning, in_order(maybe(skipped), after))
    return one_of(reasoning, first, *([in_order(skipped, after)] if skipped != NOTHING else []))


def calls(format_: Format, tools: Sequence[Tool], rules: Rules, most: int | None, *, begun: bool = False) -> Node:
    """Returns the grammar of one to `most` calls, with everything that precedes them in a turn. `begun`: see
    `Allowed`."""
    if format_.channels is not None:
        return channels.call_grammar(format_.channels, tools)
    assert format_.tools is not None  # callers have given a format without tools the generic form
    if not format_.tools.parallel:
        most = 1
    if begun:
        spellings = _spellings(format_.tools)
        return one_of(*(shapes.grammar(syntax, tools, rules, most=most) for syntax in spellings))
    lead = in_order(_lead(format_), _empty_answer(format_), _opening_space(format_, format_.tools))
    return in_order(lead, shapes.grammar(format_.tools, tools, rules, most=most), _end_of_calls(format_))


def _answered(format_: Format, answer: Node, cut: Cut, *, exact: bool, reasoned: bool = True) -> Node:
    if format_.channels is not None:
        return channels.answer_grammar(format_.channels, answer)
    opening, closing = (Marker(text) for text in format_.content)
    is_token = any(isinstance(part, int) for part in cut(opening.text))
    end = maybe(Marker(format_.ends[0])) if format_.ends else InOrder(())
    space = _lead(format_)
    lead = space if not exact else _after_reasoning(format_) if reasoned else NOTHING
    if not opening.text:
        return in_order(lead, answer, end)
    marked = in_order(space, opening, answer, closing)
    if is_token and not _closes_reasoning(format_):
        return in_order(marked, end)
    return in_order(one_of(in_order(lead, answer), marked), end)


def _spellings(syntax: ToolSyntax) -> list[ToolSyntax]:
    """The syntax with each marker by which the parser lets calls begin, and without a heading."""
    opening, closing = syntax.section
    sections = [(opening, closing), *((other, closing) for other in syntax.section_also)]
    if not isinstance(syntax, MarkedSyntax):
        return [syntax.model_copy(update={"section": section}) for section in sections]
    if syntax.section_optional:
        sections.append(("", ""))
    return [syntax.model_copy(update={"section": section, "heading": ("", "")}) for section in sections]


def is_call_marked(format_: Format) -> bool:
    """Whether each call begins with a mark, by which it is told from JSON."""
    syntax = format_.tools
    return syntax is not None and not (isinstance(syntax, WholeSyntax) and syntax.bare)


def _opening_space(format_: Format, syntax: ToolSyntax) -> Node:
    """The white space that the template writes before calls, where no reasoning may precede them."""
    return edges(syntax.section[0] or syntax.call_marks[0])[0] if format_.reasoning is None else NOTHING


def _empty_answer(format_: Format) -> Node:
    """The marks around an answer, with nothing in between: some families write them before calls, or their prompts end
    with the first."""
    opening, closing = format_.content
    stands_alone = opening and closing and not format_.header[0] and not _closes_reasoning(format_)
    return maybe(Marker(opening + closing)) if stands_alone else NOTHING


def _end_of_calls(format_: Format) -> Node:
    """What ends the turn as text, in families whose answers have marks of their own besides."""
    alone = format_.ends and format_.content[1] and format_.ends[0] != format_.content[1]
    return maybe(Marker(format_.ends[0])) if alone else NOTHING


def _closes_reasoning(format_: Format) -> bool:
    """Whether the mark that opens the answer is the one that closes reasoning."""
    return format_.reasoning is not None and format_.reasoning.close.strip() == format_.content[0].strip()


def _lead(format_: Format) -> Node:
    """The white space that templates and models write between reasoning and what follows."""
    return _SPACE if format_.reasoning is not None else InOrder(())


def _after_reasoning(format_: Format) -> Node:
    """The white space that belongs to the marker that closes reasoning."""
    close = format_.reasoning.close if format_.reasoning else ""
    return Marker(close[len(close.rstrip()) :])


def _skipped_reasoning(format_: Format) -> Node:
    """The marker that closes reasoning: some families' models begin with it when they do not reason."""
    if format_.reasoning is None or format_.channels is not None or _closes_reasoning(format_):
        return NOTHING
    close = format_.reasoning.close.strip()
    return in_order(_SPACE, Marker(close)) if close else NOTHING


def _reasoning(format_: Format) -> Node | None:
    """The marker that opens reasoning, then anything: the grammar does not constrain reasoning."""
    if format_.channels is not None:
        return in_order(channels.reasoning_grammar(format_.channels), _ANYTHING)
    opening = format_.reasoning.open if format_.reasoning else ""
    if not opening.strip():
        return None
    # Where the answer's marker begins with a blank too, both keep it: a lexer that waits for one cannot go back.
    own = opening.rstrip() if format_.content[0].startswith(" ") else opening.strip()
    return in_order(_SPACE, Marker(own), _ANYTHING)
