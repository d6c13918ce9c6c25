"""Guesses the format of turns that are messages with channels in their headers, from the probes' turns."""

import re
from typing import Any

from engine.formats.families import ChannelSyntax, Format, ReasoningSyntax
from engine.formats.template.derive.probes import NAME, SAID, TAG, WHY, Turns

_MARK = TAG.pattern
_ANSWER = re.compile(
    rf"(?P<start>{_MARK})(?P<role>\w+)(?P<channel>{_MARK})(?P<name>\w+)(?P<message>{_MARK}){SAID}(?P<end>{_MARK})\s*"
)
_TO = re.compile(rf" (?P<recipient>\w+[=:])(?P<namespace>[\w.]*){NAME}")
_CONSTRAIN = "<|constrain|>"
"""Announces the type of a body; models write it, and templates leave it out."""


def channelled(turns: Turns) -> Format | None:
    """Returns the format that could have produced these turns; None if they are no messages with channels."""
    answer = _ANSWER.fullmatch(turns.said)
    if answer is None:
        return None
    start, role, channel, message = (re.escape(answer[name]) for name in ("start", "role", "channel", "message"))
    thought = re.match(rf"{start}{role}{channel}(\w+){message}{WHY}({_MARK})", turns.why)
    called = re.fullmatch(rf"{start}{role}(.*?){message}\{{.*\}}\s*({_MARK})\s*", turns.one, re.DOTALL)
    to = _TO.search(called[1]) if called else None
    named = re.search(rf"{channel}(\w+)", called[1]) if called else None
    if thought is None or called is None or to is None or named is None:
        return None
    kept: dict[str, Any] = {"history": turns.history, "fields": (turns.field,)} if turns.field else {}
    mute, call_end = thought[2], called[2]
    return Format(
        start=turns.prompt or answer["start"] + answer["role"],
        stops=tuple(dict.fromkeys([answer["end"], call_end])),
        continued_end=None if answer["end"] == mute else (answer["end"], mute),
        reasoning=ReasoningSyntax(
            open=f"{answer['channel']}{thought[1]}{answer['message']}",
            close=mute,
            ends_on_call=True,
            off="refuse",
            **kept,
        ),
        channels=ChannelSyntax(
            start=answer["start"],
            role=answer["role"],
            channel=answer["channel"],
            constrain=_CONSTRAIN,
            message=answer["message"],
            ends=tuple(dict.fromkeys([mute, call_end, answer["end"]])),
            call_end=call_end,
            reasoning=(thought[1],),
            content=tuple(dict.fromkeys([answer["name"], named[1]])),
            **to.groupdict(),
        ),
    )
