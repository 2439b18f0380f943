"""Served engines for tests: in a thread with real sockets, some of them unruly, and as processes that can be killed."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from tests.engine.shapes import CONTEXT, small_model
from turnwise.engine.contract import EngineSetup
from turnwise.engine.remote import RemoteEngine
from turnwise.engine.torch_engine import TorchEngine
from turnwise.engine.wires import TurnwiseWire

uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("starlette")
from turnwise.engine.served import Served  # noqa: E402

ROOT = Path(__file__).parents[2]
GENERATE = "/inference/v1/generate"
Spoil = Callable[[dict[str, Any]], Any]
"""Changes an answer in place, or gives other bytes, a status, or the seconds to sleep before it."""


@dataclass(kw_only=True)
class Unruly:
    """An application between the socket and a served engine: it passes everything on, or spoils it."""

    app: Any
    spoil: Spoil | None = None
    """For every answer to a request for tokens."""
    requests: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Requests for tokens so far."""
    paths: list[str] = field(default_factory=list[str])
    """Of all requests, in the order in which they were passed on."""
    delays: dict[str, float] = field(default_factory=dict[str, float])
    """Seconds that a path waits before it is passed on."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(self.delays.get(scope["path"], 0.0))
        self.paths.append(scope["path"])
        if scope["path"] != GENERATE:
            return await self.app(scope, receive, send)
        message = await receive()
        assert not message.get("more_body")
        with suppress(ValueError):  # it is not always JSON
            self.requests.append(json.loads(message["body"]))
        sent: list[dict[str, Any]] = []

        async def same() -> Any:
            return message

        async def keep(part: dict[str, Any]) -> None:
            sent.append(part)

        await self.app(scope, same, keep)
        start, body = sent
        if self.spoil is not None and start["status"] == 200 and "prompt_logprobs" not in json.loads(body["body"]):
            content = json.loads(body["body"])
            other = self.spoil(content)
            if isinstance(other, float):
                await asyncio.sleep(other)
            start["status"] = other if isinstance(other, int) else 200
            cut = other if isinstance(other, bytes) else json.dumps(content).encode()
            length = max(len(cut), len(body["body"])) if isinstance(other, bytes) else len(cut)
            start["headers"] = [(b"content-length", str(length).encode())]
            body["body"] = cut
        await send(start)
        await send(body)


@dataclass(kw_only=True)
class Local:
    """A server in a thread."""

    url: str
    served: Served
    unruly: Unruly
    stop: Callable[[], None]


def learner(*, shift: float = 0.0) -> PreTrainedModel:
    """A small tied model; `shift` moves all its weights."""
    model = small_model("smollm2")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(shift * torch.sin(torch.arange(parameter.numel())).view_as(parameter))
    return model


@contextmanager
def local_server(
    root: Path, model: PreTrainedModel | None = None, *, spoil: Spoil | None = None, port: int = 0, **options: Any
) -> Iterator[Local]:
    """Serve a model with weights other than the learner's, until they are published."""
    model = model or learner(shift=0.3)
    token, capacity = options.pop("token", ""), options.pop("capacity", CONTEXT)
    memory = int(options.pop("memory", 0.02) * 2**30)
    engine = TorchEngine(model, capacity=capacity, memory_bytes=memory, **options)
    served = Served(engine, model, name="small", root=root, token=token)
    unruly = Unruly(app=served.app, spoil=spoil)
    listener = socket.create_server(("127.0.0.1", port))
    config = uvicorn.Config(unruly, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()

    def stop() -> None:
        server.should_exit = server.force_exit = True
        thread.join(timeout=60)
        listener.close()

    try:
        yield Local(url=f"http://127.0.0.1:{listener.getsockname()[1]}", served=served, unruly=unruly, stop=stop)
    finally:
        stop()
        served.shutdown()


@contextmanager
def remote_engine(
    folder: Path, *urls: str, model: PreTrainedModel | None = None, notes: list[str] | None = None, **options: Any
) -> Iterator[RemoteEngine]:
    """A client of these servers, without weights yet."""
    said = notes if notes is not None else []
    setup = EngineSetup(
        policy="policy",
        model_name="",
        model=model or learner(),
        tokenizer=None,
        capacity=options.pop("capacity", CONTEXT),
        memory_bytes=2**24,
        seed=0,
        urls=urls,
        folder=folder,
        note=said.append,
        **({"ranks": options.pop("ranks")} if "ranks" in options else {}),
    )
    engine = RemoteEngine(setup, wire=options.pop("wire", TurnwiseWire()), **options)
    try:
        yield engine
    finally:
        engine.shutdown()


@contextmanager
def served_processes(model: str, root: Path, *, count: int = 1) -> Iterator[list[tuple[subprocess.Popen[str], str]]]:
    """`turnwise engine serve` as processes, with their addresses. They start at the same time."""
    command = [sys.executable, "-m", "turnwise", "engine", "serve", model, "--port", "0", "--root", str(root)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(count)]
    try:
        yield [(process, _address(process)) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait(timeout=60)
            assert process.stdout is not None
            process.stdout.close()


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert "http://" in line, line
    return line.split()[-1]


def eventually(holds: Callable[[], bool], *, seconds: float = 60.0) -> None:
    """Wait for something that another thread or process does."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)
