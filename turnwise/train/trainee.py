"""A policy in training: its learner, the guard that watches it, and which of its checkpoints are good."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from turnwise.guard.guard import Guard
from turnwise.learn.learner import Learner
from turnwise.learn.reporting import Report
from turnwise.learn.token_ledger import token_rows
from turnwise.policy.text import Reference, TextPolicy
from turnwise.ranks import ALONE, Ranks
from turnwise.recipe.schema import Recipe
from turnwise.recipe.seating import prefix_of, recipe_of, seats_of
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
    """The newest that was followed by healthy steps: what the guard restores."""
    saved: list[int] = field(default_factory=list[int])
    """Those that may yet turn out good."""
    reference: int | None = None
    """The one that the reference is; None where there is no reference."""


@dataclass(kw_only=True)
class Lesson:
    """What a policy made of one step."""

    played: dict[str, float]
    """The `rollout/…` metrics of its seats."""
    report: Report = field(default_factory=Report)
    tokens: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """What the step did to every sampled token, in steps in which that is written."""
    error: NonFiniteError | None = None

    @property
    def metrics(self) -> dict[str, float]:
        """All its numbers."""
        return self.played | self.report.metrics


class Trainee:
    """One policy of a run: `lesson = trainee.learn(groups, step, watch)`, then `trainee.guard.judge(…)`."""

    def __init__(
        self, recipe: Recipe, name: str, policy: TextPolicy, *, temperature: float, ranks: Ranks = ALONE
    ) -> None:
        own = recipe_of(recipe, name)
        self.name, self.recipe, self.prefix = name, own, prefix_of(recipe, name)
        self.seats = seats_of(recipe, name)
        self.learner = Learner(
            policy, own.algorithm, own.train, seed=recipe.seed, temperature=temperature, name=name, ranks=ranks
        )
        self.guard = Guard(recipe.guard)
        self.standing = Standing(reference=None if self.learner.reference is None else 0)

    def learn(self, groups: Sequence[Group], step: int, watch: Watch, phase: Callable[[str], None]) -> Lesson:
        """Learn from what was played at its seats; numbers that are not finite are the guard's business."""
        groups = at_seats(groups, self.seats)
        lesson = Lesson(played=read_rollout(groups, version=step - 1))
        try:
            phase("scoring")
            with watch.timing("score"):
                batch = self.learner.prepare(groups)
            if batch is None:
                if errors := find_errors(groups, culprit="agent"):
                    # Nothing is left, and the policy itself could not go on: its numbers have gone.
                    self.guard.broken(step=step, text=errors[-1])
                return lesson
            phase("learning")
            with watch.timing("update"):
                report = self.learner.learn(batch, step, self.guard.allows)
            if self.recipe.log.rollouts and step % self.recipe.checkpoint.every == 0:
                lines = self.learner.ranks.gather(list(token_rows(self.learner, batch)))
                lesson.tokens = [line for rank in lines for line in rank]
            lesson.report = report
        except NonFiniteError as error:
            self.guard.broken(step=step, text=str(error))
            lesson.error = error
        return lesson

    def promote(self, step: int) -> None:
        """A checkpoint is good once enough healthy steps have followed it; by then it is decided."""
        standing, decided = self.standing, step - self.recipe.guard.patience
        good = [saved for saved in standing.saved if saved <= decided and self.guard.healthy_since(saved)]
        standing.good = max([standing.good, *good])
        standing.saved = [saved for saved in standing.saved if saved > decided]

    def renews_reference(self, step: int) -> bool:
        """Whether its reference becomes the policy as it is after this step."""
        every = self.recipe.train.reference_every
        return every is not None and self.learner.reference is not None and step % every == 0

    def load_reference(self, checkpoints: Checkpoints) -> None:
        """Take the reference from its checkpoint, always: a resumed run must have the same bits."""
        policy, step = self.learner.policy, self.standing.reference
        if step is None:
            return
        if step == 0 and policy.has_adapter:  # which began as nothing: the first policy is the base under it
            self.learner.reference = Reference.base_of(policy)
        else:
            folder = policy_folder(checkpoints.at(step), self.name)
            self.learner.reference = Reference.of_folder(folder, like=policy)

    def restore(self, checkpoints: Checkpoints) -> None:
        """Go back to the last good weights, critic and optimisers."""
        good, standing = self.standing.good, self.standing
        load_learner(checkpoints.at(good), self.learner)
        standing.saved = [step for step in standing.saved if step <= good]
        if standing.reference is not None and standing.reference > good:  # it was taken from what is now given up
            standing.reference = good
            self.load_reference(checkpoints)
        self.guard.restored(good)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of it besides the learner."""
        return {"standing": asdict(self.standing), "guard": self.guard.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()`."""
        self.standing = Standing(**state["standing"])
        self.guard.load_state_dict(state["guard"])
        self.learner.rate_factor = self.guard.learning_rate_factor
