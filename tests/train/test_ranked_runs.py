"""A whole run on several ranks: one folder, written by rank 0; the same weights on every rank as on one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.ops.ranks import as_ranks
from tests.train.small_runs import Screen, played, small_recipe
from turnwise.policy.text import TextPolicy
from turnwise.ranks import ALONE, Ranks
from turnwise.recipe.schema import Recipe
from turnwise.runs.folder import RunFolder
from turnwise.train.setup import load_policy
from turnwise.train.trainer import Trainer
from turnwise.types import POLICY

CHANGES: dict[str, Any] = {"train": {"steps": 3}, "eval": {"episodes": 8}, "checkpoint": {"every": 1}, "guard": "act"}
Outcome = tuple[dict[str, Any], dict[str, Tensor], float]


def work(recipe: Recipe, run: RunFolder, policy: TextPolicy, screen: Screen) -> Callable[[Ranks], Outcome]:
    """One rank's run; what is made here is made before the ranks start, because making a model seeds torch."""

    def go(ranks: Ranks) -> Outcome:
        trainer = Trainer(recipe, run, {POLICY: policy}, console=screen, ranks=ranks)
        summary = trainer.run()
        (trainee,) = trainer.trainees
        return summary, {k: v.detach().clone() for k, v in policy.trainable().items()}, trainee.learner.rate_factor

    return go


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def run_on(size: int, folder: Path, changes: dict[str, Any]) -> tuple[list[Outcome], RunFolder, list[Screen]]:
    recipe = small_recipe({**CHANGES, **changes})
    run = RunFolder.create(folder, recipe.model_dump(mode="json"), {"threads": 1})
    screens = [Screen() for _ in range(size)]
    pieces = [work(recipe, run, load_policy(recipe), screen) for screen in screens]
    return as_ranks(pieces) if size > 1 else [pieces[0](ALONE)], run, screens


@pytest.mark.parametrize("algorithm", ["rebn", "st-ppo", "grpo"])
def test_ranks_end_with_one_folder_and_one_policy(tmp_path: Path, algorithm: str) -> None:
    changes = {"algorithm": algorithm}
    alone, one, _ = run_on(1, tmp_path / "one", changes)
    outcomes, several, _ = run_on(2, tmp_path / "several", changes)
    first, *others = [weights for _, weights, _ in outcomes]
    for weights in others:
        assert all(torch.equal(first[name], weights[name]) for name in first)
    assert [summary["status"] for summary, _, _ in outcomes] == ["finished", "finished"]
    metrics = [lines(run.metrics.path) for run in (one, several)]
    assert [row["step"] for row in metrics[1]] == [1, 2, 3]  # written once, by rank 0
    # Which sessions share a batch differs, and with it the last bits of what is sampled from.
    for key in ("rollout/episodes", "train/updates"):
        assert [row.get(key) for row in metrics[0]] == [row.get(key) for row in metrics[1]]
    assert metrics[1][0]["rollout/reward"] == pytest.approx(metrics[0][0]["rollout/reward"], abs=0.2)
    assert several.checkpoints.steps()[-1] == 3
    assert len(alone) == 1


def test_what_the_guard_of_rank_zero_decides_all_ranks_do(tmp_path: Path) -> None:
    outcomes, run, _ = run_on(2, tmp_path / "run", {"train": {"steps": 4, "learning_rate": 50.0}})
    factors = [factor for _, _, factor in outcomes]
    assert factors[0] == factors[1]
    kinds = [event["kind"] for event in lines(run.events.path)]
    assert len(kinds) == len([kind for kind in kinds if kind])
    assert all(torch.equal(outcomes[0][1][name], outcomes[1][1][name]) for name in outcomes[0][1])


def test_ranks_that_play_ahead_learn_from_all_episodes_and_keep_those_of_later_steps(tmp_path: Path) -> None:
    changes = {"algorithm": {"preset": "rebn", "max_lag": 1}, "train": {"steps": 4}}
    outcomes, run, _ = run_on(2, tmp_path / "run", changes)
    assert all(torch.equal(outcomes[0][1][name], outcomes[1][1][name]) for name in outcomes[0][1])
    rows = lines(run.metrics.path)
    assert [row["rollout/episodes"] for row in rows] == [16.0] * 4
    assert max(row["rollout/lag_max"] for row in rows) <= 1


def test_an_expert_plays_each_of_its_episodes_once_for_all_ranks(tmp_path: Path) -> None:
    changes = {"algorithm": "grpo", "source": {"expert": 1}, "train": {"steps": 2}}
    outcomes, run, _ = run_on(2, tmp_path / "run", changes)
    assert [summary["status"] for summary, _, _ in outcomes] == ["finished", "finished"]
    for group in played(run.path, 2):
        own = [each for each in group.trajectories if each.turns[0].logprobs is not None]
        assert (len(own), len(group.trajectories)) == (8, 9)


def test_ranks_agree_on_who_is_tried_again_and_share_one_budget(tmp_path: Path) -> None:
    algorithm = {"preset": "dars-et", "sampling": {"size": 4, "budget": 10}}
    outcomes, run, _ = run_on(2, tmp_path / "run", {"algorithm": algorithm, "train": {"steps": 2}})
    assert all(torch.equal(outcomes[0][1][name], outcomes[1][1][name]) for name in outcomes[0][1])
    assert [row["source/extra"] for row in lines(run.metrics.path)] == [10.0, 10.0]
    for step in (1, 2):
        sizes = [len(group.trajectories) for group in played(run.path, step)]
        assert sum(sizes) == 26
        assert len(set(sizes)) > 1
