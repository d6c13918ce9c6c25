"""`Parser`: pieces of a model's output in, events out; the one door of this room.

Knows: how a turn reader is set up for a format, seeded with the prompt's tail, and how `reasoning_format` is a view
of its events. Does not know: models, vocabularies beyond the set of their control tokens, prompts, threads, clocks.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from engine.errors import RequestError
from engine.events import Event, Finished
from engine.families import Family, Format, builtin_families
from engine.parsing.channels import ChannelTurn
from engine.parsing.demands import Demands
from engine.parsing.emitter import Emitter
from engine.parsing.marks import Spelling
from engine.parsing.piece import Piece
from engine.parsing.reader import CONTROL, Reader
from engine.parsing.turn import TextTurn
from engine.tools import as_tools
from engine.types import FinishReason, ReasoningFormat, ResponseFormat, Tool, ToolChoice

_SURROGATES = re.compile(f"[{CONTROL}]")
_VIEWS = ("deepseek", "deepseek-legacy", "none", "exclude")


class Segment(NamedTuple):
    """A stretch of input, and what it was taken for."""

    kind: str
    text: str


class Parser:
    """Turns one assistant turn, fed at any chunking, into events.

    family: a family's name, a `Family`, or a `Format`.
    prefix: what the prompt already holds of this turn, as pieces or (text mode) as text; it is replayed silently, so
        that reasoning left open by the prompt, or closed by it, or a caller's prefill are no special cases.
    tools: functions, pydantic models, `Tool`s or OpenAI dictionaries. None: not known (names are not judged).
    tool_choice: "none" leaves call markup as content; "required" or a named tool also accepts a bare JSON call.
    reasoning_format: "deepseek" (separate), "none" (in the content, markers as written), "deepseek-legacy" (both),
        "exclude" (hidden). Calls are extracted alike.
    control_tokens: the texts that are one control or user-defined token of the vocabulary. None is text mode: every
        marker matches as text and `special` is ignored.
    trace: keep what every character of the input was taken for (`trace`).
    id_salt: made ids are a function of this, the call's index and its name; give every turn its own.

    Raises FamilyError for an unknown family, RequestError for options that are not valid. Output never raises.
    """

    def __init__(
        self,
        family: str | Family | Format,
        prefix: str | Sequence[Piece] = "",
        *,
        tools: Sequence[Any] | None = None,
        tool_choice: ToolChoice = "auto",
        reasoning_format: ReasoningFormat = "deepseek",
        parallel_tool_calls: bool = True,
        response_format: ResponseFormat | None = None,
        control_tokens: frozenset[str] | set[str] | None = None,
        trace: bool = False,
        id_salt: str = "",
    ) -> None:
        if reasoning_format not in _VIEWS:
            raise RequestError(f"reasoning_format is {reasoning_format!r}; it must be one of {', '.join(_VIEWS)}.")
        del parallel_tool_calls  # a second call is the model's output, and forwarded; only a constraint can prevent it
        format_ = _format_of(family)
        named: dict[str, Tool] | None = None if tools is None else {tool.name: tool for tool in as_tools(tools)}
        vocabulary = None if control_tokens is None else frozenset(control_tokens)
        spelling = Spelling(format_.control, vocabulary)
        self._control = spelling.characters
        self._reader = Reader(spelling.characters, trace=trace)
        self._emitter = Emitter(named, id_salt, hide_reasoning=reasoning_format in ("none", "exclude"))
        self._shown = None
        if reasoning_format in ("none", "deepseek-legacy"):
            self._shown = _ShownReasoning(self._emitter, copied=reasoning_format == "deepseek-legacy")
            self._reader.listener = self._shown.hear
        wants_json = response_format is not None and response_format.type != "text"
        demands = Demands(tool_choice, json=wants_json)
        turn = _turn(self._reader, self._emitter, format_, spelling, demands)
        self._run = turn.run()
        self._finished = False
        self._ahead = 0
        next(self._run)
        self._seed([Piece(prefix)] if isinstance(prefix, str) else prefix)
        turn.seeded()

    def _seed(self, prefix: Sequence[Piece]) -> None:
        """Replay what the prompt holds of the turn; its events are not the output's."""
        for piece in prefix:
            if piece.text:
                self._advance(piece.text, piece.special)
        self._emitter.drain()
        if self._reader.trace is not None:
            # What the prompt left undecided is classified later, but belongs to the prompt.
            self._ahead = sum(len(piece.text) for piece in prefix) - sum(len(text) for _, text in self._reader.trace)
            self._reader.trace.clear()
        if self._shown is not None:
            self._shown.restore_opening(inside=self.in_reasoning)

    @property
    def in_reasoning(self) -> bool:
        """Whether the next text belongs to reasoning."""
        return self._emitter.in_reasoning

    @property
    def trace(self) -> tuple[Segment, ...]:
        """The input fed so far as classified segments; their texts concatenate to it (less what is still undecided).

        Raises RequestError unless the parser was made with trace=True.
        """
        if self._reader.trace is None:
            raise RequestError("This parser keeps no trace; make it with Parser(..., trace=True).")
        merged: list[Segment] = []
        ahead = self._ahead
        for kind, whole in self._reader.trace:
            text = whole[ahead:]
            ahead = max(0, ahead - len(whole))
            if not text:
                continue
            if merged and merged[-1].kind == kind:
                merged[-1] = Segment(kind, merged[-1].text + text)
            else:
                merged.append(Segment(kind, text))
        return tuple(merged)

    def feed(self, text: str, special: bool = False) -> list[Event]:
        """More output. `special`: the text is one control or user-defined token. Raises RequestError after `close`."""
        if self._finished:
            raise RequestError("This parser is closed; make a new one for the next turn.")
        if text:
            self._advance(text, special)
        return self._emitter.drain()

    def close(self, finish_reason: FinishReason = "stop") -> list[Event]:
        """The output ended. Held-back text is settled and `Finished` comes last; "stop" becomes "tool_calls" where
        there are calls. Closing again gives nothing."""
        if self._finished:
            return []
        self._finished = True
        self._reader.closed = True
        self._reader.cut = finish_reason != "stop"
        for _ in self._run:
            pass
        if self._shown is not None:
            self._shown.flush()
        events = self._emitter.drain()
        reason: FinishReason = "tool_calls" if finish_reason == "stop" and self._emitter.calls else finish_reason
        return [*events, Finished(reason)]

    def _advance(self, text: str, special: bool) -> None:
        if special:
            text = self._control.get(text, text)
        elif not text.isascii():
            # A lone surrogate stands for a control token in the buffer; no decoder makes one, a caller's text might.
            text = _SURROGATES.sub("\ufffd", text)
        self._reader.feed(text)
        next(self._run)


class _ShownReasoning:
    """The views that show reasoning inside the content: its text and its markers, as written.

    `copied`: the span is emitted as reasoning too, so its copy comes when it is over (a part ends before the next
    begins).
    """

    def __init__(self, emitter: Emitter, *, copied: bool) -> None:
        self._emitter = emitter
        self._copy: list[str] | None = [] if copied else None
        self._part = -1
        self._opening = ""

    def hear(self, kind: str, text: str) -> None:
        """What the reader consumed."""
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
        """Emit the copy of a span that is over."""
        if self._copy:
            self._emitter.delta("content", "".join(self._copy), self._emitter.next_part())
            self._copy.clear()

    def restore_opening(self, *, inside: bool) -> None:
        """The prompt is replayed: of what it holds only the marker that opened reasoning, where it ends inside, is
        shown, and only if no text of the prompt's own follows it."""
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
