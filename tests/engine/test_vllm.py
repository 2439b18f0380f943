"""Against a real vLLM server. TURNWISE_VLLM_PYTHON names an interpreter that has it; docs/scaling.md says how."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from turnwise.engine.contract import Completion, EngineSetup, SamplingParams, ServerStart
from turnwise.engine.kinds import make_engines
from turnwise.engine.probing import logprobs_of
from turnwise.engine.remote import RemoteEngine
from turnwise.engine.supervisor import Supervisor
from turnwise.engine.wires import VllmWire
from turnwise.policy.text import TextPolicy

PYTHON = os.environ.get("TURNWISE_VLLM_PYTHON", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="TURNWISE_VLLM_PYTHON names no interpreter with vLLM")
ON_CPU = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
TIGHT = 1e-4


@pytest.fixture(scope="module")
def policy() -> TextPolicy:
    return TextPolicy.load("nano", train=[])


@pytest.fixture(scope="module")
def notes() -> list[str]:
    return []


@pytest.fixture(scope="module")
def setup(policy: TextPolicy, notes: list[str], tmp_path_factory: pytest.TempPathFactory) -> EngineSetup:
    arguments = ("--enforce-eager", "--max-num-seqs", "16", "--block-size", "32")
    return EngineSetup(
        policy="policy",
        model_name="nano",
        model=policy.model,
        tokenizer=policy.tokenizer,
        capacity=512,
        memory_bytes=2**30,
        seed=0,
        folder=tmp_path_factory.mktemp("run") / "published",
        note=notes.append,
        start=ServerStart(python=PYTHON, env=ON_CPU, arguments=arguments, seconds=900.0),
    )


@pytest.fixture(scope="module")
def engine(setup: EngineSetup) -> Iterator[Any]:
    engine = make_engines("vllm", [setup], {"load_seconds": 300.0})["policy"]
    try:
        yield engine
    finally:
        engine.shutdown()


@torch.no_grad()
def disturb(policy: TextPolicy, number: int) -> None:
    generator = torch.Generator().manual_seed(number)
    for parameter in policy.model.parameters():
        parameter.add_(0.02 * parameter.std() * torch.randn(parameter.shape, generator=generator))


def gap(policy: TextPolicy, prompt: list[int], sampled: Completion, temperature: float) -> float:
    own = logprobs_of(policy.model, [*prompt, *sampled.ids], temperature=temperature, start=len(prompt))
    return max(abs(one - other) for one, other in zip(own, sampled.logprobs, strict=True))


def test_logprobs_are_the_learners_before_and_after_ten_publishes(engine: Any, policy: TextPolicy) -> None:
    prompt = [(7 * place + 3) % 900 for place in range(100)]
    for version in range(11):
        engine.publish(None, version)
        for temperature in (1.0, 0.7):
            params = SamplingParams(max_tokens=24, temperature=temperature)
            sampled = asyncio.run(engine.generate(f"{version}:{temperature}", prompt, params))
            assert gap(policy, prompt, sampled, temperature) < TIGHT
            assert list(sampled.versions) == [version] * len(sampled.ids)
        disturb(policy, version)


def test_a_publish_during_long_generations_gives_every_token_its_version(engine: Any, policy: TextPolicy) -> None:
    engine.publish(None, 20)
    disturb(policy, 20)

    async def all_of_them() -> list[Completion]:
        params = SamplingParams(max_tokens=480)
        long = [asyncio.create_task(engine.generate(f"long {place}", [place + 5], params)) for place in range(12)]
        await asyncio.sleep(0.2)
        await asyncio.to_thread(engine.publish, None, 21)
        return list(await asyncio.gather(*long))

    sampled = asyncio.run(all_of_them())
    assert {version for each in sampled for version in each.versions} == {20, 21}
    for each in sampled:
        assert list(each.versions) == sorted(each.versions)
        # vLLM computes keys and values again, so what follows the border is the new model's.
        border, prompt = list(each.versions).count(20), [sampled.index(each) + 5]
        own = logprobs_of(policy.model, [*prompt, *each.ids], start=1 + border) if border < len(each.ids) else []
        assert all(abs(a - b) < TIGHT for a, b in zip(own, each.logprobs[border:], strict=True))


def test_a_turn_goes_on_from_its_session(engine: Any, policy: TextPolicy) -> None:
    engine.publish(None, 30)
    params = SamplingParams(max_tokens=8)
    prompt = list(range(40, 140))
    first = asyncio.run(engine.generate("two turns", prompt, params))
    second = asyncio.run(engine.generate("two turns", [9, 10, 11], params))
    assert gap(policy, [*prompt, *first.ids, 9, 10, 11], second, 1.0) < TIGHT


def test_a_server_that_keeps_the_old_head_of_a_tied_model_is_refused_by_name(
    setup: EngineSetup, policy: TextPolicy, notes: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """vLLM's CPU build reloads all of a tied model but its head, and reports the new version."""
    monkeypatch.setattr("turnwise.engine.supervisor.write_model", write_tied)
    monkeypatch.setattr("turnwise.engine.published.write_model", write_tied)
    assert setup.start is not None
    own = replace(setup, folder=tmp_path / "published")
    supervisor = Supervisor("vllm", own, setup.start)
    engine = RemoteEngine(replace(own, urls=supervisor.urls, start=None), wire=VllmWire(), supervisor=supervisor)
    try:
        engine.publish(None, 0)
        disturb(policy, 99)
        with pytest.raises(ValueError, match=r"no engine server can be used: http://127.0.0.1:.*log-probs differ"):
            engine.publish(None, 1)
        assert any("is refused" in note for note in notes)
    finally:
        engine.shutdown()


def write_tied(folder: Path, model: Any, named: Any) -> None:
    """What a plain export looks like."""
    model.save_pretrained(folder)
