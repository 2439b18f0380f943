"""Per-token losses of the critic, and the tokens they apply to."""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from turnwise.batch import Scores, TokenBatch
from turnwise.ops.facts import Trait, declares
from turnwise.ops.parameters import Count, Positive
from turnwise.ops.segments import segment_count
from turnwise.ops.weights import kept_tokens


def valued_tokens(batch: TokenBatch, level: Literal["token", "turn"]) -> Tensor:
    """Where a critic is trained and evaluated: each kept token, or the first token of each kept turn.

    A turn is kept while any of its tokens is, even if its first is not.
    """
    kept_T = kept_tokens(batch)
    if level == "token":
        return kept_T
    kept_K = segment_count(torch.where(kept_T, batch.turn_T, -1), batch.turns) > 0
    before_T = torch.cat([batch.turn_T.new_full((1,), -1), batch.turn_T[:-1]])
    opens_T = batch.sampled_T & (batch.turn_T != before_T)
    return opens_T & torch.cat([kept_K, kept_K.new_zeros(1)])[batch.turn_T]


def mse(batch: TokenBatch, scores: Scores, *, clip: Positive | None = None) -> Tensor:
    """Squared error, optionally pessimistic about large moves.

        L_t = ½ (V − R)²
        clip:  L_t = ½ max( (V − R)² , (V_clip − R)² ),   V_clip = V_old + clamp(V − V_old, ±clip)

    Clipped as in PPO's reference code; POAD and PPO-max clip at 0.2.
    """
    return _pessimistic(batch, scores, clip, lambda error: error**2 / 2)


def huber(batch: TokenBatch, scores: Scores, *, delta: Positive = 1.0, clip: Positive | None = None) -> Tensor:
    """Squared near zero, linear beyond `delta`.

        L_t = ½ e² if |e| ≤ δ else δ (|e| − δ/2),   e = V − R
        clip:  the larger of the losses at V and at V_clip = V_old + clamp(V − V_old, ±clip)

    The critic of POAD offers it.
    """
    return _pessimistic(
        batch,
        scores,
        clip,
        lambda e: torch.where(e.abs() <= delta, e**2 / 2, delta * (e.abs() - delta / 2)),
    )


@declares(Trait.CATEGORICAL)
def hl_gauss(
    batch: TokenBatch,
    scores: Scores,
    *,
    low: float = 0.0,
    high: float = 1.0,
    bins: Count = 51,
    spread: Positive = 0.75,
) -> Tensor:
    """Cross-entropy towards a histogram of a Gaussian around the return.

        L_t = − Σ_b q_b log p_b,   q_b = [Φ((e_{b+1} − R)/σ) − Φ((e_b − R)/σ)] / Z,   σ = spread · bin width

    HL-Gauss (2403.03950). Returns outside [low, high] are clamped.
    """
    if low >= high:
        raise ValueError(f"value loss hl-gauss: low={low} must be below high={high}; give the range of the returns")
    if scores.value_logits_TB is None:
        raise ValueError("value loss hl-gauss needs a categorical critic (Scores.value_logits_TB is not assigned)")
    if scores.value_logits_TB.shape[-1] != bins:
        raise ValueError(f"the critic has {scores.value_logits_TB.shape[-1]} bins but hl-gauss was given bins={bins}")
    _check_support(batch, scores, low, high)
    target_TB = gaussian_histogram(_target(batch), low=low, high=high, bins=bins, spread=spread)
    return -(target_TB * scores.value_logits_TB.log_softmax(-1)).sum(-1)


def _check_support(batch: TokenBatch, scores: Scores, low: float, high: float) -> None:
    """Check that the critic reads its values from the support it is trained on."""
    if scores.value_T is None or scores.value_logits_TB is None:
        return
    mean_T = histogram_mean(scores.value_logits_TB.detach(), low=low, high=high)
    apart_T = torch.where(batch.sampled_T, (mean_T - scores.value_T.detach()).abs(), 0)
    if bool((apart_T > 0.01 * (high - low)).any()):
        raise ValueError(
            f"the critic's values are not the means of its bins between low={low} and high={high}; "
            "make it with bins=Bins.of(row), so that both use the same bins"
        )


def gaussian_histogram(return_T: Tensor, *, low: float, high: float, bins: int, spread: float) -> Tensor:
    """The target distribution q of HL-Gauss."""
    edges = torch.linspace(low, high, bins + 1, dtype=return_T.dtype, device=return_T.device)
    sigma = spread * (high - low) / bins
    reached = torch.erf((edges - return_T.clamp(low, high)[:, None]) / (math.sqrt(2) * sigma))
    return reached.diff(dim=1) / (reached[:, -1:] - reached[:, :1])


def histogram_mean(logits_TB: Tensor, *, low: float, high: float) -> Tensor:
    """The scalar value of a categorical critic: V = Σ_b p_b · centre_b."""
    bins = logits_TB.shape[-1]
    edges = torch.linspace(low, high, bins + 1, dtype=logits_TB.dtype, device=logits_TB.device)
    return logits_TB.softmax(-1) @ ((edges[1:] + edges[:-1]) / 2)


def _pessimistic(batch: TokenBatch, scores: Scores, clip: float | None, loss: Callable[[Tensor], Tensor]) -> Tensor:
    if scores.value_T is None:
        raise ValueError("the algorithm has a critic, but Scores.value_T is not assigned")
    batch.require_finite("value", scores.value_T)
    target_T = _target(batch)
    plain_T = loss(scores.value_T - target_T)
    if clip is None:
        return plain_T
    assert batch.value_T is not None, "returns were computed without values"
    moved_T = batch.value_T + (scores.value_T - batch.value_T).clamp(-clip, clip)
    return torch.maximum(plain_T, loss(moved_T - target_T))


def _target(batch: TokenBatch) -> Tensor:
    if batch.return_T is None:
        raise ValueError("the critic has no target: run compute_credit first (return_T is not assigned)")
    return batch.return_T


VALUE_LOSSES = {"mse": mse, "huber": huber, "hl-gauss": hl_gauss}
