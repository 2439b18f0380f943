"""The shipped model plays real search episodes through the engine, and the learner agrees about every token."""

from __future__ import annotations

import asyncio

import pytest
import torch

from turnwise.algorithm import apply_filters, compute_credit, compute_loss, preset
from turnwise.engine.contract import SamplingParams
from turnwise.engine.serving import EngineServer
from turnwise.engine.torch_engine import TorchEngine
from turnwise.policy.rendering import Renderer
from turnwise.policy.text import TextPolicy
from turnwise.rollout.episode import EpisodeSpec, Limits, tries
from turnwise.rollout.packing import pack
from turnwise.rollout.policy_agent import PolicyAgent
from turnwise.rollout.scheduler import Scheduler
from turnwise.rollout.token_checks import verify
from turnwise.types import Group, StopReason

pytest.importorskip("tantivy")
SAMPLING = SamplingParams(max_tokens=48)


def collect(policy: TextPolicy, *, tasks: int, size: int, concurrency: int, memory: int = 2**28) -> list[Group]:
    """Groups of tries at validation questions, about countries and cities the model has never seen."""
    specs = [
        spec
        for seed in range(tasks)
        for spec in tries(EpisodeSpec(env="search/geo-2hop", kwargs={"split": "validation"}, seed=seed), size)
    ]

    async def play() -> list[Group]:
        engine = TorchEngine(policy.model, tokenizer=policy.tokenizer, memory_bytes=memory)
        with EngineServer(engine) as server:
            agent = PolicyAgent(engine=server, renderer=Renderer(policy.tokenizer), sampling=SAMPLING)
            async with Scheduler(concurrency=concurrency, limits=Limits(max_turns=6)) as scheduler:
                return await scheduler.run_groups(specs, agent)

    return asyncio.run(play())


@pytest.fixture(scope="module")
def policy() -> TextPolicy:
    return TextPolicy.load("nano")


@pytest.fixture(scope="module")
def groups(policy: TextPolicy) -> list[Group]:
    return collect(policy, tasks=32, size=8, concurrency=128)


def test_the_nano_agent_starts_where_learning_is_possible(groups: list[Group]) -> None:
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    success = sum(t.success for t in trajectories) / len(trajectories)
    # 0.2-0.5 is the aim; three standard errors of 256 episodes are 0.09.
    assert 0.2 < success < 0.5
    assert sum(t.stop is StopReason.DONE for t in trajectories) / len(trajectories) > 0.95
    assert sum(len({t.success for t in group.trajectories}) > 1 for group in groups) > 16


def test_engine_and_learner_agree_about_every_sampled_token(policy: TextPolicy, groups: list[Group]) -> None:
    with torch.no_grad():
        gap = verify(groups, Renderer(policy.tokenizer), policy.score, tolerance=1e-3)
    assert gap.mean < 1e-5


def test_episodes_do_not_depend_on_concurrency_or_memory(policy: TextPolicy, groups: list[Group]) -> None:
    # Ten slots for sixteen episodes: sessions are evicted and filled again.
    again = collect(policy, tasks=4, size=4, concurrency=16, memory=10 * 512 * 2 * 4 * 4 * 64 * 4)
    for mine, theirs in zip(again, groups, strict=False):
        for left, right in zip(mine.trajectories, theirs.trajectories, strict=False):
            assert [list(turn.sampled_ids) for turn in left.turns] == [list(turn.sampled_ids) for turn in right.turns]


def test_one_update_makes_successful_episodes_more_likely(groups: list[Group]) -> None:
    policy = TextPolicy.load("nano")
    row = preset("so-grpo").override({"regularizers": []})
    batch = pack(apply_filters(row, groups[:12]))
    with torch.no_grad():
        batch = batch.with_(old_T=policy.score(batch).logprob_T)
    batch = compute_credit(row, batch)
    optimizer = torch.optim.AdamW(policy.trainable().values(), lr=1e-4)
    loss = compute_loss(row, batch, policy.score(batch))
    loss.total.backward()
    optimizer.step()
    assert batch.old_T is not None
    with torch.no_grad():
        moved_T = policy.score(batch).logprob_T - batch.old_T
    assert batch.advantage_T is not None
    good, bad = moved_T[batch.advantage_T > 0].mean(), moved_T[batch.advantage_T < 0].mean()
    assert float(good) > 0 > float(bad)
    assert loss.table.totals()["loss/sampler_kl"] < 1e-6
