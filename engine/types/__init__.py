"""The public records: messages and their parts, tools and calls, sampling, answers, events.

All records are immutable and validated once, when they are made.
"""

from engine.types.answer_formats import GBNF, Choice, JsonSchema, Lark, Regex, ResponseFormat, ResponseFormatLike
from engine.types.completion import Completion, Usage
from engine.types.messages import DocumentLike, Message, Messages, MessagesLike, Role
from engine.types.parts import AudioPart, CallError, ImagePart, Part, ReasoningPart, TextPart, ToolCall
from engine.types.sampling import (
    FinishReason,
    LogitsProcessor,
    Logprobs,
    Reasoning,
    ReasoningFormat,
    SamplerName,
    SamplingParams,
    TokenLogprob,
)
from engine.types.tools import AllowedTools, Tool, ToolChoice, ToolName

__all__ = [
    "GBNF",
    "AllowedTools",
    "AudioPart",
    "CallError",
    "Choice",
    "Completion",
    "DocumentLike",
    "FinishReason",
    "ImagePart",
    "JsonSchema",
    "Lark",
    "LogitsProcessor",
    "Logprobs",
    "Message",
    "Messages",
    "MessagesLike",
    "Part",
    "Reasoning",
    "ReasoningFormat",
    "ReasoningPart",
    "Regex",
    "ResponseFormat",
    "ResponseFormatLike",
    "Role",
    "SamplerName",
    "SamplingParams",
    "TextPart",
    "TokenLogprob",
    "Tool",
    "ToolCall",
    "ToolChoice",
    "ToolName",
    "Usage",
]
