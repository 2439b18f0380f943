"""Repeats one recorded learning step from its ledger and compares every number with the record.

A run is a function of (recipe, seed), so on the same machine the numbers are equal to the last bit. No environment is
needed: the ledgers hold the episodes. All steps between the newest checkpoint and this one are repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from turnwise.audit.recorded import Recording
from turnwise.guard.guard import Guard
from turnwise.learn.learner import Learner
from turnwise.learn.reporting import Report
from turnwise.policy.text import Reference, TextPolicy
from turnwise.recipe.seating import learns_at, prefix_of, recipe_of, trained_policies
from turnwise.runs.journal import plain
from turnwise.train.state import read_state

_COMPARED = ("loss/", "train/")


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One number, recorded and replayed: None if it is missing or was not finite."""

    name: str
    recorded: float | None
    replayed: float | None

    @property
    def same(self) -> bool:
        """Whether the two are equal to the last bit."""
        return self.recorded == self.replayed

    @property
    def difference(self) -> float:
        """The difference between the two; infinite if only one is a number."""
        if self.recorded is None or self.replayed is None:
            return 0.0 if self.same else float("inf")
        return abs(self.recorded - self.replayed)


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """A replayed step."""

    step: int
    start: int
    """The checkpoint that the replay started from; 0: the beginning of the run."""
    numbers: list[Compared]
    circumstances: list[str]
    """What has changed since the run was recorded."""

    @property
    def same(self) -> bool:
        """Whether every number matches the record."""
        return all(number.same for number in self.numbers)

    @property
    def conclusion(self) -> str:
        """The outcome in one line."""
        where = f"step {self.step}, learnt again from {f'checkpoint {self.start}' if self.start else 'the beginning'}"
        if not self.numbers:
            return f"{where}: nothing was learnt, then as now (the filters leave no episode)"
        if self.same:
            return f"{where}: {len(self.numbers)} numbers are equal to the last bit"
        worst = max(self.numbers, key=lambda number: number.difference)
        wrong = sum(not number.same for number in self.numbers)
        return (
            f"{where}: {wrong} of {len(self.numbers)} numbers differ; "
            f"the largest difference is {worst.difference:.3g}, in {worst.name}"
        )


def replay_step(folder: Path, step: int, *, note: Callable[[str], None] | None = None) -> Replayed:
    """Replay step `step` of a run; calls `note` with each step being learned."""
    recording = Recording.open(folder)
    recorded = recording.metrics()
    if step not in recorded:
        raise ValueError(f"{folder} has no step {step}; choose one of {min(recorded, default=0)} to {len(recorded)}")
    start = _find_start(recording, step)
    recording.require_ledgers(range(start + 1, step + 1))
    _refuse_restores(recording, range(start + 1, step))
    _refuse_exchanges(recording, range(start + 1, step))
    torch.set_num_threads(recording.run.circumstance("threads", int))  # the order of sums affects rounding
    numbers: list[Compared] = []
    for name in trained_policies(recording.recipe):
        report = _learn_again(recording, name, start, step, note)
        prefix = prefix_of(recording.recipe, name)
        numbers += _compare(recorded[step], plain(report.metrics, lambda _: None), prefix)
    return Replayed(
        step=step,
        start=start,
        numbers=numbers,
        circumstances=recording.other_circumstances(),
    )


def _find_start(recording: Recording, step: int) -> int:
    """The newest complete checkpoint before the step; 0 needs none, because the recipe defines it."""
    for kept in reversed(recording.run.checkpoints.steps()):
        if 0 < kept < step and (checkpoint := recording.checkpoint(kept)) is not None:
            standings = [policy["standing"] for policy in read_state(checkpoint)["policies"].values()]
            references = {standing["reference"] for standing in standings if standing["reference"]}
            if all(recording.checkpoint(reference) is not None for reference in references):
                return kept
    return 0


def _refuse_restores(recording: Recording, between: range) -> None:
    """Refuse steps after a guard's restore: ledgers do not record which state it restored."""
    for step in between:
        for event in recording.guard_events(step):
            went_back = event["action"] == "restore" or (event["action"] == "stop" and event["signal"] != "faults")
            if went_back:
                later = [kept for kept in recording.run.checkpoints.steps() if kept > step]
                after = f", or one after checkpoint {later[0]}" if later else ""
                raise ValueError(
                    f"after step {step} the guard restored an earlier state ({event['signal']}), which learning from "
                    f"ledgers does not lead to; replay step {step} or an earlier one{after}"
                )


def _refuse_exchanges(recording: Recording, between: range) -> None:
    """Refuse steps after an exchange: each policy learns again by itself, and has no other to swap with."""
    chosen = recording.recipe.exchange
    if chosen is not None and (swapped := [step for step in between if step % chosen.every == 0]):
        raise ValueError(
            f"after step {swapped[0]} policies swapped their weights, and no later checkpoint is kept; replay step "
            f"{swapped[0]} or an earlier one, or train with checkpoint.every={chosen.every} and more checkpoint.keep"
        )


def _learn_again(recording: Recording, name: str, start: int, step: int, note: Callable[[str], None] | None) -> Report:
    """Repeat a policy's steps start + 1 to `step`, with the guard's actions; returns the last report."""
    learner, recipe, report = recording.learner(name, start), recording.recipe_at(start + 1), Report()
    for number in range(start + 1, step + 1):
        if note is not None:
            note(f"learning step {number}")
        if (now := recording.recipe_at(number)) != recipe:
            learner, recipe = recording.successor(learner, number), now
        learns = learns_at(now, name, number)
        batch = learner.prepare(recording.groups_of(name, number)) if learns else None
        # Skipping an update depends only on its own numbers, so the guard decides as before.
        report = Report() if batch is None else learner.learn(batch, number, Guard(recipe.guard).allows)
        if number < step:
            _carry_on(recording, learner, number)
    return report


def _carry_on(recording: Recording, learner: Learner, step: int) -> None:
    """Apply what happened after a step: a smaller learning rate, a new reference."""
    recipe = recipe_of(recording.recipe_at(step), learner.name)
    events = [event for event in recording.guard_events(step) if event.get("policy", learner.name) == learner.name]
    if any(event["action"] == "shrink" for event in events):
        learner.rate_factor *= recipe.guard.shrink
    every = recipe.train.reference_every
    if every is not None and learner.reference is not None and step % every == 0:
        assert isinstance(learner.policy, TextPolicy)  # runs are of language models
        learner.reference = Reference.copy_of(learner.policy)


def _compare(recorded: Mapping[str, Any], replayed: Mapping[str, Any], prefix: str) -> list[Compared]:
    replayed = {f"{prefix}{name}": value for name, value in replayed.items()}
    names = [name for name in {**recorded, **replayed} if name.startswith(tuple(prefix + area for area in _COMPARED))]
    return [Compared(name=name, recorded=recorded.get(name), replayed=replayed.get(name)) for name in names]
