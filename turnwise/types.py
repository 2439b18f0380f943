"""The nouns: what an episode is made of, and the packed batch that the learner sees."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

ENVIRONMENT, POLICY = 0, 1
"""Source ids of tokens: written by the environment (prompts, tools, other speakers), or sampled by the policy."""


class NonFiniteError(ValueError):
    """A number that is NaN or infinite where training needs one that is not."""


class StopReason(StrEnum):
    """Why an episode ended. Failures are values here, never exceptions."""

    DONE = "done"
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"
    CONTEXT_FULL = "context_full"
    ENV_ERROR = "env_error"
    TIMEOUT = "timeout"
    INVALID = "invalid"

    @property
    def is_failure(self) -> bool:
        """True when the episode says nothing about the policy: such trajectories never enter a batch."""
        return self in (StopReason.ENV_ERROR, StopReason.TIMEOUT)


CUTS = (StopReason.MAX_TURNS, StopReason.MAX_TOKENS, StopReason.CONTEXT_FULL)
"""Ends by a limit of ours, not by the environment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One chat message: `Message(role="user", content="Capital of the country where Mahis lies?")`."""

    role: str
    content: str


@dataclass(kw_only=True, slots=True)
class Turn:
    """What one model call added to an episode.

    `prompt_ids` is the *delta*: the tokens that came in since the last sampled token, never the whole prompt. A
    two-turn search episode whose full sequence is `[1, 5, 6, 40, 41, 2, 7, 8, 50, 2]` is stored as

        Turn(prompt_ids=[1, 5, 6], sampled_ids=[40, 41, 2], logprobs=[-0.1, -0.7, -0.2])   # question, then a query
        Turn(prompt_ids=[7, 8],    sampled_ids=[50, 2],     logprobs=[-0.3, -0.1], reward=1.0)  # result, then an answer
    """

    prompt_ids: Sequence[int] = ()
    sampled_ids: Sequence[int] = ()
    logprobs: Sequence[float] | None = None
    """The sampler's log-prob of each sampled token (`mu`); None when unknown, as in demonstrations."""
    policy_version: int = 0
    reward: float = 0.0
    reward_parts: Mapping[str, float] = field(default_factory=dict[str, float])
    observation: str = ""
    """The text this turn answers."""
    action: str = ""
    """The text of the turn itself."""
    valid: bool = True
    """Whether the environment could parse the action and allowed it; never so for a turn that was cut."""
    state_key: str | None = None
    """Turns with equal keys inside a group started from the same state (anchor-state credit)."""
    restarts: bool = False
    """The history was rewritten (not only appended to): `prompt_ids` is a whole prompt and opens a new sequence."""
    sample_seconds: float = 0.0
    env_seconds: float = 0.0


@dataclass(kw_only=True, slots=True)
class Trajectory:
    """One seat's way through one episode.

    The two turns of `Turn`'s example, ended by the environment:

        Trajectory(id="geo-17/0", turns=[search, answer], stop=StopReason.DONE, terminated=True)

    Had the turn limit cut it before the answer, it would be `stop=StopReason.MAX_TURNS, truncated=True`, with the last
    search result as `final_ids=[7, 8]`: the critic values the state after them, and that value bootstraps the return.
    """

    id: str
    turns: list[Turn]
    stop: StopReason
    terminated: bool = False
    truncated: bool = False
    """Cut, not finished. A trajectory that is also terminated counts as terminated."""
    task: Any = None
    seed: int | None = None
    seat: str = "agent"
    final_ids: Sequence[int] = ()
    """Tokens that arrived after the last turn (a truncated episode's last observation)."""
    final_observation: str = ""
    bootstrap: float | None = None
    """Value of the state after `final_ids` when already known; else the critic fills it in."""
    info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The environment's last info: success and whatever else it reports."""

    @property
    def reward(self) -> float:
        """Undiscounted sum of the turn rewards."""
        return sum(turn.reward for turn in self.turns)

    @property
    def success(self) -> bool:
        """What the environment said, else whether any reward was earned."""
        return bool(self.info.get("success", self.reward > 0))


@dataclass(kw_only=True, slots=True)
class Group:
    """Trajectories that are compared with each other: tries at one task, or the seats of one game.

    Example: `Group(id="geo-17", trajectories=[first, second])` with rewards 1 and 0; a group-mean baseline gives the
    tokens of the first +0.5 and those of the second -0.5.
    """

    id: str
    trajectories: list[Trajectory]


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenBatch:
    """A packed, padding-free batch that knows its turns.

    The suffix is the shape: `_T` one entry per token, `_K` per turn, `_S` per sequence. Entry t of a `_T` tensor is
    token t's own: its log-prob given everything before it, the value of the state before it. `None` means "not
    assigned", never zero. Tokens lie in sequence order, turns too, and the sequences of one trajectory are neighbours.

    The two turns of `Turn`'s example, packed alone:

        ids_T      = [1, 5, 6, 40, 41, 2, 7, 8, 50, 2]
        turn_T     = [-1, -1, -1, 0, 0, 0, -1, -1, 1, 1]   # row of the turn table; -1: not sampled by the policy
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
    """Equal numbers: the turns of one group that started from the same state; -1: no state key."""
    length_S: Tensor
    trajectory_S: Tensor
    """Row of `trajectory_names`. It survives `select`, as does `group_S`."""
    group_S: Tensor
    seat_S: Tensor
    truncated_S: Tensor
    """The trajectory was cut, not finished: its return continues with `bootstrap_S`."""
    bootstrap_S: Tensor | None = None
    """Value of the state after the trajectory's last token: zero where it terminated, NaN where the critic has yet to
    give it; None when that is so of every cut trajectory."""
    turns_S: Tensor | None = None
    """How many turns the whole trajectory has: a batch that holds fewer holds only a part of it."""
    kept_S: Tensor | None = None
    """How many tokens of the whole trajectory count: those sampled, less those that the mismatch weight rejects."""
    mu_T: Tensor | None = None
    """Log-prob under the sampler, of the distribution that was sampled."""
    old_T: Tensor | None = None
    """Log-prob under the trainer's weights before the first update on this batch."""
    ref_T: Tensor | None = None
    value_T: Tensor | None = None
    advantage_T: Tensor | None = None
    return_T: Tensor | None = None
    """The critic's target."""
    mismatch_T: Tensor | None = None
    """Weight for sampler ≠ trainer; zero: rejected, and out of every denominator."""
    extra_T: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Further streams by name: routing to replay, vocabulary statistics, teacher log-probs."""
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
    def sampled_T(self) -> Tensor:
        """Which tokens the policy sampled: the only ones that are ever trained on."""
        return self.turn_T >= 0

    @property
    def waiting_S(self) -> Tensor:
        """Which sequences belong to a cut trajectory whose bootstrap value is still to come."""
        return self.truncated_S if self.bootstrap_S is None else self.truncated_S & self.bootstrap_S.isnan()

    @property
    def index_T(self) -> Tensor:
        """Turn index inside the trajectory, per token; -1 for tokens of the environment."""
        return torch.where(self.sampled_T, self.index_K[self.turn_T.clamp_min(0)], -1) if self.turns else self.turn_T

    def with_(self, **streams: Any) -> TokenBatch:
        """A copy in which the named fields are replaced."""
        return replace(self, **streams)

    def to(self, device: str | torch.device) -> TokenBatch:
        """The same batch on another device."""
        return self._map(lambda _, tensor: tensor.to(device))

    def select(self, sequences: Tensor | Sequence[int]) -> TokenBatch:
        """The batch of these sequences, in this order. The only way to split, and it never cuts a sequence."""
        chosen_S = torch.as_tensor(sequences, device=self.length_S.device)
        if chosen_S.dtype == torch.bool:
            raise ValueError("select takes the row numbers of sequences, not a mask; use mask.nonzero().squeeze(1)")
        chosen_S = chosen_S.long()
        turns_S = torch.bincount(self.sequence_K, minlength=self.sequences)
        rows = {"T": _ranges(self.length_S, chosen_S), "K": _ranges(turns_S, chosen_S), "S": chosen_S}
        part = self._map(lambda name, tensor: tensor[rows[name[-1]]])
        new_sequence_S = torch.arange(chosen_S.numel(), device=chosen_S.device)
        # A sequence's turns move together: from where its first turn was to where it is now.
        moved_S = _starts(turns_S[chosen_S]) - _starts(turns_S)[chosen_S]
        new_sequence_T = new_sequence_S.repeat_interleave(self.length_S[chosen_S])
        return part.with_(
            sequence_T=new_sequence_T,
            sequence_K=new_sequence_S.repeat_interleave(turns_S[chosen_S]),
            turn_T=torch.where(part.sampled_T, part.turn_T + moved_S[new_sequence_T], -1),
        )

    def place(self, token: int) -> str:
        """Where a token lies, in words: for messages about bad values."""
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
    """What the learner says about a batch now, token by token. Only `logprob_T` is always there.

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
    reference_kl_T: Tensor | None = None
    """Full-vocabulary KL to the reference."""


def _ranges(length_S: Tensor, chosen_S: Tensor) -> Tensor:
    """Row numbers of the chosen runs of a table in which run s has `length_S[s]` rows."""
    length = length_S[chosen_S]
    offset = _starts(length_S)[chosen_S] - _starts(length)
    return torch.arange(int(length.sum()), device=length_S.device) + offset.repeat_interleave(length)


def _starts(length_S: Tensor) -> Tensor:
    """Where each run begins when runs of these lengths follow each other."""
    return length_S.cumsum(0) - length_S
