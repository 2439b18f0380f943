"""The chat program of verifiers' `null` harness, run in this process instead of one process per episode.

Its own way to run starts Python, installs its requirements with uv and imports them for every episode, which takes
longer than most episodes. The loop itself is verifiers' own.
"""

from __future__ import annotations

import ssl
import sys
import traceback
from argparse import Namespace
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import cache
from types import ModuleType
from typing import Any

import httpx
import verifiers.v1 as vf
from openai import AsyncOpenAI
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.null import NullHarness
from verifiers.v1.harnesses.utils.launch import CHAT_PROGRAM_SOURCE

CHAT_HARNESS = "turnwise-chat"
"""The id under which verifiers finds it."""


class ChatHarness(NullHarness):
    """Talks to the model until a reply calls no tool of the taskset's servers."""

    async def setup(self, runtime: vf.Runtime) -> None:
        """There is nothing to install."""

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
        tool_interception_url: str | None = None,
    ) -> vf.ProgramResult:
        """Play the conversation. It fails as a process does, because verifiers knows which exits are expected."""
        system, prompt = self.resolve_prompt(data)
        opening = (
            [{"role": "user", "content": prompt}] if isinstance(prompt, str) else map(message_to_wire, prompt or [])
        )
        messages = [*([{"role": "system", "content": system}] if system else []), *opening]
        servers = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
        options = Namespace(
            api_key=secret, tool_interception_url=tool_interception_url, bash=False, edit=False, search=False
        )
        http = httpx.AsyncClient(timeout=None, verify=_certificates())
        client = AsyncOpenAI(base_url=endpoint, api_key=secret, timeout=None, http_client=http)
        try:
            await _talk(client, http, ctx.model, messages, servers, options)
        except SystemExit as ended:
            return vf.ProgramResult(exit_code=int(ended.code or 0), stdout="", stderr=traceback.format_exc())
        except Exception:  # the edge of the program
            return vf.ProgramResult(exit_code=1, stdout="", stderr=traceback.format_exc())
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


async def _talk(
    client: AsyncOpenAI,
    http: httpx.AsyncClient,
    model: str,
    messages: list[Any],
    servers: Mapping[str, Any],
    options: Namespace,
) -> None:
    program: Any = _program()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(client)  # which owns `http`
        tools, dispatch, connected = await program.connect_mcp({"mcpServers": servers}, stack)
        whole = program.Compactor(client, model, tools, False, None)  # nothing is ever summarised
        await program.run_chat_loop(options, whole, messages, dispatch, connected, http)


@cache
def _certificates() -> ssl.SSLContext:
    """Read once: that takes longer than the rest of a short episode."""
    return ssl.create_default_context()


@cache
def _program() -> ModuleType:
    """verifiers keeps the program as one text, whose parts cannot be imported one by one."""
    module = ModuleType("verifiers_chat_program")
    exec(compile(CHAT_PROGRAM_SOURCE, "<verifiers chat program>", "exec"), vars(module))
    return module


__all__ = ["ChatHarness"]
sys.modules.setdefault(CHAT_HARNESS.replace("-", "_"), sys.modules[__name__])  # verifiers imports a harness by its id
