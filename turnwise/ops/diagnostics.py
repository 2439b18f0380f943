"""Loss diagnostics by turn index, as a table that adds up over micro-batches and ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from turnwise.batch import Scores, TokenBatch
from turnwise.ops.ratios import LOG_CLAMP
from turnwise.ops.regularizers import kl_estimate
from turnwise.ops.segments import segment_max, segment_sum

_SUMS = (
    "tokens",
    "ratio",
    "ratio_squared",
    "clipped",
    "sampler_kl",
    "reference_kl",
    "entropy",
    "advantage",
    "advantage_squared",
    "values",
    "value_error_squared",
    "bias_squared",
)
TURN_METRICS = {
    "turn/tokens": "sampled tokens at this turn index",
    "turn/ratio_mean": "mean importance ratio",
    "turn/ratio_max": "largest importance ratio",
    "turn/ratio_ess": "effective sample size of the ratios, as a share of the tokens",
    "turn/clip_fraction": "share of tokens whose gradient the clip removed or changed",
    "turn/sampler_kl": "KL from the sampler to the current policy (k3)",
    "turn/reference_kl": "KL from the current policy to the reference (k3)",
    "turn/entropy": "entropy of the next-token distribution",
    "turn/advantage_mean": "mean advantage",
    "turn/advantage_std": "standard deviation of the advantage",
    "turn/value_error": "root mean squared error of the critic against its target, where it is trained",
    "turn/clip_bias": "norm of this turn index's part of the clipping bias",
}
"""One column per metric in `turns.jsonl`; the same names with `loss/` are the totals over all turns."""


@dataclass(frozen=True, kw_only=True)
class TurnTable:
    """Sums per turn index (`_I`): add tables with `+`, read them with `rows` and `totals`."""

    sums_IC: Tensor
    ratio_max_I: Tensor
    known: frozenset[str]
    """The columns that were measured; readings omit the others."""

    def __add__(self, other: TurnTable) -> TurnTable:
        rows = max(len(self.sums_IC), len(other.sums_IC))
        return TurnTable(
            sums_IC=_grow(self.sums_IC, rows) + _grow(other.sums_IC, rows),
            ratio_max_I=torch.maximum(_grow(self.ratio_max_I, rows), _grow(other.ratio_max_I, rows)),
            known=self.known & other.known,
        )

    def rows(self) -> list[dict[str, float]]:
        """One reading per turn index that has tokens."""
        seen = [index for index, sums_C in enumerate(self.sums_IC) if float(sums_C[0]) > 0]
        return [{"turn": float(index), **self._reading(self.sums_IC[index], self.ratio_max_I[index])} for index in seen]

    def totals(self) -> dict[str, float]:
        """The same readings over all turns, named `loss/…`."""
        peak = self.ratio_max_I.max() if len(self.ratio_max_I) else torch.zeros(())
        reading = self._reading(self.sums_IC.sum(0), peak)
        return {name.replace("turn/", "loss/"): value for name, value in reading.items()}

    def columns(self, names: Sequence[str], *, rows: int) -> Tensor:
        """Sums by turn index, in exactly so many rows; the last one has all later turns too."""
        sums_IC = _grow(self.sums_IC, rows)
        sums_IC = torch.cat([sums_IC[: rows - 1], sums_IC[rows - 1 :].sum(0, keepdim=True)])
        return sums_IC[:, [_SUMS.index(name) for name in names]]

    def _reading(self, sums_C: Tensor, peak: Tensor) -> dict[str, float]:
        total = {name: float(value) for name, value in zip(_SUMS, sums_C, strict=True)}
        count = max(total["tokens"], 1)
        mean = {name: value / count for name, value in total.items()}
        variance = max(mean["advantage_squared"] - mean["advantage"] ** 2, 0.0)
        reading = {
            "tokens": total["tokens"],
            "ratio_mean": mean["ratio"],
            "ratio_max": float(peak),
            "ratio_ess": mean["ratio"] ** 2 / mean["ratio_squared"] if total["ratio_squared"] else 0.0,
            "clip_fraction": mean["clipped"],
            "sampler_kl": mean["sampler_kl"],
            "reference_kl": mean["reference_kl"],
            "entropy": mean["entropy"],
            "advantage_mean": mean["advantage"],
            "advantage_std": variance**0.5,
            "value_error": (total["value_error_squared"] / max(total["values"], 1)) ** 0.5,
            "clip_bias": total["bias_squared"] ** 0.5,
        }
        known = self.known if total["values"] else self.known - {"value_error"}
        if "advantage_mean" in known:
            known |= {"advantage_std"}
        return {f"turn/{name}": value for name, value in reading.items() if name in known}


_ALWAYS = frozenset({"tokens", "ratio_mean", "ratio_max", "ratio_ess", "clip_fraction", "clip_bias"})


@torch.no_grad()
def turn_table(
    batch: TokenBatch,
    scores: Scores,
    *,
    ratio_T: Tensor,
    clipped_T: Tensor,
    valued_T: Tensor | None,
    bias_T: Tensor | None,
) -> TurnTable:
    """Collect the diagnostics of one micro-batch; `valued_T` marks the tokens at which the critic is trained."""
    logprob_T = scores.logprob_T
    zero_T = torch.zeros_like(logprob_T)
    optional = {
        "advantage_mean": batch.advantage_T,
        "sampler_kl": None if batch.mu_T is None else _sampler_kl(logprob_T, batch.mu_T),
        "reference_kl": None if batch.ref_T is None else kl_estimate(logprob_T, batch.ref_T, "k3"),
        "entropy": scores.entropy_T,
        "value_error": None if valued_T is None else _squared_value_error(batch, scores, valued_T),
    }
    advantage_T = zero_T if batch.advantage_T is None else batch.advantage_T
    token_M = batch.sampled_T.nonzero().squeeze(1)
    columns = [
        torch.ones_like(zero_T),
        ratio_T,
        ratio_T**2,
        clipped_T.to(zero_T),
        *(zero_T if optional[name] is None else optional[name] for name in ("sampler_kl", "reference_kl", "entropy")),
        advantage_T,
        advantage_T**2,
        zero_T if valued_T is None else valued_T.to(zero_T),
        zero_T if optional["value_error"] is None else optional["value_error"],
        zero_T if bias_T is None else bias_T**2,
    ]
    table_MC = torch.stack([column[token_M] for column in columns if column is not None], dim=1)
    index_M = batch.index_T[token_M]
    turns = int(index_M.max()) + 1 if len(index_M) else 0
    return TurnTable(
        # Sum in double precision: a batch may hold millions of tokens.
        sums_IC=segment_sum(table_MC.double(), index_M, turns),
        ratio_max_I=segment_max(ratio_T[token_M].double(), index_M, turns),
        known=_ALWAYS | {name for name, column in optional.items() if column is not None},
    )


def _sampler_kl(logprob_T: Tensor, mu_T: Tensor) -> Tensor:
    """KL(μ ‖ π) from tokens that μ sampled: r − 1 − log r with r = π/μ."""
    log_T = (logprob_T - mu_T).clamp(-LOG_CLAMP, LOG_CLAMP)
    return log_T.exp() - 1 - log_T


def _squared_value_error(batch: TokenBatch, scores: Scores, valued_T: Tensor) -> Tensor | None:
    value_T = scores.value_T if scores.value_T is not None else batch.value_T
    if value_T is None or batch.return_T is None:
        return None
    return torch.where(valued_T, (value_T - batch.return_T) ** 2, 0)


def _grow(table: Tensor, rows: int) -> Tensor:
    return torch.cat([table, table.new_zeros((max(rows - len(table), 0), *table.shape[1:]))])
