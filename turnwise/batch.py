"""The packed batch that the learner trains on, and the learner's scores for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from turnwise.types import NonFiniteError

ENVIRONMENT, POLICY, OTHERS = 0, 1, 2
"""Source ids of tokens: written by the environment (prompts, tools), sampled by the policy, or said by other agents."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, mean and population variance of some numbers."""

    count: int = 0
    mean: float = 0.0
    variance: float = 0.0

    @classmethod
    def of(cls, values: Tensor) -> Moments:
        if not values.numel():
            return cls()
        return cls(values.numel(), float(values.mean()), float(values.var(correction=0)))

    @classmethod
    def pooled(cls, shares: Sequence[Moments]) -> Moments:
        """Those of all numbers together. No term is negative, so nothing cancels."""
        total = sum(share.count for share in shares)
        weights = [share.count / max(total, 1) for share in shares]
        mean = sum(weight * share.mean for weight, share in zip(weights, shares, strict=True))
        spreads = [share.variance + (share.mean - mean) ** 2 for share in shares]
        return cls(total, mean, sum(weight * spread for weight, spread in zip(weights, spreads, strict=True)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Remembered:
    """What the learner remembers of a run, for reward parts that ask for it."""

    returns: Moments | None = None
    """Of all trajectories so far, this batch included, on all ranks."""
    kl_coef: float | None = None
    """The present coefficient of an adaptive KL."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenBatch:
    """A packed, padding-free batch with its turn structure.

    The suffix is the shape: `_T` one entry per token, `_K` per turn, `_S` per sequence. Entry t of a `_T` tensor is
    token t's own: its log-prob given everything before it, the value of the state before it. `None` means "not
    assigned", never zero. Tokens and turns are in sequence order; the sequences of one trajectory are adjacent.

    The two turns of `Turn`'s example, packed alone:

        ids_T      = [1, 5, 6, 40, 41, 2, 7, 8, 50, 2]
        turn_T     = [-1, -1, -1, 0, 0, 0, -1, -1, 1, 1]   # row of the turn table; -1: not sampled by the policy
        source_T   = [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]        # who wrote it: environment, policy, or 2 for other agents
        mu_T       = [0, 0, 0, -.1, -.7, -.2, 0, 0, -.3, -.1]
        reward_T   = [0, 0, 0, 0, 0, 0, 0, 0, 0, 1]        # on the last sampled token of the turn
        index_K    = [0, 1]                                # place of the turn in its trajectory
        sequence_K = [0, 0]
        length_S   = [10]
    """

    ids_T: Tensor
    position_T: Tensor
    sequence_T: Tensor
    turn_T: Tensor
    source_T: Tensor
    reward_T: Tensor
    sequence_K: Tensor
    index_K: Tensor
    version_K: Tensor
    anchor_K: Tensor
    """Turns of one group that started from the same state have equal numbers; -1: no state key."""
    length_S: Tensor
    trajectory_S: Tensor
    """Row of `trajectory_names`. `select` keeps it, and `group_S`."""
    group_S: Tensor
    seat_S: Tensor
    truncated_S: Tensor
    """The trajectory was cut, not finished: its return continues with `bootstrap_S`."""
    unit_S: Tensor | None = None
    """Sequences with equal numbers stay together; None: those of one trajectory do. `select` keeps it."""
    bootstrap_S: Tensor | None = None
    """Value of the state after the trajectory's last token: zero if it terminated, NaN if the critic has not computed
    it yet; None if that is true of every truncated trajectory."""
    turns_S: Tensor | None = None
    """How many turns the whole trajectory has; a batch with fewer holds only part of it."""
    kept_S: Tensor | None = None
    """How many tokens of the whole trajectory count: those sampled and not rejected by the mismatch weight."""
    mu_T: Tensor | None = None
    """Log-prob under the distribution that was sampled from; NaN for a sampled token whose sampler is unknown, None if
    that is true of every one."""
    old_T: Tensor | None = None
    """Log-prob under the trainer's weights before the first update on this batch."""
    old_uniform_T: Tensor | None = None
    """What `Scores.uniform_T` was before the first update on this batch."""
    old_kl_T: Tensor | None = None
    """What `Scores.reference_kl_T` was before the first update on this batch."""
    ref_T: Tensor | None = None
    value_T: Tensor | None = None
    advantage_T: Tensor | None = None
    return_T: Tensor | None = None
    """The critic's target."""
    mismatch_T: Tensor | None = None
    """Weight for sampler ≠ trainer; zero: rejected, and excluded from every denominator."""
    extra_T: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """More streams by name: routing to replay, vocabulary statistics, teacher log-probs."""
    history: Remembered | None = None
    texts: TokenBatch | None = None
    """Text to imitate beside it, which gets no credit. `select` keeps all of it."""
    credited: bool = False
    """Whether `compute_credit` has run: it transforms rewards, which must not happen twice."""
    trajectory_names: tuple[str, ...] = ()
    group_names: tuple[str, ...] = ()
    seat_names: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        return self.ids_T.numel()

    @property
    def turns(self) -> int:
        return self.sequence_K.numel()

    @property
    def sequences(self) -> int:
        return self.length_S.numel()

    @property
    def unit_rows(self) -> tuple[Tensor, int]:
        """The unit of each sequence, numbered from 0 without gaps, and how many units there are."""
        return _numbered(self.trajectory_S if self.unit_S is None else self.unit_S)

    @property
    def trajectory_rows(self) -> tuple[Tensor, int]:
        """The trajectory of each sequence, numbered from 0 without gaps, and how many trajectories there are."""
        return _numbered(self.trajectory_S)

    def units(self) -> list[list[int]]:
        """The sequences of each unit, ordered by first sequence. Every split must keep them together."""
        units: dict[int, list[int]] = {}
        for sequence, unit in enumerate((self.trajectory_S if self.unit_S is None else self.unit_S).tolist()):
            units.setdefault(unit, []).append(sequence)
        return list(units.values())

    @property
    def sampled_T(self) -> Tensor:
        """Which tokens the policy sampled: the only ones that are trained on."""
        return self.turn_T >= 0

    @property
    def waiting_S(self) -> Tensor:
        """Which sequences belong to a truncated trajectory whose bootstrap value is still missing."""
        return self.truncated_S if self.bootstrap_S is None else self.truncated_S & self.bootstrap_S.isnan()

    @property
    def index_T(self) -> Tensor:
        """Turn index in the trajectory, per token; -1 for environment tokens."""
        return torch.where(self.sampled_T, self.index_K[self.turn_T.clamp_min(0)], -1) if self.turns else self.turn_T

    def with_(self, **streams: Any) -> TokenBatch:
        """A copy with the named fields replaced."""
        return replace(self, **streams)

    def to(self, device: str | torch.device) -> TokenBatch:
        """The same batch on another device."""
        texts = None if self.texts is None else self.texts.to(device)
        return self._map(lambda _, tensor: tensor.to(device)).with_(texts=texts)

    def select(self, sequences: Tensor | Sequence[int]) -> TokenBatch:
        """The batch of these sequences, in this order. It never cuts a sequence; callers must keep `units` whole."""
        chosen_S = torch.as_tensor(sequences, device=self.length_S.device)
        if chosen_S.dtype == torch.bool:
            raise ValueError("select takes the row numbers of sequences, not a mask; use mask.nonzero().squeeze(1)")
        chosen_S = chosen_S.long()
        turns_S = torch.bincount(self.sequence_K, minlength=self.sequences)
        rows = {"T": _ranges(self.length_S, chosen_S), "K": _ranges(turns_S, chosen_S), "S": chosen_S}
        part = self._map(lambda name, tensor: tensor[rows[name[-1]]])
        new_sequence_S = torch.arange(chosen_S.numel(), device=chosen_S.device)
        # A sequence's turns move together, by the shift of its first turn.
        moved_S = _starts(turns_S[chosen_S]) - _starts(turns_S)[chosen_S]
        new_sequence_T = new_sequence_S.repeat_interleave(self.length_S[chosen_S])
        return part.with_(
            sequence_T=new_sequence_T,
            sequence_K=new_sequence_S.repeat_interleave(turns_S[chosen_S]),
            turn_T=torch.where(part.sampled_T, part.turn_T + moved_S[new_sequence_T], -1),
        )

    def place(self, token: int) -> str:
        """Where a token is, in words, for messages about bad values."""
        sequence, turn = int(self.sequence_T[token]), int(self.turn_T[token])
        trajectory = int(self.trajectory_S[sequence])
        name = self.trajectory_names[trajectory] if trajectory < len(self.trajectory_names) else str(trajectory)
        where = f"turn {int(self.index_K[turn])}" if turn >= 0 else "an environment token"
        return f"trajectory {name!r}, {where}, token {int(self.position_T[token])}"

    def require_finite(self, name: str, values_T: Tensor) -> None:
        """Raise NonFiniteError, naming trajectory and turn, if a sampled token's value is NaN or infinite."""
        values_T = values_T.detach()
        if math.isfinite(float(values_T.sum())):
            return  # one pass over the common case: a sum is finite only if every term is
        bad_T = ~torch.isfinite(values_T) & self.sampled_T
        if bool(bad_T.any()):
            token = int(bad_T.nonzero()[0])
            raise NonFiniteError(
                f"{name} is {float(values_T[token])} at {self.place(token)} ({int(bad_T.sum())} bad tokens in all); "
                "leave the trajectory out of the batch, or look for an overflow where this value was made"
            )

    def _map(self, change: Callable[[str, Tensor], Tensor]) -> TokenBatch:
        """Apply `change(name, tensor)` to every tensor; the name's suffix tells its shape."""
        changed: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Tensor):
                changed[item.name] = change(item.name, value)
        extra = {name: change("extra_T", tensor) for name, tensor in self.extra_T.items()}
        return replace(self, extra_T=extra, **changed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """The learner's current per-token scores for a batch. Only `logprob_T` is always present.

    For `Turn`'s example after one update: `Scores(logprob_T=tensor([0, 0, 0, -.1, -.6, -.2, 0, 0, -.2, -.1]))`; entries
    of environment tokens are never read.
    """

    logprob_T: Tensor
    entropy_T: Tensor | None = None
    value_T: Tensor | None = None
    """The critic's scalar value (of a categorical critic: the mean of its distribution)."""
    value_logits_TB: Tensor | None = None
    """Logits of a categorical critic, one column per bin."""
    collision_T: Tensor | None = None
    """Σ_v p_v² over the vocabulary; the `logit` estimator of the clipping bias needs it."""
    uniform_T: Tensor | None = None
    """Mean of log p_v over the vocabulary, without a gradient; parts that fit a uniform policy need it."""
    reference_kl_T: Tensor | None = None
    """Full-vocabulary KL from the policy to the reference."""
    reverse_kl_T: Tensor | None = None
    """Full-vocabulary KL from the reference to the policy."""


def _numbered(names_S: Tensor) -> tuple[Tensor, int]:
    known, row_S = names_S.unique(return_inverse=True)
    return row_S, known.numel()


def _ranges(length_S: Tensor, chosen_S: Tensor) -> Tensor:
    """Row numbers of the chosen runs of a table in which run s has `length_S[s]` rows."""
    length = length_S[chosen_S]
    offset = _starts(length_S)[chosen_S] - _starts(length)
    return torch.arange(int(length.sum()), device=length_S.device) + offset.repeat_interleave(length)


def _starts(length_S: Tensor) -> Tensor:
    """Where each run begins when runs of these lengths are concatenated."""
    return length_S.cumsum(0) - length_S
