"""The public records: messages and their parts, tools and calls, sampling, usage, the completion.

All records are immutable pydantic models, validated once, when they are made.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Generic, Literal, Self, TypeAlias, cast
from typing import _SpecialForm as SpecialForm  # pyright: ignore[reportPrivateUsage] - what mypy takes Literal[...] for

from pydantic import (
    ConfigDict,
    Field,
    ValidationInfo,
    computed_field,
    field_validator,
    model_validator,
)
from typing_extensions import TypeVar

from engine.support.display import Block, ending, figures, page_html, page_markdown, record_html, short, tokens_html
from engine.support.errors import RequestError
from engine.types import spelling
from engine.types.media import Image, ImageLink, Media
from engine.types.parts import (
    MediaPart,
    MessagePart,
    Part,
    ReasoningPart,
    Record,
    Text,
    TextPart,
    ToolCall,
    openai_part,
    with_media,
)

Answer = TypeVar("Answer", default=Any)
"""The type of `Completion.parsed`, for type checkers."""
Answer_co = TypeVar("Answer_co", default=Any, covariant=True)

Limit: TypeAlias = Literal["max_tokens", "context"]
Role: TypeAlias = Literal["system", "developer", "user", "assistant", "tool"]
FinishReason: TypeAlias = Literal["stop", "length", "tool_calls", "cancelled", "deadline", "error"]
ReasoningFormat: TypeAlias = Literal["deepseek", "deepseek-legacy", "none", "exclude"]
Reasoning: TypeAlias = bool | Literal["low", "medium", "high"]


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
        given = None if isinstance(value, Message) else spelling.fields_of(value)
        return value if given is None else with_media(spelling.message_fields(given))

    @field_validator("content", mode="before")
    @classmethod
    def _content_text(cls, value: object, info: ValidationInfo) -> object:
        return spelling.content_text(info.data.get("role"), value)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.media:
            filled = {"content": self._text_beside_media()}
        elif self.parts and not (self.content or self.reasoning or self.tool_calls):
            whole = Completion(parts=self.written)
            filled = {"content": whole.content, "reasoning": whole.reasoning or None, "tool_calls": whole.tool_calls}
        elif self.role == "assistant" and not self.parts:
            spans = (_span(ReasoningPart, self.reasoning), _span(TextPart, self.content))
            filled = {"parts": (*(span for span in spans if span), *self.tool_calls)}
        else:
            filled = {}
        for name, value in filled.items():
            object.__setattr__(self, name, value)
        return self

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

    def continued(self, completion: "Completion") -> "Message":
        """Returns this message joined with its continuation, the completion of `continue_final_message=True`."""
        parts = [*self.written, *completion.parts]
        seam = len(self.parts)
        match parts[seam - 1 : seam + 1] if seam else ():
            case [ReasoningPart(text=before), ReasoningPart(text=after)]:
                parts[seam - 1 : seam + 1] = [ReasoningPart(text=before + after)]
            case [TextPart(text=before), TextPart(text=after)]:
                parts[seam - 1 : seam + 1] = [TextPart(text=before + after)]
            case _:
                pass
        return Message(role=self.role, name=self.name, content=None if parts else "", parts=tuple(parts))


def _span(kind: type["ReasoningPart | TextPart"], text: str | None) -> "ReasoningPart | TextPart | None":
    return kind(text=text) if text else None


class Tool(Record):
    """A function the model may call: its name, what it does, the JSON Schema of its arguments.

    `function` runs it (absent for tools described by a dictionary); `check` returns None for arguments (Python values)
    that fit, else one sentence that says what does not. `strict`: calls are constrained to the schema while they are
    written. Made by `engine.tools.as_tool`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    name: str
    description: Text = ""
    parameters: dict[str, Any]
    strict: bool = False
    function: Callable[..., Any] | None = Field(default=None, repr=False)
    check: Callable[[Any], str | None] | None = Field(default=None, repr=False)

    def openai(self) -> dict[str, Any]:
        """Returns the dictionary form that chat templates and OpenAI clients use, without `description` if it is
        empty."""
        about = {"description": self.description} if self.description else {}
        return {"type": "function", "function": {"name": self.name, **about, "parameters": self.parameters}}


class ToolName(Record):
    """A tool choice that names one tool."""

    name: str


class AllowedTools(Record):
    """A tool choice that allows only some of the tools, though the prompt states all: one of these must ("required") or
    may ("auto") be called. Raises RequestError if it names none."""

    names: tuple[str, ...]
    mode: Literal["auto", "required"] = "required"

    @field_validator("names")
    @classmethod
    def _some(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not names:
            raise RequestError('AllowedTools names no tool; name one or more, or use tool_choice="none".')
        return names


ToolChoice: TypeAlias = Literal["auto", "none", "required"] | ToolName


class ResponseFormat(Record):
    """What a final answer must be: any text, any JSON object, or JSON that fits a schema.

    `json_schema` holds for "json_object" too, as in llama.cpp's server.
    """

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: dict[str, Any] | None = None


class AnswerFormat(Generic[Answer_co]):
    """The base of the forms of a `response_format` whose answers are read as values of one type."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class JsonSchema(AnswerFormat[Any]):
    """An answer that is JSON and fits a schema."""

    schema: Mapping[str, Any] | bool


@dataclass(frozen=True, slots=True)
class Choice(AnswerFormat[str]):
    """An answer that is one of these texts."""

    options: Sequence[str]


@dataclass(frozen=True, slots=True)
class Regex(AnswerFormat[str]):
    """An answer that matches a regular expression as a whole (Rust's syntax; no look-around, no back references)."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Lark(AnswerFormat[str]):
    """An answer under a grammar in llguidance's variant of Lark, which begins at its rule `start`."""

    grammar: str


@dataclass(frozen=True, slots=True)
class GBNF(AnswerFormat[str]):
    """An answer under a grammar in llama.cpp's GBNF, which begins at its rule `root`."""

    grammar: str


ResponseFormatLike: TypeAlias = (
    type[Answer] | AnswerFormat[Answer] | ResponseFormat | Mapping[str, Any] | UnionType | SpecialForm | None
)
"""What an answer must be: a type that pydantic knows, `JsonSchema`, `Choice`, `Regex`, `Lark`, `GBNF`, OpenAI's
dictionary, or None for any text."""

SamplerName: TypeAlias = Literal[
    "penalties", "dry", "top_n_sigma", "top_k", "typical_p", "top_p", "min_p", "xtc", "temperature"
]
DocumentLike: TypeAlias = "str | Mapping[str, Any]"
"""A text, or a dictionary of the fields that the template reads: most know `doc_id`, `title` and `text`."""

MessagesLike: TypeAlias = "str | Message | Mapping[str, Any] | Iterable[Message | Mapping[str, Any]]"
"""A user's text, one message, or a list of messages (`Message` or dictionaries in OpenAI's form)."""
Progress: TypeAlias = Callable[[int, int], bool | None]
"""Called with the number of a prompt's tokens evaluated so far and their total; stops the turn by returning False."""
Overflow: TypeAlias = Literal["error", "truncate_oldest", "shorten_results"]
AllowedChoice: TypeAlias = ToolChoice | AllowedTools
# Changes the logits in place; they are a float32 array of the vocabulary's size. The tokens are the prompt's, then
# those drawn or forced since.
LogitsProcessor: TypeAlias = Callable[[Sequence[int], Any], None]


_COLD = 1e-6


class SamplingParams(Record):
    """How the next token is drawn, and when to stop.

    `temperature=0` is greedy, and so is a value below 1e-6. `None` takes the family's default; without one the filter
    is off, and the temperature is 1.

    - `top_k` (0: off), `top_p`, `min_p`, `typical_p`, `top_n_sigma` cut the tail off; `xtc_probability` is how often
      all but the least likely of the tokens above `xtc_threshold` are left out.
    - `repeat_penalty` (1: off), `frequency_penalty` and `presence_penalty` (0: off) apply to the last `penalty_last_n`
      tokens, including the prompt's, as in llama.cpp's own server; `dry_multiplier` (0: off) penalises a token that
      would continue a repetition longer than `dry_allowed_length` within the last `dry_last_n` tokens, by multiplier *
      base ** (excess); a repetition does not extend across a breaker.
    - `mirostat` 1 or 2 replaces the filters: it aims at the surprise `mirostat_tau` with learning rate `mirostat_eta`.
    - `logit_bias` maps a token id to a number that is added to its logit. `logits_processors` run after it, in order.
    - `samplers`: the filters' order; those left out are off. `None` is penalties, dry, top_n_sigma, top_k, typical_p,
      top_p, min_p, xtc, temperature.
    - `logprobs`: the number of alternatives to report with each token's log-probability; 0: only the token's own.
    - `stop`: texts that end the turn when they occur in the content, which is cut before them. `stop_tokens`
      end it wherever they are drawn, and add no text.
    - `max_tokens`: the most tokens; None: up to the end of the context. `ignore_eos`: the model's end tokens do not end
      the turn; the caller's stops still do.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    temperature: float | None = Field(default=None, ge=0, le=100)
    top_k: int | None = Field(default=None, ge=0, lt=2**31)
    top_p: float | None = Field(default=None, gt=0, le=1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    typical_p: float | None = Field(default=None, gt=0, le=1)
    top_n_sigma: float | None = Field(default=None, gt=0)
    xtc_probability: float | None = Field(default=None, ge=0, le=1)
    xtc_threshold: float = Field(default=0.1, ge=0, le=1)
    repeat_penalty: float | None = Field(default=None, gt=0, le=10)
    frequency_penalty: float | None = Field(default=None, ge=-10, le=10)
    presence_penalty: float | None = Field(default=None, ge=-10, le=10)
    penalty_last_n: int = Field(default=64, ge=1, le=2**20)
    dry_multiplier: float | None = Field(default=None, ge=0)
    dry_base: float = Field(default=1.75, ge=1)
    dry_allowed_length: int = Field(default=2, ge=1, lt=2**31)
    dry_last_n: int = Field(default=1024, ge=1, le=2**20)
    dry_breakers: tuple[Annotated[str, Field(max_length=1000)], ...] = Field(
        default=("\n", ":", '"', "*"), max_length=100
    )
    mirostat: Literal[0, 1, 2] | None = None
    mirostat_tau: float = Field(default=5.0, gt=0)
    mirostat_eta: float = Field(default=0.1, gt=0, le=1)
    logit_bias: tuple[tuple[int, float], ...] = ()
    logits_processors: tuple[LogitsProcessor, ...] = Field(default=(), repr=False)
    samplers: Annotated[tuple[SamplerName, ...], Field(max_length=32)] | None = None
    logprobs: int | None = Field(default=None, ge=0, le=100)
    seed: int | None = Field(default=None, ge=0, lt=2**32)
    stop: tuple[Annotated[str, Field(max_length=100_000)], ...] = Field(default=(), max_length=100)
    stop_tokens: tuple[Annotated[int, Field(ge=0)], ...] = ()
    ignore_eos: bool = False
    max_tokens: int | None = Field(default=None, ge=1)

    @field_validator("temperature")
    @classmethod
    def _cold(cls, value: float | None) -> float | None:
        """Treat a tiny temperature as 0, since dividing logits by it would overflow."""
        return 0.0 if value is not None and value < _COLD else value

    @field_validator("stop", "dry_breakers", mode="before")
    @classmethod
    def _one_text(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _pairs(cls, value: object) -> object:
        return tuple(cast("Mapping[Any, Any]", value).items()) if isinstance(value, Mapping) else value

    @property
    def penalises(self) -> bool:
        """Whether a repetition penalty is on."""
        return (self.repeat_penalty or 1.0) != 1 or bool(self.frequency_penalty) or bool(self.presence_penalty)

    def of_choice(self, number: int) -> "SamplingParams":
        """Returns the sampling of one of several answers: if there is a seed, each answer gets its own."""
        seed = None if self.seed is None else (self.seed + number) % 2**32
        return self if seed == self.seed else self.model_copy(update={"seed": seed})

    @property
    def looks_back(self) -> bool:
        """Whether earlier tokens affect sampling, so that the sampler needs the prompt's."""
        return self.penalises or bool(self.dry_multiplier)


class Usage(Record):
    """Counts and times of one request. Times are seconds; a speed is None until there is something to measure.

    `drafted_tokens` were guessed ahead (speculation), of which `accepted_tokens` were right; `undrafted_tokens` were
    drawn without a guess, because guesses did not pay. `dropped_messages` were left out of the prompt
    (`overflow="truncate_oldest"`), `shortened_results` are in it only in part (`overflow="shorten_results"`).
    `limit` is what cut off an answer that ended by "length": `max_tokens`, or the end of the context.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    time_to_first_token: float | None = None
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    undrafted_tokens: int = 0
    dropped_messages: int = 0
    shortened_results: int = 0
    limit: Limit | None = None

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def _repr_html_(self) -> str:
        return record_html(self)

    @property
    def decode_tokens_per_second(self) -> float | None:
        return (self.completion_tokens - 1) / self.decode_seconds if self.decode_seconds > 0 else None


class TokenLogprob(Record):
    """A token and the natural logarithm of its probability under the model: before any filter, bias or temperature.

    `text` has U+FFFD if the token is an incomplete character; `bytes` has its exact bytes. `top` are the likeliest
    tokens at this position, best first (the drawn one may be among them); they have no `top` themselves.
    """

    token: int
    text: str
    bytes: tuple[int, ...]
    logprob: float
    top: tuple["TokenLogprob", ...] = ()


class Logprobs(tuple[TokenLogprob, ...]):
    """Tokens with their log-probabilities; a notebook shows them as a text in which unlikely tokens stand out."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return _logprobs_html(self)


def _logprobs_html(tokens: Iterable[TokenLogprob]) -> str:
    return tokens_html((each.text, each.logprob, _alternatives(each)) for each in tokens)


def _alternatives(token: TokenLogprob) -> str:
    return ", ".join(f"{short(other.text)!r} {math.exp(other.logprob):.1%}" for other in token.top)


class Messages(tuple[Message, ...]):
    """A history; a notebook shows it as a conversation."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return page_html(map(message_block, self))


class Completion(Record, Generic[Answer_co]):
    """One complete assistant turn: the fold of its events.

    `reasoning` joins its spans with newlines, `content` joins its spans directly; each is "" if there is none. `parts`
    has the same in the order written. `logprobs` has the drawn tokens, including the end token, if they were requested;
    no event has them. `parsed` is the answer converted as `response_format` requires; `parse_error` says why it is
    None. `Completion[Invoice]` is one whose `parsed` is an `Invoice`, or None.
    """

    parts: tuple[Part, ...] = ()
    finish_reason: FinishReason = "stop"
    usage: Usage | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    parsed: Answer_co | None = None
    parse_error: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_dump(cls, value: object) -> object:
        """Drop the computed fields of a `model_dump`, or make the parts from them."""
        if not isinstance(value, Mapping):
            return value
        data = dict(cast("Mapping[str, Any]", value))
        flat = {name: data.pop(name, None) for name in ("reasoning", "content", "tool_calls")}
        if "parts" not in data and any(flat.values()):
            texts = [{"type": "reasoning", "text": flat["reasoning"]}, {"type": "text", "text": flat["content"]}]
            calls = [{"type": "tool_call", **call} for call in flat["tool_calls"] or ()]
            data["parts"] = [*(part for part in texts if part["text"]), *calls]
        return data

    @computed_field(repr=False)
    @property
    def reasoning(self) -> str:
        return "\n".join(part.text for part in self.parts if isinstance(part, ReasoningPart))

    @computed_field(repr=False)
    @property
    def content(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @computed_field(repr=False)
    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolCall))

    @property
    def message(self) -> Message:
        """This turn as a message for the history, with nothing lost, not even reasoning."""
        return Message(
            role="assistant",
            content=self.content,
            reasoning=self.reasoning or None,
            tool_calls=self.tool_calls,
            parts=self.parts,
        )

    def __repr__(self) -> str:
        """Returns a short form for interactive use; `str` shows every field."""
        told = [f"finish_reason={self.finish_reason!r}"]
        told += [f"{name}={short(text)!r}" for name in ("reasoning", "content") if (text := getattr(self, name))]
        told += [f"tool_calls={[call.name for call in self.tool_calls]}"] if self.tool_calls else []
        told += [f"completion_tokens={self.usage.completion_tokens}"] if self.usage else []
        return f"Completion({', '.join(told)})"

    def _repr_html_(self) -> str:
        footer = figures([self.usage]) if self.usage else ""
        details = _logprobs_html(self.logprobs) if self.logprobs else ""
        return page_html(blocks_of(self), footer, details)

    def _repr_markdown_(self) -> str:
        return page_markdown(blocks_of(self), figures([self.usage]) if self.usage else "")


def _text_of(part: MessagePart) -> str:
    return part.text if isinstance(part, TextPart) else ""


def media_block(media: Media | ImageLink) -> Block:
    """Returns a picture, or what a sound is, for display."""
    return Block("media", media.about, picture=media.preview() if isinstance(media, Image) else "")


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
        inside = blocks_of(Completion(parts=message.written or (TextPart(text=message.content or ""),)))
    return Block("message", "", message.role, inside=tuple(inside))


def call_block(name: str, arguments: str, error: str | None, inside: tuple[Block, ...] = ()) -> Block:
    """Returns a call for display; `inside` is its result."""
    wrong = (Block("notice", f"[{error}]", failed=True),) if error else ()
    return Block("call", arguments, name, failed=bool(error), inside=(*wrong, *inside))


def result_block(content: str, parts: Iterable[object], *, failed: bool, seconds: float | None) -> Block:
    """Returns a tool's result for display, which belongs inside its call."""
    pictures = tuple(media_block(part.media) for part in parts if isinstance(part, MediaPart))
    return Block("result", content, failed=failed, seconds=seconds, inside=pictures)


def blocks_of(completion: Completion) -> list[Block]:
    """Returns the parts of a turn for display, and a notice if it ended abnormally."""
    blocks: list[Block] = []
    for part in completion.parts:
        match part:
            case ReasoningPart(text=text):
                blocks.append(Block("reasoning", text))
            case TextPart(text=text):
                blocks.append(Block("content", text))
            case ToolCall():
                blocks.append(call_block(part.name, part.arguments, part.error))
    if completion.finish_reason not in ("stop", "tool_calls"):
        blocks.append(Block("notice", ending(completion.finish_reason, completion.usage), failed=True))
    if completion.parse_error:
        blocks.append(Block("notice", completion.parse_error, failed=True))
    return blocks
