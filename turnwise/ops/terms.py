"""Terms of a loss, each at its own level: a token, a turn, a sequence, or a unit such as a pair."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from turnwise.batch import TokenBatch
from turnwise.ops.segments import segment_sum, spread

if TYPE_CHECKING:
    from turnwise.ops.diagnostics import TurnTable


class Level(StrEnum):
    """What one term belongs to."""

    TOKEN = "token"
    TURN = "turn"
    SEQUENCE = "sequence"
    UNIT = "unit"
    """Sequences that stay together: those of a trajectory, or of a group if the row compares its members."""

    def rows(self, batch: TokenBatch) -> tuple[Tensor, int]:
        """The row of every sampled token at this level, -1 for other tokens; and how many rows there are."""
        if self is Level.TURN:
            return batch.turn_T, batch.turns
        if self is Level.TOKEN:
            row_T, count = torch.arange(batch.tokens, device=batch.turn_T.device), batch.tokens
        elif self is Level.SEQUENCE:
            row_T, count = batch.sequence_T, batch.sequences
        else:
            unit_S, count = batch.unit_rows
            row_T = unit_S[batch.sequence_T]
        return torch.where(batch.sampled_T, row_T, -1), count


@dataclass(frozen=True, kw_only=True)
class Ratios:
    """The ratio that weighs a term and, for surrogates that need it, the ratio against the old policy."""

    weight_T: Tensor
    against_old: Callable[[], Tensor]


@dataclass(frozen=True, kw_only=True)
class Terms:
    """One number per entry of the level; surrogates are maximised, regularisers minimised.

    `clipped` marks the terms whose gradient the clip removed or changed; `unclipped` holds their values without it.
    """

    objective: Tensor
    level: Level = Level.TOKEN
    unclipped: Tensor | None = None
    clipped: Tensor | None = None
    measures: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Numbers to report beside the objective, one per term, by the name of their metric."""

    def weigh(self, batch: TokenBatch, weight_T: Tensor) -> Tensor:
        """The weight of every term: the sum of its tokens' weights."""
        if self.level is Level.TOKEN:
            return weight_T
        return segment_sum(weight_T, *self.level.rows(batch))

    def clipped_tokens(self, batch: TokenBatch) -> Tensor:
        """The tokens of the clipped terms."""
        if self.clipped is None:
            return torch.zeros_like(batch.sampled_T)
        if self.level is Level.TOKEN:
            return self.clipped
        return spread(self.clipped.long(), self.level.rows(batch)[0]) > 0


@dataclass(frozen=True, kw_only=True)
class Loss:
    """The loss of one micro-batch. Its numbers and its table add up over micro-batches and ranks."""

    total: Tensor
    """What to call backward on: policy + regularisers + value."""
    policy: Tensor
    regularizers: dict[str, Tensor]
    value: Tensor | None
    bias: Tensor | None
    """J_unclipped − J_clipped, whose gradient is the clipping bias C; None when nothing was clipped."""
    bias_T: Tensor | None
    """∂bias/∂log π_t; None when nothing was clipped."""
    table: TurnTable
    """Diagnostics by turn index."""
    measures: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """The surrogate's measures, weighed as its terms are."""
