"""A model's response template as its output format: completed by what prompts show, and compared with the family's row
and with the template's own renders.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

from engine.formats.families import (
    ChannelSyntax,
    Detection,
    Family,
    Format,
    MarkedSyntax,
    ReasoningSyntax,
    ResponseTemplate,
    ToolSyntax,
)
from engine.formats.families.response_template import format_of
from engine.formats.template.capabilities import Capabilities
from engine.formats.template.derive.derivation import Read, readings, shown_turns, stripped
from engine.formats.template.derive.probes import Turns, turns_of
from engine.formats.template.env import Template
from engine.support.errors import FamilyError
from engine.support.warning import warn

_MOST, _LONGEST = 2, 160
"""How many differences are told, and how many characters of what was read."""


def stated(
    detection: Detection,
    given: ResponseTemplate,
    template: Template,
    fixed: Mapping[str, str],
    can: Capabilities,
    *,
    known: bool,
) -> Detection:
    """Returns the detection with the format that a response template states, or with the reason why it keeps its own.

    known: the family is a row, which was checked: it wins, unless the caller gave the response template. Otherwise the
    response template wins over what was derived, if it reads the template's own renders back. The caller's always wins;
    EngineWarning tells what it reads otherwise. Raises FamilyError if the caller's cannot be expressed.
    """
    try:
        format_ = format_of(given.spec, tuple(filter(None, [fixed.get("eos_token", "")])))
    except FamilyError as error:
        if given.chosen:
            raise
        return replace(detection, response_template=f"{given.origin} is not used. {error}")
    row = detection.family
    format_ = _completed(format_, row.format)
    turns = turns_of(template, fixed, can)
    try:
        found = [] if turns is None else list(_differences(format_, row.format if known else None, turns, can))
    except RecursionError:
        found = ["the JSON in its turns nests too deep to compare"]
    told = "; ".join([*found[:_MOST], *([f"and {len(found) - _MOST} more"] if found[_MOST:] else [])])
    if known and not given.chosen:
        outcome = f"reads otherwise: {told}" if told else "reads the same"
        return replace(detection, response_template=f"{given.origin} {outcome}; the family's row is used")
    if told and not given.chosen:
        why = f"{given.origin} is not used, since it does not read this chat template's own turns: {told}"
        return replace(detection, response_template=why)
    if told:
        against = f"the family {row.name!r}" if known else "this chat template's own turns"
        text = f"{given.origin} is used, but differs from {against}: {told}. Leave it out unless that is meant."
        warn(text)
    fresh = Family(name="response-template", title="stated by a response template", verified="", format=format_)
    family = row.model_copy(update={"format": format_}) if known else fresh
    outcome = f"it is used; {told}" if told else "it is used, and reads the chat template's own turns"
    reason = f"{detection.reason}; {given.origin} states the output" if known else f"{given.origin} states it"
    return Detection(family, reason, outcome if turns else "it is used; the chat template shows no turn to compare")


def _differences(format_: Format, row: Format | None, turns: Turns, can: Capabilities) -> Iterator[str]:
    """Yields what a format reads in the template's turns otherwise than the row does; without a row, otherwise than
    what was rendered."""
    for shown in shown_turns(turns, can):
        found = readings(format_, turns, shown)
        wanted = [shown.read] if row is None else list(readings(row, turns, shown))
        if row is not None and stripped(found[0]) != stripped(wanted[0]):
            yield f"{shown.label} is read as {_told(found[0])}, by the row as {_told(wanted[0])}"
        elif row is None and stripped(shown.read) not in map(stripped, found):
            yield f"{shown.label} is read as {_told(found[0])}"


def _told(read: Read) -> str:
    texts = {"reasoning": read[0].strip(), "content": read[1].strip()}
    parts = [f"{name} {text!r}" for name, text in texts.items() if text]
    parts += [f"call {name}({json.dumps(arguments)})" for name, arguments in read[2]]
    text = ", ".join(parts) or "nothing"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _completed(format_: Format, base: Format) -> Format:
    """Returns a stated format with what a response template does not say: how the prompt switches and keeps reasoning,
    the white space beside marks, what history requires."""
    start = base.start if not format_.start or base.start.strip() == format_.start.strip() else format_.start
    stops = tuple(dict.fromkeys([*format_.stops, *base.stops]))
    same_content = tuple(map(str.strip, format_.content)) == tuple(map(str.strip, base.content))
    update: dict[str, Any] = {
        "start": start,
        "stops": stops,
        "ends": base.ends,
        "continued_end": base.continued_end,
        "content": base.content if same_content else format_.content,
    }
    if format_.reasoning and base.reasoning:
        update["reasoning"] = _reasoning(format_.reasoning, base.reasoning)
    if format_.channels and base.channels:
        update["channels"] = _channels(format_.channels, base.channels)
    if format_.tools and base.tools:
        update["tools"] = tools = _tools(format_.tools, base.tools)
        update["header"] = base.header if isinstance(tools, MarkedSyntax) and tools.heading[0] else ("", "")
    whole = format_.model_copy(update=update)
    spelt = whole.model_dump_json()
    control = tuple(token for token in base.control if json.dumps(token, ensure_ascii=False)[1:-1] in spelt)
    return whole.model_copy(update={"control": control})


def _reasoning(stated: ReasoningSyntax, base: ReasoningSyntax) -> ReasoningSyntax:
    """The base's rules with the stated marks."""
    update: dict[str, Any] = {
        name: getattr(stated, name)
        for name in ("open", "close")
        if getattr(stated, name).strip() != getattr(base, name).strip()
    }
    for name, bare in (("also_open", base.open.strip()), ("also_close", base.close.strip())):
        also = dict.fromkeys([*getattr(stated, name), *getattr(base, name)])
        update[name] = tuple(text for text in also if text.strip() != bare)
    return base.model_copy(update=update)


def _channels(stated: ChannelSyntax, base: ChannelSyntax) -> ChannelSyntax:
    """The base's syntax if it has the stated marks, with the stated channels too: a response template names only those
    that end in a message's field."""
    marks = ("start", "role", "channel", "message", "recipient", "namespace")
    if any(getattr(stated, name) != getattr(base, name) for name in marks):
        return stated
    both = {name: (*getattr(stated, name), *getattr(base, name)) for name in ("reasoning", "content", "ends")}
    return base.model_copy(update={name: tuple(dict.fromkeys(texts)) for name, texts in both.items()})


def _tools(stated: ToolSyntax, base: ToolSyntax) -> ToolSyntax:
    """The base's syntax if it agrees with all that is stated, else the stated one with what history requires."""
    fields = stated.model_fields_set
    if stated.shape == base.shape and all(_agree(getattr(stated, name), getattr(base, name)) for name in fields):
        return base
    kept = ("arguments_as", "id_length", "parallel")
    return stated.model_copy(update={name: getattr(base, name) for name in kept})


def _agree(stated: object, base: object) -> bool:
    """Whether values say the same: texts without the white space around them, keys if one list holds the other."""
    if isinstance(stated, str) and isinstance(base, str):
        return stated.strip() == base.strip()
    if isinstance(stated, tuple) and isinstance(base, tuple):
        one, other = map(_bare, (cast("tuple[str, ...]", stated), cast("tuple[str, ...]", base)))
        return one == other or set(one) <= set(other) - {""}
    return stated == base


def _bare(texts: tuple[str, ...]) -> list[str]:
    return [text.strip() for text in texts]
