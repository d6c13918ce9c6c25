"""Guesses the syntax of calls in a template's turns from where the probes' texts occur in them."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from engine.formats.families import ToolSyntax
from engine.formats.template.derive.probes import IDS, KEYS, NAME, NUMBER, TAG, VALUES, common_end
from engine.formats.template.prompt import common
from engine.types.conversation import as_mapping

LONGEST_MARK = 200
"""The longest plausible marker, in characters: a longer one is ordinary text."""


@dataclass(frozen=True, slots=True)
class Bodies:
    """The part of each turn that contains calls: one call, two calls, one with two arguments, one whose arguments are
    hard to quote. `lead` is the white space between an answer's text and a call after it (None: the template shows no
    such turn), `trail` that between the last call and the end of the turn; `answered` follows the last argument of a
    call that has a result, and may show its id."""

    one: str
    two: str
    both: str
    hard: str
    lead: str | None = ""
    trail: str = ""
    answered: str = ""


def guesses(bodies: Bodies) -> Iterator[ToolSyntax]:
    """Yields the syntaxes that could have produced these bodies, the most likely first."""
    if NAME not in bodies.one:
        return
    for guess in (_json, _pythonic, _tagged_json, _dictionary, _nested, _tagged_args):
        syntax = guess(bodies)
        if syntax is None or not all(map(_is_mark, _texts(syntax))):
            continue
        closed = _trailed(syntax, bodies.trail)
        yield from dict.fromkeys([_led(closed, bodies.lead), closed, _led(syntax, bodies.lead), syntax])


_EXAMPLE = re.compile(
    rf"(?P<open>(?:{TAG.pattern})\s*)(?P<list>\[?)\s*\{{+\s*[\"']name[\"']\s*:[^\n]*?[\"'](?P<field>arguments|parameters)[\"']"
    rf"[^\n]*?\}}[^\n]*?(?P<close>\n?(?:{TAG.pattern})|$)",
    re.MULTILINE,
)
"""An example of a call in JSON: its opening marker, the keys, and the closing marker or the end of the line."""


def described(statement: str) -> Iterator[ToolSyntax]:
    """Yields the syntaxes of which a statement of tools shows an example, first with the closing marker that follows,
    then without one; then those whose opening marker a sentence names."""
    for found in _EXAMPLE.finditer(statement):
        opening, close = found["open"], found["close"]
        closing = close if close.strip().startswith(("</", "<|/", "[/")) else ""
        for section in dict.fromkeys([(opening, closing), (opening, "")]):
            several = "list" if found["list"] else None
            yield ToolSyntax(shape="json", section=section, arguments_fields=(found["field"],), several=several)
    for found in _MENTION.finditer(statement):
        yield ToolSyntax(shape="json", section=(found["open"], ""), several="list" if found["list"] else None)


_MENTION = re.compile(
    rf"(?P<open>(?![<\[]\|?/)(?=\W*\w*(?i:call)){TAG.pattern})[^.<\n]{{0,40}}\b(?i:json)\b(?P<list> (?:list|array)\b)?"
)
"""A sentence that names the marker before calls in JSON."""


def _is_mark(text: str) -> bool:
    return len(text) <= LONGEST_MARK and not any(probe in text for probe in (NAME, *KEYS, *VALUES))


def _texts(syntax: ToolSyntax) -> tuple[str, ...]:
    return (*syntax.section, *syntax.call, *syntax.argument, *syntax.tag, syntax.name_end, syntax.key_end)


def _led(syntax: ToolSyntax, lead: str | None) -> ToolSyntax:
    """The syntax with the white space that the template writes between text and a call; if it shows no such turn, a
    marker that stands on a line of its own begins that line."""
    field = "section" if syntax.section[0] else "call"
    opening, closing = getattr(syntax, field)
    if lead is None:
        lead = "\n" if opening.endswith("\n") else ""
    return syntax.model_copy(update={field: (lead + opening.lstrip(), closing)}) if opening and lead else syntax


def _trailed(syntax: ToolSyntax, trail: str) -> ToolSyntax:
    """The syntax with the white space that the template writes after the last call."""
    field = "section" if syntax.section[1] else "call"
    opening, closing = getattr(syntax, field)
    return syntax.model_copy(update={field: (opening, closing.rstrip() + trail)}) if closing and trail else syntax


def _json(bodies: Bodies) -> ToolSyntax | None:
    """A JSON object that contains the name: its keys, and the marks around it."""
    one = bodies.one
    for place in (match.start() for match in re.finditer(r"\{", one[: one.index(NAME)])):
        try:
            value, end = json.JSONDecoder().raw_decode(one, place)
        except ValueError:
            continue
        call = as_mapping(value) or {}
        opening, closing = one[:place], one[end:]
        if opening.rstrip().endswith("[") and closing.lstrip().startswith("]"):
            opening, closing = opening.rstrip()[:-1], closing.lstrip()[1:]
        section = (opening, closing.rstrip())
        if NAME in call and opening.strip():
            return ToolSyntax(shape="json", section=section, name_is_key=True)
        found = _object(call, section)
        return found and _with_id(found, bodies.answered)
    return None


def _with_id(syntax: ToolSyntax, answered: str) -> ToolSyntax:
    """The syntax with the key of an id that the template writes only where a call has a result."""
    end = syntax.section[1].strip()
    id_ = re.search(rf'"(\w+)": "{IDS[0]}"', answered.partition(end)[0]) if end else None
    if syntax.id_fields or id_ is None:
        return syntax
    return syntax.model_copy(update={"id_fields": (id_[1],), "id_last": True})


def _object(call: Mapping[str, Any], section: tuple[str, str]) -> ToolSyntax | None:
    """The syntax of an object with keys for the name, the arguments, and perhaps the id."""
    name = next((key for key, value in call.items() if value == NAME), None)
    arguments = next((key for key, value in call.items() if as_mapping(value) or KEYS[0] in str(value)), None)
    if name is None or arguments is None:
        return None
    rest = [key for key in call if key not in (name, arguments)]
    id_ = next((key for key in rest if call[key] == IDS[0] or key.endswith("id")), "")
    bare = not section[0].strip()
    return ToolSyntax(
        shape="json",
        section=("", "") if bare else section,
        bare=bare,
        name_fields=(name,),
        arguments_fields=(arguments,),
        id_fields=(id_,) if id_ else (),
        id_last=bool(id_) and list(call).index(id_) > list(call).index(arguments),
    )


def _pythonic(bodies: Bodies) -> ToolSyntax | None:
    """Python calls, in a list or not."""
    one = bodies.one
    found = re.search(rf"(\[?){NAME}\({KEYS[0]}=['\"]{VALUES[0]}['\"]\)(\]?)", one)
    if found is None:
        return None
    opening, closing = one[: found.start()], one[found.end() :]
    bare = not opening.strip()
    return ToolSyntax(shape="pythonic", section=("", "") if bare else (opening, closing), bare=bare)


def _tagged_json(bodies: Bodies) -> ToolSyntax | None:
    """A name in markup, then its arguments as JSON; an id before or after the name, or formed from it."""
    one, two = bodies.one, bodies.two or bodies.one
    head, _, rest = one.partition(NAME)
    brace = rest.find("{")
    try:
        value, end = json.JSONDecoder().raw_decode(rest, brace) if brace >= 0 else (None, 0)
    except ValueError:
        return None
    if value != {KEYS[0]: VALUES[0]}:
        return None
    name_end, spelt, tail = rest[:brace], rest[brace:end], rest[end:]
    more: dict[str, Any] = {}
    if IDS[0] in head:
        head, _, more["id_end"] = head.partition(IDS[0])
    elif IDS[0] in name_end:
        more["id_open"], _, name_end = name_end.partition(IDS[0])
    between = two.partition(spelt)[2].partition(IDS[1] if "id_end" in more else NAME)[0]
    # a template may close the section only if it contains several calls
    last = two.rpartition("}")[2] if two.count(NAME) == 2 else tail
    parts = _parted(head, between, max(tail, last, key=len))
    if parts is None:
        return None
    section, call = parts
    if name_end.startswith(":0") and f"{NAME}:1" in two:
        place = call[0].rfind(">") + 1
        more |= {"name_is_id": True, "name_prefix": call[0][place:]}
        name_end, call = name_end[2:], (call[0][:place], call[1])
    if not name_end:
        return None
    more["names_declared"] = TAG.search(call[0]) is None
    return ToolSyntax(shape="tagged_json", section=section, call=call, name_end=name_end, **more)


def _dictionary(bodies: Bodies) -> ToolSyntax | None:
    """Bare keys, and strings between marks of their own."""
    head, _, rest = bodies.one.partition(NAME)
    found = re.match(rf"\{{{KEYS[0]}:(\S+?){VALUES[0]}\1\}}", rest)
    if found is None:
        return None
    between = bodies.two.partition(found.group())[2].partition(NAME)[0]
    parts = _parted(head, between, rest[found.end() :])
    return parts and ToolSyntax(shape="dictionary", section=parts[0], call=parts[1], quote=found.group(1))


def _nested(bodies: Bodies) -> ToolSyntax | None:
    """An element for each argument, named like it."""
    head, _, rest = bodies.one.partition(NAME)
    key, value = KEYS[0], VALUES[0]
    found = re.match(rf"(?P<before>.*?){key}(?P<end>.+?){value}(?P<close>.+?){key}(?P=end)", rest, re.DOTALL)
    if found is None:
        return None
    end, close = found["end"], found["close"]
    whole = f"{key}{end}{value}{close}{key}{end}"
    opening = bodies.both.partition(whole)[2].partition(KEYS[1])[0].lstrip()
    if not opening or not found["before"].endswith(opening):
        return None
    name_end = found["before"].removesuffix(opening)
    between = bodies.two.partition(found.group())[2].partition(NAME)[0]
    parts = _parted(head, between, rest[found.end() :])
    return parts and ToolSyntax(
        shape="nested", section=parts[0], call=parts[1], name_end=name_end, tag=(opening, end, close)
    )


def _tagged_args(bodies: Bodies) -> ToolSyntax | None:
    """Name and arguments in markup."""
    one, two, both = bodies.one, bodies.two, bodies.both
    if any(text not in one for text in (KEYS[0], VALUES[0])) or IDS[0] in one or not both:
        return None
    head, _, rest = one.partition(NAME)
    to_key, _, rest = rest.partition(KEYS[0])
    key_end, _, tail = rest.partition(VALUES[0])
    between = both.partition(VALUES[0])[2].partition(KEYS[1])[0]
    opening = _from_tag(common_end(to_key, between))
    if opening == to_key:
        opening = opening.lstrip()
    opening, closing = _shared(opening, between, tail)
    name_end, after = to_key[: len(to_key) - len(opening)], tail[len(closing) :]
    parts = _parted(head, two.partition(VALUES[0] + closing)[2].partition(NAME)[0], after)
    if parts is None or not opening.strip() or not closing.strip() or not key_end:
        return None
    return ToolSyntax(
        shape="tagged_args",
        section=parts[0],
        call=parts[1],
        argument=(opening, closing),
        cdata="<![CDATA[" in bodies.hard,
        **_name_ended(name_end, two),
        **_key_ended(key_end, bodies.hard),
    )


def _name_ended(name_end: str, two: str) -> dict[str, Any]:
    """The end of a name: if it differs from call to call, attributes follow the name."""
    if two.count(NAME + name_end) == 2:
        return {"name_end": name_end}
    second = two.rpartition(NAME)[2]
    tag = re.search(r"(<[^<>]*>|>)\s*$", name_end)
    if tag is None or not name_end[: common(name_end, second)]:
        return {"name_end": name_end}
    return {"name_end": name_end[:1], "attributes_end": tag.group()}


def _key_ended(key_end: str, hard: str) -> dict[str, Any]:
    """The end of a key: if it differs for a number, it contains the value's type."""
    number = re.search(rf"{NUMBER}(.*?)7(?!\d)", hard, re.DOTALL)
    other = number.group(1) if number else key_end
    if other == key_end:
        two = re.fullmatch(rf"(?P<end>.*{TAG.pattern}\s*)(?P<value>{TAG.pattern}\s*)", key_end, re.DOTALL)
        return {"key_end": two["end"], "value_open": two["value"]} if two else {"key_end": key_end}
    before = re.sub(r"\w+$", "", key_end[: common(key_end, other)])
    after = re.sub(r"^\w+", "", common_end(key_end[len(before) :], other[len(before) :]))
    type_ = key_end[len(before) : len(key_end) - len(after)]
    if not (type_ and after):
        return {"key_end": key_end}
    return {"key_end": before, "type_end": after, "text_types": (type_,)}


def _parted(head: str, between: str, tail: str) -> tuple[tuple[str, str], tuple[str, str]] | None:
    """Split markup into the section's marks and the call's: `head` precedes the first call, `between` separates two
    calls, `tail` follows the last. Repeated text belongs to the call; so does everything if only one call is shown."""
    if not between:
        return (("", ""), (head, tail.rstrip())) if head.strip() else None
    opening = _from_tag(common_end(head, between))
    opening, closing = _shared(opening, between, tail)
    if not opening.strip():
        return None
    return (head[: len(head) - len(opening)], tail[len(closing) :].rstrip()), (opening, closing)


def _shared(opening: str, between: str, tail: str) -> tuple[str, str]:
    """Split the text between two parts into the end of one and the beginning of the next: a tag that also follows the
    last part is an end."""
    closing = tail[: common(between[: len(between) - len(opening)], tail)]
    tag = TAG.match(opening)
    if tag and tag.end() < len(opening) and tail.startswith(closing + tag.group()):
        return opening[tag.end() :], closing + tag.group()
    return opening, closing


def _from_tag(end: str) -> str:
    """Remove the rest of a tag from the beginning of a text."""
    inside = end.partition("<")[0]
    return end[inside.rindex(">") + 1 :] if ">" in inside and "<" in end else end
