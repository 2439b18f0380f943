"""Tools of Model Context Protocol servers, over stdio or streamable HTTP. Needs `pip install 'turnwise[mcp]'`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp import Tool as ServerTool
from mcp.types import CallToolResult, TextContent

from turnwise.tools.tool import Tool, ToolResult, neutralise


@asynccontextmanager
async def mcp_tools(server: str | Sequence[str], *, deadline_seconds: float = 30.0) -> AsyncIterator[list[Tool]]:
    """The tools of one server inside the block; leaving it closes the connection and stops a server we started.

    A URL is contacted over HTTP, a list of words is a command to start:

        async with mcp_tools("http://127.0.0.1:8000/mcp") as tools: ...
        async with mcp_tools(["python", "server.py"]) as tools: ...

    Connecting and every call must finish within the deadline.
    """
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(deadline_seconds):
                client = await stack.enter_async_context(Client(_address(server)))
                listed = await _list(client)
        except TimeoutError:
            raise ValueError(f"MCP server {server!r} did not answer within {deadline_seconds:g} seconds") from None
        except (OSError, MCPError, ExceptionGroup) as error:
            raise ValueError(
                f"cannot connect to the MCP server {server!r} ({_cause(error)}); is it running?"
            ) from error
        yield [_wrap(client, tool, deadline_seconds) for tool in listed]


def _address(server: str | Sequence[str]) -> Any:
    if isinstance(server, str):
        if not server.startswith(("http://", "https://")):
            raise ValueError(
                f"{server!r} is not a URL; pass a command as a list of words, such as ['python', 'server.py']"
            )
        return server
    command, *arguments = server
    return stdio_client(StdioServerParameters(command=command, args=arguments))


def _cause(error: Exception) -> Exception:
    """The first single error: the client runs its connection in task groups, which wrap errors."""
    return _cause(error.exceptions[0]) if isinstance(error, ExceptionGroup) else error


async def _list(client: Client) -> list[ServerTool]:
    page = await client.list_tools()
    tools = list(page.tools)
    while page.next_cursor:
        page = await client.list_tools(cursor=page.next_cursor)
        tools += page.tools
    return tools


def _wrap(client: Client, tool: ServerTool, deadline_seconds: float) -> Tool:
    home = asyncio.get_running_loop()

    async def run(arguments: Mapping[str, Any]) -> ToolResult:
        # The connection belongs to this loop, and an asynchronous environment has its own loop.
        call = asyncio.run_coroutine_threadsafe(client.call_tool(tool.name, dict(arguments)), home)
        try:
            async with asyncio.timeout(deadline_seconds):
                return _result(await asyncio.wrap_future(call))
        except TimeoutError:
            return ToolResult(text=f"{tool.name} did not answer within {deadline_seconds:g} seconds", ok=False)
        except MCPError as error:
            return ToolResult(text=f"{tool.name}: {error}", ok=False)

    # A server's text enters the prompt, so it is trusted no more than its results.
    description = neutralise(tool.description or "")
    return Tool(name=tool.name, description=description, parameters=tool.input_schema, run=run)


def _result(result: CallToolResult) -> ToolResult:
    texts = (part.text if isinstance(part, TextContent) else f"[{part.type}]" for part in result.content)
    return ToolResult(text="\n".join(texts), ok=not result.is_error)
