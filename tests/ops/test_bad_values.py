"""NaN and infinity on a sampled token are errors that name the trajectory and the turn; elsewhere they are not read."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.ops.batches import EpisodeShape, TurnShape, known, make_case
from turnwise.algorithm import compute_credit, compute_loss, preset
from turnwise.batch import Scores, TokenBatch
from turnwise.ops.advantages import bilevel_gae, gae, split_gae, turn_gae
from turnwise.ops.mismatch import masked, truncated, veto
from turnwise.ops.ratios import sequence_ratio, token_ratio, turn_ratio
from turnwise.ops.regularizers import kl
from turnwise.ops.rewards import token_kl
from turnwise.ops.values import mse

BAD = [math.nan, math.inf, -math.inf]
PLACE = r"is (nan|inf|-inf) at trajectory 'task-1/0', turn 1, token 4 \(1 bad tokens in all\)"


def poisoned(stream: str, bad: float) -> TokenBatch:
    """Two groups; the first token of the last turn of 'task-1/0' is bad."""
    turns = [TurnShape(), TurnShape()]
    batch = make_case([[EpisodeShape(turns=turns)], [EpisodeShape(turns=turns)]]).batch
    values_T = getattr(batch, stream).clone()
    values_T[10] = bad  # sequences of six tokens: prompt, 2 sampled, prompt, 2 sampled
    return batch.with_(**{stream: values_T})


def now(batch: TokenBatch) -> torch.Tensor:
    return known(batch.mu_T) + 0.1


def scores(batch: TokenBatch) -> Scores:
    return Scores(logprob_T=now(batch), value_T=known(batch.value_T))


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(
    ("stream", "read"),
    [
        *[("value_T", advantage) for advantage in (gae, split_gae, turn_gae, bilevel_gae)],
        *[("old_T", weight) for weight in (truncated, masked, veto, token_kl)],
        *[("mu_T", weight) for weight in (truncated, masked, veto)],
        ("ref_T", token_kl),
        *[("old_T", lambda b, r=ratio: r(b, now(b))) for ratio in (token_ratio, turn_ratio, sequence_ratio)],
        ("mu_T", lambda b: token_ratio(b, torch.zeros_like(b.reward_T), against="mu")),
        ("ref_T", lambda b: kl(b, scores(b))),
        ("value_T", lambda b: mse(b.with_(return_T=torch.zeros_like(b.reward_T)), scores(b))),
    ],
)
def test_bad_values_name_trajectory_and_turn(stream: str, read: Callable[[TokenBatch], Any], bad: float):
    with pytest.raises(ValueError, match=PLACE):
        read(poisoned(stream, bad))


@pytest.mark.parametrize("bad", BAD)
def test_bad_logprobs_of_the_learner_never_become_a_silent_loss(bad: float):
    row = preset("turn-ppo")
    batch = compute_credit(row, poisoned("value_T", 0.0))
    logprob_T = now(batch)
    logprob_T[10] = bad
    with pytest.raises(ValueError, match=f"log-prob {PLACE}"):
        compute_loss(row, batch, Scores(logprob_T=logprob_T, value_T=known(batch.value_T)))


def test_all_bad_tokens_are_counted():
    batch = poisoned("value_T", math.nan)
    with pytest.raises(ValueError, match=r"'task-0/0', turn 0, token 1 \(8 bad tokens in all\)"):
        gae(batch.with_(value_T=torch.full_like(known(batch.value_T), math.inf)))


def test_a_bad_bootstrap_never_becomes_a_silent_advantage():
    turns = [TurnShape(reward=1.0)]
    batch = make_case([[EpisodeShape(turns=turns, bootstrap=0.5)]]).batch
    with pytest.raises(ValueError, match="'task-0/0'"):
        compute_credit(preset("ppo"), batch.with_(bootstrap_S=known(batch.bootstrap_S) * math.nan))


@pytest.mark.parametrize("name", ["turn-ppo", "grpo", "minirl", "poad", "dapo"])
@pytest.mark.parametrize("bad", BAD)
def test_environment_tokens_may_hold_anything(name: str, bad: float):
    shapes = [EpisodeShape(turns=[TurnShape(reward=reward), TurnShape(sampled=3)], final=2) for reward in (0.0, 1.0)]
    case = make_case([shapes])
    row, sampled_T = preset(name), case.batch.sampled_T

    def gradients(filler: float) -> list[torch.Tensor]:
        def fill(values_T: torch.Tensor | None) -> torch.Tensor:
            return torch.where(sampled_T, known(values_T), filler)

        streams = {field: fill(getattr(case.batch, field)) for field in ("old_T", "mu_T", "ref_T", "value_T")}
        logprob_T, value_T = fill(case.logprob_T).requires_grad_(), fill(case.scores().value_T).detach()
        entropy_T = fill(case.scores().entropy_T).requires_grad_()
        batch = compute_credit(row, case.batch.with_(**streams))
        value_T.requires_grad_()
        loss = compute_loss(row, batch, Scores(logprob_T=logprob_T, value_T=value_T, entropy_T=entropy_T))
        found = torch.autograd.grad(loss.total, [logprob_T, value_T, entropy_T], allow_unused=True)
        return [loss.total.detach(), *[gradient for gradient in found if gradient is not None]]

    for clean, dirty in zip(gradients(0.0), gradients(bad), strict=True):
        torch.testing.assert_close(dirty, clean, rtol=0, atol=0)
