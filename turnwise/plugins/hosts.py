"""What another trainer gives to a row, and which rows it cannot run. Decided by declared facts, never by names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from turnwise.algorithm import Algorithm, Need, Trait, find_algorithm, resolve
from turnwise.algorithm.parts import facts

VARIABLE = "TURNWISE_ALGORITHM"
CREDIT = ("reward", "advantage", "normalizer")
LOSS = ("ratio", "mismatch", "surrogate", "scale", "weights", "routing", "regularizers", "extrapolate")
ROW_COUNTS = frozenset({Need.SEQUENCE_COUNT, Need.TRAJECTORY_COUNT, Need.UNIT_COUNT})
"""A host's row is a sequence, a trajectory and a unit at once."""
_FROM_THE_ROW = frozenset({Need.CLIPPING, Need.ADVANTAGE, Need.RATIO, Need.GROUPS, Need.TURN_ADVANTAGES})
"""Needs that other parts of the row meet; `resolve` checks them."""


@dataclass(frozen=True, kw_only=True)
class HostTrainer:
    """A trainer that runs our rows: what it gives to losses and, where it asks us for advantages, to credit."""

    name: str
    loss: frozenset[Need]
    credit: frozenset[Need] | None = frozenset()
    """None: the host computes advantages itself, and the row's reward, advantage and normalizer are not used."""
    critic: bool = False
    """Whether the host may train a critic."""
    scales: bool = True
    """Whether the size of its optimiser steps can be changed."""
    counts_rejected: bool = True
    """Whether its token counts include tokens that a mismatch weight rejects."""
    instead: Mapping[Need, str] = field(default_factory=dict[Need, str])
    """What to do where the host has a way of its own."""

    def require_loss(self, row: Algorithm) -> None:
        """ValueError, with every reason, if the host cannot run the row's loss."""
        self._raise(row, [*self._of_loss(row), *self._unmet(row, LOSS, self.loss)])

    def require_credit(self, row: Algorithm) -> None:
        """ValueError, with every reason, if the host cannot give what the row's credit needs."""
        self._raise(row, list(self._unmet(row, CREDIT, self.credit or frozenset())))

    def require(self, row: Algorithm) -> None:
        """Both, for hosts in which one class does everything."""
        credit = [] if self.credit is None else self._unmet(row, CREDIT, self.credit)
        self._raise(row, [*self._of_loss(row), *credit, *self._unmet(row, LOSS, self.loss)])

    def _of_loss(self, row: Algorithm) -> Iterator[str]:
        if row.needs_critic and not self.critic:
            yield (
                f"critic.level={row.critic.level}: {self.name} trains no critic; "
                "set critic: {level: none} and an advantage without values, such as group-mean"
            )
        if Trait.NEUTRAL not in row.facts("scale"):
            if not self.scales:
                yield f"scale={row.scale.kind} changes optimiser steps, and {self.name} hides them; set scale to none"
            if row.scale.options.get("apply") == "gradient":
                yield f"scale.apply=gradient comes after {self.name} has clipped the gradient; set scale.apply to step"
        for part in row.filters:
            if Trait.CHOOSES in facts("filters", part):
                yield (
                    f"filters={part.kind} keeps only some members of a group, and {self.name} learns from all of them; "
                    "set filters to [errored]"
                )
        if self.counts_rejected and Trait.REJECTS in row.facts("mismatch"):
            yield (
                f"mismatch={row.mismatch.kind} rejects tokens, and {self.name} counts them all the same; "
                "set mismatch to truncated"
            )

    def _unmet(self, row: Algorithm, of: tuple[str, ...], given: frozenset[Need]) -> Iterator[str]:
        unread = () if Need.RATIO in row.facts("surrogate") else ("ratio",)
        for axis, part in row.parts():
            if axis in of and axis not in unread:
                needs = {fact for fact in facts(axis, part) if isinstance(fact, Need)}
                for need in sorted(needs - given - _FROM_THE_ROW):
                    fix = self.instead.get(need, f"choose another {axis}")
                    yield f"{axis}={part.kind} needs {need.value}, which {self.name} does not give; {fix}"

    def _raise(self, row: Algorithm, refusals: list[str]) -> None:
        resolve(row)
        if refusals:
            raise ValueError(f"algorithm {row.name!r} cannot run in {self.name}: " + "\n".join(refusals))


def chosen_algorithm(choice: str | Algorithm | None = None) -> Algorithm:
    """A row, a preset's name or a YAML file; by default what TURNWISE_ALGORITHM names."""
    if isinstance(choice, Algorithm):
        return choice
    name = choice or os.environ.get(VARIABLE)
    if not name:
        raise ValueError(f"no algorithm is chosen; set {VARIABLE} to a preset such as turn-ppo, or to a YAML file")
    return find_algorithm(name)
