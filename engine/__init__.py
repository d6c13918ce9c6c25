"""llama-engine: GGUF chat models in your own process; templates, reasoning and tool calls as typed events.

The public names. Each is imported on first use, so that `import engine` is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.agent.agent import Agent
    from engine.agent.mcp import MCP
    from engine.agent.run import Run, RunStream, Step
    from engine.agent.transcript import Transcript
    from engine.api.engine import Engine
    from engine.api.engines import EngineHandle, Engines, Waiting
    from engine.api.explain import Explanation
    from engine.api.inspect import Inspection
    from engine.formats.families import Families, Family, Format
    from engine.formats.parsing import Parser
    from engine.formats.template.chat_template import ChatTemplate
    from engine.runtime.adapters.adapters import AdapterInfo
    from engine.runtime.cache.state_store import StateStore, StoreSizes
    from engine.runtime.loop.config import LlamaOptions
    from engine.runtime.loop.metrics import Metrics
    from engine.runtime.loop.request import TurnRequest
    from engine.runtime.stream.service import PinnedPrefix, Service, Stream
    from engine.support.errors import (
        BatchInputError,
        CallbackError,
        ContextOverflowError,
        DecodeError,
        DiskFullError,
        EngineError,
        EngineWarning,
        FamilyError,
        ForgedPromptError,
        MissingTemplateError,
        ModelLoadError,
        QueueFullError,
        RequestError,
        TemplateError,
        WaitTimeoutError,
    )
    from engine.support.offloop import off_loop
    from engine.tools import ToolContext, ToolLike, as_tool, as_tools
    from engine.turns.calibration import Calibration
    from engine.turns.conversation import Conversation
    from engine.turns.embedding import Ranked
    from engine.turns.options import AgentOptions, LoadOptions, RawOptions, TurnOptions
    from engine.turns.scoring import Score
    from engine.types.answer_formats import GBNF, Choice, JsonSchema, Lark, Regex, ResponseFormat, ResponseFormatLike
    from engine.types.completion import Completion, Usage
    from engine.types.decisions import ChoiceQuestion, Decision, Predicate, Refusal, ScoreQuestion
    from engine.types.events import (
        ContentDelta,
        Event,
        Finished,
        ReasoningDelta,
        Summarised,
        ToolCallDelta,
        ToolCallEnd,
        ToolCallStart,
        ToolResult,
        fold,
    )
    from engine.types.media import Audio, Image, ImageLink, MediaUrls
    from engine.types.messages import Message, MessagesLike, Role
    from engine.types.parts import AudioPart, CallError, ImagePart, Part, ReasoningPart, TextPart, ToolCall
    from engine.types.prompt import Piece, Prompt
    from engine.types.sampling import FinishReason, SamplingParams, TokenLogprob
    from engine.types.tools import AllowedTools, Tool, ToolChoice, ToolName

__all__ = [
    "GBNF",
    "MCP",
    "AdapterInfo",
    "Agent",
    "AgentOptions",
    "AllowedTools",
    "Audio",
    "AudioPart",
    "BatchInputError",
    "Calibration",
    "CallError",
    "CallbackError",
    "ChatTemplate",
    "Choice",
    "ChoiceQuestion",
    "Completion",
    "ContentDelta",
    "ContextOverflowError",
    "Conversation",
    "Decision",
    "DecodeError",
    "DiskFullError",
    "Engine",
    "EngineError",
    "EngineHandle",
    "EngineWarning",
    "Engines",
    "Event",
    "Explanation",
    "Families",
    "Family",
    "FamilyError",
    "FinishReason",
    "Finished",
    "ForgedPromptError",
    "Format",
    "Image",
    "ImageLink",
    "ImagePart",
    "Inspection",
    "JsonSchema",
    "Lark",
    "LlamaOptions",
    "LoadOptions",
    "MediaUrls",
    "Message",
    "MessagesLike",
    "Metrics",
    "MissingTemplateError",
    "ModelLoadError",
    "Parser",
    "Part",
    "Piece",
    "PinnedPrefix",
    "Predicate",
    "Prompt",
    "QueueFullError",
    "Ranked",
    "RawOptions",
    "ReasoningDelta",
    "ReasoningPart",
    "Refusal",
    "Regex",
    "RequestError",
    "ResponseFormat",
    "ResponseFormatLike",
    "Role",
    "Run",
    "RunStream",
    "SamplingParams",
    "Score",
    "ScoreQuestion",
    "Service",
    "StateStore",
    "Step",
    "StoreSizes",
    "Stream",
    "Summarised",
    "TemplateError",
    "TextPart",
    "TokenLogprob",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "ToolCallEnd",
    "ToolCallStart",
    "ToolChoice",
    "ToolContext",
    "ToolLike",
    "ToolName",
    "ToolResult",
    "Transcript",
    "TurnOptions",
    "TurnRequest",
    "Usage",
    "WaitTimeoutError",
    "Waiting",
    "as_tool",
    "as_tools",
    "fold",
    "off_loop",
]

_MODULES = {
    "engine.agent.agent": "Agent",
    "engine.agent.run": "Run RunStream Step",
    "engine.agent.transcript": "Transcript",
    "engine.formats.template.chat_template": "ChatTemplate",
    "engine.api.engine": "Engine",
    "engine.api.engines": "EngineHandle Engines Waiting",
    "engine.support.errors": "BatchInputError CallbackError ContextOverflowError DecodeError DiskFullError EngineError "
    "EngineWarning FamilyError ForgedPromptError MissingTemplateError ModelLoadError QueueFullError RequestError "
    "TemplateError WaitTimeoutError",
    "engine.support.offloop": "off_loop",
    "engine.types.events": "ContentDelta Event Finished ReasoningDelta Summarised ToolCallDelta ToolCallEnd "
    "ToolCallStart ToolResult fold",
    "engine.turns.calibration": "Calibration",
    "engine.types.decisions": "ChoiceQuestion Decision Predicate Refusal ScoreQuestion",
    "engine.turns.conversation": "Conversation",
    "engine.api.explain": "Explanation",
    "engine.formats.families": "Families Family Format",
    "engine.api.inspect": "Inspection",
    "engine.turns.options": "AgentOptions LoadOptions RawOptions TurnOptions",
    "engine.agent.mcp": "MCP",
    "engine.types.media": "Audio Image ImageLink MediaUrls",
    "engine.formats.parsing": "Parser",
    "engine.runtime.adapters.adapters": "AdapterInfo",
    "engine.types.parts": "AudioPart CallError ImagePart",
    "engine.runtime.loop.config": "LlamaOptions",
    "engine.runtime.loop.metrics": "Metrics",
    "engine.runtime.loop.request": "TurnRequest",
    "engine.runtime.stream.service": "PinnedPrefix Service Stream",
    "engine.runtime.cache.state_store": "StateStore StoreSizes",
    "engine.turns.scoring": "Score",
    "engine.types.prompt": "Piece Prompt",
    "engine.tools": "ToolContext ToolLike as_tool as_tools",
    "engine.types": "AllowedTools Choice Completion FinishReason GBNF JsonSchema Lark Message MessagesLike Part "
    "ReasoningPart Regex ResponseFormat ResponseFormatLike Role SamplingParams TextPart TokenLogprob Tool ToolCall "
    "ToolChoice ToolName Usage",
    "engine.turns.embedding": "Ranked",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}


_ROOMS = frozenset({"batch", "openai", "remote", "testing"})
"""Packages with public names of their own, such as `engine.batch.run`."""


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"engine.{name}")
    if name not in _HOMES:
        from engine.support.foreign import attributes

        hint = attributes()["module engine"].get(name)
        raise AttributeError(f"module 'engine' has no attribute {name!r}{f'; {hint}.' if hint else ''}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
