"""The cost of a run before it starts: memory by part, tokens per step, and time from a measured rate."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoTokenizer

from turnwise.algorithm import Trait
from turnwise.envs.faults import close_quietly
from turnwise.envs.registry import is_ours
from turnwise.learn.encodings import BLOCK
from turnwise.learn.offload import STREAMS
from turnwise.learn.optimizer import PIECE
from turnwise.outside import reads
from turnwise.policy.logprobs import LOGITS_AT_ONCE
from turnwise.policy.models import resolve_model
from turnwise.policy.rendering import Renderer
from turnwise.policy.text_loading import PRECISIONS
from turnwise.recipe.schema import CONTEXT, Recipe, Train
from turnwise.recipe.seating import policies_of, recipe_of, trained_policies
from turnwise.sources.cursor import most_episodes
from turnwise.sources.demonstrations import expert_groups
from turnwise.sources.preferences import preference_groups
from turnwise.train.model_shape import Shape, read_shape
from turnwise.train.setup import choose_device, plays_at_all
from turnwise.words import counted

GIB = 2**30
_MEASURED_SECONDS = 0.1
_EXPERT_EPISODES, _LINES = 8, 64
_PASSING = ("gradients", "activations", "logits")
"""Parts that take memory only while the learner works."""


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Floating-point operations a second, as measured."""

    learning: float
    """Of products with many rows, as in learning."""
    playing: float
    """Of products with one row per episode, as in sampling."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Tokens and time, given how long episodes are."""

    episode_tokens: int
    step_tokens: int
    step_seconds: float
    total_seconds: float

    def __str__(self) -> str:
        return f"{_duration(self.step_seconds)} a step, {_duration(self.total_seconds)} in all"


@dataclass(frozen=True, kw_only=True)
class CostEstimate:
    """The cost of a recipe. Time is a bound from arithmetic; the first steps of a run are a better guide."""

    model: str
    shape: Shape
    device: str
    memory: dict[str, int]
    """Bytes by part."""
    memory_there: int
    rates: Rates
    most: Cost
    """If every episode has the maximum length."""
    expert: Cost | None
    """If episodes are as long as the expert's, or as the answers of the files; None without either."""
    typical: str
    """What those are called."""
    plan: str
    """What is done in that time."""

    context: int
    """Maximum tokens per episode."""

    @property
    def memory_needed(self) -> int:
        """Bytes of all parts together."""
        return sum(self.memory.values())

    def lines(self) -> list[str]:
        """For the screen of `--dry-run`."""
        shape, rates, costs = self.shape, self.rates, [("at most", self.most)]
        costs += [(self.typical, self.expert)] if self.expert else []
        return [
            f"model   {self.model}: {_count(shape.parameters)} parameters, {_count(shape.trained)} of them learn",
            f"memory  {_gib(self.memory_needed)} of {_gib(self.memory_there)} on {self.device}{self._advice()}",
            *(f"          {part:<20} {_gib(size):>10}" for part, size in self.memory.items() if size),
            "tokens  "
            + "; ".join(
                f"{how} {cost.episode_tokens:,} an episode, {cost.step_tokens:,} a step" for how, cost in costs
            ),
            "time    " + "; ".join(f"{how} {cost}" for how, cost in costs),
            f"          for {self.plan}, reckoned from matrix products measured just now:",
            f"          {rates.learning / 1e9:,.0f} GFLOP/s as in learning, {rates.playing / 1e9:,.0f} as in sampling",
            "          a bound from arithmetic; the first steps tell better",
        ]

    def _advice(self) -> str:
        if self.memory_needed <= self.memory_there:
            return ""
        return (
            ": too much; lower train.micro_tokens, set model.checkpointing=true, train.critic=shared, "
            "train.moments=bf16 or engine.options.release=true"
        )


def estimate(recipe: Recipe, *, rates: Rates | None = None) -> CostEstimate:
    """The recipe's cost on this machine; reads the model's config, not its weights."""
    device, first = choose_device(recipe), recipe_of(recipe, trained_policies(recipe)[0])
    shape = read_shape(first.model)
    rates = rates or measure(recipe, shape, device)
    most = _most_tokens(recipe, shape)
    expert = _expert_tokens(recipe)
    return CostEstimate(
        model=first.model.name,
        shape=shape,
        device=device,
        memory=memory_by_part(recipe, most, device),
        memory_there=_memory_there(device),
        rates=rates,
        most=_cost(recipe, most, rates),
        expert=None if expert is None else _cost(recipe, min(expert, most), rates),
        typical="as in the files" if recipe.source.prefers else "as the expert",
        plan=_plan(recipe),
        context=min(recipe.rollout.context or CONTEXT, shape.context),
    )


# Memory.


def memory_by_part(recipe: Recipe, length: int, device: str) -> dict[str, int]:
    """Bytes by part, of every policy: frozen policies and pool snapshots only have weights.

    An engine that releases its memory shares it with what only learning needs: gradients, activations and logits.
    """
    samples_here = recipe.engine.kind == "torch" and plays_at_all(recipe)
    parts: dict[str, int] = {"engine": int(recipe.engine.memory_gib * GIB)} if samples_here else {}
    pools = [(choice.pool, choice.keep) for choice in recipe.seats.values() if choice.pool is not None]
    bases = set[tuple[str, str]]()
    for name, choice in policies_of(recipe).items():
        own, shape = recipe_of(recipe, name), read_shape(choice.model)
        weights = shape.parameters * PRECISIONS[choice.model.dtype].itemsize
        memory = {"weights": weights} if choice.frozen else _memory(own, shape, length, device)
        adapted = choice.model.lora is not None  # its base is shared
        base = choice.model.name, choice.model.dtype
        if adapted and base in bases:
            memory["weights"] = shape.trained * PRECISIONS[choice.model.dtype].itemsize
        bases |= {base} if adapted else set()
        memory["sampler's copy"] = _copied_bytes(recipe, shape.parameters, weights) if samples_here else 0
        memory["pools"] = 0 if adapted else weights * sum(keep for of, keep in pools if of == name)
        parts |= {f"{name}: {part}" if recipe.policies else part: size for part, size in memory.items()}
    if samples_here and recipe.engine.options.get("release") and not recipe.algorithm.max_lag:
        passing = sum(size for part, size in parts.items() if part.endswith(_PASSING))
        parts["engine"] = max(0, parts["engine"] - passing)
    return parts


def _copied_bytes(recipe: Recipe, parameters: int, weights: int) -> int:
    """Of what is sampled from, if not the learner's own weights; int8 is computed with like the weights."""
    return {"same": 0, "bf16": 2 * parameters, "int8": weights}[recipe.engine.precision]


def _memory(recipe: Recipe, shape: Shape, length: int, device: str) -> dict[str, int]:
    row, item = recipe.algorithm, PRECISIONS[recipe.model.dtype].itemsize
    separate = row.needs_critic and recipe.train.critic == "separate"
    copied = row.needs_reference and recipe.model.lora is None  # under an adapter the base is the reference
    learning = _learning_bytes(recipe.train, shape.trained, item, device)
    per_update = -(-most_episodes(recipe) // row.minibatches) * length
    tokens, models = min(recipe.train.micro_tokens, per_update), 2 if separate else 1
    activations = (
        models * tokens * activation_bytes(shape, item, checkpointing=recipe.model.checkpointing, length=length)
    )
    if tokens == per_update:  # in a single backward pass gradients come as activations go
        layer = models * tokens * _layer_bytes(shape, item, length)
        activations = max(activations - models * shape.trained * item, min(activations, layer))
    return {
        "weights": shape.parameters * item,
        "gradients": shape.trained * item,
        "AdamW": learning,
        "critic": _critic_bytes(recipe, shape, item) if separate else 0,
        "critic's learning": shape.trained * item + learning if separate else 0,
        "reference": shape.parameters * item if copied else 0,
        "extrapolation": 0 if Trait.NEUTRAL in row.facts("extrapolate") else 4 * shape.trained,
        "activations": activations,
        "logits": 3 * 4 * LOGITS_AT_ONCE["cuda" if device.startswith("cuda") else "cpu"],
    }


def _critic_bytes(recipe: Recipe, shape: Shape, item: int) -> int:
    """Of a separate trunk, which has no head of words; with an adapter its base is the policy's."""
    return (shape.trained if recipe.model.lora is not None else shape.parameters - shape.embedded) * item


def _learning_bytes(train: Train, trained: int, item: int, device: str) -> int:
    """Two moments, and what half-precision weights lack; offloaded, only the pieces on their way."""
    each = {"fp32": 8.0, "bf16": 4.0, "int8": 2 + 8 / BLOCK}[train.moments]
    each += {"fp32": 4, "residual": 2, "stochastic": 0}[train.masters] if item == 2 else 0
    if train.offload == "cpu" and device.startswith("cuda"):
        trained = min(trained, STREAMS * PIECE)
    return int(trained * each)


def activation_bytes(shape: Shape, item: int, *, checkpointing: bool, length: int = 0) -> int:
    """Memory per token for the backward pass, in an episode of this many tokens.

    With checkpointing: every layer's input, which is in single precision, and one layer that is recomputed.
    """
    layer = _layer_bytes(shape, item, length)
    return shape.layers * shape.width * 4 + layer if checkpointing else shape.layers * layer


def _layer_bytes(shape: Shape, item: int, length: int) -> int:
    """What a layer keeps of a token: a fit to what its forward pass saves.

    The stream between layers is in single precision whatever the weights. Bounded scores are kept for every pair of
    tokens: before and after the softmax, 8 bytes in either precision.
    """
    widths = 11 if item == 4 else 12.5
    return int(item * (widths * shape.width + 4 * shape.inner_width)) + 8 * shape.score_heads * length


def _memory_there(device: str) -> int:
    if device.startswith("cuda"):
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


# Time: a token costs a multiply and an add per parameter forward, and twice that backward.


def _cost(recipe: Recipe, length: int, rates: Rates) -> Cost:
    tokens = most_episodes(recipe) * length
    evaluated = _evaluations(recipe) * recipe.eval.episodes * recipe.eval.tries * length
    step = total = 0.0
    for name, choice in policies_of(recipe).items():
        own, shape = recipe_of(recipe, name), read_shape(choice.model)
        each = _play_seconds(shape, tokens, rates) if choice.frozen else _step_seconds(own, shape, length, rates)
        step += each
        total += recipe.train.steps * each + _play_seconds(shape, evaluated, rates)
        total += _imitation_seconds(recipe, shape, length, rates)
    return Cost(episode_tokens=length, step_tokens=tokens, step_seconds=step, total_seconds=total)


def _step_seconds(recipe: Recipe, shape: Shape, length: int, rates: Rates) -> float:
    tokens, row = most_episodes(recipe) * length, recipe.algorithm
    separate = row.needs_critic and recipe.train.critic == "separate"
    passes = 1 + separate + row.needs_reference  # scoring
    passes += row.epochs * (1 + separate) * (4 if recipe.model.checkpointing else 3)
    learning = tokens * passes * 2 * shape.multiplied / rates.learning
    return learning + (_play_seconds(shape, tokens, rates) if recipe.source.plays else 0.0)


def _play_seconds(shape: Shape, tokens: int, rates: Rates) -> float:
    return tokens * 2 * shape.multiplied / rates.playing


def _imitation_seconds(recipe: Recipe, shape: Shape, length: int, rates: Rates) -> float:
    if recipe.sft is None:
        return 0.0
    tokens = recipe.sft.demonstrations * recipe.sft.epochs * length
    return tokens * 3 * 2 * shape.multiplied / rates.learning


def _most_tokens(recipe: Recipe, shape: Shape) -> int:
    """Of an episode: all that its turns may say, as much again from the environment, and no more than has room."""
    rollout, room = recipe.rollout, min(recipe.rollout.context or CONTEXT, shape.context)
    return min(room, 2 * rollout.max_turns * rollout.max_tokens) if recipe.source.plays else room


def _expert_tokens(recipe: Recipe) -> int | None:
    """Of an answer in the files of preferences, or of an episode of the environment's expert, in the mean.

    None where there is none, or no chat template.
    """
    if not recipe.source.prefers and not (reads() or is_ours(recipe.env.id)):
        return None  # its expert is the user's own code
    model, turns = recipe.model, recipe.rollout.max_turns
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            resolve_model(model.name), local_files_only=True, trust_remote_code=False
        )
        renderer = Renderer(tokenizer, template=model.template, system=model.system, prefix=model.prefix)
    except (OSError, ValueError):
        return None
    if recipe.source.prefers:
        read = [preference_groups(part.path or "", renderer, limit=_LINES) for part in recipe.source.mix]
        groups = [group for part in read for group in part]
    else:
        close_quietly(recipe.env.source().build())  # a wrong argument or file deserves a message, a missing expert none
        try:
            groups = expert_groups(
                recipe.env, renderer, count=_EXPERT_EPISODES, max_turns=turns, seed=recipe.seed, only_success=False
            )
        except (OSError, ValueError):
            return None
    answers = [trajectory for group in groups for trajectory in group.trajectories]
    counts = [len(turn.prompt_ids) + len(turn.sampled_ids) for each in answers for turn in each.turns]
    return -(-sum(counts) // len(answers))


def _evaluations(recipe: Recipe) -> int:
    if not recipe.eval.episodes:
        return 0
    return 2 + ((recipe.train.steps - 1) // recipe.eval.every if recipe.eval.every else 0)


def _plan(recipe: Recipe) -> str:
    parts = ["imitation"] if recipe.sft is not None else []
    parts.append(counted(recipe.train.steps, "step"))
    if evaluations := _evaluations(recipe):
        parts.append(f"{counted(evaluations, 'evaluation')} of {counted(recipe.eval.episodes, 'task')}")
    return ", ".join(parts)


def measure(recipe: Recipe, shape: Shape, device: str) -> Rates:
    """How fast this machine multiplies matrices of the model's sizes."""
    options: dict[str, Any] = {"dtype": PRECISIONS[recipe.model.dtype], "device": device}
    weight = torch.ones(shape.width, shape.inner_width, **options)

    def rate(rows: int) -> float:
        states = torch.ones(rows, shape.width, **options)
        seconds = _seconds_of(lambda: states @ weight, device)
        return 2 * rows * weight.numel() / seconds

    return Rates(
        learning=rate(min(recipe.train.micro_tokens, 4096)),
        playing=rate(min(recipe.rollout.episodes, recipe.rollout.concurrency)),
    )


def _seconds_of(work: Callable[[], object], device: str) -> float:
    def finish() -> float:
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)
        return time.perf_counter()

    work()
    started, runs = finish(), 0
    while finish() - started < _MEASURED_SECONDS:
        for _ in range(10):
            work()
        runs += 10
    return (finish() - started) / runs


def _count(number: int) -> str:
    return f"{number / 1e9:.2f} G" if number >= 1e9 else f"{number / 1e6:.2f} M"


def _gib(size: int) -> str:
    return f"{size / GIB:,.2f} GiB"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"
