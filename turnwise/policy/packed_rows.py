"""Which row of a packed batch has which state: all alignment between tokens and states is here."""

from __future__ import annotations

import torch
from torch import Tensor

from turnwise.batch import TokenBatch


def rows_before(batch: TokenBatch, token_M: Tensor) -> Tensor:
    """Rows whose hidden states are the states before these tokens. The shift by one is here and nowhere else."""
    opens_M = batch.position_T[token_M] == 0
    if bool(opens_M.any()):
        token = int(token_M[opens_M][0])
        raise ValueError(
            f"{batch.place(token)} was sampled from nothing: no token comes before it; "
            "begin every prompt with at least one token, such as the tokenizer's begin-of-text"
        )
    return token_M - 1


def rows_at_end(batch: TokenBatch) -> Tensor:
    """For every sequence, the last row of its whole trajectory; -1 if that has no tokens."""
    end_S = torch.where(batch.length_S > 0, batch.length_S.cumsum(0) - 1, -1)
    count = int(batch.trajectory_S.max()) + 1
    # Sequences are in order, so a trajectory's last token is the largest row that any of them ends with.
    end_R = end_S.new_full((count,), -1).scatter_reduce(0, batch.trajectory_S, end_S, "amax")
    return end_R[batch.trajectory_S]
