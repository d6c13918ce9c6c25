"""Turns made of messages with a header: a role, a channel, maybe a recipient, then a body.

Source of the format: OpenAI's harmony response format (gpt-oss).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from engine.formats.families import ChannelSyntax
from engine.formats.grammar.nodes import JsonText, Marker, Node, Words, in_order, maybe, one_of
from engine.formats.grammar.schemas import Schemas
from engine.formats.parsing.emitter import CallEmitter, Emitter, Span
from engine.formats.parsing.json_reader import JsonReader, Outcome
from engine.formats.parsing.reader import CONTROL, CUT, Gen, Markers, Reader, Spelling, begins, compiled
from engine.formats.parsing.shapes.section import raw_code, raw_writer
from engine.formats.parsing.shown import ShownCode
from engine.formats.parsing.unmarked import BareCalls, Demands
from engine.types.tools import Tool

_FIELD = re.compile(rf"[^<\n{CONTROL}]+|[<{CONTROL}]")
_LONGEST_FIELD = 200


@dataclass(slots=True)
class _Header:
    """The fields of a header; later ones win, since models write stray ones."""

    channel: str = ""
    recipient: str = ""
    role: str = ""
    field: str = ""
    """The text of the channel's field, as written."""
    lead: str = ""
    """The blank behind the channel's mark: a vocabulary that has it there has it behind each mark (LLM-jp 4)."""

    def read(self, text: str, mark: str, syntax: ChannelSyntax, start_mark: str, channel_mark: str) -> None:
        """Add one field: the text after a mark ("" for what follows the role)."""
        words, recipient_mark = text.split(), syntax.recipient
        if mark == start_mark:
            self.role = words[0] if words and not words[0].startswith(recipient_mark) else syntax.role
        for word in words:
            if word.startswith(recipient_mark):
                self.recipient = word.removeprefix(recipient_mark)
        if mark == channel_mark and words and not words[0].startswith(recipient_mark):
            self.channel, self.field = words[0], text.strip()
            self.lead = " " if text.startswith(" ") else ""

    def said(self, syntax: ChannelSyntax) -> str:
        """Returns the text in place of a header that announces no message: what follows the name of a channel for
        answers, or a sentence."""
        words = self.field.split()
        if self.channel in syntax.reasoning or any(word.startswith(syntax.recipient) for word in words):
            return ""
        _, _, rest = self.field.partition(" ")
        return rest.strip() if self.channel in syntax.content or not rest else self.field


class ChannelTurn:
    """Reads a turn of messages."""

    def __init__(
        self, reader: Reader, emitter: Emitter, syntax: ChannelSyntax, spelling: Spelling, demands: Demands
    ) -> None:
        self._reader = reader
        self._emitter = emitter
        self._syntax = syntax
        self._calls = demands.calls
        self._exact = demands.exact
        self._bare = BareCalls(reader, emitter, None, spelling, demands) if demands.demanded else None
        text = spelling.text
        self._start, self._channel = text(syntax.start), text(syntax.channel)
        self._constrain, self._message = text(syntax.constrain), text(syntax.message)
        ends = [text(end) for end in syntax.ends]
        self._in_header = compiled(self._start, self._channel, self._constrain, self._message, *ends)
        self._header_begins = compiled(*self._in_header.literals, f" {syntax.recipient}")
        self._in_body = compiled(*ends, self._start, self._channel)
        self._fence = compiled(*(("```json", "```") if demands.json else ()))
        self._in_answer = compiled(*self._in_body.literals, *self._fence.literals)
        self._is_end = compiled(*ends)
        self._is_role = compiled(syntax.role)
        self._shown = ShownCode(reader, emitter, spelling, ends)
        self._to = (f" {syntax.recipient}",)  # with it a header names a function
        self._json = JsonReader(reader, self._in_body.literals, spelling.hard)

    def run(self) -> Gen[None]:
        """Read the whole turn, to the end of the input."""
        reader = self._reader
        while (yield from reader.more()):
            hit = yield from reader.starts(self._header_begins)
            if hit is None and self._bare is not None and (yield from self._bare.stands_here()):
                yield from self._bare.read()
            elif hit is None:
                # The model wrote no header at all: its text is content.
                yield from self._text("content", "marker", "space")
            elif hit in self._is_end.literals:
                reader.take(len(hit), "marker")
            else:
                yield from self._message_from_header()

    def _message_from_header(self) -> Gen[None]:
        """Read a header, then the body that it announces."""
        reader, header = self._reader, _Header()
        start, to = reader.consumed, f" {self._syntax.recipient}{self._syntax.namespace}"
        mark, taken = "", [""]
        record, reader.record = reader.record, taken
        while True:
            field, hit = yield from self._field(start, to)
            header.read(field, mark, self._syntax, self._start, self._channel)
            if hit is None or hit in self._is_end.literals:
                if reader.left and hit is None:
                    reader.record, reader.call_start = record, None
                    yield from self._unparsed("".join(taken))
                    return
                break
            reader.take(len(hit))
            if hit == self._message:
                break
            mark = hit
            if mark == self._start and not (yield from self._role_follows()):
                hit = None
                break
        reader.record = record
        yield from self._body(header, "".join(taken), announced=hit == self._message)
        reader.call_start = None

    def _field(self, start: int, to: str) -> Gen[tuple[str, str | None]]:
        """Returns one field of a header, and the mark that ends it (not consumed). A field that names a function (after
        `to`) makes the message, which began at `start`, a call.

        None as the mark: the input ended, or (with text left) this is not a header: a field is short and has no line
        break.
        """
        reader = self._reader
        parts: list[str] = []
        while (hit := (yield from reader.starts(self._in_header))) is None and (yield from reader.more()):
            room = _LONGEST_FIELD - sum(map(len, parts))
            run = _FIELD.match(reader.buffer, reader.pos)
            if room <= 0 or run is None:
                return "".join(parts), None
            parts.append(reader.take(min(max(1, run.end() - reader.pos), room)))
            if self._calls and reader.call_start is None and to in "".join(parts):
                reader.call_start = start
        return "".join(parts), hit

    def _role_follows(self) -> Gen[bool]:
        """Consume the role after a start mark. Without a header mark after it, what follows is text, not a header."""
        reader = self._reader
        role = yield from reader.starts(self._is_role)
        if role is None:
            return True
        reader.take(len(role))
        return not (yield from reader.more()) or (yield from reader.starts(self._header_begins)) is not None

    def _body(self, header: _Header, raw: str, *, announced: bool) -> Gen[None]:
        reader, syntax = self._reader, self._syntax
        called = header.recipient not in ("", "user", "assistant", "all")
        is_call = called and self._calls and announced and not (yield from self._shown.has_call(None))
        if not announced:
            yield from self._unannounced(header, raw)
        elif header.role not in ("", syntax.role):
            reader.note("header", raw)
            yield from self._others()
        elif is_call:
            reader.note("header", raw)
            yield from self._call(header.recipient)
        elif header.channel in syntax.reasoning and not called:
            self._note_opening(raw)
            self._emitter.in_reasoning = True
            ended = yield from self._text("reasoning", "reasoning-marker", "reasoning-space", header.lead)
            self._emitter.in_reasoning = not ended
            reader.answer_start = reader.consumed
        elif called:
            yield from self._unparsed(raw)
        else:
            reader.note("header", raw)
            if self._bare is not None and (yield from self._bare.stands_here()):
                yield from self._bare.read()
            else:
                yield from self._text("content", "marker", "space", header.lead)

    def _unannounced(self, header: _Header, raw: str) -> Gen[None]:
        """A header without a body. As the last thing in the turn, its text is what the model had to say."""
        reader, said = self._reader, header.said(self._syntax)
        last = bool(said) and (yield from self._ends_turn())
        place = raw.rfind(said) if last else len(raw)
        reader.note("header", raw[:place])
        if last:
            self._emitter.delta("content", reader.own("content", said), self._emitter.next_part())
            reader.note("header", raw[place + len(said) :])

    def _ends_turn(self) -> Gen[bool]:
        """Whether the output ends here or behind the mark at the front, rather than being cut off."""
        reader = self._reader
        end = (yield from reader.starts(self._is_end)) or ""
        more = yield from reader.judged(lambda text: bool(text.strip()) or None, len(end))
        return not more and reader.closed and (bool(end) or not reader.cut)

    def _others(self) -> Gen[None]:
        """Leave out a message of another role, which the model writes beyond its own turn."""
        reader = self._reader
        hit = yield from reader.until(self._in_body, lambda text: reader.note("header", text), cuts=True)
        if hit == CUT:
            reader.take(reader.left, "marker")
        elif hit in self._is_end.literals:
            reader.take(len(hit), "marker")

    def _note_opening(self, raw: str) -> None:
        """Trace a header that opens reasoning: the part before its channel only opens a message, of whatever kind."""
        place = max(raw.find(self._channel), 0)
        self._reader.note("header", raw[:place])
        self._reader.note("reasoning-marker", raw[place:])

    def _text(self, kind: str, marker: str, edge: str, lead: str = "") -> Gen[bool]:
        """Read a body of text and the mark that ends it. Returns False if the input ended first."""
        reader = self._reader
        span = Span(self._emitter, reader, "reasoning" if kind == "reasoning" else "content", lead, edge)
        answers = kind == "content"
        hit = yield from (self._answer(span) if answers else self._until(self._in_body, span))
        if hit is None:
            span.end(exact=answers and self._exact)
            return False
        span.end(exact=answers and self._exact)
        if hit == CUT:
            reader.take(reader.left, "marker")
            return False
        if hit in self._is_end.literals:
            reader.take(len(hit), marker)
        return True

    def _until(self, markers: Markers, span: Span) -> Gen[str | None]:
        """Read text up to a marker, and return that without consuming it. A message that the text quotes as code is
        text, with the mark that ends it."""
        reader, quotes = self._reader, False
        while True:
            hit = yield from reader.until(markers, span.write, cuts=True)
            begins_message, is_end = hit in (self._start, self._channel), hit in self._is_end.literals
            if not hit or not (begins_message or is_end):
                return hit
            is_quoted = (begins_message or quotes) and span.quotes_mark(hit)
            if not is_quoted and not (yield from self._shown.has_mark(span, hit, openers=self._to)):
                return hit
            quotes = begins_message
            span.write(reader.take(len(hit)))

    def _answer(self, span: Span) -> Gen[str | None]:
        """Read a body that is content, without the code fence around an answer that must be JSON."""
        reader = self._reader
        if (yield from reader.match(self._fence)):
            yield from reader.space()
        while True:
            hit = yield from self._until(self._in_answer, span)
            if hit not in self._fence.literals:
                return hit
            if (yield from self._closes(hit)):
                span.end("\n")
                reader.take(len(hit), "marker")
                yield from reader.space()
                return (yield from reader.starts(self._in_body))
            span.write(reader.take(len(hit)))

    def _closes(self, fence: str) -> Gen[bool]:
        """Whether only the message's end follows the fence at the front."""
        reader = self._reader

        def closes(text: str) -> bool | None:
            rest = text.lstrip()
            return True if reader.closed and not rest else begins(rest, self._in_body.literals)

        return (yield from reader.judged(closes, len(fence))) is True

    def _call(self, recipient: str) -> Gen[None]:
        """Read the arguments of a call: JSON, or raw code for a built-in that takes code."""
        reader = self._reader
        call = self._emitter.call(recipient.removeprefix(self._syntax.namespace), None)
        char = yield from reader.after_space()
        if not char:
            call.end("truncated")
            return
        if (yield from reader.starts(self._in_body)) is not None:
            call.end()
        elif char not in '{["' and recipient == call.name and self._takes_code(call.name):
            yield from raw_code(reader, call, "code", self._in_body)
        else:
            yield from self._arguments(call)
        hit = yield from reader.starts(self._is_end)
        if hit is not None:
            reader.take(len(hit), "marker")

    def _takes_code(self, name: str) -> bool:
        """Whether raw code can be a tool's arguments: a declared one must have that parameter."""
        tool = (self._emitter.tools or {}).get(name)
        return tool is None or "code" in Schemas(tool.parameters).names

    def _arguments(self, call: CallEmitter) -> Gen[None]:
        reader = self._reader
        read = self._json.unwrapped if reader.buffer[reader.pos] == '"' else self._json.value
        outcome = yield from read(call.write, "arguments")
        if outcome is Outcome.COMPLETE:
            yield from reader.space()
            if (yield from reader.more()) and (yield from reader.starts(self._in_body)) is None:
                outcome = Outcome.COMPLETE if reader.cut_marker(self._in_body) else Outcome.MALFORMED
        if outcome is not Outcome.MALFORMED:
            call.end(None if outcome is Outcome.COMPLETE else "truncated")
            return

        call.doubt()
        if (yield from reader.until(self._in_body, raw_writer(reader, call), cuts=True)) == CUT:
            reader.cut_marker(self._in_body)
        call.end("malformed")

    def _unparsed(self, raw: str) -> Gen[None]:
        """Read a message to a function, when calls are not allowed, as content, including its markup."""
        reader = self._reader
        span = Span(self._emitter, reader, "content")
        span.write(raw)
        hit = yield from reader.until(self._in_body, span.write, cuts=True)
        if hit in self._is_end.literals:
            span.write(reader.take(len(hit)))
        span.end()
        if hit == CUT:
            reader.take(reader.left, "marker")


def call_grammar(syntax: ChannelSyntax, tools: Sequence[Tool]) -> Node:
    """Returns the grammar of a message that calls one of the tools, including its header."""
    channel, to = syntax.channel + syntax.content[-1], f" {syntax.recipient}{syntax.namespace}"
    constrained = maybe(one_of(Marker(f" {syntax.constrain}json"), Words(" json")))

    def call(tool: Tool) -> Node:
        in_channel = in_order(Marker(channel + to), Words(tool.name))
        in_role = in_order(Marker(to), Words(tool.name), Marker(channel))
        return in_order(one_of(in_channel, in_role), constrained, Marker(syntax.message), JsonText(tool.parameters))

    return in_order(Marker(syntax.start + syntax.role), one_of(*map(call, tools)), Marker(syntax.call_end))


def answer_grammar(syntax: ChannelSyntax, answer: Node) -> Node:
    """Returns the grammar of a message to the user, including its header."""
    constrained = maybe(Marker(f" {syntax.constrain}json"))
    header = Marker(syntax.start + syntax.role + syntax.channel + syntax.content[0])
    return in_order(header, constrained, Marker(syntax.message), answer)


def reasoning_grammar(syntax: ChannelSyntax) -> Node:
    """Returns the grammar of the header of a reasoning message."""
    return Marker(syntax.start + syntax.role + syntax.channel + syntax.reasoning[0] + syntax.message)
