"""From a loaded model to a server of it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from turnwise.engine.served import Served
from turnwise.engine.torch_engine import TorchEngine
from turnwise.policy.rendering import Renderer
from turnwise.serve.chat_model import ChatModel
from turnwise.serve.model_server import ModelServer


@contextmanager
def opened(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    renderer: Renderer,
    *,
    name: str,
    capacity: int,
    memory_gib: float = 0.5,
    key: str = "",
    options: Mapping[str, Any] | None = None,
) -> Iterator[ModelServer]:
    """The application while the block lasts; `options` are those of the engine, such as `max_batch`."""
    # The engine decodes in its own thread, and a tokenizer that two threads use at once may raise.
    engine = TorchEngine(
        model,
        tokenizer=copy.deepcopy(tokenizer),
        capacity=capacity,
        memory_bytes=int(memory_gib * 2**30),
        **(options or {}),
    )
    served = Served(engine, model, name=name, token=key)
    try:
        lead = tokenizer.encode("")
        yield ModelServer(served, ChatModel(served.engine, renderer, lead=lead), name=name, key=key)
    finally:
        served.shutdown()
