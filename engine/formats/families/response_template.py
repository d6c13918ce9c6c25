"""Hugging Face's `response_template`, a model's output described by its author, converted into a `Format`.

Source of the format: transformers 5.24, `utils/chat_parsing/`; it stands in `tokenizer_config.json`.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, cast

from pydantic import ValidationError

from engine.formats.families.patterns import Part, Parts, PatternError, literal, read_pattern
from engine.formats.families.schema import (
    REASONING_FIELDS,
    ChannelSyntax,
    DictionarySyntax,
    Format,
    JsonSyntax,
    NestedSyntax,
    PythonicSyntax,
    ReasoningSyntax,
    TaggedArgumentsSyntax,
    TaggedJsonSyntax,
    ToolSyntax,
)
from engine.support.errors import FamilyError, shown
from engine.support.own_file import read_regular

ResponseTemplateLike: TypeAlias = Mapping[str, Any] | str | Path
"""A response template, or the path of a JSON file: of one alone, or a tokenizer_config.json that holds one."""

_LARGEST_FILE = 16 << 20
_MOST_NODES, _MOST_CHARACTERS, _LONGEST_MARK = 500, 50_000, 200
_WAY = "Leave response_template out, or describe the output yourself with family=Format(..)."
_KEYS = frozenset(["version", "defaults", "fields", "start_anchor", "start_anchor_pattern"])
_FIELD_KEYS = frozenset(
    ["open", "open_pattern", "close", "close_pattern", "content", "content_args", "repeats", "join", "optional"]
).union(["transform", "transform_each"])
_PLACEHOLDER = re.compile(r"\{(\w+(?:\.\w+)*)\}")
_TAG_NAME = re.compile(r"<(\w[\w:.-]*)[\s=>]")
_TWO_TAGS = re.compile(r"(?P<section>.*[>\]]\s*)(?P<call>[<\[].*)", re.DOTALL)
_CHANNEL = re.compile(r"(?P<channel><\|[^|<>]+\|>)(?P<name>\w+)(?P<message><\|[^|<>]+\|>)")
_RECIPIENT = re.compile(r"\s(?P<recipient>\w+[=:])(?P<namespace>[\w.]*)$")
_CONSTRAIN = re.compile(r"<\|constrain\w*\|>")


@dataclass(frozen=True, slots=True)
class ResponseTemplate:
    """A response template and where it is from, for messages. `chosen`: the caller gave it."""

    spec: object
    origin: str
    chosen: bool = False


def given_template(template: ResponseTemplateLike) -> ResponseTemplate:
    """Returns the caller's response template. Raises FamilyError for a file that cannot be read or holds none."""
    if not isinstance(template, str | Path):
        return ResponseTemplate(template, "the caller's response_template", chosen=True)
    try:
        data = read_regular(Path(template).expanduser(), _LARGEST_FILE)
    except (OSError, ValueError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or error
        raise FamilyError(f"response_template={shown(str(template))} cannot be read: {why}.") from error
    spec = template_in(data)
    if spec is None:
        raise FamilyError(
            f"{template} is no JSON file with a response template. It must be an object with `fields`, or one with the "
            "key `response_template`, as a tokenizer_config.json may have."
        )
    return ResponseTemplate(spec, f"the response template in {template}", chosen=True)


def template_in(data: bytes) -> object:
    """Returns the response template in the bytes of a JSON file; None if there is none."""
    try:
        found: object = json.loads(data) if len(data) <= _LARGEST_FILE else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    config = cast("dict[str, object]", found)
    return config.get("response_template", config if "fields" in config else None)


def format_of(spec: object, ends: Collection[str] = ()) -> Format:
    """Returns the format that a response template describes.

    ends: the texts of the vocabulary's end tokens. What the format cannot express is refused: FamilyError names the key
    and the way out. Patterns are read, never run. Not taken over, since they say nothing about the syntax: `defaults`
    and `optional`.
    """
    table = _table("response_template", spec)
    _check_size(table)
    if table.get("version", 1) != 1:
        _refuse("version", f"{table['version']!r} is not known; 1 is")
    _check_keys("response_template", table, _KEYS)
    fields = {name: _Field.of(name, each) for name, each in _table("fields", table.get("fields")).items()}
    start = _shortest("start_anchor", _anchor("response_template", table, "start_anchor"))
    known = {name: field for name, field in fields.items() if name in ("content", "tool_calls", *REASONING_FIELDS)}
    if other := sorted(set(fields) - set(known)):
        _refuse(f"fields.{other[0]}", "messages have no such field; they have content, tool_calls and reasoning")
    reasoning = [known[name] for name in REASONING_FIELDS if name in known]
    if len(reasoning) > 1:
        _refuse(f"fields.{reasoning[1].name}", "there is a second field for reasoning")
    try:
        return _format(start, known.get("content"), next(iter(reasoning), None), known.get("tool_calls"), ends)
    except ValidationError as error:
        raise FamilyError(f"The response template contradicts itself: {error.errors()[0]['msg']}. {_WAY}") from error


def _format(
    start: str,
    content: "_Field | None",
    reasoning: "_Field | None",
    calls: "_Field | None",
    ends: Collection[str],
) -> Format:
    if reasoning is not None and not reasoning.opens:
        _refuse(f"fields.{reasoning.name}", "it has no `open`, so that all text would be reasoning")
    channels = _channels(start, content, reasoning, calls)
    opening = _literals(content, "opens") if content else ()
    closing = _literals(content, "closes") if content else ()
    stops = tuple(text for text in closing if not opening or text in ends)
    marks = ("", "")
    if opening and not channels:
        inside = [text for text in closing if text not in stops]
        marks = (opening[0], inside[0] if inside else "")
    if channels:
        quiet = _literals(reasoning, "closes") if reasoning else ()
        stops = tuple(dict.fromkeys([*(text for text in closing if text not in quiet), channels.call_end]))
    syntax = None if calls is None or channels else _tools(calls, (*stops, *ends))
    if calls is not None and not channels:
        stops = tuple(dict.fromkeys([*stops, *(text for text in _literals(calls, "closes") if text in ends)]))
    return Format(
        start=start,
        stops=stops,
        reasoning=None if reasoning is None else _reasoning(reasoning, (*stops, *ends), spaced=not channels),
        tools=syntax,
        channels=channels,
        content=marks,
        content_repeats=content is not None and content.repeats and bool(marks[0]),
    )


def _reasoning(field: "_Field", stops: Sequence[str], *, spaced: bool) -> ReasoningSyntax:
    """Reasoning between the field's marks. A `text` field is stripped, so white space beside the marks is theirs."""
    opens = _literals(field, "opens")
    closes = [text for text in _literals(field, "closes") if text not in stops]
    if not closes:
        _refuse(f"fields.{field.name}", "it has no `close`, so that it would never end")
    opening, close = opens[0], closes[0]
    if field.unmarked and not field.begins:
        field.refuse("open_pattern", "it may match nothing, anywhere; only behind `^` is that the beginning of a turn")
    if spaced and field.args.get("strip", True):
        opening = opening if opening != opening.rstrip() else opening + "\n"
        close = close if close != close.strip() else f"\n{close}\n\n"
    if opening.strip() == close.strip():
        _refuse(f"fields.{field.name}.close", f"{close.strip()!r} is its `open` too")
    also_open, also_close = ({text.strip() for text in texts[1:]} for texts in (opens, closes))
    return ReasoningSyntax(
        open=opening,
        close=close,
        also_open=tuple(sorted(also_open - {opening.strip()})),
        also_close=tuple(sorted(also_close - {close.strip()})),
        where="anywhere" if not spaced or field.repeats else "start" if field.begins else "line",
        implicit=field.unmarked,
    )


@dataclass(frozen=True, slots=True)
class _Field:
    """A field, its marks as alternatives of parts. `begins`: it opens only where the turn begins (`^` in its pattern);
    `unmarked`: it may open without a mark."""

    name: str
    opens: tuple[Parts, ...]
    closes: tuple[Parts, ...]
    content: str
    args: Mapping[str, Any]
    transform: object
    each: bool
    repeats: bool
    begins: bool
    unmarked: bool

    @classmethod
    def of(cls, name: str, spec: object) -> "_Field":
        place = f"fields.{name}"
        table = _table(place, spec)
        _check_keys(place, table, _FIELD_KEYS)
        content = table.get("content", "text")
        if not isinstance(content, str):
            _refuse(f"{place}.content", f"{content!r} is no content parser's name")
        if name != "tool_calls" and content != "text":
            _refuse(f"{place}.content", f"{content!r} makes no text of it")
        join = table.get("join")
        if join is not None and not (isinstance(join, str) and not join.strip()):
            _refuse(f"{place}.join", f"{join!r} would stand between parts; only white space may")
        if name != "tool_calls" and table.get("transform") is not None:
            _refuse(f"{place}.transform", "only tool_calls may have one")
        flags = [table.get(key, False) for key in ("repeats", "transform_each", "optional")]
        if any(not isinstance(flag, bool) for flag in flags):
            _refuse(place, "`repeats`, `transform_each` and `optional` must be true or false")
        opens, closes = (_anchor(place, table, key) for key in ("open", "close"))
        args = _table(f"{place}.content_args", table.get("content_args", {}))
        begins, unmarked = _beginning(table.get("open_pattern"))
        if begins and name not in REASONING_FIELDS:
            _refuse(f"{place}.open_pattern", "`^` binds it to the beginning; only reasoning can be")
        transform, each, repeats = table.get("transform"), bool(flags[1]), bool(flags[0])
        return cls(name, opens, closes, content, args, transform, each, repeats, begins, unmarked)

    def refuse(self, key: str, why: str) -> NoReturn:
        _refuse(f"fields.{self.name}.{key}", why)


def _beginning(pattern: object) -> tuple[bool, bool]:
    """Returns whether a pattern, which can be read, matches only at the beginning, and whether it may match nothing."""
    if not isinstance(pattern, str):
        return False, False
    return pattern.startswith(("^", r"\A")), () in read_pattern(pattern)


def _anchor(place: str, table: Mapping[str, Any], key: str) -> tuple[Parts, ...]:
    """Returns the alternatives of a mark, longest first: a text, a list of texts, or a pattern."""
    texts, pattern = table.get(key), table.get(f"{key}_pattern")
    if texts is not None and pattern is not None:
        _refuse(f"{place}.{key}", f"`{key}` and `{key}_pattern` exclude each other")
    if pattern is not None:
        if not isinstance(pattern, str):
            _refuse(f"{place}.{key}_pattern", f"{pattern!r} is not a text")
        try:
            return tuple(sorted(filter(None, read_pattern(pattern)), key=_size, reverse=True))
        except PatternError as error:
            _refuse(f"{place}.{key}_pattern", str(error))
    listed: list[object] = cast("list[object]", texts) if isinstance(texts, list) else [texts]
    if texts is None:
        return ()
    found = [text for text in listed if isinstance(text, str) and text]
    if not found or len(found) < len(listed):
        _refuse(f"{place}.{key}", f"{texts!r} must be a text, or a list of texts")
    return tuple((Part("text", text),) for text in dict.fromkeys(found))


def _solid(parts: Parts) -> Parts:
    """Returns the parts without what the pattern only looks ahead at."""
    return tuple(part for part in parts if part.kind != "ahead")


def _size(parts: Parts) -> int:
    return sum(len(part.text) for part in parts)


def _literals(field: _Field, which: str) -> tuple[str, ...]:
    """Returns a field's marks as texts, the first as written, later ones only if they differ in more than white
    space."""
    found: dict[str, str] = {}
    for parts in field.opens if which == "opens" else field.closes:
        text = literal(_solid(parts))
        if text is None:
            field.refuse(which.removesuffix("s") + "_pattern", "it may match any text; a mark must be literal")
        if text.strip():
            _check_mark(field.name, text)
            found.setdefault(text.strip(), text)
    return tuple(found.values())


def _channels(
    start: str, content: _Field | None, reasoning: _Field | None, calls: _Field | None
) -> ChannelSyntax | None:
    """The syntax of messages with a channel in their header, if both the answer and reasoning open so."""
    if content is None or reasoning is None or not content.opens:
        return None
    heads = [[_CHANNEL.fullmatch(text.strip()) for text in _literals(each, "opens")] for each in (reasoning, content)]
    found = [[head for head in each if head is not None] for each in heads]
    if not all(found):
        return None
    first = found[0][0]
    begun = re.fullmatch(r"(<\|[^|<>]+\|>)(\w+)\s*", start)
    if begun is None:
        _refuse("start_anchor", f"{start!r} is no marker and a role, as messages with channels begin")
    ends = [text for field in (reasoning, content, calls) if field for text in _literals(field, "closes")]
    recipient: dict[str, str] = {}
    if calls is not None:
        recipient = _recipient(calls)
    return ChannelSyntax(
        start=begun[1],
        role=begun[2],
        channel=first["channel"],
        message=first["message"],
        ends=tuple(dict.fromkeys(ends)),
        call_end=_literals(calls, "closes")[0] if calls and calls.closes else ends[-1],
        reasoning=tuple(head["name"] for head in found[0]),
        content=tuple(head["name"] for head in found[1]),
        **{"constrain": "<|constrain|>", **recipient},
    )


def _recipient(field: _Field) -> dict[str, str]:
    """Returns how the header of a message with a call names the tool."""
    if field.content != "json" or _call(field) != _Call("name", "content"):
        field.refuse("transform", 'in channels a call has "name": "{name}" and "arguments": "{content}"')
    before = _around(field, field.opens[0], "name")[0]
    texts = [part.text for parts in field.opens for part in parts if part.kind == "text"]
    found = _RECIPIENT.search(literal(tuple(part for part in before if part.kind in ("text", "space"))) or "")
    if found is None:
        field.refuse("open_pattern", "the header names no recipient such as `to=functions.NAME`")
    constrain = _CONSTRAIN.search(" ".join(texts))
    return {**found.groupdict(), **({"constrain": constrain.group()} if constrain else {})}


@dataclass(frozen=True, slots=True)
class _Call:
    """Where a call's name, arguments and id come from: a group's name, "content", or "content.KEY"."""

    name: str
    arguments: str
    id: str = ""


def _call(field: _Field) -> _Call:
    """Returns what a transform makes a call of."""
    transform, inside = field.transform, "content." if field.each else ""
    if transform is None:
        return _Call("content.name", "content.arguments")
    listed = cast("list[object]", transform) if isinstance(transform, list) else []
    transform = listed[0] if len(listed) == 1 else cast("object", transform)
    outer = _table(f"fields.{field.name}.transform", transform)
    function: object = outer.get("function", {})
    found: dict[str, str] = {}
    if function == "{content}":
        function, found = {}, {"name": "content.name", "arguments": "content.arguments"}
    for key, value in {**outer, **_table(f"fields.{field.name}.transform.function", function)}.items():
        source = _PLACEHOLDER.fullmatch(value) if isinstance(value, str) else None
        if source is not None and key in ("name", "arguments", "id"):
            found[key] = inside + source[1]
        elif key not in ("type", "function"):
            field.refuse(f"transform.{key}", f"{value!r} is not a placeholder for the name, the arguments or the id")
    if not {"name", "arguments"} <= set(found):
        field.refuse("transform", 'it must hold "name" and "arguments", each a placeholder such as "{content.name}"')
    return _Call(**found)


def _tools(field: _Field, ends: Sequence[str]) -> ToolSyntax:
    if not field.opens:
        field.refuse("open", "it has no `open`, so that all text would be calls")
    call, closes = _call(field), tuple(text for text in _literals(field, "closes") if text not in ends)
    named = call.name != "content" and not call.name.startswith("content.")
    if field.content == "json":
        return _named(field, call, closes) if named else _objects(field, call, closes)
    if field.content == "xml-inline" and named and call.arguments == "content":
        return _tagged(field, call, closes)
    if field.content != "python-call-list":
        field.refuse("content", f"{field.content!r} cannot be a call's content in this form")
    if call != _Call("content.name", "content.arguments"):
        field.refuse("transform", "a call in Python's notation has a name and arguments, and nothing else")
    return PythonicSyntax(shape="pythonic", **_section(field, closes))


def _section(field: _Field, closes: Sequence[str]) -> dict[str, Any]:
    """Returns the marks around calls; none if the pattern only looks ahead."""
    opens = _literals(field, "opens")
    if not opens:
        return {"bare": True}
    ahead = any(part.kind == "ahead" for parts in field.opens for part in parts)
    more: dict[str, Any] = {"bare": True} if ahead and any(not literal(_solid(parts)) for parts in field.opens) else {}
    return {"section": (opens[0], closes[0] if closes else ""), "section_also": opens[1:], **more}


def _objects(field: _Field, call: _Call, closes: Sequence[str]) -> JsonSyntax:
    """Calls as JSON objects with keys for the name and the arguments."""
    if odd := sorted(key for key in ("unquoted_keys", "string_delims") if field.args.get(key)):
        field.refuse(f"content_args.{odd[0]}", "a call that names its tool inside the object is plain JSON")
    keys = [path.split(".")[1:] for path in (call.name, call.arguments, call.id) if path]
    if any(not key or len(key) > 2 or (len(key) == 2 and key[0] != "function") for key in keys):
        field.refuse("transform", "the name, the arguments and the id are keys of the object, or of its `function`")
    return JsonSyntax(
        shape="json",
        name_fields=(keys[0][-1],),
        arguments_fields=(keys[1][-1],),
        id_fields=(keys[2][-1],) if call.id else (),
        **({"several": "list"} if field.each else {}),
        **_section(field, closes),
    )


def _around(field: _Field, parts: Parts, group: str) -> tuple[Parts, Parts]:
    """Returns the parts before and after a named group."""
    places = [i for i, part in enumerate(parts) if part.kind in ("group", "counter") and part.text == group]
    if len(places) != 1:
        field.refuse("open_pattern", f"it must hold the group {group!r} once")
    return parts[: places[0]], parts[places[0] + 1 :]


def _text(field: _Field, parts: Parts) -> str:
    text = literal(parts)
    if text is None:
        field.refuse("open_pattern", "text that may vary stands beside the name; a mark must be literal")
    _check_mark(field.name, text)
    return text


@dataclass(frozen=True, slots=True)
class _Head:
    """The marks of a call whose name stands in its opening mark; `after` follows the name."""

    section: tuple[str, str]
    call: tuple[str, str]
    after: Parts
    optional: bool
    id_end: str = ""


def _head(field: _Field, call: _Call, closes: Sequence[str], *, splits: bool = False) -> _Head:
    """Split the marks into a section's and a call's. The section's may be missing if the pattern says so, or if
    (`splits`) the opening mark is two elements, of which the closing mark closes the first."""
    before, after = _around(field, field.opens[0], call.name)
    id_end = ""
    if call.id and any(part.text == call.id for part in before):
        before, between = _around(field, before, call.id)
        id_end = _text(field, between)
    opening = _text(field, before)
    others = [_text(field, _around(field, parts, call.id if id_end else call.name)[0]) for parts in field.opens[1:]]
    inner = others[0].lstrip() if others else ""
    if len(others) > 1 or (others and not (inner and opening.endswith(inner))):
        field.refuse("open_pattern", "several openings differ in more than a beginning that may be missing")
    outer = opening[: len(opening) - len(inner)] if inner else ""
    close, last = min(closes, key=len, default=""), max(closes, key=len, default="")
    if outer:
        rest = last[len(close) :] if last.startswith(close) else ""
        return _Head((outer, rest), (inner, close), after, optional=True, id_end=id_end)
    two = _two_elements(opening, close) if splits else None
    section, marks = two or (("", ""), (opening, close))
    return _Head(section, marks, after, optional=False, id_end=id_end)


def _two_elements(opening: str, close: str) -> tuple[tuple[str, str], tuple[str, str]] | None:
    """Returns the marks of a section and of a call in it, if the opening mark is two elements and the closing mark
    closes the outer one; the inner one is then closed as its name says."""
    two = _TWO_TAGS.fullmatch(opening)
    tag = _TAG_NAME.match(two["call"] + " ") if two else None
    if two is None or tag is None or not close.strip():
        return None
    own = f"</{tag[1]}>"
    inside, found, outside = close.partition(own)
    if found and not outside.strip():
        return None
    return (two["section"], outside if found else f"\n{close.lstrip()}"), (two["call"], inside + own if found else own)


def _named(field: _Field, call: _Call, closes: Sequence[str]) -> ToolSyntax:
    """Calls whose name stands in the opening mark, their arguments as JSON."""
    if call.arguments != "content":
        field.refuse("transform.arguments", "beside a name in the opening mark, the content is the arguments")
    head = _head(field, call, closes)
    more: dict[str, Any] = {"section_optional": True} if head.optional else {}
    if delims := field.args.get("string_delims"):
        return _dictionary(field, head, delims, more)
    if field.args.get("unquoted_keys"):
        field.refuse("content_args.unquoted_keys", "bare keys are read beside strings between marks of their own only")
    opening, after = head.call[0], head.after
    if after[1:] and literal(after[:1]) == ":" and after[1].kind == "counter":
        place = opening.rfind(">") + 1
        more |= {"name_is_id": True, "name_prefix": opening[place:]}
        opening, after = opening[:place], after[2:]
    if call.id and not head.id_end:
        between, after = _around(field, after, call.id)
        more["id_open"] = _text(field, between)
    if head.id_end:
        more["id_end"] = head.id_end
    return TaggedJsonSyntax(
        shape="tagged_json",
        section=head.section,
        call=(opening, head.call[1]),
        name_end=_text(field, after),
        names_declared=not re.search(r"[<\[]\W*\w", opening),
        **more,
    )


def _dictionary(field: _Field, head: _Head, delims: object, more: Mapping[str, Any]) -> DictionarySyntax:
    pairs = cast("list[object]", delims) if isinstance(delims, list) else []
    pair = cast("list[object]", pairs[0]) if len(pairs) == 1 and isinstance(pairs[0], list) else []
    if len(pair) != 2 or pair[0] != pair[1] or not isinstance(pair[0], str) or not field.args.get("unquoted_keys"):
        field.refuse("content_args.string_delims", "strings stand between one mark and its like, beside bare keys")
    if _text(field, head.after).strip():
        field.refuse("open_pattern", "text stands between the name and the object")
    return DictionarySyntax(shape="dictionary", section=head.section, call=head.call, quote=pair[0], **more)


def _tagged(field: _Field, call: _Call, closes: Sequence[str]) -> ToolSyntax:
    """Calls whose name stands in the opening mark, their arguments as elements."""
    if field.args.get("merge_duplicates"):
        field.refuse("content_args.merge_duplicates", "a key that comes twice makes a call malformed")
    parser = field.args.get("value_parser")
    kind: object = cast("Mapping[str, object]", parser).get("name", "text") if isinstance(parser, Mapping) else "text"
    if kind not in ("text", "json"):
        field.refuse("content_args.value_parser", f"{kind!r} is not read; the tool's schema says what a value is")
    if call.id:
        field.refuse("transform.id", "calls with arguments in elements have no id")
    element = _anchor(f"fields.{field.name}.content_args", field.args, "tag")
    parts = element[0] if element else ()
    opening, rest = _around(field, parts, "key")
    between, closing = _around(field, rest, "value")
    head = _head(field, call, closes, splits=True)
    more: dict[str, Any] = {"section_optional": True} if head.optional else {}
    gaps = [i for i, part in enumerate(head.after) if part.kind == "gap"]
    name_end, more_end = (head.after, ()) if not gaps else (head.after[: gaps[0]], head.after[gaps[-1] + 1 :])
    again = [i for i, part in enumerate(closing) if part == Part("again", "key")]
    marks = {"section": head.section, "call": head.call, "name_end": _text(field, name_end)}
    if again and not more_end:
        tag = (_text(field, opening), _text(field, between), _text(field, closing[: again[0]]).lstrip())
        return NestedSyntax(shape="nested", tag=tag, **marks, **more)
    if parser is None:
        more["untyped_text"] = True
    after = _text(field, _solid(closing))
    if more_end:
        more["attributes_end"] = _text(field, more_end)
    if two := re.fullmatch(r"(?P<end>.*[>\]])\s*(?P<value><.*)", _text(field, between), re.DOTALL):
        more["value_open"] = two["value"]
    key_end = two["end"] if two else _text(field, between)
    argument = (_text(field, opening), after)
    return TaggedArgumentsSyntax(shape="tagged_args", argument=argument, key_end=key_end, **marks, **more)


def _shortest(place: str, anchors: Sequence[Parts]) -> str:
    """Returns the text that begins a turn: the shortest alternative, gaps left out at its end."""
    if not anchors:
        _refuse(place, "it is missing: how an assistant's turn begins")
    texts = [literal(_solid(parts)) for parts in anchors]
    found = [text for text in texts if text]
    if not found:
        _refuse(f"{place}_pattern", "it may match any text; the beginning of a turn must be literal")
    _check_mark(place, min(found, key=len))
    return min(found, key=len)


def _table(place: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        _refuse(place, f"{_clipped(value)} is not an object of keys and values")
    table = cast("Mapping[object, Any]", value)
    if odd := [key for key in table if not isinstance(key, str)]:
        _refuse(place, f"the key {_clipped(odd[0])} is not a text")
    return cast("Mapping[str, Any]", value)


def _check_keys(place: str, table: Mapping[str, Any], known: Collection[str]) -> None:
    if odd := sorted(set(table) - set(known)):
        _refuse(place, f"there is no key {_clipped(odd[0])}; known are {', '.join(sorted(known))}")


def _check_size(spec: object) -> None:
    """Refuse what no template needs, before anything is read."""
    nodes, characters, rest = 0, 0, [spec]
    while rest:
        value = rest.pop()
        nodes += 1
        if isinstance(value, str):
            characters += len(value)
        elif isinstance(value, Mapping):
            table = cast("Mapping[object, object]", value)
            rest += [*table.keys(), *table.values()]
        elif isinstance(value, list):
            rest += cast("list[object]", value)
        if nodes + len(rest) > _MOST_NODES or characters > _MOST_CHARACTERS:
            _refuse("fields", f"it has more than {_MOST_NODES} values, or {_MOST_CHARACTERS:,} characters")


def _check_mark(place: str, text: str) -> None:
    if len(text) > _LONGEST_MARK:
        _refuse(place, f"a mark has {len(text):,} characters, more than {_LONGEST_MARK}")


def _clipped(value: object) -> str:
    plain = value is None or isinstance(value, str | int | float)
    text = repr(value) if plain else f"a value of type {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:59]}…"


def _refuse(place: str, why: str) -> NoReturn:
    where = "" if place == "response_template" else f", {place}"
    raise FamilyError(f"The response template{where}: {why}. {_WAY}")
