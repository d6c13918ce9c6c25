"""A section of calls: its markers, and the steps that all shapes share in reading one."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from engine.formats.families import MarkedSyntax, ToolSyntax
from engine.formats.grammar.schemas import Schemas
from engine.formats.parsing.argument_text import quoted
from engine.formats.parsing.emitter import CallEmitter, Emitter
from engine.formats.parsing.reader import CUT, FIRST_CONTROL, Gen, Mark, Markers, Reader, Spelling, begins, compiled

_NAME = re.compile(r"[\w.\-:/$@]+|[\"']")
_WORD = re.compile(r"[\"']?[\w.\-:/$@]+")
# The same for markup that escapes some characters as HTML does.
_ESCAPED_NAME = re.compile(r"[\w.\-:/$@&;]+|[\"']")
_ESCAPED_WORD = re.compile(r"[\"']?[\w.\-:/$@&;]+")
_ESCAPES = (("&quot;", '"'), ("&lt;", "<"), ("&gt;", ">"), ("&apos;", "'"), ("&amp;", "&"))
_WRAPPER = re.compile(r" ?\w{1,40}>\s*")
_MAYBE_WRAPPER = re.compile(r" ?\w{0,40}(?:>\s*)?")
_SPACE = re.compile(r"\s+")
_LONGEST_NAME = 160
"""In characters: a tool's name, and the prefix and the counter that make it an id."""
_BEHIND_OBJECT = frozenset("\r\n{[,;`<")


class _Names(NamedTuple):
    """How a syntax writes the names of tools: `end` ends one, and so do `others`; `prefix` is not part of it; `is_id`:
    with its prefix and a counter it is the call's id; `escaped`: HTML's escapes stand in it."""

    end: str = ""
    others: tuple[str, ...] = ()
    prefix: str = ""
    is_id: bool = False
    escaped: bool = False


def _names(syntax: ToolSyntax) -> _Names:
    match syntax.shape:
        case "tagged_json":
            others = (syntax.id_end, syntax.server_end[0], syntax.id_open)
            return _Names(syntax.name_end, others, syntax.name_prefix, syntax.name_is_id)
        case "tagged_args":
            # Models also break the line where the template writes nothing between a name and its arguments.
            others = (syntax.argument[0], syntax.call_empty)
            return _Names(syntax.name_end or "\n", others, escaped=syntax.escaped)
        case "json":
            return _Names(syntax.name_end, (syntax.id_open,))
        case "dictionary" | "nested":
            return _Names(syntax.name_end)
        case "pythonic":
            return _Names()


class CallMarks(NamedTuple):
    """The markers around a format's calls, by their texts.

    `openers` begin a section or, if calls may come without one, a call; `wrappers` are those that begin a call in
    reasoning too: where a section has markers, an opening without them does not. `closers` end a section or a call.
    """

    openers: Mapping[str, Mark] = {}
    wrappers: frozenset[str] = frozenset()
    closers: Markers = compiled()
    is_call: Markers = compiled()


def call_marks(syntax: ToolSyntax, spelling: Spelling) -> CallMarks:
    """Returns the markers around the calls of a syntax."""
    opening, closing = map(spelling.mark, syntax.section)
    marked = syntax if isinstance(syntax, MarkedSyntax) else None
    tag = marked.section_tag[0].strip() if marked else ""
    sections = (opening, *map(spelling.mark, syntax.section_also), Mark(opening.before, spelling.text(tag)))
    opens = [mark for mark in sections if mark.text]
    spellings = (marked.call[0], *marked.call_also) if marked else ()
    calls = [mark for mark in map(spelling.mark, spellings) if mark.text]
    if (marked and marked.section_optional) or not opens:
        # The white space that the template writes before a section also precedes a call without one.
        opens += [Mark(max(opening.before, mark.before, key=len), mark.text) for mark in calls]
    code = spelling.mark(syntax.code[0])
    openers = {mark.text: mark for mark in (*opens, code) if mark.text}
    unwrapped = {mark.text for mark in calls} if opening.text else set[str]()
    closers = compiled(closing.text, spelling.mark(syntax.call_marks[1]).text)
    return CallMarks(openers, frozenset(openers) - unwrapped, closers, compiled(*(mark.text for mark in calls)))


class Section:
    """The markers of one format's calls, and the steps that shapes share.

    `openers` are the texts that begin a section or, if calls may come without one, a call. `is_open`: a section was
    opened, and its closing marker has not come; `call_is_open`: the same for a call that has ended. `has_heading`: a
    heading announces each call.
    """

    def __init__(self, reader: Reader, emitter: Emitter, syntax: ToolSyntax, spelling: Spelling) -> None:
        self.reader = reader
        self.emitter = emitter
        self.syntax = syntax
        self.open, self.close = map(spelling.mark, syntax.section)
        self.call_open, self.call_close = map(spelling.mark, syntax.call_marks)
        self.code_open, self.code_close = map(spelling.mark, syntax.code)
        marked = None if syntax.shape == "json" or syntax.shape == "pythonic" else syntax
        tag = marked.section_tag if marked else ("", "")
        self.tag_open, self.tag_close = map(spelling.text, map(str.strip, tag))
        self.has_heading = marked is not None and marked.heading[0] != ""
        self.hard = spelling.hard
        self.is_open = self.call_is_open = False
        self.openers, self.wrappers, self.closers, self.is_call = call_marks(syntax, spelling)
        self._behind_object = frozenset(
            [*_BEHIND_OBJECT, *(text[0] for text in (*self.closers.literals, *self.openers))]
        )
        self.inside = compiled(*self.closers.literals, *self.is_call.literals, self.tag_close)
        self.names = names = _names(syntax)
        self._whole = marked is None
        self._is_json = syntax.shape == "json"
        # The older syntax of the same models: objects after the same marker.
        self._has_older = syntax.shape == "tagged_json" and syntax.id_open != ""
        self._name = _ESCAPED_NAME if names.escaped else _NAME
        self._word = _ESCAPED_WORD if names.escaped else _WORD
        self._is_close = compiled(self.close.text)
        self._is_call_close = compiled(self.call_close.text)
        self._is_tag_close = compiled(self.tag_close)
        self._resume = compiled(self.close.text, *self.openers, *self.is_call.literals)
        self._code_end = compiled(self.code_close.text)
        self._control = frozenset(spelling.characters.values())
        # A marker of only white space is used as it is: Functionary ends a name with a newline.
        self.name_end = spelling.word(names.end)
        ends = [text for text in (self.name_end, *map(spelling.word, names.others)) if text]
        self.name_ends = ["(", *ends] if self._whole else ["(", "{", *ends, *self.closers.literals]

    def closed(self) -> Gen[bool]:
        """Consume the section's closing marker, under whatever name, if it is at the front."""
        if not self.close.text:
            return False
        if (yield from self.reader.match(self._is_close)):
            self.is_open = self.call_is_open = False
            return True
        return bool(self.tag_close) and (yield from self._tag_closed())

    def _tag_closed(self) -> Gen[bool]:
        reader = self.reader
        if (yield from reader.starts(self._is_tag_close)) is None:
            return False

        def size(rest: str) -> int | None:
            if (tag := _WRAPPER.match(rest)) is not None:
                return rest.index(">", 0, tag.end()) + 1
            return None if _MAYBE_WRAPPER.fullmatch(rest) else 0

        name = yield from reader.judged(size, len(self.tag_close))
        if name is None and reader.cut:
            reader.take(reader.left, "marker")
            return True
        if name:
            reader.take(len(self.tag_close) + name, "marker")
        return bool(name)

    def tag_opened(self) -> Gen[None]:
        """Consume the rest of an opening marker with another name, which `begins` has seen, complete or cut off."""
        reader = self.reader
        end = reader.buffer.find(">", reader.pos)
        reader.take(reader.left if end < 0 else end + 1 - reader.pos, "marker")
        yield from reader.space()

    def opened_again(self, opener: str) -> Gen[None]:
        """Consume the same opening marker where a model has doubled it."""
        again = compiled(opener)
        while True:
            yield from self.reader.space("marker")
            if not (yield from self.reader.match(again)):
                return

    def object_ends(self, *, listed: bool = False, bare: bool = False) -> Gen[bool]:
        """Whether the text behind an object, and superfluous brackets, can stand there: another line, a marker, or
        punctuation of JSON. If not, a quote inside a string has cut the object short. Where no marker ends a call, any
        text may follow, unless the object is one of a list (`listed`). Where none begins one (`bare`), no sentence goes
        on behind it."""
        free = not (self.closers.literals or listed)

        def stands(text: str) -> bool | None:
            rest = text.lstrip(" \t")
            if rest.startswith(self.closers.literals) or (rest.startswith("]") and (free or listed)):
                return True
            head = rest.lstrip(" \t}]")[:1]
            if not head:
                return None
            goes_on = bare and rest != text and head.isalnum()
            known = head in self._behind_object or head >= chr(FIRST_CONTROL)
            return known or (free and not goes_on and rest[0] not in '"\\}')

        return (yield from self.reader.judged(stands)) is not False

    def superfluous(self, ends: Iterable[str]) -> Gen[None]:
        """Consume brackets that close nothing before one of the ends, another opening, or the end of the output."""
        reader = self.reader
        known = [end for end in (*ends, *self.openers) if end]

        def size(rest: str) -> int | None:
            tail = rest.lstrip("}] \n\t")
            if rest.lstrip()[:1] not in ("}", "]") and rest.strip():
                return 0
            if tail or not reader.closed:
                before = begins(tail, known)
                return None if before is None else before and len(rest) - len(tail)
            return len(rest)

        reader.take((yield from reader.judged(size)) or 0, "marker")

    def followed(self, marker: str, follows: tuple[str, ...], *, at_end: bool = True) -> Gen[bool]:
        """Whether one of the texts, or the end of the input (`at_end`), follows the marker at the front and white
        space."""
        reader = self.reader
        found = yield from reader.judged(lambda rest: begins(rest.lstrip(), follows), len(marker))
        return found or (found is None and at_end and reader.closed)

    def ends_all(self, marker: str, between: str = "") -> Gen[bool]:
        """Whether the section's closing marker follows the marker at the front (and `between`), and then another call
        or the end of the output."""
        reader = self.reader

        def all_ended(text: str) -> bool | None:
            behind = text.lstrip()
            for closer in filter(None, (between, self.close.text)):
                if not behind.startswith(closer):
                    return None if closer.startswith(behind) and not reader.closed else False
                behind = behind.removeprefix(closer).lstrip()
            return True if reader.closed and not behind else begins(behind, self.openers)

        return (yield from reader.judged(all_ended, len(marker))) is True

    def call_closed(self) -> Gen[bool]:
        """Consume the call's closing marker if it is at the front."""
        if not self.call_close.text:
            return False
        closed = yield from self.reader.match(self._is_call_close)
        self.call_is_open = not closed
        return closed

    def owes(self, closer: str) -> bool:
        """Whether the closing marker of a section or call has not come yet, since other text stands before it."""
        return (self.is_open and closer == self.close.text) or (self.call_is_open and closer == self.call_close.text)

    def rest_is_malformed(self, call: CallEmitter, *stops: str) -> Gen[None]:
        """Write the following text unchanged into the call's arguments, up to a marker at which reading can resume, and
        end the call as malformed."""
        reader = self.reader
        if not self._is_json or reader.buffer.startswith(self.hard, reader.pos):
            call.doubt()  # other calls need quotation marks, which would have closed the string
        markers = compiled(*self._resume.literals, *stops)
        write = raw_writer(reader, call)
        hit = yield from reader.until(markers, write, cuts=True)
        while hit and hit == self.tag_open and not (yield from self.begins(hit)):
            write(reader.take(len(hit)))
            hit = yield from reader.until(markers, write, cuts=True)
        if hit == CUT:
            reader.cut_marker(markers)
        call.end("malformed")

    def no_call(self) -> Gen[bool]:
        """Make a malformed call without a name of the text that stands in place of a call. Returns False, without a
        call, if a marker at which reading can resume is at the front (not consumed), or the output was cut off too
        early to decide."""
        reader = self.reader
        if (yield from reader.starts(self._resume)) is not None or reader.cut_marker(self._resume):
            return False
        if reader.closed and reader.cut and self._word.fullmatch(reader.buffer, reader.pos):
            reader.take(reader.left, "name")
            return False
        yield from self.rest_is_malformed(self.emitter.call("", None))
        return True

    def name(self, ends: Markers, called: str = "") -> Gen[str | None]:
        """Consume and return a function's name (or an id), up to one of the ends (not consumed).

        Returns None if there is none. The text in its place then becomes a malformed call (of `called`, if this is its
        id), unless the output was cut off here.
        """
        reader = self.reader
        parts: list[str] = []
        yield from reader.space()
        while (yield from reader.starts(ends)) is None:
            run = self._name.match(reader.buffer, reader.pos)
            room = _LONGEST_NAME - sum(map(len, parts))
            if run is not None and room > 0:
                parts.append(reader.take(min(run.end() - reader.pos, room), "name"))
                continue
            parts.append((yield from self._space()))
            if (yield from reader.more()) and (yield from reader.starts(ends)) is not None:
                break
            if reader.cut and begins(reader.buffer[reader.pos :], ends.literals) is None:
                reader.take(reader.left, "name")  # the beginning of an end marker
                return None
            if reader.left or not reader.cut:
                if self._broke_off(self._written(parts), ends):
                    return None
                call = self.emitter.call(self.emitter.declared(called), None)
                call.write(reader.plain("".join(parts)))
                yield from self.rest_is_malformed(call, *self.closers.literals)
            return None
        return self._written(parts)

    def _broke_off(self, written: str, ends: Markers) -> bool:
        """Whether the output ended in a declared name, which may be the beginning of another, or in the mark behind it:
        a truncated call, then."""
        reader = self.reader
        if not reader.closed or begins(reader.buffer[reader.pos :], ends.literals) is not None:
            return False
        name, id_ = self._resolved(written.rstrip(":"), None, None)
        if not self._is_declared(name):
            return False
        reader.take(reader.left, "name")
        self.emitter.call(name, id_).end("truncated")
        return True

    def _written(self, parts: Iterable[str]) -> str:
        """Returns a name as written, without quotes around it."""
        return self.unescaped(self.reader.plain("".join(parts)).strip().strip("\"'"))

    def unescaped(self, text: str) -> str:
        """Returns a name or key with escapes decoded, if the family escapes them."""
        if self.names.escaped and "&" in text:
            for escape, character in _ESCAPES:
                text = text.replace(escape, character)
        return text

    def _is_declared(self, name: str) -> bool:
        return name in (self.emitter.tools or {})

    def _space(self) -> Gen[str]:
        """Consume and return white space inside a name."""
        return (yield from self.reader.all_of(_SPACE, "name"))

    def begins(self, opener: str) -> Gen[bool]:
        """Whether a call can follow the opener at the front, so that prose about markers stays prose. Consumes nothing.

        A control token always begins one, since it cannot occur in prose.
        """
        if any(char in self._control for char in opener):
            return True
        reader = self.reader
        found = yield from reader.judged(lambda rest: self.would_begin(opener, rest), len(opener))
        if found is not None or not reader.closed:
            return found is True
        rest = reader.buffer[reader.pos + len(opener) :]
        return reader.cut or self._is_declared(rest.strip().strip("\"'"))

    def would_begin(self, opener: str, rest: str) -> bool | None:
        """Whether this text behind an opener begins a call; None while it is too short to tell."""
        text = rest.lstrip()
        if not text:
            return None
        if text.startswith(opener):
            return self.would_begin(opener, text[len(opener) :])  # the marker stands twice
        if opener.startswith(text):
            return None
        if opener == self.code_open.text:
            return True
        if opener == self.tag_open:
            return self._begins_tag(rest)
        whole = self._whole
        if whole or opener not in self.is_call.literals:
            inside = [self.close.text] if whole else [*self.is_call.literals, self.close.text]
            fence = ["```"] if self._is_json and self.close.text else []
            found = begins(text, ["{", "[", *fence, *inside])
            if found is not False or not whole:
                return found
        return True if self._has_older and text[0] in "[{" else self._would_name(text)

    def _would_name(self, text: str) -> bool | None:
        """Whether the text begins with a name and what ends one; None while it is too short to tell."""
        if text in ('"', "'"):
            return None
        name = self._word.match(text)
        if name is None or name.end() > _LONGEST_NAME:
            return False
        behind = text[name.end() :]
        if not behind:
            return None
        for shorter in (behind, behind.lstrip(), behind.lstrip("\"'")):
            found = begins(shorter, self.name_ends) if shorter else None
            if found is not False:
                return found
        return False

    def _begins_tag(self, rest: str) -> bool | None:
        """Whether a tag name other than the section's, and then a call, follow; None: undecided."""
        tag = _WRAPPER.match(rest)
        if tag is None:
            return None if _MAYBE_WRAPPER.fullmatch(rest) else False
        behind = rest[tag.end() :]
        call = next((opener for opener in self.is_call.literals if behind.startswith(opener)), None)
        if call is not None:
            return self.would_begin(call, behind[len(call) :])
        return begins(behind, self.is_call.literals)

    def begin(self, written: str, id_: str | None = None, server: str | None = None) -> CallEmitter:
        """Begin a call by its name as written."""
        name, id_ = self._resolved(written, id_, server)
        return self.emitter.call(name, id_)

    def _resolved(self, written: str, id_: str | None, server: str | None) -> tuple[str, str | None]:
        """Returns the name and the id of a name as written, without the prefix and the counter, if the family writes
        them. A tool may be declared as `server_name`, which the family's prompts split."""
        name = written.removeprefix(self.names.prefix)
        if server and not self._is_declared(name) and self._is_declared(f"{server}_{name}"):
            name = f"{server}_{name}"
        if self.names.is_id:
            id_ = id_ or (written if name != written or ":" in name else None)
            stem, _, counter = name.rpartition(":")
            name = stem if stem and counter.isdigit() else self._from_rewritten(name)
        return self.emitter.declared(name), id_

    def _from_rewritten(self, name: str) -> str:
        """Returns the declared tool in an id whose punctuation a client replaced, which models copy from the
        conversation: `functions_look_0`."""
        prefix = re.sub(r"\W", "_", self.names.prefix)
        found = re.fullmatch(rf"(?:{prefix})?(.+)_\d+", name)
        return found[1] if found and not self._is_declared(name) and self._is_declared(found[1]) else name

    def schemas(self, name: str) -> Schemas:
        """Returns the schemas of a tool's parameters."""
        tool = (self.emitter.tools or {}).get(name)
        return Schemas(tool.parameters if tool else None)

    def code(self) -> Gen[str]:
        """Read raw code for `python`, after its opening mark. Returns the white space after the closing one."""
        call = self.emitter.call("python", None)
        yield from self.raw_code(call, self._code_end)
        if self.code_close.text:
            yield from self.reader.match(self._code_end)
        return self.code_close.after

    def raw_code(self, call: CallEmitter, ends: Markers) -> Gen[None]:
        """Read raw code as a call's argument `{"code": ..}`; the key is the tool's parameter if it has only one."""
        yield from raw_code(self.reader, call, self.schemas(call.name).only() or "code", ends)


class Items:
    """The brackets of a list, and the separators, around the calls of a section. `listed`: the next call is one of a
    list; `over`: the last bracket ended one; `some`: a call or a list came before."""

    def __init__(self, reader: Reader, separators: str) -> None:
        self._reader = reader
        self._separators = separators
        self.listed = self.over = self.some = False

    def take(self, char: str) -> bool:
        """Consume the character at the front, if it is such a bracket or separator."""
        begins_list = char == "[" and not (self.listed or self.some)
        self.over = char == "]" and self.listed
        if begins_list or self.over:
            self.listed, self.some = begins_list, self.over
        elif not self.some or char not in self._separators:
            return False
        self._reader.take(1, "marker")
        return True


def raw_writer(reader: Reader, call: CallEmitter) -> Callable[[str], None]:
    """Returns a function that writes text unchanged into the call's arguments, which are malformed."""

    def write(text: str) -> None:
        reader.note("malformed", text)
        call.write(reader.plain(text))

    return write


def raw_code(reader: Reader, call: CallEmitter, key: str, ends: Markers) -> Gen[None]:
    """Read raw code, up to one of the ends, as the call's only argument, and end the call."""
    call.write(f'{{"{quoted(key)}": "')

    def write(text: str) -> None:
        reader.note("arguments", text)
        call.write(quoted(reader.plain(text)))

    hit = yield from reader.until(ends, write, cuts=True)
    if hit == CUT:
        reader.cut_marker(ends)
    if not hit and reader.cut:
        call.end("truncated")
        return
    call.write('"}')
    call.end()
