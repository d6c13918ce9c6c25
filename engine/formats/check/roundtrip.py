"""Renders messages with a chat template and parses them back: checks whether a family's row reads what its template
writes.
"""

import json
from collections.abc import Sequence
from typing import Any

from engine.formats.families import Format
from engine.formats.parsing import Parser
from engine.formats.template.chat_template import ChatTemplate
from engine.formats.template.derive.derivation import Read
from engine.support.errors import RequestError
from engine.types.events import fold
from engine.types.messages import Message
from engine.types.parts import ToolCall
from engine.types.prompt import Prompt
from engine.types.sampling import Reasoning
from engine.types.tools import Tool

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
_EOS = "</s>"
"""Ends the turn where the template writes none of the format's stops; elsewhere it may be a part of a call's markup."""
SWITCHES: tuple[Reasoning | None, ...] = (None, True, False)


def turn(content: str = "", *calls: ToolCall, reasoning: str | None = None) -> Message:
    """Returns an assistant's message."""
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
    """The render of one message: `kept` is the prompt that it follows (None if it begins with no prompt), `output` the
    text after that prompt; `whole` the last render tried, `asked` the first prompt."""

    def __init__(
        self,
        template: ChatTemplate,
        message: Message,
        tools: Sequence[Tool] = (LOOK,),
        switches: Sequence[Reasoning | None] = SWITCHES,
    ) -> None:
        stated = tools if message.tool_calls else None
        results = [Message(role="tool", tool_call_id=call.id, content="RESULTTEXT") for call in message.tool_calls]
        self.kept: Prompt | None = None
        self.asked: Prompt | None = None
        self.output = self.whole = ""
        for switch in switches:
            try:
                prompt = template.render([ASKED], stated, switch)
                self.whole = template.render(
                    [ASKED, message, *results], stated, switch, add_generation_prompt=False
                ).text
            except RequestError:
                continue  # a position that this family lacks
            self.asked = self.asked or prompt
            if self.whole.startswith(prompt.text):
                self.kept, self.output = prompt, self.whole[len(prompt.text) :]
                break

    def turn(self, format_: Format) -> str:
        """Returns the output up to the end of the turn, where generation stops; if the render begins with no prompt,
        the turn from the assistant's start on."""
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
    ends = [stop for stop in format_.stops if stop in output[skipped:]]
    if not ends and _EOS in output[skipped:]:
        ends.append(_EOS)
    if not ends:
        return output
    stop = min(ends, key=output[skipped:].index)
    return output[: output.index(stop, skipped) + (len(stop) if channels else 0)]


def read(format_: Format, prefix: Any, output: str, *, calls: bool) -> Read:
    """Returns what a parser of the format reads in an output."""
    parser = Parser(format_, prefix, tools=[LOOK] if calls else None)
    completion = fold([*parser.feed(output), *parser.close()])
    found = [(call.name, call.error or json.loads(call.arguments)) for call in completion.tool_calls]
    return completion.reasoning, completion.content, found


def expected(message: Message, output: str) -> Read:
    """Returns the message without the parts that the template did not write."""
    shown = [call for call in message.tool_calls if json.loads(call.arguments)["city"][:4] in output]
    reasoning = message.reasoning or "" if "WHYTEXT" in output else ""
    content = message.content or "" if "SAIDTEXT" in output else ""
    return reasoning, content, [(call.name, json.loads(call.arguments)) for call in shown]


def roundtrip(template: ChatTemplate, message: Message, *, continues: bool = True) -> str | None:
    """Returns None if the message is read back, otherwise what was read. `continues`: read it only after a prompt;
    otherwise a turn that follows no prompt is read too, from its start on, or after a prompt's tail instead of its
    start."""
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
    """Returns the messages that are not read back, with what was read."""
    calls = template.family.format.tools is not None or template.family.format.channels is not None
    shown = {name: message for name, message in MESSAGES.items() if calls or not message.tool_calls}
    found = {name: roundtrip(template, message, continues=continues) for name, message in shown.items()}
    return {name: text for name, text in found.items() if text is not None}
