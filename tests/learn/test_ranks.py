"""Several ranks learn together what one learns alone, from data to weights, and pairs are never separated."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from tests.learn.small_learners import SETTINGS, drift, judged, make_groups, make_policy, policy_for, row, weights
from tests.ops.ranks import as_ranks
from turnwise.algorithm import PRESETS, Algorithm, Need, preset
from turnwise.batch import Scores, TokenBatch
from turnwise.learn.learner import Learner
from turnwise.learn.reporting import Report
from turnwise.ops.terms import Ratios, Terms
from turnwise.policy.text import TextPolicy
from turnwise.ranks import ALONE, Ranks
from turnwise.types import Group, NonFiniteError

PARTS = "tests.algorithm.leveled_parts"
LEARNED = "tests.learn.test_ranks:log_probs"
ROWS: dict[str, Algorithm] = {
    **{name: preset(name) for name in PRESETS},
    "exact bias": row("st-ppo", {"scale": {"estimator": "exact"}}),
    "logit bias": row("st-ppo", {"scale": {"estimator": "logit"}}),
    "categorical critic": row("ppo", {"critic": {"loss": "hl-gauss"}}),
    "terms of groups": Algorithm.of({"surrogate": f"{PARTS}:preferred", "weights": "unit-mean", "minibatches": 2}),
    "exact KL from the reference": row("grpo", {"regularizers": [{"kind": "kl", "estimator": "full-reverse"}]}),
}


def log_probs(batch: TokenBatch, scores: Scores, ratios: Ratios) -> Terms:
    """A surrogate that asks for no advantage, in a row that has one."""
    return Terms(objective=scores.logprob_T)


Outcome = tuple[dict[str, torch.Tensor], dict[str, float], list[int]]


def learn(algorithm: Algorithm, groups: list[Group], policy: TextPolicy, ranks: Ranks) -> Outcome:
    """Weights and metrics after two steps, and what the guard of this rank was asked."""
    learner = Learner(policy, algorithm, SETTINGS, seed=0, ranks=ranks)
    asked: list[int] = []

    def allows(**update: Any) -> bool:
        asked.append(update["update"])
        return True

    report = Report()
    for step in (1, 2):
        batch = learner.prepare(groups)
        assert batch is not None
        report = learner.learn(batch, step, allows if ranks.rank == 0 else None)
    return weights(learner), report.metrics, asked


def pieces(algorithm: Algorithm, groups: list[Group], size: int) -> list[Callable[[Ranks], Outcome]]:
    """The same work for every rank; policies are made here, because making one seeds torch for a moment."""
    return [partial(learn, algorithm, groups, policy_for(algorithm)) for _ in range(size)]


@pytest.mark.parametrize("name", sorted(ROWS))
def test_ranks_end_with_the_weights_and_metrics_of_one(name: str) -> None:
    groups = judged(drift(make_groups(tasks=4), by=0.3))
    expected, metrics, _ = learn(ROWS[name], groups, policy_for(ROWS[name]), ALONE)
    outcomes = as_ranks(pieces(ROWS[name], groups, 3))  # a rank may have two groups, and another one
    for found, _, _ in outcomes:
        for parameter, tensor in expected.items():
            # Sums in another order: some roundings of single precision, as a share of an Adam step of 1e-3.
            torch.testing.assert_close(found[parameter], tensor, rtol=0, atol=2e-4, msg=f"{name}: {parameter}")
    assert outcomes[0][1].keys() == metrics.keys()
    pairs = [
        key for key in metrics if key.startswith("pairs/") and key != "pairs/accuracy"
    ]  # a share is not continuous
    for key in ("loss/policy", "loss/entropy", "train/tokens", "train/gradient_norm", *pairs):
        assert outcomes[0][1][key] == pytest.approx(metrics[key], rel=1e-3, abs=1e-5), key
    assert [bool(asked) for _, _, asked in outcomes] == [True, False, False]


def test_all_ranks_hold_the_same_bits() -> None:
    outcomes = as_ranks(pieces(ROWS["st-ppo"], make_groups(tasks=4), 2))
    (first, _, _), (second, _, _) = outcomes
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_rank_without_a_group_takes_part_in_every_step() -> None:
    groups = make_groups(tasks=2)
    for name in ("st-ppo", "grpo", "gigpo", "rebn", "categorical critic", "exact bias", "tdpo2", "minirl-r2"):
        expected, _, _ = learn(ROWS[name], groups, policy_for(ROWS[name]), ALONE)
        for found, _, _ in as_ranks(pieces(ROWS[name], groups, 3)):
            for parameter, tensor in expected.items():
                torch.testing.assert_close(found[parameter], tensor, rtol=0, atol=2e-4, msg=f"{name}: {parameter}")


def test_what_rank_zero_refuses_no_rank_does() -> None:
    groups = make_groups(tasks=4)
    start = weights(Learner(make_policy(), ROWS["grpo"], SETTINGS))

    def refused(policy: TextPolicy, ranks: Ranks) -> dict[str, torch.Tensor]:
        learner = Learner(policy, ROWS["grpo"], SETTINGS, ranks=ranks)
        batch = learner.prepare(groups)
        assert batch is not None
        learner.learn(batch, 1, (lambda **_: False) if ranks.rank == 0 else None)
        return weights(learner)

    for found in as_ranks([partial(refused, make_policy()) for _ in range(2)]):
        assert all(torch.equal(found[name], tensor) for name, tensor in start.items())


def test_a_rank_without_a_group_joins_a_normaliser_that_the_surrogate_does_not_ask_for() -> None:
    algorithm = row("rebn", {"surrogate": LEARNED})
    assert Need.ADVANTAGE not in algorithm.needs
    assert len(as_ranks(pieces(algorithm, make_groups(tasks=2), 3))) == 3  # unequal sums would hang or fail


@pytest.mark.parametrize("name", ["ppo", "turn-ppo"])
def test_a_value_that_is_not_finite_on_one_rank_ends_the_step_on_all(name: str) -> None:
    groups = make_groups(tasks=3)

    def fails(policy: TextPolicy, ranks: Ranks) -> str:
        learner = Learner(policy, ROWS[name], SETTINGS, ranks=ranks)
        assert learner.critic is not None
        if ranks.rank == 1:
            next(iter(learner.critic.trainable().values())).data.fill_(float("nan"))
        with pytest.raises(NonFiniteError) as error:
            learner.prepare(groups)
        return str(error.value)

    messages = as_ranks([partial(fails, make_policy()) for _ in range(3)])
    assert "value is nan" in messages[1]
    assert messages == [messages[1]] * 3
