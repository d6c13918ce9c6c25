"""Derives a `Format` for a template of no known family by comparing renders; accepted only if it round-trips."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, product
from typing import Any, NamedTuple, TypeAlias

from engine.formats.families import Format, MarkedSyntax, ReasoningSyntax, TaggedArgumentsSyntax, WholeSyntax
from engine.formats.parsing import Parser
from engine.formats.template.capabilities import Capabilities
from engine.formats.template.derive.call_syntax import LONGEST_MARK, Bodies, described, guesses
from engine.formats.template.derive.channel_turns import channelled
from engine.formats.template.derive.probes import (
    BOTH,
    FIRST,
    HARD,
    IDS,
    NAME,
    SAID,
    SECOND,
    TAG,
    TOOL,
    VALUES,
    WHY,
    Turns,
    brief_turns,
    common_end,
    turns_of,
)
from engine.formats.template.env import Template
from engine.formats.template.generic import written
from engine.formats.template.prompt import common
from engine.types.events import fold
from engine.types.parts import ToolCall

_ATOM = re.compile(TAG.pattern + r"|\s+|\w+|.")
_NET = "think"
_MOST = 16
"""The most formats without calls that are tried with calls; far more than any template needed."""
_MOST_TRIES = 1000
"""The most formats without calls that are tried at all; a known template needed at most 195."""
Read: TypeAlias = "tuple[str, str, list[tuple[str, Any]]]"
"""Reasoning, content, calls (each a name, and the arguments or the call's error)."""


@dataclass(frozen=True, slots=True)
class Derivation:
    """A format, and descriptions of what is missing: what the template does not show, or what no guess could read."""

    format: Format | None
    missing: tuple[str, ...] = ()


def derivation(template: Template, fixed: Mapping[str, str], can: Capabilities) -> Derivation:
    """Returns the template's format; None if no guess reads the template's own renders back. If only the calls cannot
    be read back, the format has no tools."""
    turns = turns_of(template, fixed, can)
    if turns is None:
        return Derivation(None, ("it does not show an answer",))
    missing = () if turns.one else ("it does not show calls",)
    if not (turns.field or turns.gate):
        missing += ("it does not read reasoning",)
    channels = channelled(turns)
    if channels is not None and _reads_answers(channels, turns) and _reads_calls(channels, turns, can):
        return Derivation(channels, missing)
    first: Format | None = None
    for plain in islice(_plain(turns, fixed.get("eos_token", "")), _MOST if turns.one else 1):
        first = first or plain
        found = next((each for each in _with_calls(plain, turns) if _reads_calls(each, turns, can)), None)
        if found is not None:
            stopped = _with_stop(found, turns)
            return Derivation(stopped if _reads_calls(stopped, turns, can) else found, missing)
    if first is not None and not turns.one and turns.statement:
        formats = (first.model_copy(update={"tools": tools}) for tools in described(turns.statement))
        return Derivation(next(filter(_reads_written, formats), first), missing)
    unread = "answers" if first is None else "calls" if turns.one else ""
    return Derivation(first, (*missing, f"no guess reads its {unread} back") if unread else missing)


def _plain(turns: Turns, eos: str) -> Iterator[Format]:
    """Yields formats without calls that read answers and reasoning back, the most likely first."""
    for start, opening, closing, end, reasoning in islice(_marks(turns), _MOST_TRIES):
        marks = (start, opening, closing, reasoning.open, reasoning.close)
        ended = _ended(end, turns, eos)
        if max(map(len, (*marks, *ended["stops"], *ended["ends"]))) <= LONGEST_MARK:
            format_ = Format(start=start, reasoning=reasoning, content=(opening, closing), **ended)
            yield from (each for each in (*_in_messages(format_), format_) if _reads_answers(each, turns))


def _in_messages(format_: Format) -> Iterator[Format]:
    """Yields the format of a turn of several messages, if the start of the next one follows reasoning: the marker
    before that ends each of them, an answer's too."""
    reasoning, start = format_.reasoning, format_.start.strip()
    opening, closing = format_.content
    end = reasoning.close.strip().removesuffix(start) if reasoning and start else ""
    if reasoning is not None and opening and not closing and TAG.fullmatch(end) and end != reasoning.close.strip():
        one = reasoning.model_copy(update={"close": end})
        yield format_.model_copy(update={"reasoning": one, "content": (opening, end)})


def _marks(turns: Turns) -> Iterator[tuple[str, str, str, str, ReasoningSyntax]]:
    """Yields candidates: the start of a turn, the opening and closing of an answer, the end of the turn, and
    reasoning."""
    for reasoning in _reasonings(turns):
        for start, (opening, closing, end) in product(_starts(turns, reasoning), _ends(turns, reasoning)):
            yield start, opening, closing, end, reasoning


def _starts(turns: Turns, reasoning: ReasoningSyntax) -> list[str]:
    """Returns candidates for the start of a turn: the generation prompt without the marks of reasoning."""
    head = turns.said.partition(SAID)[0]
    start = turns.prompt or _to_tag(head[: common(head, turns.one)])
    for mark in (reasoning.open.strip(), reasoning.close.strip()):
        start = start.partition(mark)[0]
    shared = _to_tag(start[: common(start, head)]) if turns.prompt else start
    found = dict.fromkeys([start, shared, re.sub(r"(?<=\s)[^\w\s]+\Z", "", start)])
    return [start for start in found if len(start) <= LONGEST_MARK]


def _ends(turns: Turns, reasoning: ReasoningSyntax) -> Iterator[tuple[str, str, str]]:
    """Yields candidates for the opening and closing of an answer and the end of the turn; first those that also end
    turns with calls."""
    head, _, tail = turns.said.partition(SAID)
    yield "", "", tail
    places = {0, len(tail), *(match.start() for match in TAG.finditer(tail))}
    calls = turns.one.rstrip()
    shared = {tail[place:]: calls.endswith(tail[place:].strip()) for place in sorted(places)}
    for start in _starts(turns, reasoning):
        shown = _read(Format(start=start, reasoning=reasoning), head + SAID)[1]
        opening = shown.partition(SAID)[0].lstrip()
        found = [(opening, tail[: len(tail) - len(end)], end) for end in shared] if opening else []
        yield from sorted(found, key=lambda each: (_rank(each[2], shared), abs(_atoms(each[0]) - _atoms(each[1]))))


def _rank(end: str, shared: Mapping[str, bool]) -> int:
    """Rank an end: best is one that turns with calls share, worst one that they lack."""
    return 1 if not end else 0 if shared[end] else 2


def _ended(end: str, turns: Turns, eos: str) -> dict[str, Any]:
    """Returns what ends a turn: the first marker after an answer after which no turn continues; text before it is
    written by the model. If nothing follows, the next message's first marker, or the vocabulary's end of text."""
    marks = list(TAG.finditer(end)) or list(re.finditer(r"\S+", end))
    for mark in marks:
        if not any(
            _goes_on(turn.partition(mark.group())[2]) for turn in (turns.why, turns.why_one, turns.one, turns.two)
        ):
            before = end[: mark.start()].strip()
            return {"stops": (mark.group(),), "ends": (before,) if before else ()}
    next_ = TAG.match(turns.ended.lstrip()) if not end else None
    stop = next_.group() if next_ and not _goes_on(turns.why.partition(next_.group())[2]) else eos
    return {"stops": (stop,) if stop else (), "ends": (end.strip(),) if end.strip() else ()}


def _goes_on(rest: str) -> bool:
    """Whether a text contains any probe's text."""
    return any(probe in rest for probe in (SAID, WHY, NAME, *VALUES))


def _reasonings(turns: Turns) -> Iterator[ReasoningSyntax]:
    """Yields candidates for the marks of reasoning: those in the turns, else in the prompts with reasoning on and off,
    else the tags at which the template cuts, and as a last resort the tags that most models write."""
    if turns.field:
        for turn, base in ((turns.why, turns.said), (turns.why_one, turns.one)):
            for opening, closing in _pairs(turn, base, turns.prompt) if turn else ():
                yield _reasoning(turns, opening, closing, history=turns.history, fields=(turns.field,))
        return
    more: dict[str, Any] = {"history": "none", "fields": ("",)} if turns.cut else {"history": "unknown", "fields": ()}
    if (pair := _switched(turns.on, turns.off)) is not None:
        yield _reasoning(turns, *pair, **more)
    if turns.cut:
        yield _reasoning(turns, turns.cut.replace("/", "") + "\n", f"\n{turns.cut}\n\n", **more)
    if turns.gate is None:
        more |= {"off": "nothing", "assumed": not turns.cut}
    yield _reasoning(turns, f"<{_NET}>\n", f"\n</{_NET}>\n\n", **more)


def _reasoning(turns: Turns, opening: str, closing: str, **more: Any) -> ReasoningSyntax:
    forced = (turns.on or turns.prompt).rstrip().endswith(opening.rstrip())
    if opening.endswith("\n") and closing == closing.strip():
        closing = f"\n{closing}\n\n"  # white space that is absent does not matter
    if turns.gate is not None:
        more["off"] = "gate"
    return ReasoningSyntax(open=opening, close=closing, forced_open=forced, gate=turns.gate, **more)


def _pairs(turn: str, base: str, prompt: str) -> list[tuple[str, str]]:
    """Returns candidates for the marks around reasoning in a turn; `base` is the same turn without reasoning.

    First the tag next to it, then what the turn adds to its base, then growing numbers of tags, similar pairs first.
    """
    head, _, rest = turn.partition(WHY)
    rest = re.split(f"{SAID}|{NAME}", rest)[0]
    shown = base[: common(base, head)]
    asked = prompt[common(prompt, head) :]
    atoms, after = _ATOM.findall(head), _ATOM.findall(rest)
    near = [i for i in range(len(atoms) - 1, -1, -1) if TAG.fullmatch(atoms[i])][:1]
    openings = ["".join(atoms[near[0] :])] if near and len("".join(atoms[near[0] :]).split()) == 1 else []
    openings += [head[len(_to_tag(shown)) :], asked]
    openings += ["".join(atoms[-count:]) for count in range(1, 6)]
    shared = common_end(rest, re.split(f"{SAID}|{NAME}", base)[0])
    tag = TAG.search(shared)
    closings = [rest.removesuffix(shared[tag.start() :]) if tag else rest, rest]
    closings += ["".join(after[:count]) for count in range(1, 7)]
    likely = [pair for pair in product(openings[:3], closings[: 2 if SAID in turn else 1]) if pair[0].strip()]
    pairs = [pair for pair in product(openings, closings) if TAG.search(pair[0])]
    ranked = dict.fromkeys([*likely, *sorted(pairs, key=_unlikeness)])
    return [(one, other) for one, other in ranked if TAG.search(other) and one.strip() != other.strip()]


def _unlikeness(pair: tuple[str, str]) -> tuple[bool, int, int]:
    """Returns a sort key for how unlikely two texts are as a pair of markers: without tags at their edges, with
    different numbers of words and tags; shorter ones first."""
    opening, closing = (text.strip() for text in pair)
    edged = TAG.match(opening) and TAG.match(closing) and closing[-1] in ">]"
    return not edged, abs(_atoms(opening) - _atoms(closing)), len(opening + closing)


def _atoms(text: str) -> int:
    return sum(not atom.isspace() for atom in _ATOM.findall(text))


def _switched(on: str, off: str) -> tuple[str, str] | None:
    """Returns the marks of reasoning from the prompts with it on and off: an open block, and an empty or closed one."""
    shared = _to_tag(on[: common(on, off)])
    opened, closed = on[len(shared) :], off[len(shared) :]
    tags = [match.group() for match in TAG.finditer(closed)]
    if not opened and len(tags) == 2:  # the model opens reasoning itself
        first, second = (closed.index(tag) for tag in tags)
        space = closed[first + len(tags[0]) : second]
        after = "\n" if space.isspace() else ""
        return closed[first : first + len(tags[0])] + after, space.removeprefix(after) + closed[second:]
    if opened and len(tags) == 1:
        return opened, closed
    found = re.search(rf"({TAG.pattern})\s*$", on)
    if not opened and len(tags) == 1 and found is not None:
        return found.group(), closed
    return None


def _to_tag(text: str) -> str:
    """Returns the text without an incomplete tag at its end."""
    place = text.rfind("<")
    return text[:place] if place >= 0 and ">" not in text[place:] else text


def _with_calls(format_: Format, turns: Turns) -> Iterator[Format]:
    """Yields the format with each candidate for the syntax of its calls, with and without a heading that names the
    function."""
    for headed, heading in _headings(format_, turns):
        one, two, both, hard, beside = (
            (_read(headed, turn)[1] if turn else "").replace(heading or "\0", "")
            for turn in (turns.one, turns.two, turns.both, turns.hard, turns.beside)
        )
        after = beside.partition(SAID)[2]
        lead = after[: len(after) - len(after.lstrip())] if after.lstrip()[:1] == one.lstrip()[:1] else ""
        last = next((turns.one.partition(stop)[0] for stop in headed.stops if stop in turns.one), turns.one)
        more = (lead if beside else None, last[len(last.rstrip()) :], turns.answered)
        reasoning = headed.reasoning
        if reasoning and turns.why_one and reasoning.close.strip() not in turns.why_one:
            reasoning = reasoning.model_copy(update={"ends_on_call": True})
        for tools in guesses(Bodies(one, two, both, hard, *more)):
            if heading and isinstance(tools, MarkedSyntax):  # without it, markup is quoted text
                announced = tools.model_copy(update={"heading": headed.header})
                yield headed.model_copy(update={"tools": announced, "reasoning": reasoning})
            yield headed.model_copy(update={"tools": tools, "reasoning": reasoning})


def _reads_written(format_: Format) -> bool:
    """Whether the parser reads calls back that are written as the format says."""
    assert format_.tools is not None
    calls = [
        ToolCall(id=id_, name=NAME, arguments=json.dumps(each)) for id_, each in zip(IDS, (HARD, BOTH), strict=True)
    ]
    whole = _read(format_, SAID + written(calls, format_.tools))
    return whole == ("", SAID, [(NAME, HARD), (NAME, BOTH)])


def _headings(format_: Format, turns: Turns) -> Iterator[tuple[Format, str]]:
    """Yields the format without and with a heading before its calls, each with the text that begins a further
    message."""
    yield format_, ""
    one = turns.one.removeprefix(format_.start)
    before, _, rest = one.partition(NAME)
    tag = TAG.match(rest)
    if tag and NAME in rest and before.strip():
        heading = format_.start + before + NAME + tag.group()
        yield format_.model_copy(update={"header": (before, tag.group())}), heading


def _with_stop(format_: Format, turns: Turns) -> Format:
    """Returns the format with the stop of turns with calls, if it is another one: a marker after calls without a
    section, the first marker between a call and its result, or the section's closing marker."""
    tools = format_.tools
    if tools is None or not turns.answered:
        return format_
    opening, closing = (mark.strip() for mark in tools.section)
    if closing and not opening and not (isinstance(tools, WholeSyntax) and tools.bare):
        bare = tools.model_copy(update={"section": ("", "")})
        return format_.model_copy(update={"tools": bare, "stops": (*format_.stops, closing)})
    rest = turns.answered
    inner = tools.argument[1] if isinstance(tools, TaggedArgumentsSyntax) else ""
    for mark in (inner, tools.call_marks[1], tools.section[1]):
        place = rest.find(mark.strip())
        rest = rest[place + len(mark.strip()) :] if place >= 0 else rest
    found = TAG.match(rest.lstrip())
    for stop in (found.group() if found else "", closing):
        turn = (each.removeprefix(format_.start) for each in (turns.why, turns.why_one, turns.two))
        if TAG.fullmatch(stop) and not any(_goes_on(each.partition(stop)[2]) for each in turn):
            if stop in format_.stops:
                return format_
            return format_.model_copy(update={"stops": (*format_.stops, stop)})
    return format_


def _reads_answers(format_: Format, turns: Turns) -> bool:
    """Whether the parser reads the turns without calls back as the original messages."""
    said = _read(format_, turns.said)
    if said != ("", SAID, []) and not _left_open(format_, turns, said):
        return False
    return not turns.why or (WHY, SAID, []) in (_read(format_, turns.why), _read_asked(format_, turns, turns.why))


def _left_open(format_: Format, turns: Turns, said: Read) -> bool:
    """Whether the template's own answers are inside reasoning that its prompt opens and nothing closes."""
    syntax = format_.reasoning
    opened = syntax is not None and syntax.forced_open and turns.said.startswith(turns.prompt)
    return opened and (said[0].strip(), *said[1:]) == (SAID, "", []) and not turns.why


def _reads_calls(format_: Format, turns: Turns, can: Capabilities) -> bool:
    """Whether the parser reads the turns with calls back as the original messages."""
    opened = turns.prompt and _left_open(format_, turns, _read(format_, turns.said))
    wanted = [shown for shown in shown_turns(turns, can) if shown.read[2] and not (opened and shown.read[1])]
    return all(shown.read in readings(format_, turns, shown) for shown in wanted)


def reads_back(format_: Format, template: Template, fixed: Mapping[str, str], can: Capabilities) -> bool:
    """Whether a format reads the template's own turns: a call as that call, reasoning as such; where no call is shown,
    an answer as content (or as reasoning, where the format's turns begin in it). A template that shows no turn tells
    nothing."""
    turns = brief_turns(template, fixed, can)
    if turns is None:
        return True
    syntax = format_.reasoning
    begins = syntax is not None and (syntax.implicit or syntax.forced_open)
    for shown in shown_turns(turns, can):
        found = [(reasoning.strip(), content, calls) for reasoning, content, calls in readings(format_, turns, shown)]
        if shown.read[2]:
            fits = any(calls == shown.read[2] for _, _, calls in found)
        elif shown.read[0]:
            fits = any(reasoning == WHY and content.endswith(SAID) for reasoning, content, _ in found)
        else:
            fits = bool(turns.one) or shown.read in found or (begins and found[0] == (SAID, "", []))
        if not fits:
            return False
    return True


class ShownTurn(NamedTuple):
    """A turn as the template writes it, and the message that was rendered: its reasoning, content and calls."""

    label: str
    turn: str
    read: Read


def shown_turns(turns: Turns, can: Capabilities) -> Iterator[ShownTurn]:
    """Yields the probes' turns that the template shows, with calls and without."""
    one: list[tuple[str, object]] = [(NAME, FIRST)]
    two: list[tuple[str, object]] = [*one, (NAME, SECOND)]
    all_: list[tuple[str, str, str, str, list[tuple[str, object]]]] = [
        ("an answer", turns.said, "", SAID, []),
        ("reasoning and an answer", turns.why, WHY, SAID, []),
        ("a call", turns.one, "", "", one),
        ("a call with values of several kinds", turns.hard, "", "", [(NAME, HARD)]),
        ("a call with two arguments", turns.both, "", "", [(NAME, BOTH)]),
        ("two calls", turns.two if can.parallel_calls else "", "", "", two),
        ("an answer and a call", turns.beside if _answers_first(turns) else "", "", SAID, one),
        ("reasoning and a call", turns.why_one, WHY if WHY in turns.why_one else "", "", one),
    ]
    for label, turn, why, said, calls in all_:
        if turn:
            yield ShownTurn(label, turn, (why, said, calls))


def _answers_first(turns: Turns) -> bool:
    return turns.beside.find(SAID) < turns.beside.find(NAME)


def readings(format_: Format, turns: Turns, shown: ShownTurn) -> tuple[Read, ...]:
    """Returns what the parser reads in a turn; if that holds reasoning, also behind the prompt, which may begin it."""
    whole = _read(format_, shown.turn)
    return (whole, _read_asked(format_, turns, shown.turn)) if shown.label.startswith("reasoning") else (whole,)


def stripped(read: Read) -> Read:
    """Returns what was read without the white space around its texts, which depends on the template."""
    return read[0].strip(), read[1].strip(), read[2]


def _read_asked(format_: Format, turns: Turns, turn: str) -> Read:
    """Parse a turn whose beginning the prompt writes and the history omits."""
    return _read(format_, turns.prompt + turn.removeprefix(format_.start))


def _read(format_: Format, turn: str) -> Read:
    for stop in format_.stops:
        ends = (match.start() for match in re.finditer(re.escape(stop), turn))
        turn = turn[: next((end for end in ends if not _goes_on(turn[end:])), len(turn))]
    parser = Parser(format_, tools=[TOOL] if format_.tools else None)
    completion = fold([*parser.feed(turn), *parser.close()])
    calls: list[tuple[str, object]] = [
        (call.name, call.error or json.loads(call.arguments)) for call in completion.tool_calls
    ]
    return completion.reasoning, completion.content.strip(), calls
