"""From trajectories to the packed batch: sampled ids are copied exactly, nothing is re-tokenised."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, SupportsFloat

import torch
from torch import Tensor

from turnwise.batch import ENVIRONMENT, OTHERS, POLICY, TokenBatch
from turnwise.types import ANY_EXPERT, Group, StopReason, Trajectory, Turn

_ROUNDING = 1e-3
"""Half-precision samplers may report a log-prob slightly above 0 for a certain token."""


def pack(groups: Iterable[Group], *, policy: str | None = None, dtype: torch.dtype = torch.float32) -> TokenBatch:
    """Pack groups of trajectories into one TokenBatch.

    - A turn's reward goes to its last sampled token. An empty turn's reward goes to the last token sampled before it
      in the same trajectory.
    - A turn with `restarts` opens a new sequence of the same trajectory; credit still flows across.
    - Group ids must be unique: two groups with one id would be compared separately.
    - A trajectory that is both terminated and truncated counts as terminated: nothing follows it.
    - `mu_T` is NaN where the sampler is unknown, as in an expert's turn; unassigned if it is unknown for every turn.
    - With `policy` only its turns are trained on: other policies' tokens are context, and trajectories without its
      turns are left out.
    - `source_T` says who wrote each token: the environment, the policy, or other agents (`Turn.heard`).
    - `bootstrap_S` is NaN where a truncated trajectory waits for the critic's value, unassigned if all of them do.
    """
    columns, ids = _Columns(), set[str]()
    for group_number, group in enumerate(groups):
        if not isinstance(group, Group):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(
                f"pack takes groups, not {type(group).__name__}; wrap them in Group(id=..., trajectories=[...])"
            )
        if group.id in ids:
            raise ValueError(
                f"two groups have the id {group.id!r}; put trajectories that are compared into one Group, "
                "and give other groups unique ids"
            )
        ids.add(group.id)
        columns.group_names.append(group.id)
        for trajectory in group.trajectories:
            heard = trajectory if policy is None else _seen_by(policy, trajectory)
            if heard is not None:
                _add_trajectory(columns, heard, group_number)
    if not columns.trajectory_names:
        raise ValueError("nothing to pack: every group is empty; collect episodes first or loosen the filters")
    return _to_batch(columns, dtype)


def _seen_by(policy: str, trajectory: Trajectory) -> Trajectory | None:
    """The trajectory with other policies' turns as context; None if no turns remain."""
    own = [turn.policy == policy for turn in trajectory.turns]
    if all(own):
        return trajectory
    if not any(own):
        return None
    turns, early = list[Turn](), 0.0
    for turn, is_own, has_spoken in zip(trajectory.turns, own, accumulate(own), strict=True):
        if is_own:
            turns.append(replace(turn, reward=turn.reward + early))
            early = 0.0
        else:  # text before its first turn belongs to that turn
            ids = [*turn.prompt_ids, *turn.sampled_ids]
            heard = [*turn.heard, (len(turn.prompt_ids), len(ids))]
            reward = turn.reward if has_spoken else 0.0
            turns.append(replace(turn, prompt_ids=ids, heard=heard, sampled_ids=(), logprobs=None, reward=reward))
            early += turn.reward - reward
    return replace(trajectory, turns=turns)


@dataclass(kw_only=True)
class _Columns:
    """The growing columns of the batch, as plain lists."""

    ids: list[int] = field(default_factory=list[int])
    position: list[int] = field(default_factory=list[int])
    sequence: list[int] = field(default_factory=list[int])
    turn: list[int] = field(default_factory=list[int])
    source: list[int] = field(default_factory=list[int])
    mu: list[float] = field(default_factory=list[float])
    mu_known: bool = False
    """Whether any turn has sampler log-probs."""
    reward: list[float] = field(default_factory=list[float])
    turn_sequence: list[int] = field(default_factory=list[int])
    turn_index: list[int] = field(default_factory=list[int])
    version: list[int] = field(default_factory=list[int])
    anchor: list[int] = field(default_factory=list[int])
    anchors: dict[tuple[int, str], int] = field(default_factory=dict[tuple[int, str], int])
    length: list[int] = field(default_factory=list[int])
    trajectory: list[int] = field(default_factory=list[int])
    group: list[int] = field(default_factory=list[int])
    seat: list[int] = field(default_factory=list[int])
    turns: list[int] = field(default_factory=list[int])
    kept: list[int] = field(default_factory=list[int])
    truncated: list[bool] = field(default_factory=list[bool])
    bootstrap: list[float | None] = field(default_factory=list[float | None])
    streams: dict[str, dict[int, Sequence[float]]] = field(default_factory=dict[str, dict[int, Sequence[float]]])
    """Further streams by name, and by the token that a row of numbers belongs to."""
    rows: dict[str, list[tuple[int, Sequence[Sequence[int]]]]] = field(
        default_factory=dict[str, list[tuple[int, Sequence[Sequence[int]]]]]
    )
    """Streams of whole numbers for runs of tokens, with the first token of each run."""
    trajectory_names: list[str] = field(default_factory=list[str])
    group_names: list[str] = field(default_factory=list[str])
    seat_names: list[str] = field(default_factory=list[str])


def _add_trajectory(columns: _Columns, trajectory: Trajectory, group: int) -> None:
    if not isinstance(trajectory.stop, StopReason):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(
            f"trajectory {trajectory.id!r}: stop is {trajectory.stop!r}; give a StopReason such as StopReason.DONE"
        )
    if trajectory.stop.is_failure:
        raise ValueError(
            f"trajectory {trajectory.id!r} ended by {trajectory.stop.value} and must not be trained on; "
            "drop it first with the 'errored' filter"
        )
    if trajectory.bootstrap is not None and not math.isfinite(trajectory.bootstrap):
        raise ValueError(f"trajectory {trajectory.id!r}: bootstrap is {trajectory.bootstrap}; values must be finite")
    columns.trajectory_names.append(trajectory.id)
    last_sampled: int | None = None
    for index, turn in enumerate(trajectory.turns):
        if index == 0 or turn.restarts:
            _open_sequence(columns, trajectory, group)
        _add_turn(columns, turn, index, group)
        if len(turn.sampled_ids):
            last_sampled = len(columns.ids) - 1
        _add_reward(columns, trajectory, index, last_sampled)
    if not trajectory.turns:
        _open_sequence(columns, trajectory, group)
    _check_ids(f"trajectory {trajectory.id!r}, final_ids", trajectory.final_ids)
    _append(columns, trajectory.final_ids, turn=-1)
    if len(trajectory.final_ids):
        _add_streams(columns, trajectory.final_streams, f"trajectory {trajectory.id!r}, final_streams")


def _open_sequence(columns: _Columns, trajectory: Trajectory, group: int) -> None:
    if trajectory.seat not in columns.seat_names:
        columns.seat_names.append(trajectory.seat)
    columns.length.append(0)
    columns.trajectory.append(len(columns.trajectory_names) - 1)
    columns.group.append(group)
    columns.seat.append(columns.seat_names.index(trajectory.seat))
    columns.turns.append(len(trajectory.turns))
    columns.kept.append(sum(len(turn.sampled_ids) for turn in trajectory.turns))
    cut = trajectory.truncated and not trajectory.terminated  # nothing follows an episode that ended by itself
    columns.truncated.append(cut)
    columns.bootstrap.append(trajectory.bootstrap if cut else 0.0)


def _add_turn(columns: _Columns, turn: Turn, index: int, group: int) -> None:
    where = f"trajectory {columns.trajectory_names[-1]!r}, turn {index}"
    _check_ids(f"{where}, prompt_ids", turn.prompt_ids)
    _check_ids(f"{where}, sampled_ids", turn.sampled_ids)
    _check_logprobs(columns, turn, where)
    columns.turn_sequence.append(len(columns.length) - 1)
    columns.turn_index.append(index)
    columns.version.append(turn.policy_version)
    columns.anchor.append(_anchor(columns, group, turn.state_key))
    first = len(columns.ids)
    _append(columns, turn.prompt_ids, turn=-1)
    for start, end in turn.heard:
        if not 0 <= start <= end <= len(turn.prompt_ids):
            raise ValueError(f"{where}: heard has ({start}, {end}) for {len(turn.prompt_ids)} prompt ids; shorten it")
        columns.source[first + start : first + end] = [OTHERS] * (end - start)
    _append(columns, turn.sampled_ids, turn=len(columns.turn_sequence) - 1, logprobs=turn.logprobs)
    if len(turn.sampled_ids):
        _add_streams(columns, turn.streams, where)


def _add_streams(columns: _Columns, streams: Mapping[str, Sequence[Any]], where: str) -> None:
    """Numbers of the last token so far, or rows for the tokens before it."""
    last = len(columns.ids) - 1
    for name, numbers in streams.items():
        if not len(numbers) or not isinstance(numbers[0], list | tuple):
            columns.streams.setdefault(name, {})[last] = numbers
        elif len(numbers) >= columns.length[-1]:
            raise ValueError(
                f"{where}: {len(numbers)} rows of {name} for a sequence of {columns.length[-1]} tokens, of which the "
                "last was not run; give one row per token that the sampler ran"
            )
        else:
            columns.rows.setdefault(name, []).append((last - len(numbers), numbers))


def _rows(runs: Sequence[tuple[int, Sequence[Sequence[int]]]], tokens: int) -> Tensor:
    """One row of whole numbers per token; `ANY_EXPERT` where there is none."""
    stream = torch.full((tokens, len(runs[0][1][0])), ANY_EXPERT, dtype=torch.int16)
    for start, rows in runs:
        stream[start : start + len(rows)] = torch.tensor(rows, dtype=torch.int16)
    return stream


def _stream(rows: Mapping[int, Sequence[float]], tokens: int, dtype: torch.dtype) -> Tensor:
    """One row of numbers per token; zeros where there are none."""
    stream = torch.zeros(tokens, len(next(iter(rows.values()))), dtype=dtype)
    stream[list(rows)] = torch.tensor([list(numbers) for numbers in rows.values()], dtype=dtype)
    return stream


def _anchor(columns: _Columns, group: int, state_key: str | None) -> int:
    if state_key is None:
        return -1
    return columns.anchors.setdefault((group, state_key), len(columns.anchors))


def _append(columns: _Columns, ids: Sequence[int], *, turn: int, logprobs: Sequence[float] | None = None) -> None:
    count, done = len(ids), columns.length[-1]
    columns.ids.extend(ids)
    columns.position.extend(range(done, done + count))
    columns.sequence.extend([len(columns.length) - 1] * count)
    columns.turn.extend([turn] * count)
    columns.source.extend([POLICY if turn >= 0 else ENVIRONMENT] * count)
    columns.mu.extend([0.0 if turn < 0 else math.nan] * count if logprobs is None else logprobs)
    columns.reward.extend([0.0] * count)
    columns.length[-1] += count


def _add_reward(columns: _Columns, trajectory: Trajectory, index: int, last_sampled: int | None) -> None:
    reward = trajectory.turns[index].reward
    if not isinstance(reward, SupportsFloat) or not math.isfinite(reward):
        raise ValueError(f"trajectory {trajectory.id!r}, turn {index}: reward is {reward}; it must be a finite number")
    if last_sampled is not None:
        columns.reward[last_sampled] += reward
    elif reward != 0:
        raise ValueError(
            f"trajectory {trajectory.id!r}, turn {index}: a reward of {reward} but no sampled token to carry it; "
            "leave the trajectory out, or record the tokens that were sampled"
        )


def _check_ids(where: str, ids: Sequence[int]) -> None:
    if {*map(type, ids)} <= {int} and min(ids, default=0) >= 0:
        return  # the common case, without a Python loop over tokens
    for place, token in enumerate(ids):
        if not _is_id(token):
            raise ValueError(f"{where}: entry {place} is {token!r}; ids are whole numbers from 0 up")


def _is_id(token: Any) -> bool:
    """Accepts numpy and torch integers too."""
    try:
        return operator.index(token) >= 0
    except TypeError:
        return False


def _check_logprobs(columns: _Columns, turn: Turn, where: str) -> None:
    if not len(turn.sampled_ids) or turn.logprobs is None:
        return
    columns.mu_known = True
    if len(turn.logprobs) != len(turn.sampled_ids):
        raise ValueError(f"{where}: {len(turn.sampled_ids)} sampled ids but {len(turn.logprobs)} log-probs")
    if all(map(math.isfinite, turn.logprobs)) and max(turn.logprobs) <= _ROUNDING:
        return
    place, logprob = next(item for item in enumerate(turn.logprobs) if not -math.inf < item[1] <= _ROUNDING)
    raise ValueError(f"{where}: log-prob of sampled token {place} is {logprob}; it must be finite and at most 0")


def _to_batch(columns: _Columns, dtype: torch.dtype) -> TokenBatch:
    def integers(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long)

    cut = [value for value, truncated in zip(columns.bootstrap, columns.truncated, strict=True) if truncated]
    waiting = bool(cut) and all(value is None for value in cut)
    bootstrap = [math.nan if value is None else value for value in columns.bootstrap]
    return TokenBatch(
        ids_T=integers(columns.ids),
        position_T=integers(columns.position),
        sequence_T=integers(columns.sequence),
        turn_T=integers(columns.turn),
        source_T=integers(columns.source),
        reward_T=torch.tensor(columns.reward, dtype=dtype),
        sequence_K=integers(columns.turn_sequence),
        index_K=integers(columns.turn_index),
        version_K=integers(columns.version),
        anchor_K=integers(columns.anchor),
        length_S=integers(columns.length),
        trajectory_S=integers(columns.trajectory),
        group_S=integers(columns.group),
        seat_S=integers(columns.seat),
        truncated_S=torch.tensor(columns.truncated, dtype=torch.bool),
        bootstrap_S=None if waiting else torch.tensor(bootstrap, dtype=dtype),
        turns_S=integers(columns.turns),
        kept_S=integers(columns.kept),
        mu_T=torch.tensor(columns.mu, dtype=dtype) if columns.mu_known else None,
        extra_T={name: _stream(rows, len(columns.ids), dtype) for name, rows in columns.streams.items()}
        | {name: _rows(runs, len(columns.ids)) for name, runs in columns.rows.items()},
        trajectory_names=tuple(columns.trajectory_names),
        group_names=tuple(columns.group_names),
        seat_names=tuple(columns.seat_names),
    )
