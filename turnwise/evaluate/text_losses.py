"""The loss on held-out demonstrations, with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from turnwise.evaluate.statistics import mean_interval


def read_losses(losses: Sequence[tuple[float, int]]) -> dict[str, float]:
    """The `eval/nll…` metrics of demonstrations, of each its summed loss and its tokens; empty without tokens.

    Every token counts the same, and the 95% interval is over demonstrations: with r = Σ l_i / Σ n_i it is that of the
    mean of r + (l_i − r n_i) / n̄, the usual one of a ratio.
    """
    loss_N, tokens_N = (np.array(each, dtype=float) for each in zip(*losses, strict=True))
    if not tokens_N.sum():
        return {}
    nll = float(loss_N.sum() / tokens_N.sum())
    metrics = {"eval/nll": nll, "eval/text_perplexity": math.exp(min(nll, 700.0)), "eval/nll_tokens": tokens_N.sum()}
    if len(loss_N) > 1:
        low, high = mean_interval(nll + (loss_N - nll * tokens_N) / tokens_N.mean())
        metrics |= {"eval/nll_low": max(low, 0.0), "eval/nll_high": high}
    return {name: float(value) for name, value in metrics.items()}
