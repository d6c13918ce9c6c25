"""llama-engine: GGUF chat models in your own process; templates, reasoning and tool calls as typed events.

The public names. Each is imported on first use, so that `import engine` is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.agent.agent import Agent
    from engine.agent.run import Run, RunStream, Step
    from engine.agent.transcript import Transcript
    from engine.conversation import Conversation
    from engine.diagnose.explain import Explanation
    from engine.diagnose.inspect import Inspection
    from engine.engine import Engine
    from engine.engines import EngineHandle, Engines, Waiting
    from engine.errors import (
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
    from engine.events import (
        ContentDelta,
        Event,
        Finished,
        ReasoningDelta,
        ToolCallDelta,
        ToolCallEnd,
        ToolCallStart,
        ToolResult,
        fold,
    )
    from engine.families import Families, Family, Format
    from engine.mcp import MCP
    from engine.media import Audio, Image, ImageLink, MediaUrls
    from engine.options import AgentOptions, LoadOptions, RawOptions, TurnOptions
    from engine.parsing import Parser, Piece
    from engine.parts import AudioPart, CallError, ImagePart
    from engine.runtime.adapters import AdapterInfo
    from engine.runtime.metrics import Metrics
    from engine.runtime.request import TurnRequest
    from engine.runtime.service import PinnedPrefix, Service, Stream
    from engine.runtime.state_store import StateStore, StoreSizes
    from engine.scoring import Classification, Score
    from engine.template.chat_template import ChatTemplate
    from engine.template.prompt import Prompt
    from engine.tools import ToolContext, ToolLike, as_tool, as_tools
    from engine.types import (
        GBNF,
        AllowedTools,
        Choice,
        Completion,
        FinishReason,
        JsonSchema,
        Lark,
        Message,
        MessagesLike,
        Part,
        ReasoningPart,
        Regex,
        ResponseFormat,
        ResponseFormatLike,
        Role,
        SamplingParams,
        TextPart,
        TokenLogprob,
        Tool,
        ToolCall,
        ToolChoice,
        ToolName,
        Usage,
    )
    from engine.vectors import Ranked

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
    "CallError",
    "CallbackError",
    "ChatTemplate",
    "Choice",
    "Classification",
    "Completion",
    "ContentDelta",
    "ContextOverflowError",
    "Conversation",
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
    "Prompt",
    "QueueFullError",
    "Ranked",
    "RawOptions",
    "ReasoningDelta",
    "ReasoningPart",
    "Regex",
    "RequestError",
    "ResponseFormat",
    "ResponseFormatLike",
    "Role",
    "Run",
    "RunStream",
    "SamplingParams",
    "Score",
    "Service",
    "StateStore",
    "Step",
    "StoreSizes",
    "Stream",
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
]

_MODULES = {
    "engine.agent.agent": "Agent",
    "engine.agent.run": "Run RunStream Step",
    "engine.agent.transcript": "Transcript",
    "engine.template.chat_template": "ChatTemplate",
    "engine.engine": "Engine",
    "engine.engines": "EngineHandle Engines Waiting",
    "engine.errors": "BatchInputError CallbackError ContextOverflowError DecodeError DiskFullError EngineError "
    "EngineWarning FamilyError ForgedPromptError MissingTemplateError ModelLoadError QueueFullError RequestError "
    "TemplateError WaitTimeoutError",
    "engine.events": "ContentDelta Event Finished ReasoningDelta ToolCallDelta ToolCallEnd ToolCallStart ToolResult "
    "fold",
    "engine.conversation": "Conversation",
    "engine.diagnose.explain": "Explanation",
    "engine.families": "Families Family Format",
    "engine.diagnose.inspect": "Inspection",
    "engine.options": "AgentOptions LoadOptions RawOptions TurnOptions",
    "engine.mcp": "MCP",
    "engine.media": "Audio Image ImageLink MediaUrls",
    "engine.parsing": "Parser Piece",
    "engine.runtime.adapters": "AdapterInfo",
    "engine.parts": "AudioPart CallError ImagePart",
    "engine.runtime.metrics": "Metrics",
    "engine.runtime.request": "TurnRequest",
    "engine.runtime.service": "PinnedPrefix Service Stream",
    "engine.runtime.state_store": "StateStore StoreSizes",
    "engine.scoring": "Classification Score",
    "engine.template.prompt": "Prompt",
    "engine.tools": "ToolContext ToolLike as_tool as_tools",
    "engine.types": "AllowedTools Choice Completion FinishReason GBNF JsonSchema Lark Message MessagesLike Part "
    "ReasoningPart Regex ResponseFormat ResponseFormatLike Role SamplingParams TextPart TokenLogprob Tool ToolCall "
    "ToolChoice ToolName Usage",
    "engine.vectors": "Ranked",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'engine' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
