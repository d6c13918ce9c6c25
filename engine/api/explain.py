"""Explains how a conversation was understood, piece by piece: the prompt and who wrote what in it, its tokens, the
format and the origin of each of its fields, the parser's state at the prompt's end, the turn's constraint, and how
an output is parsed.
"""

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, Literal, TypeAlias, cast

from engine.formats.families import Format, Gate
from engine.formats.parsing import Parser
from engine.formats.template.chat_template import ChatTemplate
from engine.formats.template.markers import overlaps
from engine.formats.template.prompt import prefix_of
from engine.runtime.loop.backend import Vocab
from engine.support.display import counted, preformatted, section_html, table_html, visible
from engine.support.errors import RequestError, shown
from engine.support.report import Report
from engine.tools.subschemas import subschemas
from engine.turns.explain_input import ExplainInput
from engine.types.completion import Completion
from engine.types.constraint import Constraint, Holds
from engine.types.events import Event, fold
from engine.types.messages import Message
from engine.types.parts import Record
from engine.types.prompt import Piece, Prompt, Span


@dataclass(frozen=True, slots=True)
class FieldReason:
    """A field of the format that is set: its dotted name, its value as plain JSON, and why it has that value."""

    name: str
    value: Any
    reason: str


def reasons(template: ChatTemplate) -> Iterator[FieldReason]:
    """Yields the fields of the template's format, except those at their default (no such marker, no such rule)."""
    format_, family = template.format, template.family
    source = {
        "derived": "comparing renders of the chat template showed it",
        "given": "the caller's format says so",
    }.get(family.name, f"[family.{family.name}] declares it")
    for name, value in _fields(format_):
        base = source
        if name.startswith("tools.") and family.format.tools is None:
            base = "the chat template states no tools: the generic form is prompted"
        yield FieldReason(name, _plain(value), base)


def _fields(record: Record, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, field in type(record).model_fields.items():
        value: Any = getattr(record, name)
        if isinstance(value, Record) and not isinstance(value, Gate):
            yield from _fields(value, f"{before}{name}.")
        elif field.is_required() or value != field.get_default():
            yield before + name, value


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.model_dump(exclude_none=True, exclude_defaults=True)
    return list(cast("Sequence[Any]", value)) if isinstance(value, tuple) else value


Author: TypeAlias = Literal["template", "caller"]
Where: TypeAlias = Literal["start of the turn", "reasoning", "content", "header", "call"]
_WIDTH = 100


@dataclass(frozen=True, slots=True)
class Written:
    """A piece of the prompt and who wrote it. System and developer text is trusted and counts as the template's.
    `guarded`: it spells a control token, and is tokenised as ordinary characters."""

    author: Author
    text: str
    guarded: bool = False


@dataclass(frozen=True, slots=True)
class PromptToken:
    """A token of the prompt. `control`: a control or user-defined token. `text` is its bytes as UTF-8; an incomplete
    character is U+FFFD."""

    id: int
    text: str
    control: bool


@dataclass(frozen=True, slots=True)
class RestoredReasoning:
    """Reasoning that the caller's history lost and the engine restored in message number `message`. `shown`: the
    family's rule keeps it in this prompt."""

    message: int
    text: str
    shown: bool


@dataclass(frozen=True, slots=True)
class Classified:
    """A piece of text, and what the parser takes it for."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class ParserState:
    """The parser's state when the output begins: what it has read of this turn in the prompt (`seed`), what of that is
    still undecided, and the reason in words."""

    where: Where
    reason: str
    seed: tuple[Classified, ...]
    undecided: str


_MOST_PLACES = 20


def _keys(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yields which objects of a schema take other keys than those they declare."""
    declaring = [(place, node) for place, node in subschemas(schema) if "properties" in node]
    for says, others in (("no other keys", False), ("other keys too", True)):
        places = [place for place, node in declaring if (node.get("additionalProperties") is not False) is others]
        if places:
            more = f" and {len(places) - _MOST_PLACES:,} more" if len(places) > _MOST_PLACES else ""
            yield f"  objects that take {says}: {', '.join(places[:_MOST_PLACES])}{more}"


@dataclass(frozen=True, slots=True)
class TurnConstraint:
    """A turn's constraint. `holds`: what its grammar applies to. `begins`: where that comes into force. `grammar`: in
    the form that llguidance takes, JSON of Lark grammars and schemas. `reserve`: tokens reserved for the answer."""

    holds: Holds
    begins: Literal["at the prompt's end", "after reasoning", "where a call begins"]
    grammar: str
    reserve: int

    def lines(self) -> Iterator[str]:
        """Yields the lines of the report."""
        what = "the answer" if self.holds == "answer" else "calls"
        yield f"constraint: holds {what}, {self.begins}; {self.reserve:,} tokens are kept for it"
        for part in json.loads(self.grammar)["grammars"]:
            yield from _keys(part.get("json_schema", {}))
            text = part.get("lark_grammar") or f"{part['name']}: {json.dumps(part['json_schema'], ensure_ascii=False)}"
            yield from (f"  | {line}" for line in text.splitlines())


@dataclass(frozen=True, slots=True)
class Explanation(Report):
    """What was understood. `complete`: `prompt` names the author of every piece; otherwise the template inspects
    callers' text, and some of that counts as its own. `output` and `completion` are set if an output was given.
    `constraint` is set if the options ask for one. `sampling`: what the answer's tokens are drawn with, and who said
    so."""

    family: str
    title: str
    reason: str
    format: tuple[FieldReason, ...]
    prompt: tuple[Written, ...]
    complete: bool
    tokens: tuple[PromptToken, ...]
    restored: tuple[RestoredReasoning, ...]
    state: ParserState
    output: tuple[Classified, ...] | None = None
    completion: Completion | None = None
    constraint: TurnConstraint | None = None
    sampling: str = ""

    def text(self) -> str:
        return visible("\n".join(_report(self)))

    def __repr__(self) -> str:
        return f"<Explanation: {self.family}, {counted(len(self.tokens), 'token')}, {self.state.where}>"

    def _repr_html_(self) -> str:
        return _html(self)

    def data(self) -> dict[str, Any]:
        """Returns the same as plain values, for JSON."""
        completion = self.completion.model_dump() if self.completion else None
        return {**asdict(replace(self, completion=None)), "completion": completion}


def explain_turn(template: ChatTemplate, asked: ExplainInput, vocab: Vocab) -> Explanation:
    """Returns the explanation of one turn."""
    pieces = _pieces(template, asked.output)
    output, completion = _read(template, asked, vocab, pieces)
    state = _state(template, asked, vocab)
    return Explanation(
        family=template.family.name,
        title=template.family.title,
        reason=template.detection.reason,
        format=tuple(reasons(template)),
        prompt=tuple(_written(asked.prompt, template.forgeries(asked.prompt))),
        complete=asked.prompt.complete,
        tokens=tuple(_tokens(asked.tokens, vocab)),
        restored=tuple(_restored(asked.conversation, asked.prompt)),
        state=state,
        output=output,
        completion=completion,
        constraint=_constraint(asked.constraint, state) if asked.constraint else None,
        sampling=asked.sampling,
    )


def _constraint(constraint: Constraint, state: ParserState) -> TurnConstraint:
    grammar, opens = constraint.grammar, constraint.may_reason and constraint.holds == "answer"
    begins = "after reasoning" if state.where == "reasoning" else "at the prompt's end"
    return TurnConstraint(
        constraint.holds,
        "where a call begins" if constraint.holds == "calls" else begins,
        grammar.opening if opens else grammar.closed,
        constraint.reserve,
    )


def _written(prompt: Prompt, forgeries: Sequence[Span]) -> Iterator[Written]:
    """Yields the prompt, cut where the author changes and around guarded text, which counts as the callers'."""
    pieces = list(accumulate((len(piece.text) for piece in prompt.pieces), initial=0))
    cuts = sorted({*pieces, *(edge for span in forgeries for edge in span)})
    before: Written | None = None
    for start, end in pairwise(cuts):
        guarded = overlaps(Span(start, end), forgeries)
        trusted = prompt.pieces[bisect_right(pieces, start) - 1].trusted
        now = Written("template" if trusted and not guarded else "caller", prompt.text[start:end], guarded)
        if before is not None and (before.author, before.guarded) == (now.author, now.guarded):
            now = replace(now, text=before.text + now.text)
        elif before is not None:
            yield before
        before = now
    if before is not None:
        yield before


def _tokens(tokens: Sequence[int], vocab: Vocab) -> Iterator[PromptToken]:
    for token in tokens:
        yield PromptToken(token, vocab.token_bytes(token).decode("utf-8", "replace"), vocab.is_special(token))


def _restored(conversation: Sequence[Message], prompt: Prompt) -> Iterator[RestoredReasoning]:
    for number in prompt.restored:
        text = conversation[number].reasoning or ""
        yield RestoredReasoning(number, text, text.strip() in prompt.text)


def _parser(template: ChatTemplate, asked: ExplainInput, vocab: Vocab, prompt: Prompt) -> Parser:
    return template.parser(
        prompt,
        asked.tools or None,
        asked.tool_choice,
        json=asked.constraint is not None and asked.constraint.is_json,
        control_tokens=vocab.control_tokens,
        trace=True,
        builtin_tools=asked.builtin_tools,
    )


def _state(template: ChatTemplate, asked: ExplainInput, vocab: Vocab) -> ParserState:
    """Returns the state of a parser that begins with the turn and reads the prompt's tail."""
    prefix = asked.prompt.prefix
    parser = _parser(template, asked, vocab, replace(asked.prompt, prefix=()))
    events = [event for piece in prefix for event in parser.feed(piece.text, piece.special)]
    seed = tuple(Classified(kind, text) for kind, text in parser.trace)
    tail = "".join(piece.text for piece in prefix)
    undecided = tail[sum(len(segment.text) for segment in seed) :]
    where = _where(parser, events, undecided, template.format)
    return ParserState(where, _why(where, tail, seed, template.format), seed, undecided)


def _where(parser: Parser, events: Sequence[Event], undecided: str, format_: Format) -> Where:
    if parser.in_reasoning:
        return "reasoning"
    names = [type(event).__name__ for event in events]
    if names.count("ToolCallStart") > names.count("ToolCallEnd"):
        return "call"
    if format_.channels is not None and undecided.strip():
        return "header"
    return "content" if names and names[-1] == "ContentDelta" else "start of the turn"


def _why(where: Where, tail: str, seed: Sequence[Classified], format_: Format) -> str:
    marked = [segment.text for segment in seed if segment.kind == "reasoning-marker"]
    if not tail:
        return "the prompt contains nothing of this turn: the model goes on, or begins without a start of its own"
    if where == "reasoning":
        opener = f"opens with {marked[-1]!r}" if marked else "begins without a marker"
        return f"the prompt ends in reasoning that {opener} and is not closed"
    if where == "call":
        return "the prompt ends inside a call"
    if where == "header":
        return f"the prompt ends in a message's header, {tail!r}; its channel decides what follows"
    if where == "content":
        return "the prompt ends in the text of the answer"
    if marked:
        return f"the prompt has closed reasoning with {marked[-1]!r}"
    if format_.reasoning is not None:
        return f"the prompt leaves it to the model to open reasoning with {format_.reasoning.open!r}"
    return "the turn begins, and this family marks no reasoning"


def _pieces(template: ChatTemplate, output: str | Sequence[Piece] | None) -> Sequence[Piece] | None:
    """Returns the output as a parser reads it; in a string and in trusted pieces, the family's control markers count as
    tokens."""
    if output is None:
        return None
    if isinstance(output, str):
        output = [Piece(output, trusted=True)]
    elif not all(isinstance(each, Piece) for each in cast("Iterable[object]", output)):
        raise RequestError(f"output={shown(output)} is not valid; give a text, or the pieces of a Prompt.")
    return prefix_of(output, 0, template.format.control)


def _read(
    template: ChatTemplate, asked: ExplainInput, vocab: Vocab, pieces: Sequence[Piece] | None
) -> tuple[tuple[Classified, ...] | None, Completion | None]:
    if pieces is None:
        return None, None
    parser = _parser(template, asked, vocab, asked.prompt)
    events = [event for piece in pieces for event in parser.feed(piece.text, piece.special)]
    events += parser.close()
    return tuple(Classified(kind, text) for kind, text in parser.trace), fold(events)


def _report(found: Explanation) -> Iterator[str]:
    yield f"family: {found.family} ({found.title}): {found.reason}"
    yield from ("", "format")
    width = max((len(field.name) for field in found.format), default=0)
    for reason in dict.fromkeys(field.reason for field in found.format):
        yield f"  because {reason}:"
        yield from (f"  {each.name:<{width}}  {each.value!r}" for each in found.format if each.reason == reason)
    note = "" if found.complete else " (this template inspects callers' texts: some of them are shown as its own)"
    yield from ("", f"prompt{note}")
    for piece in found.prompt:
        yield f"  {piece.author + (' (guarded)' if piece.guarded else ''):<17} {piece.text!r}"
    if found.tokens:
        yield from ("", f"{counted(len(found.tokens), 'token')} (* a control token)")
        yield from _lines([f"{token.id}{'*' if token.control else ''}:{token.text!r}" for token in found.tokens])
    yield from _told(found)


def _html(found: Explanation) -> str:
    """Returns a table of the most important facts, with the complete report folded below."""
    rows = [
        ("family", f"{found.family} ({found.title}): {found.reason}"),
        ("tokens", f"{len(found.tokens):,}"),
        ("the parser begins in", f"{found.state.where}, because {found.state.reason}"),
        ("sampling", found.sampling),
    ]
    said = [(f"{piece.author}{' (guarded)' if piece.guarded else ''}", piece.text) for piece in found.prompt]
    output = [(piece.kind, piece.text) for piece in found.output or ()]
    parts = [table_html(rows, "Explanation"), section_html("prompt, by author", table_html(said), unfolded=True)]
    if output:
        parts.append(section_html("output, as it was understood", table_html(output), unfolded=True))
    return "".join([*parts, section_html("the whole report", preformatted(found.text()))])


def _lines(items: Sequence[str]) -> Iterator[str]:
    """Yields the items side by side, in lines of at most `_WIDTH` characters if they fit."""
    line = " "
    for item in items:
        if len(line) + 1 + len(item) > _WIDTH and line.strip():
            yield line
            line = " "
        line += f" {item}"
    yield line


def _told(found: Explanation) -> Iterator[str]:
    if found.restored:
        yield from ("", "reasoning restored from memory")
        for one in found.restored:
            fate = "in this prompt" if one.shown else "dropped by the family's rule"
            yield f"  message {one.message} ({fate}): {one.text!r}"
    yield from ("", f"the parser begins in: {found.state.where}, because {found.state.reason}")
    yield from _segments(found.state.seed)
    if found.state.undecided:
        yield f"  {'undecided yet':<17} {found.state.undecided!r}"
    yield from ("", f"sampling: {found.sampling}")
    if found.constraint is not None:
        yield ""
        yield from found.constraint.lines()
    if found.output is not None and found.completion is not None:
        yield from ("", f"output ({found.completion.finish_reason})")
        yield from _segments(found.output)
        for call in found.completion.tool_calls:
            yield f"  {'= call':<17} {call.name} {call.arguments} {f'[{call.error}]' if call.error else ''}".rstrip()


def _segments(segments: Sequence[Classified]) -> Iterator[str]:
    for segment in segments:
        yield f"  {segment.kind:<17} {segment.text!r}"
