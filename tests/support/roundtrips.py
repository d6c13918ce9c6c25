"""A message rendered by a chat template and parsed back, and how two formats read the same turns.

Shared by the tests of templates and by `tests/bench/derivation.py`. Templates of llama.cpp's tree are read from the
folder that `LLAMA_CPP_TEMPLATES` names (`vendor/llama.cpp/models/templates` of llama-cpp-python's source distribution).
"""

import json
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from engine.errors import RequestError, TemplateError
from engine.events import fold
from engine.families import Format, builtin_families
from engine.parsing import Parser
from engine.template.capabilities import probe
from engine.template.chat_template import ChatTemplate
from engine.template.derive.derivation import Derivation, derivation
from engine.template.env import Template
from engine.template.prompt import Prompt
from engine.types import Message, Reasoning, Tool, ToolCall

FOLDER = os.environ.get("LLAMA_CPP_TEMPLATES", "")
SOURCES = sorted(Path(FOLDER).glob("*.jinja")) if FOLDER else []
FIXED = {"bos_token": "<s>", "eos_token": "</s>"}

ASKED = Message(role="user", content="Weather?")
PARAMETERS = {
    "city": {"type": "string", "description": "C"},
    "days": {"type": "integer", "description": "D"},
    "wet": {"type": "boolean", "description": "W"},
    "more": {"type": "object", "description": "M", "additionalProperties": {"type": "string"}},
}
LOOK = Tool(
    name="look", description="Looks.", parameters={"type": "object", "properties": PARAMETERS, "required": ["city"]}
)
ONE = ToolCall(id="abcdefgh1", name="look", arguments='{"city": "Oslo", "days": 3}')
TWO = ToolCall(id="abcdefgh2", name="look", arguments='{"city": "Rome é \\"q\\""}')
WIDE = ToolCall(id="abcdefgh3", name="look", arguments='{"city": "07", "wet": true, "more": {"k": "x", "m": "z"}}')
SAID = "SAIDTEXT, quite."
WHY = "WHYTEXT, because."
SWITCHES: tuple[Reasoning | None, ...] = (None, True, False)
Read: TypeAlias = "tuple[str, str, list[tuple[str, Any]]]"
"""Reasoning, content, calls (a name, and the arguments or what is wrong with the call)."""


def turn(content: str = "", *calls: ToolCall, reasoning: str | None = None) -> Message:
    """An assistant's message."""
    return Message(role="assistant", content=content, reasoning=reasoning, tool_calls=calls)


MESSAGES = {
    "content": turn(SAID),
    "reasoning": turn(SAID, reasoning=WHY),
    "call": turn("", ONE),
    "two calls": turn("", ONE, TWO),
    "content and call": turn(SAID, TWO),
    "reasoning and call": turn("", ONE, reasoning=WHY),
    "values": turn("", WIDE),
}


class Outcome:
    """What became of one message: `kept` the prompt it follows (None where no prompt is its beginning), `output` its
    text; `whole` the last render tried, `asked` the first prompt."""

    def __init__(self, template: ChatTemplate, message: Message) -> None:
        tools = [LOOK] if message.tool_calls else None
        results = [Message(role="tool", tool_call_id=call.id, content="RESULTTEXT") for call in message.tool_calls]
        self.kept: Prompt | None = None
        self.asked: Prompt | None = None
        self.output = self.whole = ""
        for switch in SWITCHES:
            try:
                prompt = template.render([ASKED], tools, switch)
                self.whole = template.render(
                    [ASKED, message, *results], tools, switch, add_generation_prompt=False
                ).text
            except RequestError:
                continue  # a position that this family lacks
            self.asked = self.asked or prompt
            if self.whole.startswith(prompt.text):
                self.kept, self.output = prompt, self.whole[len(prompt.text) :]
                break

    def turn(self, format_: Format) -> str:
        """The output up to what ends the turn, as generation stops there; where no prompt is its beginning, the turn
        from the assistant's start on."""
        output = self.output
        if self.kept is None:
            after = self.whole.partition(ASKED.content or "")[2]
            place = after.find(format_.start)
            output = after[place:] if format_.start and place >= 0 else ""
        return _to_end(output.partition("RESULTTEXT")[0], format_)


def _to_end(output: str, format_: Format) -> str:
    channels = format_.channels
    syntax = format_.tools
    skipped = len(syntax.section[0]) if syntax and any(stop in syntax.section[0] for stop in format_.stops) else 0
    if skipped and syntax is not None and syntax.section[0] in output:
        skipped += output.index(syntax.section[0])
    else:
        skipped = 0
    ends = [stop for stop in (*format_.stops, "</s>") if stop in output[skipped:]]
    if not ends:
        return output
    stop = min(ends, key=output[skipped:].index)
    return output[: output.index(stop, skipped) + (len(stop) if channels else 0)]


def read(format_: Format, prefix: Any, output: str, *, calls: bool) -> Read:
    """What a parser of the format reads in an output."""
    parser = Parser(format_, prefix, tools=[LOOK] if calls else None)
    completion = fold([*parser.feed(output), *parser.close()])
    found = [(call.name, call.error or json.loads(call.arguments)) for call in completion.tool_calls]
    return completion.reasoning, completion.content, found


def expected(message: Message, output: str) -> Read:
    """The message less what the template did not write."""
    shown = [call for call in message.tool_calls if json.loads(call.arguments)["city"][:4] in output]
    reasoning = message.reasoning or "" if "WHYTEXT" in output else ""
    content = message.content or "" if "SAIDTEXT" in output else ""
    return reasoning, content, [(call.name, json.loads(call.arguments)) for call in shown]


def roundtrip(template: ChatTemplate, message: Message, *, continues: bool = True) -> str | None:
    """None where the message comes back, else what came. `continues`: only as what follows a prompt; else a turn that
    no prompt begins is read too, from its start on, or behind a prompt's tail in place of its start."""
    outcome = Outcome(template, message)
    format_, calls = template.format, bool(message.tool_calls)
    output = outcome.turn(format_)
    wanted = expected(message, output)
    if outcome.kept is not None:
        got = read(format_, outcome.kept.prefix, output, calls=calls)
    elif continues:
        return "no prompt is its beginning"
    else:
        got = read(format_, "", output, calls=calls)
        if got != wanted and outcome.asked is not None:
            got = read(format_, outcome.asked.prefix, output.removeprefix(format_.start), calls=calls)
    if not continues:
        got, wanted = (got[0], got[1].strip(), got[2]), (wanted[0], wanted[1].strip(), wanted[2])
    return None if got == wanted else f"{got} from {output!r}"


def lost(template: ChatTemplate, *, continues: bool = True) -> dict[str, str]:
    """The messages that do not come back, with what came."""
    calls = template.family.format.tools is not None or template.family.format.channels is not None
    shown = {name: message for name, message in MESSAGES.items() if calls or not message.tool_calls}
    found = {name: roundtrip(template, message, continues=continues) for name, message in shown.items()}
    return {name: text for name, text in found.items() if text is not None}


@dataclass(frozen=True)
class Row:
    """One template with its family's row switched off: what was derived, and how that compares.

    `back`: the messages that do not come back through the derived format; `unlike`: those that it reads otherwise than
    the declared row, of the same renders; `differs`: fields of the record that differ from the row's, white space
    beside markers apart.
    """

    name: str
    family: str
    derived: Derivation
    back: dict[str, str]
    unlike: tuple[str, ...]
    differs: tuple[str, ...]

    @property
    def has_calls(self) -> bool:
        return self.derived.format is not None and self.derived.format.tools is not None


def row(path: Path) -> Row:
    """The measurement of one template."""
    source = path.read_text(encoding="utf-8")
    template = Template(source)
    derived = derivation(template, FIXED, probe(template, FIXED))
    family = builtin_families().detect(source).family
    if derived.format is None:
        return Row(path.stem, family.name, derived, {}, (), ())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alone = ChatTemplate(source, "<s>", "</s>", derived.format)
        declared = ChatTemplate(source, "<s>", "</s>", family)
    unlike = tuple(name for name, message in MESSAGES.items() if not _alike(declared, derived.format, message))
    return Row(
        path.stem,
        family.name,
        derived,
        lost(alone, continues=False),
        unlike,
        _differences(derived.format, family.format),
    )


def _alike(declared: ChatTemplate, derived: Format, message: Message) -> bool:
    """Whether both formats read what the declared one's template renders of a message alike."""
    try:
        outcome = Outcome(declared, message)
    except TemplateError:
        return True  # there is nothing to read
    output = outcome.turn(declared.format)
    prefix = "" if outcome.kept is None else outcome.kept.prefix
    calls = bool(message.tool_calls)
    declared_format = declared.family.format
    return read(derived, prefix, output, calls=calls) == read(declared_format, prefix, output, calls=calls)


def _differences(derived: Format, declared: Format) -> tuple[str, ...]:
    """The fields of two formats that say different things, as far as a template can show them."""
    pairs: list[tuple[str, Any, Any]] = [
        ("start", derived.start, declared.start),
        ("stops", derived.stops[:1], declared.stops[:1]),
        ("content", derived.content, declared.content),
        ("calls", derived.tools is not None, declared.tools is not None),
    ]
    one, other = derived.reasoning, declared.reasoning
    if one is not None and other is not None:
        fields = ("open", "close", "history", "forced_open")
        pairs += [(f"reasoning.{field}", getattr(one, field), getattr(other, field)) for field in fields]
    if derived.tools is not None and declared.tools is not None:
        fields = (
            "shape",
            "section",
            "call",
            "name_end",
            "argument",
            "quote",
            "tag",
            "name_is_key",
            "id_open",
            "id_end",
        )
        pairs += [(f"tools.{field}", getattr(derived.tools, field), getattr(declared.tools, field)) for field in fields]
    return tuple(name for name, mine, theirs in pairs if _bare(mine) != _bare(theirs))


def _bare(value: Any) -> Any:
    if isinstance(value, str):
        return value.strip()
    return tuple(map(_bare, value)) if isinstance(value, tuple) else value  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]
