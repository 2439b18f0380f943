"""Does AdamW's state in fewer bits lose anything? `python benchmarks/masters.py`

A bf16 model whose weights were disturbed imitates the expert of `search/geo-1hop` again, once for every choice of
`train.masters` and `train.moments` and for a few seeds (seeds are paired). The learning rate is small, as in
reinforcement learning: rounded to the nearest bf16 the weights would hardly move, which the last line shows. The model
is the shipped nano, or with --big a random one of SmolLM2-135M's shape.

Thresholds, stated before the first run: a choice loses nothing if its mean held-out loss differs from that of fp32
masters and fp32 moments by at most 1% of what these gained, or by at most two standard errors of the paired difference.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import cache
from statistics import mean, stdev

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from turnwise.batch import TokenBatch
from turnwise.learn.optimizer import Masters, Moments, Optimizer
from turnwise.policy.models import resolve_model
from turnwise.policy.rendering import Renderer
from turnwise.policy.text import TextPolicy
from turnwise.recipe.schema import EnvChoice
from turnwise.rollout.packing import pack
from turnwise.sources.demonstrations import expert_groups

BETAS = (0.9, 0.999)
MASTERS: tuple[Masters, ...] = ("fp32", "residual", "stochastic")
MOMENTS: tuple[Moments, ...] = ("fp32", "bf16", "int8")
Step = Callable[[float], None]


@cache
def batches(count: int, each: int, seed: int, device: str) -> list[TokenBatch]:
    """Demonstrations of the expert, packed."""
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("nano"))
    groups = expert_groups(
        EnvChoice(id="search/geo-1hop"), Renderer(tokenizer), count=count * each, max_turns=4, seed=seed,
        only_success=False,
    )  # fmt: skip
    return [pack(groups[start : start + each]).to(device) for start in range(0, len(groups), each)]


def make_policy(arguments: argparse.Namespace, seed: int) -> TextPolicy:
    """A model with something to learn."""
    torch.manual_seed(seed)
    if arguments.big:
        config = LlamaConfig(
            vocab_size=2048, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
            num_key_value_heads=3, max_position_embeddings=2048, tie_word_embeddings=True,
        )  # fmt: skip
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).to(arguments.device)
        return TextPolicy(model)
    policy = TextPolicy.load("nano", dtype="bf16", device=arguments.device)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3 * parameter.float().std())
    return policy


def loss(policy: TextPolicy, batch: TokenBatch) -> torch.Tensor:
    return -policy.score(batch).logprob_T.sum() / batch.sampled_T.sum()


def nearest(named: dict[str, nn.Parameter]) -> Step:
    """AdamW on the bf16 weights themselves: what is lost without any of this."""
    adam = torch.optim.AdamW(named.values(), lr=0.0, betas=BETAS, weight_decay=0.0)

    def step(rate: float) -> None:
        adam.param_groups[0]["lr"] = rate
        adam.step()

    return step


def train(arguments: argparse.Namespace, choice: tuple[Masters, Moments] | None, seed: int) -> tuple[float, float]:
    """Held-out loss before and after."""
    policy = make_policy(arguments, seed)
    named = policy.trainable()
    learn, held_out = (
        batches(count, arguments.batch, seed, arguments.device)
        for count, seed in ((arguments.steps, 1 + seed), (4, 1_000_000))
    )
    optimizer = Optimizer(named, betas=BETAS, weight_decay=0.0, seed=seed)
    step = nearest(named)
    if choice is not None:
        masters, moments = choice
        optimizer = Optimizer(named, betas=BETAS, weight_decay=0.0, masters=masters, moments=moments, seed=seed)
        step = optimizer.step

    def assessed() -> float:
        with torch.no_grad():
            return mean(float(loss(policy, batch)) for batch in held_out)

    before = assessed()
    for batch in learn:
        optimizer.zero_grad()
        loss(policy, batch).backward()
        optimizer.clip(1.0)
        step(arguments.rate)
    return before, assessed()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--big", action="store_true", help="SmolLM2-135M's shape instead of nano")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=8, help="demonstrations per step")
    parser.add_argument("--rate", type=float, default=2e-5)
    arguments = parser.parse_args()
    choices: list[tuple[Masters, Moments] | None] = [(masters, moments) for masters in MASTERS for moments in MOMENTS]
    usual: list[float] = []
    gained = 0.0
    print(f"{'masters':<12}{'moments':<9}{'bytes':>6}{'before':>9}{'after':>9}{'worse by':>10}{'± 2 se':>9}  verdict")
    for choice in [*choices, None]:
        runs = [train(arguments, choice, seed) for seed in range(arguments.seeds)]
        before, after = mean(run[0] for run in runs), mean(run[1] for run in runs)
        if not usual:
            usual, gained = [run[1] for run in runs], before - after
        worse = [run[1] - same for run, same in zip(runs, usual, strict=True)]
        error = 2 * stdev(worse) / len(worse) ** 0.5 if len(worse) > 1 else 0.0
        sound = abs(mean(worse)) <= max(0.01 * gained, error)
        masters, moments = choice or ("nearest", "bf16")
        size = {"fp32": 4, "residual": 2}.get(masters, 0) + {"fp32": 8, "bf16": 4, "int8": 2}[moments]
        print(
            f"{masters:<12}{moments:<9}{size:>6}{before:>9.4f}{after:>9.4f}{mean(worse):>10.5f}{error:>9.5f}  "
            f"{'loses nothing' if sound else 'differs'}",
            flush=True,
        )


if __name__ == "__main__":
    main()
