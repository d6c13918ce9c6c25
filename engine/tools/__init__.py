"""Turns functions, pydantic models and OpenAI dictionaries into `Tool`s, and runs a `Tool` on a model's arguments."""

from engine.tools.call import ToolOutcome, error_text, finish, is_async, run, run_async, tool_error, unfit, unshown
from engine.tools.check import described
from engine.tools.context import ToolContext
from engine.tools.describe import ToolLike, as_tool, as_tools
from engine.tools.json_values import DEEPEST, json_value, refuse_constant
from engine.tools.sources import RunTool, Toolbox, ToolSource

__all__ = [
    "DEEPEST",
    "RunTool",
    "ToolContext",
    "ToolLike",
    "ToolOutcome",
    "ToolSource",
    "Toolbox",
    "as_tool",
    "as_tools",
    "described",
    "error_text",
    "finish",
    "is_async",
    "json_value",
    "refuse_constant",
    "run",
    "run_async",
    "tool_error",
    "unfit",
    "unshown",
]
