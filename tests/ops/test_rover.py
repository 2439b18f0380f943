"""ROVER: the operator by hand, its limits, its gradient, and the tree on which its theorem was worked out."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.learn.small_learners import make_groups, make_learner, weights
from tests.ops.batches import EpisodeShape, TurnShape, close, known, make_case, random_case
from turnwise.algorithm import Algorithm, compute_credit, compute_loss, preset, resolve
from turnwise.batch import Scores, TokenBatch
from turnwise.ops.surrogates import rover
from turnwise.ops.terms import Ratios

UNUSED = Ratios(weight_T=torch.zeros(0), against_old=lambda: torch.zeros(0))
LETTERS, GOOD = "ABCD", {"ACD", "BDC", "CAB", "DBA"}
"""A tree of four letters and three steps, with four rewarded leaves."""


def two_turns() -> tuple[TokenBatch, Scores]:
    """Two turns of two tokens with an environment token between, then a trajectory of one token."""
    turns = (TurnShape(prompt=1, sampled=2), TurnShape(prompt=1, sampled=2))
    case = make_case([[EpisodeShape(turns=turns), EpisodeShape(turns=(TurnShape(sampled=1),))]])
    sampled_T = case.batch.sampled_T
    assert sampled_T.tolist() == [False, True, True, False, True, True, False, True]

    def stream(*values: float) -> Tensor:
        full = torch.full((8,), torch.nan, dtype=torch.float64)
        full[sampled_T] = torch.tensor(values, dtype=torch.float64)
        return full

    batch = case.batch.with_(
        old_T=stream(-1, -1, -1, -1, -1),
        old_uniform_T=stream(-3, -3, -3, -3, -3),
        advantage_T=stream(0.5, 0.5, 0.5, 0.5, -0.5),
    )
    return batch, Scores(logprob_T=stream(-0.9, -1.2, -1.0, -0.6, -1.5), uniform_T=stream(-3.5, -3.1, -3.4, -2.8, -4.0))


def test_the_target_is_the_mean_at_the_next_sampled_token_across_turns_and_zero_at_the_end() -> None:
    batch, scores = two_turns()
    terms = rover(batch, scores, UNUSED, rho=2.0, beta=0.5)
    # Q = 0.2, −0.4, 0, 0.8, −1; Q' = 2·(−0.1), 2·(−0.4), 2·0.2, 0, 0; targets 0.4, 0.1, 0.7, 0.5, −0.5
    close(terms.objective, [0.0, -0.04, -0.25, 0.0, -0.49, -0.09, 0.0, -0.25])


def test_missing_statistics_are_named() -> None:
    batch, scores = two_turns()
    with pytest.raises(ValueError, match=r"rover needs old_T, old_uniform_T and Scores\.uniform_T"):
        rover(batch, replace(scores, uniform_T=None), UNUSED)


def test_before_the_first_update_it_is_twice_the_centred_policy_gradient() -> None:
    case = random_case(3)
    batch = compute_credit(preset("rover"), case.batch)
    now = Scores(logprob_T=known(case.batch.old_T).nan_to_num(), uniform_T=case.batch.old_uniform_T)
    plain = Algorithm.of({**preset("rover").model_dump(), "name": "plain", "surrogate": "reinforce", "minibatches": 1})
    slopes: list[Tensor] = []
    for row in (preset("rover"), plain):
        scores = replace(now, logprob_T=now.logprob_T.clone().requires_grad_())
        compute_loss(row, batch, scores).total.backward()
        slopes.append(known(scores.logprob_T.grad))
    close(slopes[0], 2 * slopes[1])
    assert slopes[0].abs().max() > 0


@pytest.mark.parametrize(("rho", "beta"), [(1.0, 1.0), (0.5, 0.0), (2.0, 5.0)])
def test_the_gradient_is_that_of_a_fit_to_a_constant_target(rho: float, beta: float) -> None:
    case = random_case(5)
    row = preset("rover").override({"surrogate": {"rho": rho, "beta": beta}})
    batch = compute_credit(row, case.batch)
    leaf_T = case.logprob_T.nan_to_num().requires_grad_()
    scores = replace(case.scores(), logprob_T=leaf_T)
    compute_loss(row, batch, scores).total.backward()

    def numeric(token: int, step: float = 1e-6) -> float:
        # The target does not depend on log π of the sampled token, so a difference sees what the gradient sees.
        totals: list[float] = []
        for sign in (1, -1):
            moved_T = leaf_T.detach().clone()
            moved_T[token] += sign * step
            totals.append(float(compute_loss(row, batch, replace(scores, logprob_T=moved_T)).total))
        return (totals[0] - totals[1]) / (2 * step)

    for token in range(batch.tokens):
        assert float(known(leaf_T.grad)[token]) == pytest.approx(numeric(token), rel=1e-5, abs=1e-8)


def test_the_mean_operator_is_a_difference_of_divergences_from_uniform() -> None:
    noise = torch.Generator().manual_seed(0)
    now, old = (torch.randn(5, 11, generator=noise, dtype=torch.float64).log_softmax(-1) for _ in range(2))
    uniform = torch.full((11,), 1 / 11, dtype=torch.float64)

    def divergence(log_p: Tensor) -> Tensor:
        return (uniform * (uniform.log() - log_p)).sum(-1)

    close((now - old).mean(-1), divergence(old) - divergence(now))


def test_a_learner_stores_the_mean_of_the_old_policy_and_scores_it_with_the_new_one() -> None:
    learner, groups = make_learner("rover"), make_groups()
    batch = learner.prepare(groups)
    assert batch is not None
    scores = learner.policy.score(batch, uniform=True)
    torch.testing.assert_close(batch.old_uniform_T, scores.uniform_T, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(batch.old_T, scores.logprob_T.detach(), rtol=1e-5, atol=1e-5)
    assert bool((known(scores.uniform_T) < scores.logprob_T.detach())[batch.sampled_T].any())
    assert learner.learn(batch, 1).metrics["train/updates"] == 4


def test_with_one_update_it_learns_what_reinforce_learns() -> None:
    # A gradient twice as large: Adam divides the factor out again, up to its epsilon.
    lots = []
    for surrogate in ("rover", "reinforce"):
        learner = make_learner("rover", surrogate=surrogate, minibatches=1)
        batch = learner.prepare(make_groups())
        assert batch is not None
        learner.learn(batch, 1)
        lots.append(weights(learner))
    for name, weight in lots[0].items():
        torch.testing.assert_close(weight, lots[1][name], rtol=1e-3, atol=1e-5)


def test_logits_that_are_extrapolated_have_no_known_mean() -> None:
    row = preset("rover").override({"extrapolate": {"kind": "logits", "alpha": 0.3}})
    with pytest.raises(ValueError, match=r"surrogate=rover needs more; set extrapolate to none"):
        resolve(row)


def exact_values() -> dict[str, float]:
    """Q of the uniformly random policy for every prefix of the tree, backed up by the mean over the next letters."""
    values: dict[str, float] = {}
    for length in (3, 2, 1):
        for letters in itertools.product(LETTERS, repeat=length):
            word = "".join(letters)
            values[word] = float(word in GOOD) if length == 3 else sum(values[word + a] for a in LETTERS) / 4
    return values


def test_values_of_the_random_policy_on_the_tree() -> None:
    values = exact_values()
    assert [values[prefix] for prefix in ("A", "AC", "ACD")] == [1 / 16, 1 / 4, 1.0]
    assert values["AD"] == values["ACB"] == 0.0


@pytest.mark.parametrize(("rho", "expected"), [(1.0, 0.14), (0.1, 0.80), (0.05, 0.98)])
def test_a_softmax_of_exact_values_succeeds_as_often_as_was_worked_out(rho: float, expected: float) -> None:
    values = exact_values()

    def chance(word: str) -> float:
        steps = [
            [math.exp(values[word[:place] + letter] / rho) for letter in (word[place], *LETTERS)] for place in range(3)
        ]
        return math.prod(own / sum(every) for own, *every in steps)

    modes = [chance(word) for word in sorted(GOOD)]
    assert sum(modes) == pytest.approx(expected, abs=0.005)
    assert modes == pytest.approx([modes[0]] * 4)
