"""A small untrained model behind a real socket: it talks nonsense at length, which is what servers must bear."""

from __future__ import annotations

import asyncio
import json
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from tests.policy.tokenizers_for_chat import chat_tokenizer
from turnwise.policy.rendering import Renderer

pytest.importorskip("uvicorn", reason="needs turnwise[serve]")
pytest.importorskip("starlette", reason="needs turnwise[serve]")
from turnwise.dialects.server_thread import ServerThread
from turnwise.serve.model_server import ModelServer
from turnwise.serve.opening import opened

CAPACITY = 768
NAME = "tiny"


@dataclass(frozen=True, kw_only=True)
class LocalModel:
    """A server, and what it is made of."""

    origin: str
    server: ModelServer
    renderer: Renderer

    @property
    def url(self) -> str:
        return f"{self.origin}/v1"

    def load(self) -> dict[str, int]:
        """How busy the engine is."""
        return self.server.model.engine.between_steps(lambda engine: engine.load()).result(timeout=60)

    def ask(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """The status and the JSON of an answer; a body of bytes is sent as it is."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(self.origin + path, data=data, headers=named)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())


@contextmanager
def local_model(
    *,
    key: str = "",
    tokenizer: PreTrainedTokenizerBase | None = None,
    capacity: int = CAPACITY,
    taught: tuple[Sequence[int], Sequence[int]] | None = None,
    listening: Callable[[ModelServer], AbstractContextManager[str]] | None = None,
) -> Iterator[LocalModel]:
    """Serve it until the block ends.

    `taught` are tokens, and what the model has learnt to say after them; `listening` puts it at an address.
    """
    tokenizer = tokenizer or chat_tokenizer("chatml")
    model = _tiny_llama(len(tokenizer))
    if taught is not None:
        _teach(model, *taught)
    renderer = Renderer(tokenizer)
    with (
        opened(model, tokenizer, renderer, name=NAME, capacity=capacity, memory_gib=0.05, key=key) as server,
        (listening or _in_a_thread)(server) as origin,
    ):
        yield LocalModel(origin=origin, server=server, renderer=renderer)


@contextmanager
def _in_a_thread(server: ModelServer) -> Iterator[str]:
    thread = ServerThread(server, name="test")
    try:
        yield thread.origin
    finally:
        thread.stop()


def _tiny_llama(vocabulary: int) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=1024,
    )
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return LlamaForCausalLM(config).eval()


def _teach(model: LlamaForCausalLM, prompt: Sequence[int], answer: Sequence[int]) -> None:
    """Learn one answer by heart: every token of it is nearly certain in the end."""
    ids, target = torch.tensor([[*prompt, *answer]]), torch.tensor(answer)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(500):
        loss = torch.nn.functional.cross_entropy(model(ids).logits[0, len(prompt) - 1 : -1], target)
        if loss < 0.01:
            return
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    raise AssertionError("the model has not learnt its answer")


def chat(text: str = "the river", **more: Any) -> dict[str, Any]:
    """The body of a request."""
    return {"model": NAME, "messages": [{"role": "user", "content": text}], "max_tokens": 24, **more}


async def all_at_once(work: list[Any]) -> list[Any]:
    """Everything, in one event loop."""
    return await asyncio.gather(*work)


def raw_request(local: LocalModel, path: str, body: Any, *, buffer: int = 0) -> socket.socket:
    """A connection that has sent a request and reads nothing; `buffer` is how much the system reads for it."""
    connection = socket.socket()
    if buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    connection.connect(("127.0.0.1", int(local.origin.rpartition(":")[2])))
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:1\r\nContent-Length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content)
    return connection
