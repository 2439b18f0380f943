"""A text policy as a strategy of a small game: how likely it is to say each legal action, and who can exploit that."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from turnwise.batch import TokenBatch
from turnwise.envs.duels.game_tree import GameTree
from turnwise.envs.faults import close_quietly
from turnwise.envs.process import EnvSource
from turnwise.evaluate.exploitability import Situation, exploitability, is_small
from turnwise.learn.batches import score_in_parts
from turnwise.policy.rendering import Renderer
from turnwise.policy.text import TextPolicy
from turnwise.recipe.schema import Recipe
from turnwise.recipe.seating import recipe_of, seats_of
from turnwise.rollout.packing import pack
from turnwise.sources.demonstrations import add_tokens
from turnwise.train.setup import make_renderer
from turnwise.types import Group, StopReason, Trajectory, Turn


class TextStrategy:
    """The probabilities of legal actions under a model, each with the end of its turn, scaled so that they sum to 1.

    `score` gives the log-probs of a batch's tokens. `left_over` are the shares of each situation that the model gave
    to other texts.
    """

    def __init__(self, score: Callable[[TokenBatch], Tensor], renderer: Renderer) -> None:
        self._score, self._renderer = score, renderer
        self.left_over: list[float] = []

    def __call__(self, situations: Sequence[Situation]) -> list[list[float]]:
        """The chance of each action in each situation."""
        said = [self._said(situation.history, action) for situation in situations for action in situation.actions]
        groups = [
            Group(id=str(place), trajectories=[Trajectory(id=str(place), turns=turns, stop=StopReason.DONE)])
            for place, turns in enumerate(said)
        ]
        chances = iter(self._last_turns(pack(groups)).exp().tolist())
        strategy: list[list[float]] = []
        for situation in situations:
            legal = [next(chances) for _ in situation.actions]
            self.left_over.append(max(0.0, 1 - sum(legal)))
            # A model that never says a legal action is as good as one that says any of them.
            total, even = sum(legal), 1 / len(legal)
            strategy.append([each / total if total > 0 else even for each in legal])
        return strategy

    def _said(self, history: Sequence[str], action: str) -> list[Turn]:
        """The turns of a conversation that ends with this action."""
        conversation, texts = self._renderer.open(), (*history, action)
        turns = [
            Turn(prompt_ids=[], sampled_ids=[], observation=seen, action=done)
            for seen, done in zip(texts[::2], texts[1::2], strict=True)
        ]
        for turn in turns:
            add_tokens(turn, conversation)
        return turns

    @torch.no_grad()
    def _last_turns(self, batch: TokenBatch) -> Tensor:
        """The log-prob of each trajectory's last turn."""
        logprob_T = self._score(batch).double().cpu()
        turn_T, sampled_T = batch.turn_T, batch.sampled_T
        logprob_K = torch.zeros(batch.turns, dtype=torch.float64).index_add(0, turn_T[sampled_T], logprob_T[sampled_T])
        trajectory_K = batch.trajectory_S[batch.sequence_K]
        last = trajectory_K != torch.cat([trajectory_K[1:], trajectory_K.new_full((1,), -1)])
        return logprob_K[last]


def _read_tree(source: EnvSource) -> tuple[GameTree[Any] | None, tuple[str, ...]]:
    env = source.build()
    try:
        return getattr(env, "tree", None), tuple(env.seats)
    finally:
        close_quietly(env)


def tree_of(source: EnvSource) -> tuple[GameTree[Any], tuple[str, ...]]:
    """The tree that an environment declares, and its seats; ValueError without one."""
    tree, seats = _read_tree(source)
    if tree is None:
        raise ValueError(
            f"eval.exploitability needs a game whose tree is known, and {source.name} declares none; "
            "choose one of duel/…, or leave it out"
        )
    return tree, seats


def measure_exploitability(
    source: EnvSource, strategy: TextStrategy, seats: Collection[str] | None
) -> dict[str, float]:
    """`eval/exploitability` at the seats that the policy plays, and the mean of what it gave to other texts."""
    tree, names = tree_of(source)
    played = [place for place, name in enumerate(names) if seats is None or name in seats]
    found = exploitability(tree, strategy, played)
    return {"eval/exploitability": found, "eval/left_over": fmean(strategy.left_over)}


def measure_all(recipe: Recipe, policies: Mapping[str, TextPolicy]) -> dict[str, float]:
    """The same for policies that do not learn, if the recipe asks for it or the game's tree is known and small."""
    source = recipe.env.source(recipe.env.held_out)
    tree, _ = _read_tree(source)
    if not recipe.eval.exploitability and (tree is None or not is_small(tree)):
        return {}
    metrics: dict[str, float] = {}
    for name, policy in policies.items():
        strategy = _strategy_of(recipe_of(recipe, name), policy)
        found = measure_exploitability(source, strategy, seats_of(recipe, name))
        metrics |= {f"{name}/{metric}" if len(policies) > 1 else metric: value for metric, value in found.items()}
    return metrics


def _strategy_of(recipe: Recipe, policy: TextPolicy) -> TextStrategy:
    score, tokens = partial(policy.score, temperature=recipe.rollout.temperature), recipe.train.micro_tokens
    return TextStrategy(
        lambda batch: score_in_parts(score, batch.to(policy.device), tokens=tokens), make_renderer(recipe, policy)
    )
