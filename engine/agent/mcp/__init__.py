"""Servers of the Model Context Protocol as sources of tools (`pip install 'llama-engine[mcp]'`)."""

from engine.agent.mcp.server import MCP

__all__ = ["MCP"]
