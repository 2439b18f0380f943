"""TDPO and SPPO as their authors' code has them, on padded logits: the learner's loss and gradient are the same."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from tests.learn.small_learners import SETTINGS, WORDS, make_policy
from turnwise.algorithm import preset
from turnwise.learn.learner import Learner
from turnwise.policy.pico import build_model
from turnwise.types import Group, StopReason, Trajectory, Turn


def make_pairs(tasks: int = 3, tries: int = 2) -> list[Group]:
    """Chats of one to three turns, of which the first try was preferred most and the last least."""
    rng = random.Random(5)

    def ids(most: int) -> list[int]:
        return [rng.randrange(WORDS) for _ in range(rng.randint(1, most))]

    def chat(name: str, reward: float) -> Trajectory:
        turns = [Turn(prompt_ids=ids(4), sampled_ids=ids(5)) for _ in range(rng.randint(1, 3))]
        turns[-1].reward = reward
        return Trajectory(id=name, turns=turns, stop=StopReason.DONE, terminated=True)

    return [
        Group(id=f"{task}", trajectories=[chat(f"{task}/{place}", 1.0 - place) for place in range(tries)])
        for task in range(tasks)
    ]


def padded(answers: Sequence[Trajectory]) -> tuple[Tensor, Tensor]:
    """Ids, and labels that are -100 where the assistant did not speak; padded on the right."""
    ids = [[each for turn in answer.turns for each in (*turn.prompt_ids, *turn.sampled_ids)] for answer in answers]
    labels = [
        [each for turn in answer.turns for each in (*[-100] * len(turn.prompt_ids), *turn.sampled_ids)]
        for answer in answers
    ]
    longest = max(map(len, ids))
    return (
        torch.tensor([row + [0] * (longest - len(row)) for row in ids]),
        torch.tensor([row + [-100] * (longest - len(row)) for row in labels]),
    )


def logits_of(model: nn.Module, ids: Tensor) -> Tensor:
    return model(input_ids=ids).logits


def tdpo_sums(logits: Tensor, reference_logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Margin and KL of every sequence, position by position, with the shift by one (TDPO's `_tdpo_get_batch_logps`)."""
    labels, logits, reference_logits = labels[:, 1:].clone(), logits[:, :-1], reference_logits[:, :-1]
    mask = labels != -100
    labels[~mask] = 0
    vocab_logps, reference_ps = logits.float().log_softmax(-1), reference_logits.float().softmax(-1)
    reference_logps = reference_ps.log()
    position_kl = (reference_ps * (reference_logps - vocab_logps)).sum(-1)
    token_logps = vocab_logps.gather(2, labels[..., None]).squeeze(2)
    reference_token_logps = reference_logps.gather(2, labels[..., None]).squeeze(2)
    return ((token_logps - reference_token_logps) * mask).sum(-1), (position_kl * mask).sum(-1)


def tdpo_loss(policy: nn.Module, reference: nn.Module, groups: Sequence[Group], *, second: bool) -> Tensor:
    ids, labels = padded([group.trajectories[place] for place in (0, 1) for group in groups])
    with torch.no_grad():
        reference_logits = logits_of(reference, ids)
    margins, position_kl = tdpo_sums(logits_of(policy, ids), reference_logits, labels)
    (chosen, rejected), (chosen_kl, rejected_kl) = margins.chunk(2), position_kl.chunk(2)
    if second:
        logits = (chosen - rejected) - 0.5 * (rejected_kl - chosen_kl.detach())
    else:
        logits = (chosen - rejected) - (rejected_kl - chosen_kl)
    return -logsigmoid(0.1 * logits).mean()


def sppo_loss(policy: nn.Module, reference: nn.Module, groups: Sequence[Group], matrix: Tensor, kind: str) -> Tensor:
    """The winner and the loser of each group are the samples with the highest and the lowest mean win probability."""
    wins = matrix.mean(1)
    best, worst = int(wins.argmax()), int(wins.argmin())
    ids, labels = padded([group.trajectories[place] for place in (best, worst) for group in groups])
    with torch.no_grad():
        reference_logits = logits_of(reference, ids)
    logits_w, logits_l = tdpo_sums(logits_of(policy, ids), reference_logits, labels)[0].chunk(2)
    if kind == "sppo":
        loss_w = (logits_w - (1 / 0.05) * (wins[best] - 0.5)) ** 2
        loss_l = (logits_l - (1 / 0.05) * (wins[worst] - 0.5)) ** 2
    else:
        loss_w = (logits_w - (1 / 0.05) * (matrix[best, worst] - 0.5)) ** 2
        loss_l = (logits_l + (1 / 0.05) * (matrix[best, worst] - 0.5)) ** 2
    return ((loss_w + loss_l) / 2).mean()


def judged(groups: list[Group], matrix: Tensor) -> list[Group]:
    """The matrix of a judge on every group."""

    def with_wins(group: Group, place: int) -> Trajectory:
        trajectory, row = group.trajectories[place], matrix[place].tolist()
        *early, last = trajectory.turns
        turns = [*early, replace(last, streams={"wins": [math.fsum(row) / len(row)]})]
        return replace(trajectory, turns=turns, info={"beats": row, "rivals": [each.id for each in group.trajectories]})

    return [
        replace(group, trajectories=[with_wins(group, place) for place in range(len(group.trajectories))])
        for group in groups
    ]


def compare(name: str, changes: dict[str, Any], groups: list[Group], formula: Callable[..., Tensor]) -> None:
    """Loss and the gradient of every weight, by the learner and by the formula."""
    policy, twin, other = make_policy(seed=1), build_model(1), build_model(0)
    row = preset(name).override({"minibatches": 1, **changes})
    unclipped = SETTINGS.model_copy(update={"grad_clip": 1e9})
    learner = Learner(policy, row, unclipped, reference=make_policy().make_reference())
    batch = learner.prepare(groups)
    assert batch is not None
    report = learner.learn(batch, 1, lambda **_: False)  # no step: the gradient stays
    expected = formula(twin, other, groups)
    expected.backward()
    assert report.metrics["loss/policy"] == pytest.approx(float(expected.detach()), rel=1e-4)
    theirs = dict(twin.named_parameters())
    for parameter, weight in policy.trainable().items():
        wanted, found = theirs[parameter].grad, weight.grad
        assert wanted is not None
        assert found is not None
        torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-4 * float(wanted.abs().max()) + 1e-7)


@pytest.mark.parametrize(("name", "second"), [("tdpo1", False), ("tdpo2", True)])
def test_tdpo_is_the_authors(name: str, second: bool) -> None:
    compare(name, {}, make_pairs(), partial(tdpo_loss, second=second))


@pytest.mark.parametrize(("kind", "wins"), [("sppo", "group"), ("sppo_single", "pair")])
def test_sppo_is_the_authors_with_either_target(kind: str, wins: str) -> None:
    matrix = torch.tensor([[0.5, 0.9, 0.3], [0.1, 0.5, 0.4], [0.7, 0.6, 0.5]])
    changes = {
        "surrogate": {"beta": 0.05, "against": "reference"},
        "filters": ["errored", {"kind": "extremes", "wins": wins}],
    }
    groups = judged(make_pairs(tries=3), matrix)
    compare("sppo", changes, groups, partial(sppo_loss, matrix=matrix, kind=kind))
