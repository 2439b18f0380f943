"""A policy in training: its learner, the guard that watches it, and which of its checkpoints are good."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from turnwise.guard.guard import Guard
from turnwise.learn.learner import Learner
from turnwise.learn.reporting import Report
from turnwise.learn.token_ledger import token_rows
from turnwise.policy.mixed_policy import MixedPolicy
from turnwise.policy.text import Reference, TextPolicy
from turnwise.ranks import ALONE, Ranks
from turnwise.recipe.schema import Recipe
from turnwise.recipe.seating import learns_at, prefix_of, recipe_of, seats_of
from turnwise.rollout.scheduler import at_seats
from turnwise.runs.checkpoints import Checkpoints, policy_folder
from turnwise.sources.rollout_metrics import find_errors, read_rollout
from turnwise.train.state import load_learner
from turnwise.train.watch import Watch
from turnwise.types import Group, NonFiniteError


@dataclass(kw_only=True)
class Standing:
    """Which checkpoints matter to a policy; part of every checkpoint."""

    good: int = 0
    """The newest one followed by healthy steps, which the guard restores."""
    saved: list[int] = field(default_factory=list[int])
    """Candidates that may turn out good."""
    reference: int | None = None
    """The reference's checkpoint; None if there is no reference."""


@dataclass(kw_only=True)
class Lesson:
    """A policy's result of one step."""

    played: dict[str, float]
    """The `rollout/…` metrics of its seats."""
    report: Report = field(default_factory=Report)
    tokens: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Per-token rows, in steps that record them."""
    error: NonFiniteError | None = None

    @property
    def metrics(self) -> dict[str, float]:
        """All its numbers."""
        return self.played | self.report.metrics


class Trainee:
    """One policy of a run: `lesson = trainee.learn(groups, step, watch)`, then `trainee.guard.judge(…)`."""

    def __init__(
        self,
        recipe: Recipe,
        name: str,
        policy: TextPolicy,
        *,
        temperature: float,
        ranks: Ranks = ALONE,
        mixture: MixedPolicy | None = None,
    ) -> None:
        own = recipe_of(recipe, name)
        self.policy = policy
        self.name, self.recipe, self.prefix = name, own, prefix_of(recipe, name)
        self.seats = seats_of(recipe, name)
        self.first = policy.make_reference() if policy.has_adapter else None
        """The policy before the first step, where that costs no more than its adapter."""
        self.learner = Learner(
            policy,
            own.algorithm,
            own.train,
            reference=self.first if own.algorithm.needs_reference else None,
            seed=recipe.seed,
            temperature=temperature,
            name=name,
            ranks=ranks,
            mixture=mixture,
        )
        if self.first is not None and self.learner.reference is None and self.learner.in_step.size > 1:
            self.first.shard(policy.device)
        self.guard = Guard(recipe.guard)
        self.standing = Standing(reference=None if self.learner.reference is None else 0)

    def learn(self, groups: Sequence[Group], step: int, watch: Watch, phase: Callable[[str], None]) -> Lesson:
        """Learn from what was played at its seats, if it is its turn; the guard handles non-finite numbers."""
        groups = at_seats(groups, self.seats)
        lesson = Lesson(played=read_rollout(groups, version=step - 1))
        if not learns_at(self.recipe, self.name, step):
            return lesson
        try:
            phase("scoring")
            with watch.timing("score"):
                batch = self.learner.prepare(groups)
            if batch is None:
                if errors := find_errors(groups, culprit="agent"):
                    # No episode is left, and the policy itself failed: its numbers are no longer finite.
                    self.guard.broken(step=step, text=errors[-1])
                return lesson
            phase("learning")
            with watch.timing("update"):
                report = self.learner.learn(batch, step, self.guard.allows)
                self.learner.free_gradients()
            if self.recipe.log.rollouts and step % self.recipe.checkpoint.every == 0:
                lines = self.learner.ranks.gather(list(token_rows(self.learner, batch)))
                place = {name: number for number, name in enumerate(batch.trajectory_names)}
                lesson.tokens = sorted((line for rank in lines for line in rank), key=lambda line: place[line["id"]])
            lesson.report = report
        except NonFiniteError as error:
            self.guard.broken(step=step, text=str(error))
            lesson.error = error
        return lesson

    def promote(self, step: int) -> None:
        """Mark a checkpoint as good once enough healthy steps have followed it."""
        standing, decided = self.standing, step - self.recipe.guard.patience
        good = [saved for saved in standing.saved if saved <= decided and self.guard.healthy_since(saved)]
        standing.good = max([standing.good, *good])
        standing.saved = [saved for saved in standing.saved if saved > decided]

    def renews_reference(self, step: int) -> bool:
        """Whether the policy after this step becomes its reference."""
        every = self.recipe.train.reference_every
        return every is not None and self.learner.reference is not None and step % every == 0

    def load_reference(self, checkpoints: Checkpoints) -> None:
        """Always load the reference from its checkpoint, so that a resumed run has the same bits."""
        policy, step = self.policy, self.standing.reference
        if step is None:
            return
        if step == 0 and self.first is not None:
            self.learner.reference = self.first
        else:
            folder = policy_folder(checkpoints.at(step), self.name)
            self.learner.renew_reference(Reference.of_folder(folder, like=policy))

    def restore(self, checkpoints: Checkpoints) -> None:
        """Go back to the last good weights, critic and optimisers."""
        good, standing = self.standing.good, self.standing
        load_learner(checkpoints.at(good), self.learner)
        standing.saved = [step for step in standing.saved if step <= good]
        if standing.reference is not None and standing.reference > good:  # it came from the discarded steps
            standing.reference = good
            self.load_reference(checkpoints)
        self.guard.restored(good)

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint, besides the learner's."""
        return {"standing": asdict(self.standing), "guard": self.guard.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore from `state_dict()`."""
        self.standing = Standing(**state["standing"])
        self.guard.load_state_dict(state["guard"])
        self.learner.rate_factor = self.guard.learning_rate_factor


def guard_states(trainees: Sequence[Trainee]) -> str:
    """The guards' state in a word or two; with several, named by policy."""
    said = {trainee.name: trainee.guard.state for trainee in trainees}
    if len(set(said.values())) == 1:
        return next(iter(said.values()))
    return ", ".join(f"{name}: {state}" for name, state in said.items())
