"""The sampled tokens of a batch as one chain per trajectory, for computing returns and advantages.

Environment tokens are not part of the chain and do not discount it.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from turnwise.batch import TokenBatch
from turnwise.ops.segments import segment_sum


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Links in order, one per sampled token (`_M`), and the non-empty turns (`_J`). For `Turn`'s example episode:

    token_M = [3, 4, 5, 8, 9]          rows of the batch
    opens_M = [1, 0, 0, 1, 0]          first token of its turn
    closes_M = [0, 0, 1, 0, 1]         last token of its turn
    ends_M  = [0, 0, 0, 0, 1]          last sampled token of the trajectory
    ends_J  = [0, 1]                   last non-empty turn of the trajectory
    """

    batch: TokenBatch
    token_M: Tensor
    opens_M: Tensor
    closes_M: Tensor
    ends_J: Tensor

    @cached_property
    def close_J(self) -> Tensor:
        """Each turn's last link."""
        return self.closes_M.nonzero().squeeze(1)

    @cached_property
    def open_J(self) -> Tensor:
        """Each turn's first link."""
        return self.opens_M.nonzero().squeeze(1)

    @cached_property
    def ends_M(self) -> Tensor:
        ends_M = torch.zeros_like(self.closes_M)
        ends_M[self.close_J[self.ends_J]] = True
        return ends_M

    @cached_property
    def turn_M(self) -> Tensor:
        """Each link's turn, counting non-empty turns only."""
        return self.opens_M.cumsum(0) - 1

    @property
    def turns(self) -> int:
        return self.ends_J.numel()

    def pick(self, values_T: Tensor) -> Tensor:
        """The entries of a token stream at the chain's links."""
        return values_T.index_select(0, self.token_M)

    def put(self, values_M: Tensor) -> Tensor:
        """Back to a token stream; zero on environment tokens."""
        return values_M.new_zeros(self.batch.tokens).index_copy_(0, self.token_M, values_M)

    def per_turn(self, values_T: Tensor) -> Tensor:
        """Sum of a token stream over each non-empty turn."""
        return segment_sum(self.pick(values_T), self.turn_M, self.turns)

    def after_turns(self, *, required: bool) -> Tensor:
        """Value after each turn: the bootstrap value at the last turn of a truncated trajectory, else 0."""
        batch, waiting_S = self.batch, self.batch.waiting_S
        after_J = batch.reward_T.new_zeros(self.turns)
        if batch.bootstrap_S is not None:
            value_S = torch.where(batch.truncated_S & ~waiting_S, batch.bootstrap_S, 0)
            after_J[self.ends_J] = value_S[batch.sequence_T[self.token_M[self.close_J[self.ends_J]]]]
        if required and bool(waiting_S.any()):
            name = batch.trajectory_names[int(batch.trajectory_S[waiting_S][0])]
            raise ValueError(
                f"trajectory {name!r} was truncated and has no bootstrap value; "
                "let the critic fill in bootstrap_S, or set Trajectory.bootstrap"
            )
        return after_J

    def after_tokens(self, *, required: bool) -> Tensor:
        """The same per link: nonzero only at the last sampled token of a truncated trajectory."""
        after_J = self.after_turns(required=required)
        return after_J.new_zeros(self.token_M.numel()).index_copy_(0, self.close_J, after_J)


def chain(batch: TokenBatch) -> Chain:
    """Link the sampled tokens of each trajectory."""
    require_whole_trajectories(batch)
    token_M = batch.sampled_T.nonzero().squeeze(1)
    turn_M = batch.turn_T.index_select(0, token_M)
    opens_M, closes_M = _edges(turn_M)
    _, ends_J = _edges(batch.trajectory_S[batch.sequence_K[turn_M[closes_M]]])
    return Chain(batch=batch, token_M=token_M, opens_M=opens_M, closes_M=closes_M, ends_J=ends_J)


def _edges(run: Tensor) -> tuple[Tensor, Tensor]:
    """Where runs of equal values begin and end."""
    change = run[1:] != run[:-1]
    edge = torch.ones(min(run.numel(), 1), dtype=torch.bool, device=run.device)
    return torch.cat([edge, change]), torch.cat([change, edge])


def require_whole_trajectories(batch: TokenBatch) -> None:
    """Raise ValueError unless the batch holds all turns of its trajectories, in order and next to each other."""
    begins_S, _ = _edges(batch.trajectory_S)
    if int(begins_S.sum()) != len(set(batch.trajectory_S.tolist())):  # pyright: ignore
        raise ValueError(
            "the sequences of a trajectory are not adjacent; compute credit on the whole batch, before select()"
        )
    if batch.turns_S is None or not batch.turns:
        return
    begins_K, ends_K = _edges(batch.trajectory_S[batch.sequence_K])
    place_K = torch.arange(batch.turns, device=begins_K.device)
    start_K = place_K[begins_K][begins_K.cumsum(0) - 1]
    missing_K = ends_K & (batch.index_K + 1 != batch.turns_S[batch.sequence_K])
    bad_K = missing_K | (batch.index_K != place_K - start_K)
    if bool(bad_K.any()):
        name = batch.trajectory_names[int(batch.trajectory_S[batch.sequence_K[bad_K]][0])]
        raise ValueError(
            f"the batch holds only part of trajectory {name!r}, or some of it twice; "
            "compute credit on the whole batch, before select()"
        )
