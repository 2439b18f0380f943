"""A policy of 50,000 random weights and ragged groups that it sampled itself: all a learner needs, in milliseconds."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from turnwise.algorithm import Algorithm, Need, preset
from turnwise.learn.learner import Learner
from turnwise.policy.pico import FAMILIES, build_model, build_tokenizer
from turnwise.policy.sharding import whole
from turnwise.policy.text import TextPolicy
from turnwise.policy.text_lora import LoraSettings
from turnwise.recipe.schema import Train
from turnwise.rollout.packing import pack
from turnwise.types import Group, StopReason, Trajectory, Turn

WORDS = 24
SETTINGS = Train(steps=10, learning_rate=1e-3, critic_learning_rate=1e-3)


def make_policy(*, seed: int = 0, lora: bool = False, dtype: torch.dtype = torch.float32) -> TextPolicy:
    """A pico policy; with an adapter its base stays as it is."""
    model = build_model(seed).to(dtype)
    return TextPolicy(model, build_tokenizer(), lora=LoraSettings(rank=4, seed=seed) if lora else None)


def policy_for(algorithm: Algorithm) -> TextPolicy:
    """A policy that the row can learn with: a pico, with experts where the row replays them."""
    if algorithm.needs.isdisjoint({Need.ROUTING, Need.OLD_ROUTING}):
        return make_policy()
    return TextPolicy(build_model(0, FAMILIES["pico-moe"]), build_tokenizer())


def make_learner(name: str = "st-ppo", *, train: Train = SETTINGS, lora: bool = False, **changes: Any) -> Learner:
    """A learner of a preset with some of its choices changed."""
    return Learner(make_policy(lora=lora), row(name, changes), train, seed=0)


def row(name: str, changes: Mapping[str, Any]) -> Algorithm:
    """A preset, overridden."""
    return preset(name).override(changes)


def make_groups(*, tasks: int = 3, size: int = 4, seed: int = 0) -> list[Group]:
    """Groups of episodes in which some were cut and some have rewritten histories; log-probs are the policy's own.

    Turns have experts for the two layers of pico-moe, drawn at random.
    """
    rng = random.Random(seed)
    groups = [
        Group(id=f"task-{task}", trajectories=[_trajectory(rng, f"task-{task}/{index}") for index in range(size)])
        for task in range(tasks)
    ]
    _sign(groups)
    return groups


def drift(groups: list[Group], *, by: float, seed: int = 0) -> list[Group]:
    """Let the sampler have been another policy: its log-probs are off by up to `by`, so that ratios leave the clip."""
    rng = random.Random(seed)
    for turn in _turns(groups):
        assert turn.logprobs is not None
        turn.logprobs = [min(logprob + rng.uniform(-by, by), 0.0) for logprob in turn.logprobs]
    return groups


def judged(groups: list[Group]) -> list[Group]:
    """Give every answer a win probability that agrees with its reward."""
    for trajectory in (each for group in groups for each in group.trajectories):
        last = trajectory.turns[-1]
        last.streams = {**last.streams, "wins": [0.7 if trajectory.reward else 0.2]}
    return groups


def weights(learner: Learner) -> dict[str, Tensor]:
    """Copies of everything that may train; of sharded weights all ranks must ask for them."""
    critic = {} if learner.critic is None else learner.critic.trainable()
    named = {**learner.policy.trainable(), **{f"critic.{name}": weight for name, weight in critic.items()}}
    return {name: whole(weight.detach()).clone() for name, weight in named.items()}


def moved(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> set[str]:
    """Names of the tensors that differ in any bit."""
    return {name for name, weight in before.items() if not torch.equal(weight, after[name])}


def _trajectory(rng: random.Random, name: str) -> Trajectory:
    count = rng.randint(1, 4)
    turns = [_turn(rng, restarts=number > 0 and rng.random() < 0.3) for number in range(count)]
    turns[-1].reward = float(rng.random() < 0.5)
    experts = random.Random(name)
    for turn in turns:
        run = range(len(turn.prompt_ids) + len(turn.sampled_ids) - 1)
        turn.streams = {"routing": [[*experts.sample(range(8), 2), *experts.sample(range(8), 2)] for _ in run]}
    cut = rng.random() < 0.4
    return Trajectory(
        id=name,
        turns=turns,
        stop=StopReason.MAX_TURNS if cut else StopReason.DONE,
        terminated=not cut,
        truncated=cut,
        final_ids=_ids(rng, 3) if cut else [],
    )


def _turn(rng: random.Random, *, restarts: bool) -> Turn:
    prompt, sampled = _ids(rng, rng.randint(1, 8)), _ids(rng, rng.randint(1, 5))
    return Turn(prompt_ids=prompt, sampled_ids=sampled, restarts=restarts, state_key=f"key-{rng.randrange(3)}")


def _ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(WORDS) for _ in range(count)]


def _turns(groups: list[Group]) -> Iterator[Turn]:
    return (turn for group in groups for trajectory in group.trajectories for turn in trajectory.turns)


@torch.no_grad()
def _sign(groups: list[Group]) -> None:
    """Give every turn the log-probs that the pico policy has for its tokens."""
    batch = pack(groups)
    logprobs = iter(make_policy().score(batch).logprob_T[batch.sampled_T].tolist())
    for turn in _turns(groups):
        turn.logprobs = [next(logprobs) for _ in turn.sampled_ids]
