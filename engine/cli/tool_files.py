"""Tools from a Python file or an MCP server that a user names, and types from a module."""

import importlib.util
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.agent.mcp import MCP
from engine.support.errors import RequestError
from engine.tools import as_tools
from engine.types.tools import Tool


def tools_of(path: Path) -> tuple[Tool, ...]:
    """Run a Python file and return its tools: its list `TOOLS`, otherwise every function that it defines under a name
    without a leading underscore. Raises RequestError for a file that cannot be run or has no tools."""
    name = f"llama_engine_tools_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise RequestError(f"{path} is not a Python file; give the path of a .py file with functions.")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise RequestError(f"{path} cannot be run: {type(error).__name__}: {error}. Correct the file.") from error
    found: list[Any] | None = getattr(module, "TOOLS", None)
    if found is None:
        found = [
            value
            for key, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == name and not key.startswith("_")
        ]
    if not found:
        raise RequestError(
            f"{path} defines no tools; add a function with annotations and a docstring, or a list TOOLS."
        )
    return as_tools(found)


def named_type(text: str) -> type | None:
    """Imports the type of `MODULE:NAME`, a module of the current folder too; None for a text that names none. Raises
    RequestError if there is no such type."""
    found = re.fullmatch(r"([^\W\d]\w*(?:\.\w+)*):(\w+)", text)
    if found is None or Path(text).exists():
        return None
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(found[1])
    except Exception as error:
        raise RequestError(f"{found[1]} cannot be imported: {type(error).__name__}: {error}. Correct it.") from error
    named: object = getattr(module, found[2], None)
    if not isinstance(named, type):
        raise RequestError(f"{found[1]} has no type {found[2]!r}; name a pydantic model or another class of it.")
    return named


def mcp_servers(text: str) -> tuple[MCP, ...]:
    """Returns the MCP servers of `[PREFIX=]SERVER`: a command, a URL, or a JSON file with a configuration of servers.
    Raises RequestError for anything else."""
    found = re.fullmatch(r"(?:(\w+)=)?(.+)", text, re.DOTALL)
    if found is None:
        raise RequestError("--mcp is empty; give a command, a URL or a file with a configuration.")
    if found[2].endswith(".json") and (" " not in found[2] or Path(found[2]).is_file()):
        return MCP.from_config(found[2], prefix=found[1] or "")
    return (MCP(found[2], prefix=found[1] or ""),)


def watched(tool: Tool, around: Callable[[Callable[[], Any]], Any]) -> Tool:
    """Returns the tool with each call passed to `around`, as a function that makes the call."""
    function = tool.function
    if function is None or isinstance(function, type):  # a pydantic model only stores its arguments
        return tool

    def call(*args: Any, **kwargs: Any) -> Any:
        return around(lambda: function(*args, **kwargs))

    return tool.model_copy(update={"function": call})
