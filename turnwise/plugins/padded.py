"""The bridge: padded tensors of another trainer to a `TokenBatch`, and from there to credit and loss."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from turnwise.algorithm import Algorithm, Critic, Loss, Part, axes, compute_credit, compute_loss
from turnwise.algorithm.parts import bind
from turnwise.batch import ENVIRONMENT, POLICY, Scores, TokenBatch
from turnwise.ops.weights import Counts
from turnwise.ranks import Reduce, alone


@dataclass(frozen=True, kw_only=True)
class Padded:
    """Rows of padded tokens, each row a trajectory. Every tensor is (rows, columns); only `mask` is always there.

        mask     = [[1, 1, 0, 0, 1, 1, 0]]        sampled by the policy; prompts, tools and padding are not
        turns    = [[0, 0, -, -, 1, 1, -]]        the runs of the mask, unless `turn_ids` names them
        rewards  = [[0, 0, 0, 0, 0, 0, 1]]        counts for the last sampled token before it

    Entry t belongs to token t itself, as in a `TokenBatch`.
    """

    mask: Tensor
    turn_ids: Tensor | None = None
    """Sampled tokens with equal neighbouring numbers form a turn, also across a gap."""
    groups: Sequence[Hashable] | None = None
    """Rows with equal names are tries at the same task; None: every row stands alone."""
    rewards: Tensor | None = None
    """Also (rows,): the reward of the whole row."""
    advantages: Tensor | None = None
    """Also (rows,) or (rows, 1): the same for every token."""
    values: Tensor | None = None
    old: Tensor | None = None
    sampler: Tensor | None = None
    reference: Tensor | None = None
    weights: Tensor | None = None
    """The host's own factor on each token's policy term, such as its correction for the sampler."""

    def pack(self) -> TokenBatch:
        """The batch of the sampled tokens. Nothing reads the others, so they are left out."""
        row_T, column_T = self._kept.nonzero(as_tuple=True)
        sampled_T = self.pick(self.mask).bool()
        opens_T = sampled_T & (_changes(row_T) | _changes(self.pick(self._turn_keys)))
        sequence_K, rows = row_T[opens_T], torch.arange(len(self.mask), device=row_T.device)
        turns_S = torch.bincount(sequence_K, minlength=len(rows))
        first_K = (turns_S.cumsum(0) - turns_S)[sequence_K]
        return TokenBatch(
            ids_T=torch.zeros_like(column_T),
            position_T=column_T,
            sequence_T=row_T,
            turn_T=torch.where(sampled_T, opens_T.cumsum(0) - 1, -1),
            source_T=torch.where(sampled_T, POLICY, ENVIRONMENT),
            reward_T=self.pick(self._rewards),
            sequence_K=sequence_K,
            index_K=torch.arange(len(sequence_K), device=row_T.device) - first_K,
            version_K=torch.zeros_like(sequence_K),
            anchor_K=torch.full_like(sequence_K, -1),
            length_S=self._kept.sum(1),
            trajectory_S=rows,
            group_S=rows if self.groups is None else rows.new_tensor(_numbered(self.groups)),
            seat_S=torch.zeros_like(rows),
            truncated_S=torch.zeros_like(rows, dtype=torch.bool),
            turns_S=turns_S,
            mu_T=self._stream(self.sampler),
            old_T=self._stream(self.old),
            ref_T=self._stream(self.reference),
            value_T=self._stream(self.values),
            advantage_T=self._stream(self.advantages),
            mismatch_T=self._stream(self.weights),
            trajectory_names=tuple(str(row) for row in range(len(rows))),
        )

    def pick(self, values: Tensor) -> Tensor:
        """The entries of the packed tokens."""
        return values[self._kept]

    def spread(self, values_T: Tensor) -> Tensor:
        """Back to (rows, columns); zero elsewhere."""
        return values_T.new_zeros(self.mask.shape).masked_scatter(self._kept, values_T)

    @cached_property
    def _kept(self) -> Tensor:
        """The sampled tokens; and the first token of rows that sampled nothing, to hold their reward."""
        mask = self.mask.bool()
        first = torch.arange(mask.shape[1], device=mask.device) == 0
        return mask | (first & ~mask.any(1, keepdim=True))

    @property
    def _precision(self) -> torch.dtype:
        """Double if the host computes in it, else single, also where the host has less."""
        streams = (self.rewards, self.advantages, self.values, self.old, self.sampler, self.reference, self.weights)
        return torch.double if any(each is not None and each.dtype == torch.double for each in streams) else torch.float

    @cached_property
    def _turn_keys(self) -> Tensor:
        if self.turn_ids is not None:
            return self.turn_ids
        mask = self.mask.bool()
        before = torch.cat([torch.zeros_like(mask[:, :1]), mask[:, :-1]], dim=1)
        return (mask & ~before).cumsum(1)

    @cached_property
    def _rewards(self) -> Tensor:
        """Every reward on the last kept token up to it, or on the first if there is none."""
        found = torch.zeros(self.mask.shape, dtype=self._precision, device=self.mask.device)
        if self.rewards is None:
            return found
        if self.rewards.dim() == 1:
            found[:, -1] = self.rewards.to(found)
        else:
            found = self.rewards.to(found)
        column = torch.arange(found.shape[1], device=found.device)
        last = torch.where(self._kept, column, -1).cummax(1).values
        target = torch.where(last < 0, self._kept.int().argmax(1, keepdim=True), last)
        return torch.zeros_like(found).scatter_add(1, target, found)

    def _stream(self, values: Tensor | None) -> Tensor | None:
        """A stream as constants."""
        if values is None:
            return None
        values = values.detach()
        values = values[:, None] if values.dim() == 1 else values
        return self.pick(values.expand(self.mask.shape)).to(self._precision)


def padded_credit(row: Algorithm, padded: Padded, *, reduce: Reduce = alone) -> tuple[Tensor, Tensor]:
    """The row's advantages, and the critic's targets if it has a critic (else the advantages again)."""
    # The mismatch weight belongs to the loss: there the log-probs are known.
    batch = compute_credit(row.model_copy(update={"mismatch": Part(kind="none")}), padded.pack(), reduce=reduce)
    advantage_T = torch.zeros_like(batch.reward_T) if batch.advantage_T is None else batch.advantage_T
    return_T = advantage_T if batch.return_T is None else batch.return_T
    return padded.spread(advantage_T), padded.spread(return_T)


def padded_loss(
    row: Algorithm,
    padded: Padded,
    log_probs: Tensor,
    *,
    counts: Counts | None = None,
    entropy: Tensor | None = None,
) -> tuple[Loss, Scores]:
    """The row's loss without its critic's part, and the scores that it was computed from.

    Without old log-probs the policy has not been updated since it was scored. `counts` cover the whole optimiser step;
    the default is these rows alone.
    """
    logprob_T = padded.pick(log_probs)
    logprob_T = logprob_T if logprob_T.dtype == torch.double else logprob_T.float()
    scores = Scores(logprob_T=logprob_T, entropy_T=None if entropy is None else padded.pick(entropy).to(logprob_T))
    batch = padded.pack()
    if batch.advantage_T is None:
        batch = batch.with_(credited=True)
    if batch.old_T is None:
        batch = batch.with_(old_T=logprob_T.detach())
    own_T = bind(axes.MISMATCH, row.mismatch)(batch)
    if own_T is not None:
        batch = batch.with_(mismatch_T=own_T if batch.mismatch_T is None else own_T * batch.mismatch_T)
    without_critic = row.model_copy(update={"critic": Critic()})
    return compute_loss(without_critic, batch, scores, counts=counts), scores


def host_counts(*, tokens: float = math.nan, turns: float = math.nan, rows: float = math.nan) -> Counts:
    """What a host knows about the whole optimiser step; a row that needs more was refused."""
    return Counts(tokens=tokens, turns=turns, sequences=rows, trajectories=rows, units=rows)


def metrics_of(loss: Loss) -> dict[str, float]:
    """The diagnostics of a micro-batch, named `turnwise/…`."""
    return {name.replace("loss/", "turnwise/"): value for name, value in loss.table.totals().items()}


def _changes(values: Tensor) -> Tensor:
    """Where a value differs from the one before it; true at the first."""
    return torch.cat([torch.ones_like(values[:1], dtype=torch.bool), values[1:] != values[:-1]])


def _numbered(names: Sequence[Hashable]) -> list[int]:
    """Names as numbers, in order of appearance."""
    number = {name: place for place, name in enumerate(dict.fromkeys(names))}
    return [number[name] for name in names]
