"""The parts of messages: texts, reasoning, calls, pictures and sounds.

All records are immutable pydantic models, validated once, when they are made.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    WithJsonSchema,
    model_serializer,
    model_validator,
)

from engine.support.errors import RequestError
from engine.support.guided import Guided
from engine.support.printed import Printed
from engine.types import message_forms
from engine.types.media import Audio, Image, ImageLink, Media, image_at, sound_at

CallError: TypeAlias = Literal["truncated", "malformed", "invalid_arguments", "unknown_tool"]

_SURROGATE = re.compile("[\ud800-\udfff]")


def whole_characters(text: str) -> str:
    """Returns the text with U+FFFD for every lone surrogate, as lenient decoders do, so that it can be encoded."""
    return _SURROGATE.sub("\ufffd", text)


Text: TypeAlias = Annotated[str, AfterValidator(whole_characters)]
"""Text without lone surrogates, which come from `surrogateescape`, or from an emoji that a browser cut in half."""


class Record(Guided, Printed, BaseModel):
    """Base of the public records: frozen; an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    if not TYPE_CHECKING:

        def __new__(cls, *values: object, **_: object) -> Self:
            """Refuse fields without their names."""
            if values:
                named = ", ".join(f"{name}=..." for name in list(cls.model_fields)[: max(2, len(values))])
                raise RequestError(f"{cls.__name__} takes its fields by name: {cls.__name__}({named}).")
            return super().__new__(cls)


class Tagged(Record):
    """Base of the records with the discriminator `type`, so that every dump has it."""

    @model_serializer(mode="wrap")
    def _with_type(self, rest: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"type": type(self).model_fields["type"].default, **rest(self)}


class ReasoningPart(Tagged):
    """One span of reasoning, without its markers."""

    type: Literal["reasoning"] = "reasoning"
    text: Text


class TextPart(Tagged):
    """One span of visible text."""

    type: Literal["text"] = "text"
    text: Text


class ToolCall(Tagged):
    """A call as the model wrote it. `arguments` is JSON text, exactly as emitted (raw text when `error` is
    "malformed").

    Accepts the OpenAI form `{"id", "type": "function", "function": {"name", "arguments"}}` on input, with arguments as
    text or as an object.
    """

    type: Literal["tool_call"] = "tool_call"
    id: Text = ""
    name: Text
    arguments: Text = "{}"
    error: CallError | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_spelling(cls, value: object) -> object:
        given = None if isinstance(value, ToolCall) else message_forms.fields_of(value)
        return value if given is None else message_forms.call_fields(given)

    def parsed(self) -> Any:
        """Returns the arguments as Python values. Raises ValueError if they are not JSON (then `error` is set)."""
        return json.loads(self.arguments)

    def openai(self) -> dict[str, Any]:
        """Returns the call as a dictionary of OpenAI's Chat Completions; `arguments` as the model wrote them."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


def _read_from_wire(read: Callable[[str], Media | ImageLink]) -> BeforeValidator:
    """Text came over the wire, or from a dump; in Python a part is made of an object."""

    def media(value: object) -> object:
        try:
            return read(value) if isinstance(value, str) else value
        except RequestError as error:
            raise ValueError(str(error)) from error

    return BeforeValidator(media)


def _wire_url(media: Media | ImageLink) -> str:
    return media.data_url()


_IN_JSON = (PlainSerializer(_wire_url, when_used="json"), WithJsonSchema({"type": "string", "format": "uri"}))


class ImagePart(Tagged):
    """A picture among a message's parts, or the link to one; in JSON a `data:` URL, or the link."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    type: Literal["image"] = "image"
    image: Annotated[Image | ImageLink, _read_from_wire(image_at), *_IN_JSON]

    @property
    def media(self) -> Image | ImageLink:
        return self.image


class AudioPart(Tagged):
    """A sound among a message's parts; in JSON a `data:` URL."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    type: Literal["audio"] = "audio"
    audio: Annotated[Audio, _read_from_wire(sound_at), *_IN_JSON]

    @property
    def media(self) -> Audio:
        return self.audio


MediaPart: TypeAlias = ImagePart | AudioPart
Part: TypeAlias = Annotated[ReasoningPart | TextPart | ToolCall, Field(discriminator="type")]
"""A part of what a model writes."""
MessagePart: TypeAlias = Annotated[
    ReasoningPart | TextPart | ToolCall | ImagePart | AudioPart, Field(discriminator="type")
]
ResultPart: TypeAlias = Annotated[TextPart | ImagePart | AudioPart, Field(discriminator="type")]
"""A part of what a tool returned."""


def with_media(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns a message's fields with content that has pictures or sounds as parts. Raises ValueError for a part that
    is neither text nor one of these."""
    content: Any = fields.get("content")
    if isinstance(content, Image | Audio):
        content = [content]
    if not isinstance(content, list | tuple):
        return fields
    items = cast("Sequence[object]", content)
    found = [
        {"type": item.kind, item.kind: item} if isinstance(item, Image | Audio) else message_forms.media_part(item)
        for item in items
    ]
    if not any(found):
        return fields
    parts = [
        part or {"type": "text", "text": message_forms.text_of_part(item)}
        for part, item in zip(found, items, strict=True)
    ]
    return {**{name: value for name, value in fields.items() if name != "content"}, "parts": parts}


def openai_part(part: MessagePart) -> dict[str, Any]:
    match part:
        case ImagePart():
            return {"type": "image_url", "image_url": {"url": part.image.data_url()}}
        case AudioPart():
            data = part.audio.data_url().partition(",")[2]
            return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
        case _:
            return {"type": "text", "text": part.text if isinstance(part, TextPart) else ""}


def reasoning_of(parts: Iterable[object]) -> str:
    """Returns the reasoning among the parts of a turn, its spans joined with newlines."""
    return "\n".join(part.text for part in parts if isinstance(part, ReasoningPart))


def content_of(parts: Iterable[object]) -> str:
    """Returns the text among the parts of a turn, its spans joined directly."""
    return "".join(part.text for part in parts if isinstance(part, TextPart))


def calls_in(parts: Iterable[object]) -> tuple[ToolCall, ...]:
    """Returns the calls among the parts of a turn."""
    return tuple(part for part in parts if isinstance(part, ToolCall))
