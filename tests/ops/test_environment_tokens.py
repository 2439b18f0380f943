"""What must not matter: how much the environment wrote, the order of packing, and who lies beside whom."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from torch import Tensor

from tests.ops.batches import Case, cases, close, ragged, random_case
from turnwise.batch import Moments, Remembered, TokenBatch
from turnwise.ops.advantages import ADVANTAGES, return_to_go
from turnwise.ops.mismatch import masked, truncated, veto
from turnwise.ops.normalizers import NORMALIZERS
from turnwise.ops.ratios import RATIOS
from turnwise.ops.rewards import overlong, running, token_kl
from turnwise.ops.weights import WEIGHTS, Counts
from turnwise.ranks import alone
from turnwise.rollout.packing import pack
from turnwise.types import Group, Trajectory

Op = Callable[[TokenBatch, Tensor], Tensor]


def _normalized(batch: TokenBatch, normalizer: Callable[..., Tensor]) -> Tensor:
    return normalizer(batch, return_to_go(batch, gamma=0.9).advantage_T, alone)


CREDITS: dict[str, Any] = {kind: op for kind, op in ADVANTAGES.items() if kind != "none"}
OPS: dict[str, Op] = {
    **{f"advantage {kind}": lambda b, _, op=op: op(b).advantage_T for kind, op in CREDITS.items()},
    **{f"normalizer {kind}": lambda b, _, op=op: _normalized(b, op) for kind, op in NORMALIZERS.items()},
    **{f"ratio {kind}": lambda b, logprob_T, op=op: op(b, logprob_T) for kind, op in RATIOS.items()},
    **{
        f"mismatch {kind} {level}": lambda b, _, op=op, level=level: op(b, level=level)
        for kind, op in {"truncated": truncated, "masked": masked, "veto": veto}.items()
        for level in ("token", "turn", "sequence")
    },
    **{f"weights {kind}": lambda b, _, op=op: op(b, Counts.of(b)) for kind, op in WEIGHTS.items()},
    "reward token-kl": lambda b, _: token_kl(b),
    "reward running": lambda b, _: running(b.with_(history=Remembered(returns=Moments(9, 0.3, 0.5))), clip=0.8),
    "reward overlong": lambda b, _: overlong(b, limit=6, margin=5),
}


def repacked(case: Case, groups: list[Group]) -> Case:
    """Other groups with the same sampled tokens: each keeps the numbers it has in the case."""
    batch = pack(groups, dtype=torch.float64)
    rows = _sampled_rows(case.batch)
    order = [row for name in batch.trajectory_names for row in rows[name]]

    def carry(values_T: Tensor) -> Tensor:
        carried_T = torch.full((batch.tokens,), torch.nan, dtype=torch.float64)
        carried_T[batch.sampled_T] = values_T[order]
        return carried_T

    streams = {name: carry(getattr(case.batch, name)) for name in ("old_T", "ref_T", "value_T", "advantage_T")}
    return Case(groups=groups, batch=batch.with_(**streams), logprob_T=carry(case.logprob_T))


def agree(first: Case, second: Case, op: Op) -> None:
    """Assert that every sampled token gets the same from both."""
    left, right = op(first.batch, first.logprob_T), op(second.batch, second.logprob_T)
    rows, moved = _sampled_rows(first.batch), _sampled_rows(second.batch)
    for name in rows:
        close(right[moved[name]], left[rows[name]])


def _sampled_rows(batch: TokenBatch) -> dict[str, list[int]]:
    """Rows of each trajectory's sampled tokens."""
    found: dict[str, list[int]] = {name: [] for name in batch.trajectory_names}
    for row in batch.sampled_T.nonzero().squeeze(1).tolist():
        found[batch.trajectory_names[int(batch.trajectory_S[batch.sequence_T[row]])]].append(row)
    return found


def _talkative(trajectory: Trajectory) -> Trajectory:
    turns = [replace(turn, prompt_ids=[*turn.prompt_ids, 7, 8, 9]) for turn in trajectory.turns]
    return replace(trajectory, turns=turns, final_ids=[*trajectory.final_ids, 5])


@pytest.mark.parametrize("name", OPS)
def test_adding_environment_tokens_changes_nothing(name: str):
    for seed in range(3):
        case = random_case(seed)
        talkative = [
            Group(id=group.id, trajectories=[_talkative(trajectory) for trajectory in group.trajectories])
            for group in case.groups
        ]
        agree(case, repacked(case, talkative), OPS[name])


@pytest.mark.parametrize("name", OPS)
def test_packing_order_changes_nothing(name: str):
    for seed in range(3):
        case = random_case(seed)
        turned = [Group(id=group.id, trajectories=group.trajectories[::-1]) for group in reversed(case.groups)]
        agree(case, repacked(case, turned), OPS[name])


@ragged
@given(cases)
def test_streams_are_finite_although_environment_tokens_hold_nan(case: Case):
    for op in OPS.values():
        assert bool(torch.isfinite(op(case.batch, case.logprob_T)).all())


@pytest.mark.parametrize("kind", CREDITS)
def test_another_group_in_the_batch_changes_no_credit(kind: str):
    case = random_case(0, groups=2)
    alone_in_batch = repacked(case, case.groups[:1])
    together = CREDITS[kind](case.batch).advantage_T
    close(CREDITS[kind](alone_in_batch.batch).advantage_T, together[: alone_in_batch.batch.tokens])
