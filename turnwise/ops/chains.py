"""The sampled tokens of a batch as one chain per trajectory: what a return or an advantage walks along.

Environment tokens are not links of the chain: no discount is spent on them and nothing leaks through them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from turnwise.ops.segments import segment_sum
from turnwise.types import TokenBatch


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Links in order, one per sampled token (`_M`). For `Turn`'s example episode:

    token_M = [3, 4, 5, 8, 9]          rows of the batch
    turn_M  = [0, 0, 0, 1, 1]          turns counted without the empty ones
    opens_M = [1, 0, 0, 1, 0]          first token of its turn
    closes_M = [0, 0, 1, 0, 1]         last token of its turn
    ends_M  = [0, 0, 0, 0, 1]          last sampled token of the trajectory
    """

    batch: TokenBatch
    token_M: Tensor
    turn_M: Tensor
    opens_M: Tensor
    closes_M: Tensor
    ends_M: Tensor

    @property
    def turns(self) -> int:
        return int(self.opens_M.sum())

    def pick(self, values_T: Tensor) -> Tensor:
        """The entries of a token stream that lie on the chain."""
        return values_T[self.token_M]

    def put(self, values_M: Tensor) -> Tensor:
        """Back to a token stream; zero on environment tokens."""
        values_T = values_M.new_zeros(self.batch.tokens)
        values_T[self.token_M] = values_M
        return values_T

    def per_turn(self, values_T: Tensor) -> Tensor:
        """Sum of a token stream over each turn that sampled anything."""
        return segment_sum(self.pick(values_T), self.turn_M, self.turns)

    def beyond(self, *, required: bool) -> Tensor:
        """Value of what follows the chain's end: the bootstrap of a cut episode, else 0."""
        batch = self.batch
        if batch.bootstrap_S is not None:
            value_T = torch.where(batch.truncated_S, batch.bootstrap_S, 0)[batch.sequence_T]
            return torch.where(self.ends_M, self.pick(value_T), 0)
        if required and bool(batch.truncated_S.any()):
            name = batch.trajectory_names[int(batch.trajectory_S[batch.truncated_S][0])]
            raise ValueError(
                f"trajectory {name!r} was truncated and has no bootstrap value; "
                "let the critic fill in bootstrap_S, or set Trajectory.bootstrap"
            )
        return batch.reward_T.new_zeros(self.token_M.numel())


def chain(batch: TokenBatch) -> Chain:
    """Link the sampled tokens of each trajectory."""
    _require_whole_trajectories(batch)
    token_M = batch.sampled_T.nonzero().squeeze(1)
    turn_M = batch.turn_T[token_M]
    trajectory_M = batch.trajectory_S[batch.sequence_T[token_M]]
    opens_M, closes_M = _edges(turn_M)
    _, ends_M = _edges(trajectory_M)
    ordinal_M = opens_M.cumsum(0) - 1
    return Chain(batch=batch, token_M=token_M, turn_M=ordinal_M, opens_M=opens_M, closes_M=closes_M, ends_M=ends_M)


def _edges(run: Tensor) -> tuple[Tensor, Tensor]:
    """Where runs of equal numbers begin and end."""
    change = run[1:] != run[:-1]
    edge = torch.ones(min(run.numel(), 1), dtype=torch.bool, device=run.device)
    return torch.cat([edge, change]), torch.cat([change, edge])


def _require_whole_trajectories(batch: TokenBatch) -> None:
    begins_S, _ = _edges(batch.trajectory_S)
    if int(begins_S.sum()) != len(set(batch.trajectory_S.tolist())):  # pyright: ignore
        raise ValueError("the sequences of a trajectory lie apart; compute credit on the whole batch, before select()")
