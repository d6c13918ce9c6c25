"""Messages: what callers, models and tools say, with the parts that they are made of."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, Self, TypeAlias

from pydantic import ValidationInfo, field_validator, model_validator

from engine.support.display import Block, page_html, page_markdown
from engine.support.guided import Guided
from engine.types import message_forms
from engine.types.blocks import media_block, part_blocks
from engine.types.media import ImageLink, Media
from engine.types.parts import (
    MediaPart,
    MessagePart,
    Part,
    ReasoningPart,
    Record,
    Text,
    TextPart,
    ToolCall,
    calls_in,
    content_of,
    openai_part,
    reasoning_of,
    with_media,
)

Role: TypeAlias = Literal["system", "developer", "user", "assistant", "tool"]


class Message(Record):
    """One message of a conversation, in any role.

    On input it may be a dictionary or an object of OpenAI's SDK. The reasoning field may be called `reasoning`,
    `reasoning_content` or `thinking`; `content` may be text, a list of parts, or absent if there are calls or
    reasoning; a tool's result may be any JSON value. Unknown fields are dropped, but a misspelt name and a field that
    holds content (`images`) are refused. `parts` has the reasoning, text and calls of an assistant turn in their order;
    it is filled from the flat fields if the caller does not give it, and they from it.

    In other roles a content part may be an `Image`, an `Audio`, or OpenAI's `image_url`, `input_image` or `input_audio`
    with a `data:` URL, a link (an engine with `media_urls` reads it) or base64. Then `parts` has the texts and media in
    their order, and `content` the texts.
    """

    role: Role
    content: Text | None = None
    reasoning: Text | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: Text | None = None
    name: Text | None = None
    parts: tuple[MessagePart, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _one_spelling(cls, value: object) -> object:
        given = None if isinstance(value, Message) else message_forms.fields_of(value)
        return value if given is None else with_media(message_forms.message_fields(given))

    @field_validator("content", mode="before")
    @classmethod
    def _content_text(cls, value: object, info: ValidationInfo) -> object:
        return message_forms.content_text(info.data.get("role"), value)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.media:
            filled = {"content": self._text_beside_media()}
        elif self.parts and not (self.content or self.reasoning or self.tool_calls):
            content, reasoning = content_of(self.written), reasoning_of(self.written)
            filled = {"content": content, "reasoning": reasoning or None, "tool_calls": calls_in(self.written)}
        elif self.role == "assistant" and not self.parts:
            filled = {"parts": self._flat_parts()}
        else:
            filled = {}
        for name, value in filled.items():
            object.__setattr__(self, name, value)
        return self

    def _flat_parts(self) -> tuple[MessagePart, ...]:
        """The parts that the flat fields make: reasoning, text, calls."""
        spans = (_span(ReasoningPart, self.reasoning), _span(TextPart, self.content))
        return (*(span for span in spans if span), *self.tool_calls)

    def _told(self) -> Iterator[tuple[str, object]]:
        flat = self.parts == self._flat_parts()
        return (each for each in super()._told() if not (flat and each[0] == "parts"))

    @property
    def media(self) -> tuple[Media | ImageLink, ...]:
        """The pictures and sounds among the parts, in their order, and the links that are not read yet."""
        return tuple(part.media for part in self.parts if isinstance(part, MediaPart))

    def _repr_html_(self) -> str:
        return page_html(self._blocks())

    def _repr_markdown_(self) -> str:
        return page_markdown(self._blocks())

    def _blocks(self) -> list[Block]:
        return [message_block(self)]

    def content_with(self, place: Callable[[Media | ImageLink], str]) -> str:
        """Returns the content with a text of `place` where each picture or sound stands. Texts next to each other are
        joined by a newline, texts and media by nothing, as in llama.cpp's server."""
        if not self.media:
            return self.content or ""
        joined, after_text = "", False
        for part in self.parts:
            if isinstance(part, TextPart):
                joined += f"\n{part.text}" if after_text and part.text else part.text
            elif isinstance(part, MediaPart):
                joined += place(part.media)
            after_text = isinstance(part, TextPart) and bool(joined)
        return joined

    def _text_beside_media(self) -> str:
        """Returns the texts of a message with media. Raises ValueError if it may have none, or if its
        content differs."""
        if self.role == "assistant" or not all(isinstance(part, TextPart | MediaPart) for part in self.parts):
            raise ValueError(
                "pictures and sounds stand in messages of users, systems and tools, beside texts only; a model that "
                "runs here writes none"
            )
        text = "\n".join(part.text for part in self.parts if isinstance(part, TextPart))
        if self.content not in (None, text):
            raise ValueError("content and the texts of parts differ; leave content out")
        return text

    @property
    def written(self) -> tuple[Part, ...]:
        """The parts that a model can have written: all but pictures and sounds."""
        return tuple(part for part in self.parts if not isinstance(part, MediaPart))

    def openai(self, reasoning_field: str | None = "reasoning_content") -> dict[str, Any]:
        """Returns the message as a dictionary of OpenAI's Chat Completions.

        reasoning_field: the field for an assistant's reasoning, which is not OpenAI's own; None leaves reasoning out.
        """
        entry: dict[str, Any] = {"role": self.role, "content": self.content or ""}
        if self.media:
            entry["content"] = [openai_part(part) for part in self.parts]
        if self.role == "tool":
            entry["tool_call_id"] = self.tool_call_id
        elif self.name:
            entry["name"] = self.name
        if self.role == "assistant":
            if self.reasoning and reasoning_field:
                entry[reasoning_field] = self.reasoning
            if self.tool_calls:
                entry |= {"content": self.content or None, "tool_calls": [call.openai() for call in self.tool_calls]}
        return entry

    def continued(self, with_parts: Iterable[Part]) -> "Message":
        """Returns this message joined with its continuation: the parts of the completion of
        `continue_final_message=True`."""
        parts = [*self.written, *with_parts]
        seam = len(self.parts)
        match parts[seam - 1 : seam + 1] if seam else ():
            case [ReasoningPart(text=before), ReasoningPart(text=after)]:
                parts[seam - 1 : seam + 1] = [ReasoningPart(text=before + after)]
            case [TextPart(text=before), TextPart(text=after)]:
                parts[seam - 1 : seam + 1] = [TextPart(text=before + after)]
            case _:
                pass
        return Message(role=self.role, name=self.name, content=None if parts else "", parts=tuple(parts))


def _span(kind: type[ReasoningPart | TextPart], text: str | None) -> ReasoningPart | TextPart | None:
    return kind(text=text) if text else None


DocumentLike: TypeAlias = "str | Mapping[str, Any]"
"""A text, or a dictionary of the fields that the template reads: most know `doc_id`, `title` and `text`."""


MessagesLike: TypeAlias = "str | Message | Mapping[str, Any] | Iterable[Message | Mapping[str, Any]]"
"""A user's text, one message, or a list of messages (`Message` or dictionaries in OpenAI's form)."""


class Messages(tuple[Message, ...], Guided):
    """A history; a notebook shows it as a conversation."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return page_html(map(message_block, self))


def _text_of(part: MessagePart) -> str:
    return part.text if isinstance(part, TextPart) else ""


def message_block(message: Message) -> Block:
    """Returns a message for display: its role, and its parts inside."""
    if message.media:
        inside = [
            media_block(part.media) if isinstance(part, MediaPart) else Block("content", _text_of(part))
            for part in message.parts
        ]
    elif message.role == "tool":
        inside = [Block("result", message.content or "", message.name or "")]
    else:
        inside = part_blocks(message.written or (TextPart(text=message.content or ""),))
    return Block("message", "", message.role, inside=tuple(inside))
