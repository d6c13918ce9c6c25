"""Servers of the Model Context Protocol as sources of tools (the extra `mcp`)."""

from engine.agent.mcp.server import MCP

__all__ = ["MCP"]
