"""What a learner gives to the parts of a row, and what it refuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from turnwise.algorithm import Algorithm, Need
from turnwise.algorithm.parts import facts
from turnwise.batch import TokenBatch
from turnwise.ops.filters import win_probability
from turnwise.policy.learnable import Policy
from turnwise.recipe.schema import Train
from turnwise.types import Group

_FROM_LEARNER = frozenset(
    {
        *(Need.OLD, Need.SAMPLER, Need.REFERENCE, Need.KL_TO_REFERENCE, Need.KL_FROM_REFERENCE),
        Need.OLD_KL,
        *(Need.ENTROPY, Need.COLLISION, Need.GRADIENT, Need.ROUTING, Need.OLD_ROUTING, Need.WHOLE_GROUPS),
        *(Need.ANSWER_SCORES, Need.PREVIOUS_POLICY, Need.TEXTS, Need.OTHERS_WORDS, Need.SUCCESSES),
        Need.VOCABULARY_MEAN,
    }
)
"""Needs that the learner meets; other parts of the row meet the rest, and `resolve` checks those."""

_NO_EXPERTS = "this model has no experts: use a mixture of experts such as pico-moe"
_WITHOUT: Mapping[Need, str] = {Need.ROUTING: _NO_EXPERTS, Need.OLD_ROUTING: _NO_EXPERTS}
"""Why a policy may not provide something."""


def require_provided(row: Algorithm, provided: frozenset[Need], why: str = "this policy cannot provide it") -> None:
    """ValueError, naming the part, if a row needs something that is not provided."""
    for need in sorted(row.needs & _FROM_LEARNER - provided):
        raise ValueError(unmet(row, need, _WITHOUT.get(need, why)))


def require_streams(row: Algorithm, batch: TokenBatch) -> None:
    """ValueError, naming the part, if a row needs what the sampler of this batch has not reported."""
    if batch.mu_T is None and Need.SAMPLER in row.needs:
        raise ValueError(unmet(row, Need.SAMPLER, "these episodes have none"))
    if "routing" not in batch.extra_T and Need.ROUTING in row.needs:
        raise ValueError(unmet(row, Need.ROUTING, "these episodes have none: their engine does not report them"))


def require_shardable(row: Algorithm, policy: Policy, settings: Train) -> None:
    """ValueError for what does not work where each rank holds only a part of every weight."""
    require_provided(
        row, policy.provides - {Need.GRADIENT, Need.PREVIOUS_POLICY}, why="sharded ranks have only parts of it"
    )
    if settings.moments == "int8":
        raise ValueError("train.moments=int8 does not work with train.ranks=sharded; use bf16")


def require_wins(row: Algorithm, groups: Sequence[Group]) -> None:
    """ValueError, with the fix, if the judge's win probability of any trajectory is missing."""
    for trajectory in (each for group in groups for each in group.trajectories):
        if win_probability(trajectory) is None:
            fix = "set judge with gives: wins, or use a preference file with probabilities"
            raise ValueError(unmet(row, Need.WINS, f"trajectory {trajectory.id!r} has none: {fix}"))


def unmet(row: Algorithm, need: Need, why: str) -> str:
    """The message for a need of a row that is not met."""
    axis, part = next((axis, part) for axis, part in row.parts() if need in facts(axis, part))
    return f"{axis}={part.kind} needs {need.value}, and {why}; choose another {axis}"
