"""An engine that gives its memory to the learner while no session is open."""

import gc
import weakref

import pytest
import torch

from tests.engine.conversations import play, whole
from tests.engine.shapes import small_model
from turnwise.engine.contract import SamplingParams
from turnwise.engine.serving import EngineServer
from turnwise.engine.torch_engine import TorchEngine

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"))]
PARAMS = SamplingParams(max_tokens=6)


@pytest.mark.parametrize("device", DEVICES)
def test_sessions_after_a_release_are_those_of_an_engine_that_keeps_its_memory(device: str) -> None:
    model = small_model("qwen2", device=device)
    found: list[list[list[int]]] = []
    for release in (False, True):
        engine = TorchEngine(model, capacity=120, memory_bytes=2**24, release=release)
        rounds: list[list[int]] = []
        for seed in range(2):
            played = play(engine, PARAMS, sessions=4, seed=seed)
            rounds += [whole(turns) for turns in played.values()]
            for name in played:
                engine.close(name)
        found.append(rounds)
    assert found[0] == found[1]


@pytest.mark.parametrize("device", DEVICES)
def test_memory_is_held_only_while_a_session_is_open(device: str) -> None:
    engine = TorchEngine(small_model("llama", device=device), capacity=120, memory_bytes=2**24, release=True)
    cache = engine._backend.cache
    assert not cache.keys
    engine.run([("first", [1, 2], PARAMS), ("second", [3], PARAMS)])
    engine.close("first")
    assert cache.keys
    engine.close("second")
    assert not cache.keys
    assert not cache.values


def test_memory_is_kept_unless_it_is_asked_for() -> None:
    engine = TorchEngine(small_model("llama"), capacity=120, memory_bytes=2**24)
    engine.run([("only", [1, 2], PARAMS)])
    engine.close("only")
    assert engine._backend.cache.keys


def test_a_server_that_was_shut_down_does_not_wait_for_the_garbage_collector() -> None:
    gc.disable()  # it runs seldom, and every engine that waits for it holds a model
    try:
        server = EngineServer(TorchEngine(small_model("llama"), capacity=120, memory_bytes=2**24))
        left = weakref.ref(server)
        server.shutdown()
        del server
        assert left() is None
    finally:
        gc.enable()
