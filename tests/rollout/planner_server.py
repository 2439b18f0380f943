"""A chat API that plans: it reads the request, solves it, and calls the tools, in functions or in ReAct's lines."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from turnwise.envs.plans.plan_solvers import BuiltInSolver
from turnwise.envs.plans.plan_task import PlanTask


class PlannerServer(ThreadingHTTPServer):
    """`at_once`: all calls in one answer. `reverse`: in the wrong order. `says`: this text in place of a plan."""

    def __init__(self, *, at_once: bool = False, reverse: bool = False, says: str | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.at_once, self.reverse, self.says = at_once, reverse, says
        self.asked: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """The assistant's message."""
        self.asked.append(body)
        if self.says is not None:
            return {"role": "assistant", "content": self.says}
        chat = body["messages"]
        done = sum(message["role"] == "assistant" for message in chat)
        names = _names(body)
        text = chat[0]["content"].partition("Request: ")[2]
        task = PlanTask(topic="x", actions=tuple(name.replace("_", " ") for name in names), text=text)
        plan = BuiltInSolver().solve(task.constraints) or ()
        order = [names[place] for place in (reversed(plan) if self.reverse else plan)]
        if "tools" not in body:
            return {"role": "assistant", "content": f"Thought: on.\nAction: {order[done]}\nAction Input: {{}}"}
        calls = [
            {"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}}
            for name in (order if self.at_once else order[done : done + 1])
        ]
        return {"role": "assistant", "content": None, "tool_calls": calls}


def _names(body: dict[str, Any]) -> list[str]:
    if "tools" in body:
        return [tool["function"]["name"] for tool in body["tools"]]
    lines = body["messages"][0]["content"].splitlines()
    return [line[2:].partition("(")[0] for line in lines if line.startswith("- ")]


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, PlannerServer)
        message = self.server.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        content = json.dumps({"choices": [{"message": message}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def planner(**options: Any) -> Iterator[PlannerServer]:
    """The server while it runs."""
    with PlannerServer(**options) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
