"""Servers of the Model Context Protocol as sources of tools (`pip install 'llama-engine[mcp]'`).

Knows: the `mcp` package, which is imported when a server is connected. Does not know: the agent loop, models.
"""

from engine.mcp.server import MCP

__all__ = ["MCP"]
