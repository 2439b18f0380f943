"""A language-model loss on other text: in the same optimiser steps, with its own mean, and without any credit."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.learn.small_learners import SETTINGS, WORDS, drift, make_groups, make_policy, row, weights
from tests.ops.ranks import as_ranks
from tests.train.small_runs import Screen, rows, small_recipe
from turnwise.algorithm import Algorithm
from turnwise.audit.replay import replay_step
from turnwise.learn.learner import Learner
from turnwise.policy.text import TextPolicy
from turnwise.ranks import ALONE, Ranks
from turnwise.sources.imitation import IMITATION
from turnwise.train.stages import train
from turnwise.types import Group, NonFiniteError, StopReason, Trajectory, Turn

PTX = [{"kind": "ptx", "coef": 0.7}]
ROWS = {
    "ppo": row("ppo", {"reward": ["running"], "regularizers": PTX, "minibatches": 2}),
    "grpo": row("grpo", {"regularizers": [{"kind": "kl", "coef": 0.1}, *PTX], "minibatches": 2}),
}


def make_texts(count: int = 5, *, seed: int = 0) -> list[Group]:
    """Pieces of text of any length, as a file would give them."""
    rng = random.Random(seed)
    found: list[Group] = []
    for number in range(count):
        ids = [rng.randrange(WORDS) for _ in range(rng.randint(2, 12))]
        turns = [Turn(prompt_ids=ids[:1], sampled_ids=ids[1:])]
        found.append(
            Group(id=f"x-{number}", trajectories=[Trajectory(id=f"x-{number}", turns=turns, stop=StopReason.DONE)])
        )
    return found


def learn(algorithm: Algorithm, groups: list[Group], policy: TextPolicy, ranks: Ranks = ALONE, **train: Any) -> Any:
    """Weights and metrics after a step."""
    learner = Learner(policy, algorithm, SETTINGS.model_copy(update=train), ranks=ranks)
    batch = learner.prepare(groups)
    assert batch is not None
    return weights(learner), learner.learn(batch, 1).metrics


def alike(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], *, atol: float = 2e-4) -> None:
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=atol, msg=name)


def test_where_nothing_is_won_it_is_imitation() -> None:
    played, texts = make_groups(), make_texts()
    for turn in (turn for group in played for each in group.trajectories for turn in each.turns):
        turn.reward = 0.0
    found, metrics = learn(
        row("reinforce", {"regularizers": [{"kind": "ptx", "coef": 1.0}]}), played + texts, make_policy()
    )
    expected, imitated = learn(IMITATION, texts, make_policy())
    alike(found, expected, atol=1e-6)
    assert metrics["loss/ptx"] == pytest.approx(imitated["loss/policy"], rel=1e-5)
    assert metrics["train/gradient_norm"] == pytest.approx(imitated["train/gradient_norm"], rel=1e-4)


def test_its_gradient_is_added_by_its_coefficient_and_its_own_mean() -> None:
    played, texts = make_groups(), make_texts()

    def gradient(algorithm: Algorithm, groups: list[Group]) -> dict[str, torch.Tensor]:
        learner = Learner(make_policy(), algorithm, SETTINGS.model_copy(update={"grad_clip": 1e9}))
        batch = learner.prepare(groups)
        assert batch is not None
        learner.learn(batch, 1, lambda **_: False)  # the gradient stays, and no step is taken
        return {
            name: weight.grad.clone() for name, weight in learner.policy.trainable().items() if weight.grad is not None
        }

    policy = gradient(row("reinforce", {}), played)
    for many in (texts, make_texts(20)):  # more text does not weigh more
        text = gradient(IMITATION, many)
        both = gradient(row("reinforce", {"regularizers": PTX}), played + many)
        alike(both, {name: policy[name] + 0.7 * text[name] for name in policy}, atol=1e-5)


@pytest.mark.parametrize("name", sorted(ROWS))
def test_credit_and_history_do_not_see_the_text(name: str) -> None:
    played = make_groups()
    without = Learner(make_policy(), ROWS[name].override({"regularizers": []}), SETTINGS)
    learner = Learner(make_policy(), ROWS[name], SETTINGS)
    expected, found = without.prepare(played), learner.prepare([*make_texts(), *played])
    assert expected is not None
    assert found is not None
    assert found.trajectory_names == expected.trajectory_names
    assert found.advantage_T is not None
    assert expected.advantage_T is not None
    assert torch.equal(found.advantage_T, expected.advantage_T)
    assert without.history.returns == learner.history.returns


@pytest.mark.parametrize("name", sorted(ROWS))
def test_ranks_and_micro_batches_do_not_change_it(name: str) -> None:
    groups = drift(make_groups(tasks=4), by=0.3) + make_texts()
    expected, metrics = learn(ROWS[name], groups, make_policy())
    alike(learn(ROWS[name], groups, make_policy(), micro_tokens=16)[0], expected)
    outcomes = as_ranks([partial(learn, ROWS[name], groups, make_policy()) for _ in range(3)])
    assert all(torch.equal(outcomes[0][0][key], outcomes[1][0][key]) for key in expected)
    alike(outcomes[0][0], expected)
    assert outcomes[0][1]["loss/ptx"] == pytest.approx(metrics["loss/ptx"], rel=1e-4)
    one = as_ranks([partial(learn, ROWS[name], make_groups(tasks=4) + make_texts(1), make_policy()) for _ in range(2)])
    assert one[0][1]["loss/ptx"] == one[1][1]["loss/ptx"] > 0  # one rank has no text at all


def test_numbers_that_are_not_finite_on_one_rank_end_the_step_on_all() -> None:
    def fails(policy: TextPolicy, ranks: Ranks) -> str:
        learner = Learner(policy, ROWS["grpo"], SETTINGS, ranks=ranks)
        batch = learner.prepare(make_groups(tasks=2) + make_texts())
        assert batch is not None
        if ranks.rank == 1:
            next(iter(policy.trainable().values())).data.fill_(float("nan"))
        with pytest.raises(NonFiniteError) as error:
            learner.learn(batch, 1)
        return str(error.value)

    first, second = as_ranks([partial(fails, make_policy()) for _ in range(2)])
    assert first == second


def test_without_text_the_row_is_refused() -> None:
    learner = Learner(make_policy(), ROWS["grpo"], SETTINGS)
    with pytest.raises(ValueError, match=r"regularizers=ptx needs text .* add demonstrations to source\.mix"):
        learner.prepare(make_groups())


CHAT: dict[str, Any] = {
    "model": "pico-chat",
    "env": {"id": "chat/prompts", "check": False},
    "algorithm": {"preset": "ppo", "regularizers": PTX, "minibatches": 2},
    "rollout": {"episodes": 8, "max_turns": 1, "max_tokens": 8},
    "train": {"steps": 2},
}


@pytest.mark.parametrize("kind", ["demonstrations", "text"])
def test_a_run_imitates_the_text_of_its_mix_and_can_be_replayed(kind: str, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the film is great and the end is dull . " * 40)
    text = {"kind": kind, "count": 4, "limit": 8, **({"path": str(tmp_path / "text.txt")} if kind == "text" else {})}
    changes = {**CHAT, "source": {"mix": ["played", text]}}
    if kind == "text":
        changes["rollout"] = {**CHAT["rollout"], "context": 32}  # pieces of so many tokens
    train(small_recipe(changes), tmp_path / "run", console=Screen())
    first, last = rows(tmp_path / "run")
    assert last["loss/ptx"] < first["loss/ptx"]
    assert first["loss/ptx_term"] == pytest.approx(0.7 * first["loss/ptx"], rel=1e-5)
    assert first["rollout/episodes"] == 4
    assert first["train/sequences"] == 4
    assert replay_step(tmp_path / "run", 2).same


def test_recipes_say_what_text_is_missing() -> None:
    with pytest.raises(ValueError, match="regularizers=ptx learns from text beside what is played; add some"):
        small_recipe(CHAT)
    with pytest.raises(ValueError, match="would imitate the worse answers of preferences too"):
        small_recipe({**CHAT, "source": {"mix": ["played", {"kind": "preferences", "path": "x.jsonl"}]}})
