"""One render, from checked messages to a `Prompt`: the order of work, and how a partial answer is continued.

Knows: adapt, guard, render, find the turn's start, cut; and, for a continuation, where the unfinished message stops.
Does not know: which template or family was chosen, what callers may ask for, parsers.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from engine.errors import RequestError, TemplateError
from engine.families import Format
from engine.template.capabilities import Capabilities
from engine.template.conversation import without_inline_reasoning
from engine.template.env import Template, closed, described, values, with_parameters, without_null
from engine.template.generic import with_statement
from engine.template.guard import Guard, Markers, absent
from engine.template.history import BUILTIN_VARIABLE, builtin_as_written, entries, is_builtin, preamble_headers
from engine.template.prompt import Prompt, common, pieces_of, prefix_of, turn_start
from engine.template.reasoning import Switch, with_words
from engine.types import Message, Tool

InReasoning: TypeAlias = Callable[[Prompt], bool]
"""Whether a prompt leaves reasoning open: asked of a parser, which this room does not know."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What all renders of one template share. `fixed` are the variables that never change, `markers` the control
    texts."""

    template: Template
    format: Format
    can: Capabilities
    fixed: Mapping[str, str]
    markers: Markers


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks of its renders.

    - `variables` are the caller's own, which win; `switch` is what was asked of reasoning;
    - `documents` as the template reads them; `builtin` are names of tools that the template declares itself;
    - `guarded=False` lets callers' control-token text become control tokens; `authors`: every text of the callers' is
      marked, to learn where it stands; `until`: when the renders are cut off, on `time.monotonic`'s clock.
    """

    variables: Mapping[str, Any] = field(default_factory=dict[str, Any])
    switch: Switch = field(default_factory=Switch)
    documents: Sequence[Mapping[str, Any]] = ()
    builtin: tuple[str, ...] = ()
    guarded: bool = True
    authors: bool = False
    until: float | None = None


class Rendering:
    """The renders of one request."""

    def __init__(
        self, setting: Setting, conversation: Sequence[Message], tools: Sequence[Tool], asked: Asked | None = None
    ) -> None:
        self._setting = setting
        self._format = setting.format
        self._asked = asked = asked or Asked()
        texts = [
            setting.template.source,
            *(message.model_dump_json() for message in conversation),
            *map(repr, (*tools, *asked.documents)),
        ]
        self._guard = Guard(setting.markers if asked.guarded else None, texts, everything=asked.authors)
        self._end, self._preamble, self._builtin = absent(texts, 3)
        hidden = [self._guard.hide_message(without_inline_reasoning(message, self._format)) for message in conversation]
        stated = [self._guard.hide_tool(tool) for tool in tools if not is_builtin(tool.name, asked.builtin)]
        self._documents = [self._guard.hide_value(document) for document in asked.documents]
        self._in_system = ""
        if stated and not setting.can.tools and setting.can.tools_in_system:
            functions = [tool.openai()["function"] for tool in stated]
            self._in_system, stated = json.dumps(functions, ensure_ascii=False), []
        elif stated and not setting.can.tools and self._format.tools:
            hidden, stated = with_statement(hidden, stated, self._format.tools), []
        self._conversation: list[Message] = list(map(self._with_builtin, hidden))
        self._tools = [_told(tool, setting.can) for tool in stated]

    def _with_builtin(self, message: Message) -> Message:
        """Calls of built-in tools with a mark before their names, where their history is rewritten (`as_written`)."""
        if self._format.channels is None or not self._asked.builtin:
            return message
        calls = tuple(
            call.model_copy(update={"name": self._builtin + call.name})
            if is_builtin(call.name, self._asked.builtin)
            else call
            for call in message.tool_calls
        )
        return message.model_copy(update={"tool_calls": calls, "parts": ()})

    def plain(self) -> Prompt:
        """The conversation as it is, with no place for an answer."""
        return self._cut(self._render(self._conversation, generates=False), None)

    def answer(self) -> Prompt:
        """The prompt that asks for the next message."""
        return self._answer(self._conversation)

    def _answer(self, conversation: Sequence[Message]) -> Prompt:
        marked = self._render(conversation, generates=True)
        found = self._after_question(conversation, marked)
        if found is not None:
            return self._cut(marked, found)
        try:
            bare = self._reveal(self._render(conversation, generates=False))
        except TemplateError:
            bare = None  # this render only tells where the other's addition begins
        continues = bool(conversation) and conversation[-1].role == "tool"
        return self._cut(marked, turn_start(self._reveal(marked), bare, self._format.start, continues=continues))

    def _after_question(self, conversation: Sequence[Message], marked: str) -> int | None:
        """Where the turn begins, if the last message is the user's and the assistant's start follows its text; None
        where that does not decide it."""
        start = self._format.start
        if not conversation or conversation[-1].role != "user" or not start:
            return None
        text, asked = self._reveal(marked), self._reveal((conversation[-1].content or "").strip())
        place, found = text.rfind(asked), text.rfind(start)
        return found if asked and 0 <= place <= found - len(asked) else None

    def continuation(self, in_reasoning: InReasoning) -> Prompt:
        """The prompt that goes on inside the last message, which is the assistant's: in its reasoning, in its content,
        or after its calls. `in_reasoning` tells whether a prompt leaves it open.

        The template writes the unfinished message itself where it can; where it would drop some of it, what the model
        would have written is put after the generation prompt instead.
        """
        *earlier, last = self._conversation
        if not (last.content or last.reasoning or last.tool_calls):
            return self._answer(earlier)
        marked = self._after_calls(last) if last.tool_calls else self._by_template(earlier, last)
        if marked is not None:
            return self._cut(marked, self._turn_of_last(marked, earlier))
        prompt = self._render(earlier, generates=True) if earlier else ""
        asked = self._answer(earlier)
        whole = prompt + self._own_words(last, opened=in_reasoning(asked))
        start = len(asked.text) - sum(len(piece.text) for piece in asked.prefix)
        return self._cut(whole, start)

    def _by_template(self, earlier: Sequence[Message], last: Message) -> str | None:
        """The render up to the end of the last message's text; None where the template does not show all of it."""
        field = "content" if last.content else "reasoning"
        tagged = last.model_copy(update={field: f"{getattr(last, field)}{self._end}", "parts": ()})
        try:
            marked = self._render([*earlier, tagged], generates=False)
        except TemplateError:
            return None
        place = marked.rfind(self._end)
        if place < 0 or (last.reasoning or "").strip() not in marked:
            return None
        return marked[:place]

    def _after_calls(self, last: Message) -> str:
        """The render less what ends the turn."""
        marked = self._render(self._conversation, generates=False)
        text = marked.rstrip()
        ends = [end for end in (*self._format.stops, *self._setting.fixed.values()) if end and text.endswith(end)]
        channels = self._format.channels
        if channels is not None and channels.call_end in ends:
            raise RequestError(
                f"A call ends the turn in this family, so nothing can follow the call of {last.tool_calls[-1].name!r}: "
                "append its result, and leave continue_final_message out."
            )
        return text.removesuffix(max(ends, key=len)) if ends else marked

    def _own_words(self, last: Message, *, opened: bool) -> str:
        syntax, reasoning, content = self._format.reasoning, last.reasoning or "", last.content or ""
        if syntax is None or not (reasoning or opened):
            return content
        opening = "" if opened else syntax.open
        return opening + reasoning + (syntax.close + content if content else "")

    def _turn_of_last(self, marked: str, earlier: Sequence[Message]) -> int:
        text = self._reveal(marked)
        before = common(text, self._reveal(self._render(earlier, generates=False))) if earlier else 0
        start = self._format.start
        found = text.find(start, max(before - len(start), 0)) if start else -1
        return found if found >= 0 else before

    def _render(self, conversation: Sequence[Message], *, generates: bool) -> str:
        can, asked = self._setting.can, self._asked
        adapted = entries(with_words(conversation, asked.switch), self._format, can, self._preamble)
        if self._in_system and adapted:
            if adapted[0]["role"] != "system":
                adapted.insert(0, {"role": "system", "content": ""})
            adapted[0]["tools"] = self._in_system
        tools = self._tools or ([] if can.empty_tools else None)
        template = self._setting.template
        given = values(template, self._setting.fixed, adapted, tools, generates=generates, documents=self._documents)
        if asked.builtin:
            given[BUILTIN_VARIABLE] = list(asked.builtin)
        try:
            text = template.render(
                {**given, **asked.switch.variables, **asked.variables}, self._guard.escapes, asked.until
            )
            return self._corrected(text, generates=generates)
        except TemplateError as error:
            if not self._guard.used:
                raise
            raise TemplateError(self._reveal(str(error))) from error

    def _corrected(self, text: str, *, generates: bool) -> str:
        """A render with what the template itself cannot say put right, in families of channels."""
        channels, end = self._format.channels, self._format.continued_end
        if self._preamble in text:
            text = text.replace(*preamble_headers(self._format, self._preamble))
        if channels is not None and self._builtin in text:
            text = builtin_as_written(text, self._builtin, channels)
        if channels is None or end is None or not generates:
            return text
        return text.replace(end[0] + channels.start, end[1] + channels.start)  # a turn that is history now

    def _reveal(self, marked: str) -> str:
        return self._guard.reveal(marked)[0]

    def _cut(self, marked: str, start: int | None) -> Prompt:
        text, callers = self._guard.reveal(marked)
        pieces = pieces_of(text, self._guard.forged(text, callers))
        prefix = () if start is None else prefix_of(pieces, start, self._format.control)
        return Prompt(text, pieces, prefix, self._format.final_stops, callers=tuple(callers))


def _told(tool: Tool, can: Capabilities) -> Mapping[str, Any]:
    """The tool as the template is told of it: what would make it fail is said in other words."""
    told: Mapping[str, Any] = tool.openai()
    told = told if can.bare_tools else described(told)
    told = told if can.nullable else with_parameters(told, without_null)
    return told if can.open_objects else with_parameters(told, closed)
