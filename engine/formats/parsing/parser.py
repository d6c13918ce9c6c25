"""`Parser`: pieces of a model's output in, events out; the public interface of this package. `ParserRecipe` is a
picklable record from which another process can make a parser.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, get_args

from engine.formats.families import Family, Format, builtin_families
from engine.formats.parsing.channels import ChannelTurn
from engine.formats.parsing.emitter import Emitter
from engine.formats.parsing.json_reader import LONE_SURROGATE
from engine.formats.parsing.reader import Reader, Spelling, spelling_of
from engine.formats.parsing.text_turn import TextTurn
from engine.formats.parsing.unmarked import Demands
from engine.support.errors import RequestError
from engine.tools import as_tools, json_value
from engine.types.completion import Usage
from engine.types.events import Event, Finished, ToolCallEnd, ToolCallStart
from engine.types.prompt import Piece
from engine.types.sampling import DEFAULT_REASONING_FORMAT, FinishReason, ReasoningFormat
from engine.types.tools import Tool, ToolChoice

_VIEWS = get_args(ReasoningFormat)


class Segment(NamedTuple):
    """A stretch of input and its classification."""

    kind: str
    text: str


class Parser:
    """Turns one assistant turn, fed at any chunking, into events.

    family: a family's name, a `Family`, or a `Format`.
    prefix: the part of this turn that the prompt already contains, as pieces or (text mode) as text. It is replayed
        without events, so reasoning that the prompt left open or closed, and a caller's prefill, need no special case.
    tools: functions, pydantic models, `Tool`s or OpenAI dictionaries. None: not known (names are not checked).
    tool_choice: "none" leaves calls of given tools out of the events, and `Finished` counts them; without tools, markup
        is content. "required" or a named tool also accepts a bare JSON call.
    reasoning_format: "deepseek" (separate), "none" (in the content, markers as written), "deepseek-legacy" (both),
        "exclude" (hidden). Calls are extracted alike.
    json: the answer must be JSON, so a code fence around it and white space before it are dropped, and JSON
        without markers is no call, but in the family's own form.
    control_tokens: the texts that are one control or user-defined token of the vocabulary. None is text mode: every
        marker matches as text and `special` is ignored.
    exact: white space at the ends of the answer belongs to it (it is one of some texts, or matches a pattern).
    trace: record how every character of the input was classified (`trace`).
    id_salt: generated call ids depend on this, the call's index and its name; give every turn its own.

    Raises FamilyError for an unknown family, RequestError for options that are not valid. Output never raises.
    """

    def __init__(
        self,
        family: str | Family | Format,
        prefix: str | Sequence[Piece] = "",
        *,
        tools: Sequence[Any] | None = None,
        tool_choice: ToolChoice = "auto",
        reasoning_format: ReasoningFormat = DEFAULT_REASONING_FORMAT,
        json: bool = False,
        control_tokens: frozenset[str] | set[str] | None = None,
        exact: bool = False,
        trace: bool = False,
        id_salt: str = "",
    ) -> None:
        if reasoning_format not in _VIEWS:
            raise RequestError(f"reasoning_format is {reasoning_format!r}; it must be one of {', '.join(_VIEWS)}.")
        format_ = _format_of(family)
        named: dict[str, Tool] | None = None if tools is None else {tool.name: tool for tool in as_tools(tools)}
        vocabulary = None if control_tokens is None else frozenset(control_tokens)
        spelling = spelling_of(format_.control, vocabulary)
        self._control = spelling.characters
        self._token = vocabulary is not None
        self._reader = Reader(spelling.characters, spelling.hard, trace=trace)
        hidden = reasoning_format in ("none", "exclude")
        self._drops_calls = tool_choice == "none" and bool(named)
        self._emitter = Emitter(named, id_salt, hide_reasoning=hidden, trims=json, hide_calls=self._drops_calls)
        self._shown = None
        if reasoning_format in ("none", "deepseek-legacy"):
            self._shown = _ShownReasoning(self._emitter, copied=reasoning_format == "deepseek-legacy")
            self._reader.listener = self._shown.note_consumed
        demands = Demands(tool_choice, json=json, exact=exact, drops=self._drops_calls)
        turn = _turn(self._reader, self._emitter, format_, spelling, demands)
        self._run = turn.run()
        self._finished = False
        self._prompt_size = 0
        self.in_reasoning = False
        """Whether the next text belongs to reasoning."""
        next(self._run)
        self._seed([Piece(prefix)] if isinstance(prefix, str) else prefix)
        if isinstance(turn, TextTurn):
            turn.seeded()

    def _seed(self, prefix: Sequence[Piece]) -> None:
        """Replay the part of the turn that the prompt contains; its events are dropped."""
        reader = self._reader
        traced, reader.trace = reader.trace, []
        for piece in prefix:
            if piece.text:
                self.feed(piece.text, piece.special)
        self._emitter.restart()
        self._prompt_size = reader.fed
        # What the prompt left undecided is classified later, but belongs to the prompt.
        reader.ahead = sum(len(piece.text) for piece in prefix) - sum(len(text) for _, text in reader.trace)
        reader.trace = traced
        if self._shown is not None:
            self._shown.restore_opening(inside=self.in_reasoning)

    @property
    def undecided(self) -> bool:
        """Whether it is still open, until more text arrives, if the turn begins with reasoning."""
        return self._reader.undecided

    @property
    def fed(self) -> int:
        """The number of characters fed since the prompt; a control token of the family counts as one."""
        return self._reader.fed - self._prompt_size

    @property
    def answer_start(self) -> int:
        """Where, counted like `fed`, the current stretch outside reasoning began; negative if inside the prompt."""
        return self._reader.answer_start - self._prompt_size

    @property
    def call_start(self) -> int | None:
        """Where, counted like `fed`, the current call began; None outside calls."""
        start = self._reader.call_start
        return None if start is None else start - self._prompt_size

    def size(self, text: str, special: bool = False) -> int:
        """Returns the number of characters that `fed` counts for a piece."""
        return len(self._control.get(text, text)) if special else len(text)

    @property
    def trace(self) -> tuple[Segment, ...]:
        """The input fed so far as classified segments; their texts concatenate to it (except for what is still
        undecided).

        Raises RequestError unless the parser was made with trace=True.
        """
        if self._reader.trace is None:
            raise RequestError("This parser keeps no trace; make it with Parser(..., trace=True).")
        merged: list[Segment] = []
        for kind, text in self._reader.trace:
            if merged and merged[-1].kind == kind:
                merged[-1] = Segment(kind, merged[-1].text + text)
            else:
                merged.append(Segment(kind, text))
        return tuple(merged)

    def feed(self, text: str, special: bool = False) -> list[Event]:
        """Feed more output and return its events. `special`: the text is one control or user-defined token. Raises
        RequestError after `close`."""
        if self._finished:
            raise RequestError("This parser is closed; make a new one for the next turn.")
        if not text:
            return self._emitter.drain()
        if special:
            text = self._control.get(text, text)
        elif not text.isascii():
            # A lone surrogate represents a control token in the buffer; decoders produce none, but a caller's text
            # might have one.
            text = LONE_SURROGATE.sub("\ufffd", text)
        self._reader.feed(text, text if special and self._token else "")
        next(self._run)
        self.in_reasoning = self._emitter.in_reasoning
        return self._emitter.drain()

    def close(self, finish_reason: FinishReason = "stop") -> list[Event]:
        """End the output and return the last events: those of held-back text, then `Finished`. "stop" becomes
        "tool_calls" if there are calls. Closing again returns an empty list."""
        if self._finished:
            return []
        self._finished = True
        self._reader.closed = True
        self._reader.cut = finish_reason != "stop"
        for _ in self._run:
            pass
        self.in_reasoning = self._emitter.in_reasoning
        if self._shown is not None:
            self._shown.flush()
        events, calls = self._emitter.drain(), self._emitter.calls
        if self._drops_calls and calls:
            return [*events, Finished(finish_reason, Usage(dropped_calls=calls))]
        return [*events, Finished("tool_calls" if finish_reason == "stop" and calls else finish_reason)]


class _ShownReasoning:
    """The views that show reasoning inside the content: its text and its markers, as written.

    `copied`: the span is also emitted as reasoning, so its copy follows when it is over (a part ends before the next
    begins).
    """

    def __init__(self, emitter: Emitter, *, copied: bool) -> None:
        self._emitter = emitter
        self._copy: list[str] | None = [] if copied else None
        self._part = -1
        self._opening = ""

    def note_consumed(self, kind: str, text: str) -> None:
        """Show text that the reader consumed, if it is reasoning."""
        if not kind.startswith("reasoning"):
            self.flush()
            self._part, self._opening = -1, ""
            return
        self._opening = text if kind == "reasoning-marker" else ""
        if self._copy is not None:
            self._copy.append(text)
            return
        if self._part < 0:
            self._part = self._emitter.next_part()
        self._emitter.delta("content", text, self._part)

    def flush(self) -> None:
        """Emit the copy of a reasoning span that is over."""
        if self._copy:
            self._emitter.delta("content", "".join(self._copy), self._emitter.next_part())
            self._copy.clear()

    def restore_opening(self, *, inside: bool) -> None:
        """After the prompt's replay, show only the marker that opened reasoning, and only if the prompt ends inside
        reasoning directly after that marker."""
        opening = self._opening if inside else ""
        if self._copy is not None:
            self._copy[:] = [opening] if opening else []
        elif opening:
            self._emitter.delta("content", opening, self._part)


def _format_of(family: str | Family | Format) -> Format:
    if isinstance(family, Format):
        return family
    return (family if isinstance(family, Family) else builtin_families().get(family)).format


def _turn(
    reader: Reader, emitter: Emitter, format_: Format, spelling: Spelling, demands: Demands
) -> TextTurn | ChannelTurn:
    if format_.channels is not None:
        return ChannelTurn(reader, emitter, format_.channels, spelling, demands)
    return TextTurn(reader, emitter, format_, spelling, demands)


@dataclass(frozen=True)
class ParserRecipe:
    """Makes a parser when called; the fields are `Parser`'s parameters. Pickling drops the tools' functions and
    argument checks; `Checked` makes up for the checks where the events arrive."""

    format: Format
    prefix: str | Sequence[Piece] = ""
    tools: tuple[Tool, ...] | None = None
    tool_choice: ToolChoice = "auto"
    reasoning_format: ReasoningFormat = DEFAULT_REASONING_FORMAT
    json: bool = False
    control_tokens: frozenset[str] | None = None
    exact: bool = False
    trace: bool = False
    id_salt: str = ""

    def __call__(self) -> Parser:
        options = {field.name: getattr(self, field.name) for field in fields(self)}
        return Parser(options.pop("format"), options.pop("prefix"), **options)

    def __reduce__(self) -> tuple[Any, ...]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.tools is not None:
            values["tools"] = tuple(map(_bare, self.tools))
        return ParserRecipe, tuple(values.values())

    def checked(self) -> "Checked":
        """Returns a `Checked` for the events of a parser that ran in another process."""
        return Checked(self.tools or ())


class Checked:
    """Completes the events of one turn whose parser ran in another process: checks each call's arguments."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._names: dict[int, str] = {}

    def __call__(self, events: Sequence[Event]) -> tuple[Event, ...]:
        return tuple(map(self._completed, events))

    def _completed(self, event: Event) -> Event:
        if isinstance(event, ToolCallStart):
            self._names[event.index] = event.name
        elif isinstance(event, ToolCallEnd) and event.error is None:
            tool = self._tools.get(self._names.get(event.index, ""))
            if tool is not None and tool.check is not None and not _takes(tool.check, event.arguments):
                return replace(event, error="invalid_arguments")
        return event


def _takes(check: Callable[[Any], str | None], arguments: str) -> bool:
    try:
        return check(json_value(arguments)) is None
    except ValueError:
        return True  # the parser has already judged it


def _bare(tool: Tool) -> Tool:
    return tool.model_copy(update={"function": None, "check": _fits})


def _fits(_arguments: object) -> None:
    """The arguments are checked in another process."""
