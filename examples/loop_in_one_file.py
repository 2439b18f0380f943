"""The whole method in one file: the nano agent learns to search with ST-PPO, on a CPU, in a few minutes.

    python examples/loop_in_one_file.py                       # ST-PPO
    python examples/loop_in_one_file.py --algorithm so-grpo   # any preset, or a YAML row

Each step: play episodes (engine and environments, no barrier) → leave out what says nothing → pack → score → credit →
minibatches → loss → step scale → step → publish. What a trainer adds is safety: checkpoints, guard, resume.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Iterator, Sequence

import torch

from turnwise.algorithm import (
    Loss,
    Need,
    apply_filters,
    compute_credit,
    compute_loss,
    find_algorithm,
    make_scale,
    resolve,
)
from turnwise.batch import Scores, TokenBatch
from turnwise.engine.contract import SamplingParams
from turnwise.engine.serving import EngineServer
from turnwise.engine.torch_engine import TorchEngine
from turnwise.ops.weights import Counts
from turnwise.policy.critics import Bins, Critic
from turnwise.policy.rendering import Renderer
from turnwise.policy.text import Reference, TextPolicy
from turnwise.rollout.episode import EpisodeSpec, Limits, tries
from turnwise.rollout.packing import pack
from turnwise.rollout.policy_agent import PolicyAgent
from turnwise.rollout.scheduler import Scheduler
from turnwise.types import Group

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--algorithm", default="st-ppo")
parser.add_argument("--env", default="search/geo-2hop")
parser.add_argument("--steps", type=int, default=16)
parser.add_argument("--episodes", type=int, default=128, help="episodes per step")
parser.add_argument("--held-out", type=int, default=256, help="episodes of each evaluation")
parser.add_argument("--learning-rate", type=float, default=5e-4)
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()

row = find_algorithm(options.algorithm)
for warning in resolve(row):
    print("note:", warning)
policy = TextPolicy.load("nano")
engine = EngineServer(TorchEngine(policy.model, tokenizer=policy.tokenizer, memory_bytes=2**29, seed=options.seed))
critic = Critic.separate(policy.model, bins=Bins.of(row)) if row.needs_critic else None
reference = Reference.copy_of(policy) if row.needs_reference else None
actor = list(policy.trainable().values())
optimizers = [torch.optim.AdamW(actor, lr=options.learning_rate, betas=(0.9, 0.95), weight_decay=0)]
if critic is not None:
    optimizers.append(torch.optim.AdamW(critic.trainable().values(), lr=1e-3, weight_decay=0))
scale = make_scale(row)


def play(split: str, seeds: Sequence[int], *, size: int, temperature: float = 1.0) -> list[Group]:
    """Groups of `size` tries at each task, all at once."""
    tasks = (EpisodeSpec(env=options.env, kwargs={"split": split}, seed=seed) for seed in seeds)
    specs = [spec for task in tasks for spec in tries(task, size)]
    sampling = SamplingParams(max_tokens=48, temperature=temperature)

    async def run() -> list[Group]:
        agent = PolicyAgent(engine=engine, renderer=Renderer(policy.tokenizer), sampling=sampling)
        async with Scheduler(concurrency=256, limits=Limits(max_turns=6), seed=options.seed) as scheduler:
            return await scheduler.run_groups(specs, agent)

    return asyncio.run(run())


def success(groups: Sequence[Group]) -> float:
    outcomes = [trajectory.success for group in groups for trajectory in group.trajectories]
    return sum(outcomes) / max(len(outcomes), 1)


def evaluate() -> str:
    """Held-out success, sampled and greedy: countries and cities that are in no training task."""
    seeds = range(options.held_out)
    sampled, greedy = (success(play("validation", seeds, size=1, temperature=t)) for t in (1.0, 0.0))
    return f"held-out success: sampled {sampled:.3f}, greedy {greedy:.3f}"


def show_episode() -> None:
    """One held-out episode, turn by turn."""
    trajectory = play("validation", [7], size=1)[0].trajectories[0]
    for turn in trajectory.turns:
        print(f"    {turn.observation.strip()}\n      > {turn.action.strip()}")
    print("    solved" if trajectory.success else "    not solved")


def minibatches(batch: TokenBatch, rng: random.Random) -> Iterator[TokenBatch]:
    """The row's epochs and minibatches; a sequence is never cut."""
    for _ in range(row.epochs):
        order = rng.sample(range(batch.sequences), batch.sequences)
        for part in range(row.minibatches):
            chosen = order[part :: row.minibatches]
            if chosen:
                yield batch.select(chosen)


def update(batch: TokenBatch) -> dict[str, float]:
    """One optimiser step; returns the diagnostics of the loss."""
    scores = policy.score(batch, entropy=True, collision=Need.COLLISION in row.needs, critic=critic)
    loss = compute_loss(row, batch, scores, counts=Counts.of(batch))
    factor = step_factor(loss, scores)
    for each in optimizers:
        each.zero_grad()
    loss.total.backward()
    torch.nn.utils.clip_grad_norm_(actor, 1.0)
    # The scale multiplies what the optimiser does, not what it is given: Adam would divide it out again.
    optimizers[0].param_groups[0]["lr"] = options.learning_rate * factor
    for each in optimizers:
        each.step()
    return {**loss.table.totals(), "scale": factor}


def step_factor(loss: Loss, scores: Scores) -> float:
    """How much of this step is taken."""
    if scale is None:
        return 1.0
    scale.observe(loss, scores, actor)
    return scale.finish().value


@torch.no_grad()
def score(batch: TokenBatch) -> TokenBatch:
    """What the row needs to know before the first update."""
    batch = batch.with_(old_T=policy.score(batch).logprob_T)
    if reference is not None:
        batch = batch.with_(ref_T=reference.score(batch).logprob_T)
    return batch if critic is None else critic.assess(batch, policy)


def train_step(step: int) -> None:
    """Play, learn, publish."""
    started, tries_each = time.perf_counter(), row.sampling.options.get("size", 1)
    tasks = max(options.episodes // tries_each, 1)
    groups = play("train", range(step * tasks, (step + 1) * tasks), size=tries_each)
    kept = apply_filters(row, groups)
    if not kept:
        print(f"step {step + 1:3d}  success {success(groups):.3f}  the filters left nothing to learn from", flush=True)
        return
    batch = compute_credit(row, score(pack(kept)))
    with engine.paused():
        metrics = [update(part) for part in minibatches(batch, random.Random(f"{options.seed}:{step}"))][-1]
    engine.publish(None, step + 1)
    print(
        f"step {step + 1:3d}  success {success(groups):.3f}  clip {metrics['loss/clip_fraction']:.3f}  "
        f"entropy {metrics['loss/entropy']:.3f}  scale {metrics['scale']:.2f}  {time.perf_counter() - started:.1f} s",
        flush=True,
    )


def main() -> None:
    print(f"before: {evaluate()}", flush=True)
    show_episode()
    for step in range(options.steps):
        train_step(step)
    print(f"after:  {evaluate()}")
    show_episode()
    engine.shutdown()


if __name__ == "__main__":
    main()
