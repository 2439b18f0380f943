"""Weights for the gap between the sampler and the trainer, ρ = π_old / μ. Constants; zero means rejected.

A rejected token also leaves every denominator (see `weights`).
"""

import torch
from torch import Tensor

from turnwise.batch import TokenBatch
from turnwise.ops.facts import Need, Trait, declares
from turnwise.ops.parameters import AtLeastOne, Pooled, Positive
from turnwise.ops.ratios import LOG_CLAMP
from turnwise.ops.segments import segment_max, segment_sum, spread
from turnwise.ops.terms import Level


@declares(Trait.NEUTRAL)
def no_mismatch(batch: TokenBatch) -> None:
    """Trust the sampler.

    ρ_t = 1
    """
    return None


@declares(Need.OLD, Need.SAMPLER)
def truncated(batch: TokenBatch, *, cap: AtLeastOne = 2.0, level: Pooled = "token") -> Tensor:
    """Truncated importance sampling.

        ρ_t = min( Π_{level} π_old / μ , cap )

    The product runs over the token, its turn or its sequence.
    """
    return torch.where(batch.sampled_T, _log_gap(batch, level).exp().clamp_max(cap), 1)


@declares(Need.OLD, Need.SAMPLER, Trait.REJECTS)
def masked(batch: TokenBatch, *, cap: AtLeastOne = 2.0, level: Pooled = "token") -> Tensor:
    """Keep what agrees, drop the rest.

    ρ_t = 1{ 1/cap ≤ Π_{level} π_old / μ ≤ cap } · Π_{level} π_old / μ
    """
    ratio_T = _log_gap(batch, level).exp()
    kept_T = (ratio_T <= cap) & (ratio_T >= 1 / cap)
    return torch.where(batch.sampled_T, ratio_T * kept_T, 1)


@declares(Need.OLD, Need.SAMPLER, Trait.REJECTS)
def veto(batch: TokenBatch, *, floor: Positive = 1e-4, level: Pooled = "sequence") -> Tensor:
    """Drop a whole unit when any of its tokens was nearly impossible for the trainer.

    ρ_t = 1{ min_{level} π_old / μ ≥ floor }
    """
    segment_T, count = Level(level).rows(batch)
    lowest = -segment_max(-_log_gap(batch, "token"), segment_T, count)
    kept_T = spread(lowest, segment_T).exp() >= floor
    return torch.where(batch.sampled_T, kept_T.to(batch.reward_T), 1)


def _log_gap(batch: TokenBatch, level: Pooled) -> Tensor:
    """log π_old − log μ summed over the unit, clamped."""
    if batch.mu_T is None or batch.old_T is None:
        missing = "mu" if batch.mu_T is None else "old"
        raise ValueError(f"the mismatch weight compares old with mu, but {missing!r} is unassigned; use mismatch: none")
    batch.require_finite("log-prob 'mu'", batch.mu_T)
    batch.require_finite("log-prob 'old'", batch.old_T)
    gap_T = torch.where(batch.sampled_T, batch.old_T - batch.mu_T, 0)
    if level != "token":
        segment_T, count = Level(level).rows(batch)
        gap_T = spread(segment_sum(gap_T, segment_T, count), segment_T)
    return gap_T.clamp(-LOG_CLAMP, LOG_CLAMP)


MISMATCHES = {"none": no_mismatch, "truncated": truncated, "masked": masked, "veto": veto}
