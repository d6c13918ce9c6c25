"""One render, from checked messages to a `Prompt`: the order of work, and how a partial answer is continued.

A picture or a sound is rendered as text: one character that occurs nowhere else in the request, in the place of its
part. llama.cpp's server does the same with a marker. A template's own form of an image is not used: what it writes
(such as `<|vision_start|>`) libmtmd itself puts around the rows of an image, and whether a model takes images is
decided by its projector, not by its template. So every template takes them that shows the text around them.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

from engine.formats.families import Format
from engine.formats.template.capabilities import Capabilities
from engine.formats.template.env import Template, values
from engine.formats.template.generic import GENERIC, reads_values, with_statement
from engine.formats.template.guard import Alphabets, Authored, Guard, Marking, absent
from engine.formats.template.history import (
    BUILTIN_VARIABLE,
    MessageWriter,
    builtin_as_written,
    entries,
    is_builtin,
    parses_arguments,
    preamble_headers,
    with_ids,
)
from engine.formats.template.inline_reasoning import without_inline_reasoning
from engine.formats.template.markers import Markers
from engine.formats.template.prompt import common, pieces_of, prefix_of, turn_start, with_media
from engine.formats.template.reasoning import NO_SWITCH, Switch, with_words
from engine.formats.template.renderer import TemplateStoppedError
from engine.formats.template.tool_forms import ToolForms
from engine.support.errors import RequestError, TemplateError
from engine.types.completion import Completion
from engine.types.media import ImageLink, Media
from engine.types.messages import Message
from engine.types.prompt import Prompt, Span
from engine.types.tools import Tool

_MOST_MEDIA = 10_000
Reads: TypeAlias = Callable[[Prompt], tuple[bool, Completion]]
"""Parses a prompt's tail: whether the next text is reasoning, and the part of the next turn that it already contains.
Passed in, since this module knows no parser."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What all renders of one template share. `fixed` are the variables that never change, `markers` the texts of
    control tokens, `words` what the template may look for in callers' text, `forms` how it takes tools, `writer` how
    messages, `alphabets` the stand-ins of the guard."""

    template: Template
    format: Format
    can: Capabilities
    fixed: Mapping[str, str]
    markers: Markers
    words: frozenset[str]
    forms: ToolForms
    writer: MessageWriter
    alphabets: Alphabets


_Start: TypeAlias = Callable[[], int | None]
"""Returns where in a revealed prompt the turn begins that the model is about to write."""


class Rendering:
    """The renders of one request: of a `conversation` with the ids that the template requires, and the `tools` to
    state. `end`, `preamble`, `mark` (see `_Run`) and those that stand for `media` are characters that occur nowhere
    in it.

    - `variables` are the caller's own, which override others; `switch` is the switch for reasoning;
    - `documents` as the template reads them; `builtin` are names of tools that the template declares itself;
    - `guarded=False`: callers' control-token text may become control tokens;
    - `until`: when to stop the renders, on `time.monotonic`'s clock.
    """

    def __init__(
        self,
        setting: Setting,
        conversation: Sequence[Message],
        tools: Sequence[Tool],
        *,
        variables: Mapping[str, Any] | None = None,
        switch: Switch = NO_SWITCH,
        documents: Sequence[Mapping[str, Any]] = (),
        builtin: tuple[str, ...] = (),
        guarded: bool = True,
        until: float | None = None,
    ) -> None:
        self.setting = setting
        self.variables: Mapping[str, Any] = variables or {}
        self.switch, self.documents, self.builtin, self.until = switch, documents, builtin, until
        self.tools = [tool for tool in tools if not is_builtin(tool.name, builtin)]
        self._messages = conversation
        try:
            texts = _texts((conversation, self.tools, documents, self.variables, builtin))
        except RecursionError as error:
            raise TemplateError(
                "The conversation or its tools are nested too deeply for a chat template. Flatten them."
            ) from error
        media = [_read(each) for message in conversation for each in message.media]
        if len(media) > _MOST_MEDIA:
            raise RequestError(f"The conversation has {len(media):,} images and sounds; send at most {_MOST_MEDIA:,}.")
        self.end, self.preamble, self.mark, *places = absent((setting.template.source, *texts), 3 + len(media))
        whole = [without_inline_reasoning(message, setting.format) for message in _placed(conversation, places)]
        if switch.place:  # callers' words that oppose it go now, before marking makes them unreadable
            whole = with_words(whole, replace(switch, words=""))
        self.conversation = with_ids(whole, setting.format, setting.can)
        self.media: Mapping[str, Media] = dict(zip(places, media, strict=True))
        self._guard = Guard(setting.markers, setting.words, setting.alphabets.of(texts)) if guarded else None

    def switched(self, switch: Switch) -> "Rendering":
        """Returns the renders of the same request with another switch for reasoning."""
        return Rendering(
            self.setting,
            self._messages,
            self.tools,
            variables=self.variables,
            switch=switch,
            documents=self.documents,
            builtin=self.builtin,
            guarded=self._guard is not None,
            until=self.until,
        )

    def plain(self) -> Prompt:
        """Returns the conversation without a generation prompt."""
        return self._prompt(_Run.plain)

    def answer(self) -> Prompt:
        """Returns the prompt that asks for the next message."""
        return self._prompt(_Run.answer)

    def continuation(self, reads: Reads) -> Prompt:
        """Returns the prompt that continues the last message, which is the assistant's: in its reasoning, in its
        content, or after its calls.

        The template writes the unfinished message if it can. If it would drop a part of it, or end at another point of
        the turn, the text that the model would have written follows the generation prompt instead.
        """
        by_template = self._judged(lambda run: run.stops_by_template(reads))
        return self._prompt(lambda run: run.continuation(reads, by_template=by_template))

    def fits(self, reads: Reads) -> bool:
        """Whether the continuation ends exactly where the last message stops, with the reasoning before it."""
        return self._judged(lambda run: run.fits(reads))

    def _judged(self, judge: "Callable[[_Run], bool]") -> bool:
        """Apply `judge` to renders in which callers' text stays marked, so that the parser does not take it for
        structure."""
        plain = _Run(self, None, _as_it_is)
        if self._guard is None:
            return judge(plain)
        try:
            return judge(_Run(self, self._guard.marking(), _as_it_is))
        except TemplateStoppedError:
            raise
        except TemplateError:
            return judge(plain)  # which raises if the template rejects the messages themselves

    def _prompt(self, compose: "Callable[[_Run], tuple[str, _Start]]") -> Prompt:
        """Returns the prompt of a text that `compose` makes, marked as the run is."""
        starts: dict[Marking | None, _Start] = {}

        def render(marking: Marking | None) -> str:
            reveal = self._guard.reveal if self._guard and marking else _as_it_is
            text, starts[marking] = compose(_Run(self, marking, reveal))
            return text

        found = self._guard.authored(render) if self._guard else Authored(render(None), (), None)
        start = starts[found.marking]()
        prompt = _cut(self.setting.format, found.text, found.callers, start, complete=found.complete)
        return self._with_media(prompt) if self.media else prompt

    def _with_media(self, prompt: Prompt) -> Prompt:
        """Put the media into their places. Raises RequestError if the template does not show each of them once."""
        media = self.media
        if lost := next((media[place] for place in media if prompt.text.count(place) != 1), None):
            raise RequestError(
                f"The conversation's {lost.about} is not shown where it stands by this model's chat template: leave it "
                "out of that message, or pass another template with chat_template=."
            )
        return with_media(prompt, media)


def _cut(format_: Format, text: str, callers: Sequence[Span], start: int | None, *, complete: bool = False) -> Prompt:
    """Returns the prompt of a text, of which callers wrote these spans. `start`, `complete`: see `_Start`, `Prompt`."""
    pieces = pieces_of(text, callers)
    prefix = () if start is None else prefix_of(pieces, start, format_.control)
    return Prompt(text, pieces, prefix, format_.final_stops, complete=complete)


def _as_it_is(text: str) -> tuple[str, list[Span]]:
    return text, []


class _Run:
    """The renders of one request with callers' text marked in one way (None: unmarked). All texts are marked, except
    those that went through `reveal`."""

    def __init__(
        self,
        given: Rendering,
        marking: Marking | None,
        reveal: Callable[[str], tuple[str, list[Span]]],
    ) -> None:
        self._setting = setting = given.setting
        self._format = setting.format
        self._given = given
        self._escapes = marking.escapes if marking else {}
        self._reveal = reveal
        can = setting.can
        conversation = list(given.conversation)
        tools = setting.forms.of(given.tools, given.until) if can.tools else [tool.openai() for tool in given.tools]
        documents: Any = given.documents
        variables: Any = {**given.variables, **({BUILTIN_VARIABLE: list(given.builtin)} if given.builtin else {})}
        if marking is not None:
            parsed = self._reads_values()
            conversation = [marking.hide_message(message, parsed=parsed) for message in conversation]
            tools = [marking.hide_tool(tool) for tool in tools]
            documents = marking.hide_value(documents)
            variables = {name: marking.hide_value(value) for name, value in variables.items()}
        conversation = list(map(self._with_builtin, conversation, given.conversation))
        functions = [tool["function"] for tool in tools]
        self._in_system = ""
        if functions and not can.tools and can.tools_in_system:
            self._in_system, tools = json.dumps(functions, ensure_ascii=False), []
        elif functions and not can.tools and self._format.tools:
            conversation, tools = with_statement(conversation, functions, self._format.tools), []
        self._conversation, self._tools, self._documents, self._variables = conversation, tools, documents, variables

    def _reads_values(self) -> bool:
        """Whether the template, or what writes calls in its place, reads the values of arguments; if not, their text is
        printed."""
        can = self._setting.can
        if not can.calls:
            return reads_values(self._format.tools or GENERIC)
        return parses_arguments(self._format, can) or "from_json" in self._setting.template.source

    def _with_builtin(self, message: Message, plain: Message) -> Message:
        """Put a mark before the names of built-in tools' calls, so that `builtin_as_written` can rewrite them."""
        builtin = self._given.builtin
        if self._format.channels is None or not builtin:
            return message
        calls = tuple(
            call.model_copy(update={"name": self._given.mark + call.name}) if is_builtin(known.name, builtin) else call
            for call, known in zip(message.tool_calls, plain.tool_calls, strict=True)
        )
        return message.model_copy(update={"tool_calls": calls, "parts": ()})

    def plain(self) -> tuple[str, _Start]:
        return self._render(self._conversation, generates=False), lambda: None

    def answer(self) -> tuple[str, _Start]:
        return self._answer(self._conversation)

    def _answer(self, conversation: Sequence[Message]) -> tuple[str, _Start]:
        marked = self._reopened(conversation, self._render(conversation, generates=True))
        return marked, lambda: self._turn(conversation, self._shown(marked))

    def _reopened(self, conversation: Sequence[Message], marked: str) -> str:
        """Append the assistant's start to a prompt that, after a tool's result, ends a turn without beginning one:
        templates that continue the turn of the call forget that text next to the call has ended it."""
        if not conversation or conversation[-1].role != "tool":
            return marked
        text = marked.rstrip()
        ends = (*self._format.stops, *self._setting.fixed.values())
        return marked + self._format.start if any(end and text.endswith(end) for end in ends) else marked

    def _turn(self, conversation: Sequence[Message], text: str) -> int:
        found = self._after_question(conversation, text)
        if found is not None:
            return found
        try:
            bare = self._shown(self._render(conversation, generates=False))
        except TemplateStoppedError:
            raise
        except TemplateError:
            bare = None  # this render only shows where the generation prompt begins
        continues = bool(conversation) and conversation[-1].role == "tool"
        return turn_start(text, bare, self._format.start, continues=continues)

    def _after_question(self, conversation: Sequence[Message], text: str) -> int | None:
        """Returns the position of the turn if the assistant's start follows the text of the user's question, or of a
        tool's result; None if that does not decide it."""
        start = self._format.start
        if not conversation or conversation[-1].role not in ("user", "tool") or not start:
            return None
        asked = self._shown((conversation[-1].content or "").strip())
        place, found = text.rfind(asked), text.rfind(start)
        return found if asked and 0 <= place <= found - len(asked) else None

    def continuation(self, reads: Reads, *, by_template: bool) -> tuple[str, _Start]:
        *earlier, last = self._conversation
        if not (last.content or last.reasoning or last.tool_calls):
            return self._answer(earlier)
        if last.tool_calls:
            return self._inside(self._after_calls(last), earlier)
        written = self._written(earlier, last) if by_template else None
        return written or self._by_hand(earlier, last, reads)

    def stops_by_template(self, reads: Reads) -> bool:
        """Whether to continue with the template's own render: if it ends exactly where the last message stops. If
        neither it nor the text written by hand does, prefer the latter."""
        *earlier, last = self._conversation
        if last.tool_calls or not (last.content or last.reasoning):
            return False
        written = self._written(earlier, last)
        if written is None or self._fits(*written, reads):
            return written is not None
        if self._fits(*self._by_hand(earlier, last, reads), reads, shown=False):
            return False
        return self._fits(*written, reads, shown=False)

    def fits(self, reads: Reads) -> bool:
        by_template = self.stops_by_template(reads)
        return self._fits(*self.continuation(reads, by_template=by_template), reads)

    def _fits(self, marked: str, start: _Start, reads: Reads, *, shown: bool = True) -> bool:
        """Whether a prompt ends exactly where the last message stops. Without `shown` the reasoning before the content
        may be missing."""
        prompt = self._cut(marked, start)
        syntax, last = self._format.reasoning, self._conversation[-1]
        in_reasoning, held = reads(prompt)
        content = (last.content or "").strip()
        has_reasoning = held.reasoning.strip() == (last.reasoning or "").strip()
        tail = "".join(piece.text for piece in prompt.prefix)
        if syntax is not None and syntax.open.strip() and tail.count(syntax.open.strip()) > 1:
            return False
        if not content:
            return in_reasoning and has_reasoning
        if in_reasoning or held.content.strip() != content:
            return False
        return syntax is None or not shown or has_reasoning

    def _cut(self, marked: str, start: _Start) -> Prompt:
        return _cut(self._format, *self._reveal(marked), start())

    def _inside(self, marked: str, earlier: Sequence[Message]) -> tuple[str, _Start]:
        return marked, lambda: self._turn_of_last(self._shown(marked), earlier)

    def _written(self, earlier: Sequence[Message], last: Message) -> tuple[str, _Start] | None:
        """Returns the render up to the end of the last message's text; None if the template does not show it."""
        field, end = "content" if last.content else "reasoning", self._given.end
        tagged = last.model_copy(update={field: f"{getattr(last, field)}{end}", "parts": ()})
        try:
            marked = self._render([*earlier, tagged], generates=False)
        except TemplateStoppedError:
            raise
        except TemplateError:
            return None
        place = marked.rfind(end)
        return None if place < 0 else self._inside(marked[:place], earlier)

    def _by_hand(self, earlier: Sequence[Message], last: Message, reads: Reads) -> tuple[str, _Start]:
        """Returns the prompt that asks for the message, followed by what the model would have written of it."""
        marked, start = self._answer(earlier)
        prompt = self._cut(marked, start)
        whole = marked if earlier else ""
        in_reasoning, _ = reads(prompt)
        return whole + self._own_words(whole, last, prompt, in_reasoning=in_reasoning), start

    def _after_calls(self, last: Message) -> str:
        """Returns the render without the end of the turn. Raises RequestError if a call ends the turn in this
        family."""
        marked = self._render(self._conversation, generates=False)
        text = marked.rstrip()
        ends = [end for end in (*self._format.stops, *self._setting.fixed.values()) if end and text.endswith(end)]
        channels = self._format.channels
        if channels is not None and channels.call_end in ends:
            name = self._shown(last.tool_calls[-1].name)
            raise RequestError(
                f"A call ends the turn in this family, so nothing can follow the call of {name!r}: append its result, "
                "and leave continue_final_message out."
            )
        return text.removesuffix(max(ends, key=len)) if ends else marked

    def _own_words(self, prompt: str, last: Message, asked: Prompt, *, in_reasoning: bool) -> str:
        """Returns what the model would have written of the message after the generation prompt `prompt` (revealed:
        `asked`), which leaves it `in_reasoning` or not."""
        syntax, reasoning, content = self._format.reasoning, last.reasoning or "", last.content or ""
        closed = syntax is not None and syntax.close.strip() in "".join(piece.text for piece in asked.prefix)
        words = ""
        if syntax is not None and (in_reasoning or (reasoning and not (closed and content))):
            words = ("" if in_reasoning else _beyond(prompt, syntax.open)) + reasoning
            words += syntax.close if content else ""
        return words + (_beyond(prompt + words, self._answer_opening()) + content if content else "")

    def _answer_opening(self) -> str:
        """Returns what a model writes before its answer."""
        channels = self._format.channels
        if channels is None:
            return self._format.content[0]
        return f"{channels.start}{channels.role}{channels.channel}{channels.content[0]}{channels.message}"

    def _turn_of_last(self, text: str, earlier: Sequence[Message]) -> int:
        before = common(text, self._shown(self._render(earlier, generates=False))) if earlier else 0
        start = self._format.start
        found = text.find(start, max(before - len(start), 0)) if start else -1
        return found if found >= 0 else before

    def _render(self, conversation: Sequence[Message], *, generates: bool) -> str:
        can, switch, given = self._setting.can, self._given.switch, self._given
        adapted = entries(with_words(conversation, switch), self._setting.writer, given.preamble)
        if self._in_system and adapted:
            if adapted[0]["role"] != "system":
                adapted.insert(0, {"role": "system", "content": ""})
            adapted[0]["tools"] = self._in_system
        adapted = _with_languages(adapted, self._variables)
        tools = self._tools or ([] if can.empty_tools else None)
        documents = self._documents
        template = self._setting.template
        variables = values(template, self._setting.fixed, adapted, tools, generates=generates, documents=documents)
        variables = {**variables, **switch.variables, **self._variables}
        return self._corrected(template.render(variables, self._escapes, given.until), generates=generates)

    def _corrected(self, text: str, *, generates: bool) -> str:
        """Correct a render in families with channels, where the template cannot write what the model wrote."""
        channels, end, given = self._format.channels, self._format.continued_end, self._given
        if given.preamble in text:
            text = text.replace(*preamble_headers(self._format, given.preamble))
        if channels is not None and given.mark in text:
            text = builtin_as_written(text, given.mark, channels)
        if channels is None or end is None or not generates:
            return text
        return text.replace(end[0] + channels.start, end[1] + channels.start)  # a turn that has become history

    def _shown(self, marked: str) -> str:
        return self._reveal(marked)[0]


def _with_languages(messages: list[dict[str, Any]], variables: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the messages with the languages that the caller gave as variables in each user's text, where
    TranslateGemma's template reads them (source: that template)."""
    languages = {name: variables[name] for name in ("source_lang_code", "target_lang_code") if name in variables}
    if len(languages) < 2:
        return messages
    return [
        {**each, "content": [{"type": "text", "text": each["content"], **languages}]}
        if each["role"] == "user" and isinstance(each["content"], str)
        else each
        for each in messages
    ]


def _read(media: Media | ImageLink) -> Media:
    """Returns a picture or a sound as it is. Raises RequestError for a link that nobody has read."""
    if isinstance(media, ImageLink):
        raise media.refusal()
    return media


def _placed(conversation: Sequence[Message], places: Sequence[str]) -> list[Message]:
    """Returns the conversation as texts, with one of the characters in the place of each picture or sound."""
    left = iter(places)
    return [
        message.model_copy(update={"content": message.content_with(lambda _: next(left)), "parts": ()})
        if message.media
        else message
        for message in conversation
    ]


def _beyond(text: str, opening: str) -> str:
    """Returns the part of an opening marker that the text does not already end with."""
    bare = text.rstrip()
    if opening.strip() and bare.endswith(opening.strip()):
        return ""
    length = next((length for length in range(len(opening), 0, -1) if text.endswith(opening[:length])), 0)
    return opening[length:]


def _texts(value: object, found: list[str] | None = None) -> list[str]:
    """Returns every text in a value, after those `found`."""
    found = [] if found is None else found
    if isinstance(value, str):
        found.append(value)
    elif isinstance(value, Message):
        found += filter(None, (value.content, value.reasoning, value.name, value.tool_call_id))
        for call in value.tool_calls:
            found += (call.id, call.name, call.arguments)
    elif isinstance(value, Tool):
        _texts(value.openai(), found)
    elif isinstance(value, Mapping):
        for key, item in cast("Mapping[object, object]", value).items():
            found.append(str(key))
            if type(item) is str:
                found.append(item)
            else:
                _texts(item, found)
    elif isinstance(value, list | tuple):
        for item in cast("Sequence[object]", value):
            _texts(item, found)
    return found
