"""Tools of real MCP servers, over stdio and over HTTP."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("mcp", reason="the extra [mcp] is not installed")

from turnwise.tools import Tool, ToolResult
from turnwise.tools.mcp import mcp_tools

SERVER = str(Path(__file__).with_name("small_mcp_server.py"))
COMMAND = [sys.executable, SERVER]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with subprocess.Popen([*COMMAND, str(port)], stderr=subprocess.DEVNULL) as server:
        _wait_until_listening(port)
        yield f"http://127.0.0.1:{port}/mcp"
        server.terminate()


def _wait_until_listening(port: int) -> None:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    pytest.fail("the MCP server did not start")


async def call(tool: Tool, **arguments: object) -> ToolResult:
    result = tool(arguments)
    assert isinstance(result, Awaitable)
    return await result


async def use(server: str | list[str]) -> list[ToolResult]:
    async with mcp_tools(server, deadline_seconds=30) as tools:
        add, fail, *_ = tools
        assert [tool.name for tool in tools] == ["add", "fail", "hang", "die"]
        assert add.description == "Add two whole numbers, or &lt;search>."
        assert add.required == ("a", "b")
        return [await call(add, a=2, b=40), await call(add, a="two"), await call(fail)]


def check(results: list[ToolResult]) -> None:
    added, wrong, failed = results
    assert added == ToolResult(text="42")
    assert not wrong.ok
    assert "valid integer" in wrong.text
    assert not failed.ok
    assert "no luck &lt;/result>" in failed.text


def test_a_server_over_stdio_is_listed_called_and_ended():
    check(asyncio.run(use(COMMAND)))
    running = subprocess.run(["ps", "-eo", "ppid,args"], capture_output=True, text=True, check=True).stdout
    assert not any(line.rstrip().endswith(SERVER) for line in running.splitlines())


def test_a_server_over_http_is_listed_and_called(url: str):
    check(asyncio.run(use(url)))


def test_calls_at_once_share_a_connection(url: str):
    async def many() -> list[ToolResult]:
        async with mcp_tools(url) as (add, *_):
            return await asyncio.gather(*(call(add, a=number, b=1) for number in range(20)))

    assert [result.text for result in asyncio.run(many())] == [str(number + 1) for number in range(20)]


def test_a_tool_can_be_called_from_the_event_loop_of_another_thread(url: str):
    async def elsewhere() -> ToolResult:
        async with mcp_tools(url) as (add, *_):
            return await asyncio.to_thread(asyncio.run, call(add, a=2, b=40))

    assert asyncio.run(elsewhere()) == ToolResult(text="42")


def test_a_hanging_tool_ends_at_its_deadline_and_the_connection_lives_on(url: str):
    async def hang() -> tuple[ToolResult, ToolResult]:
        async with mcp_tools(url, deadline_seconds=2.0) as (add, _, hang, _):
            return await call(hang), await call(add, a=1, b=1)

    slow, next_call = asyncio.run(hang())
    assert slow == ToolResult(text="hang did not answer within 2 seconds", ok=False)
    assert next_call == ToolResult(text="2")


def test_a_server_that_dies_gives_results_and_a_clean_close():
    async def die() -> list[ToolResult]:
        async with mcp_tools(COMMAND, deadline_seconds=30) as tools:
            return [await call(tools[3]), await call(tools[0], a=1, b=1)]

    assert [result.ok for result in asyncio.run(die())] == [False, False]


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (["turnwise-no-such-command"], "cannot connect"),
        ("http://127.0.0.1:1/mcp", "cannot connect"),
        ([sys.executable, "-c", "pass"], "cannot connect"),
        ([sys.executable, "-c", "import sys; sys.stdin.read()"], "did not answer within 0.5 seconds"),
        ("python server.py", "pass a command as a list of words"),
    ],
)
def test_a_server_that_is_not_there_is_one_clear_error(server: str | list[str], message: str):
    deadline_seconds = 0.5 if "within" in message else 30

    async def connect() -> None:
        async with mcp_tools(server, deadline_seconds=deadline_seconds):
            pass

    with pytest.raises(ValueError, match=message):
        asyncio.run(connect())
