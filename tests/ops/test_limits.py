"""Methods that must coincide: the cross-checks of the notes, with a real policy's gradient where there is one."""

import pytest
import torch
from hypothesis import given
from torch import Tensor

from tests.ops.batches import Case, EpisodeShape, TurnShape, cases, close, make_case, ragged, random_case, terms_of
from tests.ops.tiny_policy import TinyPolicy
from turnwise.batch import TokenBatch
from turnwise.ops.advantages import gae, split_gae
from turnwise.ops.groups import group_mean, leave_one_out
from turnwise.ops.ratios import sequence_ratio, token_ratio
from turnwise.ops.surrogates import decoupled_mask, ppo_clip, reinforce
from turnwise.ops.terms import Ratios
from turnwise.ops.weights import Counts, constant, sequence_sum


def tries(*turns: tuple[int, float]) -> Case:
    """One group of one-turn episodes, given as (length, reward)."""
    shapes = [EpisodeShape(turns=[TurnShape(sampled=length, reward=reward)]) for length, reward in turns]
    return make_case([shapes])


def same_ratio(ratio_T: Tensor) -> Ratios:
    return Ratios(weight_T=ratio_T, against_old=lambda: ratio_T)


def test_rloo_of_two_has_the_on_policy_gradient_of_p3o():
    case, policy = tries((3, 0.7), (2, 0.2)), TinyPolicy()
    logprob_T = policy.logprobs(case.batch)
    terms = terms_of(reinforce, same_ratio(logprob_T), logprob_T, leave_one_out(case.batch).advantage_T)
    rloo = policy.gradient((sequence_sum(case.batch, Counts.of(case.batch)) * terms.objective).sum())
    first, second = (logprob_T[case.batch.turn_T == turn].sum() for turn in (0, 1))
    # P3O: (r1 − r2) ∇log(π(y1) / π(y2)) / 2
    close(rloo, policy.gradient((0.7 - 0.2) * (first - second) / 2))


def test_minirl_on_policy_is_dr_grpo_up_to_its_constant():
    case, policy = tries((3, 1.0), (2, 0.0), (4, 0.5)), TinyPolicy(seed=1)
    logprob_T = policy.logprobs(case.batch)
    sampler_T = logprob_T.detach()
    batch = case.batch.with_(old_T=sampler_T, mu_T=sampler_T)
    advantage_T, counts = group_mean(batch).advantage_T, Counts.of(batch)
    minirl = terms_of(decoupled_mask, same_ratio(token_ratio(batch, logprob_T, against="mu")), logprob_T, advantage_T)
    dr_grpo = terms_of(ppo_clip, same_ratio(token_ratio(batch, logprob_T)), logprob_T, advantage_T)
    minirl_gradient = policy.gradient((sequence_sum(batch, counts) * minirl.objective).sum())
    dr_grpo_gradient = policy.gradient((constant(batch, counts, length=50.0) * dr_grpo.objective).sum())
    assert float(minirl_gradient.norm()) > 0.1
    close(minirl_gradient, 50.0 * dr_grpo_gradient)


def test_gspo_of_length_one_is_ppo():
    case = tries((1, 1.0), (1, 0.0), (1, 0.5))
    batch, logprob_T = case.batch, case.logprob_T.clone().requires_grad_()
    advantage_T = group_mean(batch).advantage_T

    def gradient(ratio_T: Tensor) -> Tensor:
        objective_T = terms_of(ppo_clip, same_ratio(ratio_T), logprob_T, advantage_T).objective
        return torch.autograd.grad(objective_T.sum(), logprob_T)[0]

    close(sequence_ratio(batch, logprob_T), token_ratio(batch, logprob_T))
    close(gradient(sequence_ratio(batch, logprob_T)), gradient(token_ratio(batch, logprob_T)))


@ragged
@given(cases)
def test_without_discount_ntpo_is_poad(case: Case):
    ntpo = gae(case.batch, gamma=1.0, lam=0.95)
    poad = split_gae(case.batch, gamma_token=1.0, gamma_turn=1.0, lam_token=0.95, lam_turn=0.95)
    close(poad.advantage_T, ntpo.advantage_T)


@pytest.mark.parametrize("gamma", [0.5, 0.95])
def test_poad_of_one_token_actions_is_ppo(gamma: float):
    case = make_case([[EpisodeShape(turns=[TurnShape(sampled=1, reward=r) for r in (0.3, 0.0, 1.0)], bootstrap=0.4)]])
    poad = split_gae(case.batch, gamma_token=1.0, gamma_turn=gamma, lam_turn=0.9, lam_token=0.1)
    close(poad.advantage_T, gae(case.batch, gamma=gamma, lam=0.9).advantage_T)


def test_the_gap_between_ntpo_and_poad_grows_with_the_action():
    # One action, reward 1, no values: POAD gives its first token 1, NTPO γ^(n−1), so the gap is 1 − γ^(n−1).
    for length in (1, 2, 5, 20):
        batch = _without_values(make_case([[EpisodeShape(turns=[TurnShape(sampled=length, reward=1.0)])]]))
        first = int(batch.sampled_T.nonzero()[0])
        poad, ntpo = split_gae(batch, gamma_turn=0.9, lam_token=1.0), gae(batch, gamma=0.9)
        gap = float((poad.advantage_T - ntpo.advantage_T)[first])
        assert gap == pytest.approx(1 - 0.9 ** (length - 1))


def test_loo_and_group_mean_differ_by_a_factor_of_the_group_size():
    case = random_case(12, groups=1, tries=6)
    size = len(case.groups[0].trajectories)
    assert size > 1
    close(leave_one_out(case.batch).advantage_T, size / (size - 1) * group_mean(case.batch).advantage_T)


def _without_values(case: Case) -> TokenBatch:
    return case.batch.with_(value_T=torch.zeros(case.batch.tokens, dtype=torch.float64))
