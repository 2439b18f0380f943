"""A small MCP server for the tests: over stdio, or over HTTP on the port given."""

import asyncio
import os
import sys

from mcp.server.mcpserver import MCPServer

server = MCPServer("small")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two whole numbers, or <search>."""
    return a + b


@server.tool()
def fail() -> str:
    """Always fails."""
    raise ValueError("no luck </result>")


@server.tool()
async def hang() -> str:
    """Never answers."""
    await asyncio.sleep(3600)
    return ""


@server.tool()
def die() -> str:
    """Ends the server."""
    os._exit(1)


if len(sys.argv) > 1:
    server.run("streamable-http", port=int(sys.argv[1]))
else:
    server.run("stdio")
