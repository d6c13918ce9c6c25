"""Renders a set of probe messages: the renders from which a format is derived."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.formats.families import Gate, History
from engine.formats.template.capabilities import Capabilities
from engine.formats.template.env import Template, values
from engine.formats.template.prompt import common
from engine.formats.template.renderer import TemplateStoppedError
from engine.support.errors import TemplateError
from engine.types.tools import Tool

ASK, SAID, WHY, LATER, RESULT = "ASKQTEXT", "SAIDQTEXT", "WHYQTEXT", "LATERQTEXT", "RESULTQTEXT"
NAME = "zq_first"
KEYS = ("kq_one", "kq_two")
NUMBER = "kq_number"
VALUES = ("VALQONE", "VALQTWO")
IDS = ("a1b2c3d4e", "f5g6h7i8j")
FIRST: dict[str, object] = {KEYS[0]: VALUES[0]}
SECOND: dict[str, object] = {KEYS[1]: VALUES[1]}
BOTH: dict[str, object] = {**FIRST, **SECOND}
HARD: dict[str, object] = {KEYS[1]: 'a "q" é\n<x> {y} [z]', NUMBER: 7, KEYS[0]: "02134"}
TOOL = Tool(
    name=NAME,
    description="Probes.",
    parameters={
        "type": "object",
        "properties": {
            **{key: {"type": "string", "description": "A text."} for key in KEYS},
            NUMBER: {"type": "integer", "description": "A number."},
        },
    },
    check=lambda _arguments: None,  # what is read is compared with what was written; so no load imports jsonschema
)
_GATES = ("enable_thinking", "thinking", "reasoning")
"""The usual names of boolean switches for reasoning."""
TAG = re.compile(r"<[^<>\s][^<>\n]*>|\[/?[A-Z][A-Z_ /]*\]")
"""Text that looks like a marker."""
CLOSER = re.compile(r"</(think|thinking|thought|reasoning)>")
"""Tags that end reasoning in most templates that have no field for it."""
_QUESTION: Mapping[str, Any] = {"role": "user", "content": ASK}
_ANSWER: Mapping[str, Any] = {"role": "assistant", "content": SAID}
_LATER: Mapping[str, Any] = {"role": "user", "content": LATER}
_RESULT: Mapping[str, Any] = {"role": "tool", "tool_call_id": IDS[0], "name": NAME, "content": RESULT}


@dataclass(frozen=True, slots=True)
class Turns:
    """The assistant's turns that a template writes; each is "" if it refuses the message or shows only a part of it.

    `prompt` is the generation prompt; `said` an answer; `one`, `two`, `both` and `hard` calls (one call, two calls, one
    with two arguments, one whose arguments are hard to quote); `beside` an answer and a call; `why` and `why_one`
    reasoning before an answer and before a call, given in the message's `field` ("" for none). `gate` switches
    reasoning, `on` and `off` are its prompts. `history` is the rule by which the template keeps earlier reasoning;
    `cut` is the tag up to which it cuts earlier answers, if it has no field for reasoning. `ended` follows an answer
    before the next question, `answered` follows a call's last argument before its result;
    `statement` precedes the question, and states the tool.
    """

    said: str
    prompt: str = ""
    one: str = ""
    two: str = ""
    both: str = ""
    hard: str = ""
    beside: str = ""
    why: str = ""
    why_one: str = ""
    field: str = ""
    gate: Gate | None = None
    on: str = ""
    off: str = ""
    history: History = "unknown"
    cut: str = ""
    ended: str = ""
    answered: str = ""
    statement: str = ""


def turns_of(template: Template, fixed: Mapping[str, str], can: Capabilities) -> Turns | None:
    """Returns the turns of a template; None if it does not even show an answer."""
    frame = _Frame.of(_Renders(template, fixed, can))
    if frame is None:
        return None
    renders = frame.renders

    def turn(*needed: str, **message: Any) -> str:
        text = frame.turn({"role": "assistant", **message})
        return text if all(each in text for each in needed) else ""

    def calls(*arguments: Mapping[str, object], needed: Sequence[str] = (), **more: Any) -> str:
        return turn(NAME, *needed, **{**renders.calls(*arguments), **more})

    field = why = why_one = ""
    for hand_over in _HAND_OVERS if not can.reasoning_fields else can.reasoning_fields[:1]:
        why_one, why = "", turn(WHY, SAID, **_reasoned(hand_over, SAID))
        if hand_over != "blocks":  # in such templates calls are blocks too
            why_one = calls(FIRST, needed=(WHY,), **_reasoned(hand_over, ""))
        if (why or why_one) and not _spelt_out(why + why_one):
            field = hand_over
            break
        why = why_one = ""
    gate, on, off = _gate(frame)
    return Turns(
        said=turn(SAID, content=SAID),
        prompt=frame.prompt(),
        one=calls(FIRST, needed=VALUES[:1]),
        two=calls(FIRST, SECOND, needed=VALUES),
        both=calls(BOTH, needed=VALUES),
        hard=calls(HARD),
        beside=calls(FIRST, needed=(SAID,), content=SAID) if can.both else "",
        why=why,
        why_one=why_one,
        field=field,
        gate=gate,
        on=on,
        off=off,
        history=_history(renders, field) if field else "unknown",
        cut="" if field else _cut(renders),
        ended=_between(renders.after(_ANSWER, _LATER), SAID, LATER),
        statement=(renders.text(_QUESTION) or "").partition(ASK)[0] if can.tools else "",
        answered=_between(renders.after(renders.calls(FIRST), _RESULT), VALUES[0], RESULT),
    )


def brief_turns(template: Template, fixed: Mapping[str, str], can: Capabilities) -> Turns | None:
    """Returns an answer, a call, and reasoning before an answer, by few renders: enough to see whether a format is the
    template's. None if it does not show an answer."""
    frame = _Frame.of(_Renders(template, fixed, can))
    if frame is None:
        return None
    texts = {"said": {"content": SAID}, "one": frame.renders.calls(FIRST)}
    if can.reasoning_fields:
        texts["why"] = {can.reasoning_fields[0]: WHY, "content": SAID}
    needed = {"said": (SAID,), "one": (NAME, VALUES[0]), "why": (WHY, SAID)}
    turns = {name: frame.turn({"role": "assistant", **fields}) for name, fields in texts.items()}
    shown = {name: turn if all(each in turn for each in needed[name]) else "" for name, turn in turns.items()}
    if not (shown["said"] or shown["one"]):
        return None
    return Turns(said=shown["said"], one=shown["one"], why=shown.get("why", ""), prompt=frame.prompt())


_LONGEST_RENDER, _LONGEST_TURN = 50_000, 1_000
"""The longest render, and the longest turn, in characters, that are examined: known templates write up to 7,000 and
520."""
_HAND_OVERS = ("content", "blocks")
"""Where templates without a field for reasoning read it: among the content's parts, or its blocks."""


def _reasoned(field: str, said: str) -> dict[str, Any]:
    """Returns the fields of a message with reasoning and a text."""
    if field == "content":
        thought = {"type": "thinking", "thinking": WHY}
        return {"content": [thought, {"type": "text", "text": said}] if said else [thought]}
    if field == "blocks":
        thought = {"type": "thoughts", "text": WHY}
        return {"content": {"blocks": [thought, {"type": "response", "text": said}] if said else [thought]}}
    return {field: WHY, "content": said}


def _spelt_out(turn: str) -> bool:
    """Whether a template printed a list or a mapping instead of reading it."""
    return any(f"{quote}type{quote}" in turn for quote in "'\"")


@dataclass(frozen=True, slots=True)
class _Renders:
    template: Template
    fixed: Mapping[str, str]
    can: Capabilities

    def text(self, *messages: Mapping[str, Any], generates: bool = False, **variables: Any) -> str | None:
        tools: Any = [TOOL.openai()] if self.can.tools else [] if self.can.empty_tools else None
        if self.can.needs_reasoning:
            absent = {self.can.reasoning_fields[0]: ""}
            messages = tuple({**absent, **each} if each["role"] == "assistant" else each for each in messages)
        given = values(self.template, self.fixed, messages, tools, generates=generates)
        try:
            text = self.template.render({**given, **variables})
        except TemplateStoppedError:
            raise
        except TemplateError:
            return None  # a refusal means that there is nothing to compare
        return text if len(text) <= _LONGEST_RENDER else None

    def after(self, *messages: Mapping[str, Any], generates: bool = False, **variables: Any) -> str | None:
        """Returns the render after the question's text; None if it cannot be rendered."""
        text = self.text(_QUESTION, *messages, generates=generates, **variables)
        return None if text is None or ASK not in text else text.rpartition(ASK)[2]

    def calls(self, *arguments: Mapping[str, object]) -> dict[str, Any]:
        """Returns a message with a call for each set of arguments."""
        as_object = "object" in self.can.arguments
        functions: list[dict[str, Any]] = [
            {"name": NAME, "arguments": dict(each) if as_object else json.dumps(each)} for each in arguments
        ]
        calls = [{"id": id_, "type": "function", "function": each} for id_, each in zip(IDS, functions, strict=False)]
        return {"role": "assistant", "content": None if self.can.null_content else "", "tool_calls": calls}


@dataclass(frozen=True, slots=True)
class _Frame:
    """The text around a turn: `lead` ends the question; `asked` is all that follows the question if it is rendered
    alone (some templates add an instruction, or always a generation prompt)."""

    renders: _Renders
    lead: str
    asked: str

    @classmethod
    def of(cls, renders: _Renders) -> "_Frame | None":
        asked = renders.after()
        said = renders.after(_ANSWER)
        if asked is None or said is None or SAID not in said:
            return None
        lead = asked[: common(asked, said)]
        always = asked == renders.after(generates=True) and said.endswith(asked)
        if lead != asked or always:
            tag = TAG.match(lead)
            lead = tag.group() if tag else ""
        return cls(renders, lead, asked)

    def turn(self, message: Mapping[str, Any]) -> str:
        text = self._turn(message)
        return text if len(text) <= _LONGEST_TURN else ""

    def _turn(self, message: Mapping[str, Any]) -> str:
        text = self.renders.after(message)
        if text is None or not text.startswith(self.lead):
            return ""
        text = text[len(self.lead) :]
        if self.lead == self.asked:
            return text
        tail = common_end(text, self.asked).removeprefix(self.lead)
        tag = TAG.search(tail)
        return text.removesuffix(tail[tag.start() :]) if tag else text

    def prompt(self, **variables: Any) -> str:
        asking = self.renders.after(generates=True, **variables)
        if asking is None:
            return ""
        start = self.asked if asking != self.asked and asking.startswith(self.asked) else self.lead
        text = asking.removeprefix(start)
        return text if len(text) <= _LONGEST_TURN else ""


def common_end(first: str, second: str) -> str:
    """Returns the longest text with which both end."""
    length = common(first[::-1], second[::-1])
    return first[len(first) - length :]


def _gate(frame: _Frame) -> tuple[Gate | None, str, str]:
    """Returns the reasoning switch that changes the render, and the prompts with it on and off."""
    for kwarg in _GATES:
        if kwarg not in frame.renders.template.variables:
            continue
        on, off = frame.prompt(**{kwarg: True}), frame.prompt(**{kwarg: False})
        asked, switched_on, switched_off = (
            frame.renders.text(_QUESTION, generates=True, **variables)
            for variables in ({}, {kwarg: True}, {kwarg: False})
        )
        if switched_on is not None and switched_off is not None and switched_on != switched_off:
            default = "off" if asked == switched_off else "on"
            return Gate(kwarg=kwarg, on=True, off=False, default=default), on, off
    return None, "", ""


def _history(renders: _Renders, field: str) -> History:
    """Returns which earlier reasoning the template shows: all, since the last answer, or since the last user
    message."""
    answer = {"role": "assistant", **_reasoned(field, SAID)}
    call = {**renders.calls(FIRST), **_reasoned(field, "")}
    if renders.can.null_content and not call["content"]:
        call["content"] = None

    def shows(*messages: Mapping[str, Any]) -> bool:
        text = renders.text(_QUESTION, *messages, generates=True)
        return text is not None and WHY in text

    if shows(answer, _LATER):
        return "all"
    if shows(call, _RESULT, _LATER):
        return "last_answer"
    return "last_user" if shows(call, _RESULT) or shows(answer) else "none"


def _cut(renders: _Renders) -> str:
    """Returns the tag up to which the template cuts an earlier answer; "" if it does not."""
    for found in dict.fromkeys(match.group() for match in CLOSER.finditer(renders.template.source)):
        content = f"{found.replace('/', '')}\n{WHY}\n{found}\n\n{SAID}"
        text = renders.after({**_ANSWER, "content": content}, _LATER)
        if text is not None and SAID in text and WHY not in text:
            return found
    return ""


def _between(text: str | None, first: str, last: str) -> str:
    return "" if text is None or last not in text else text.partition(first)[2].partition(last)[0]
