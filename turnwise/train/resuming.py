"""What may change when a run is resumed."""

from __future__ import annotations

from turnwise.recipe.loading import differences
from turnwise.recipe.schema import Recipe
from turnwise.runs.checkpoints import step_of
from turnwise.runs.folder import RunFolder
from turnwise.words import counted

FIXED = ("seed", "model", "env", "algorithm", "sft", "source", "judge", "policies", "seats", "exchange", "in_turn")
"""Settings that define a run: changing them makes another run."""
_REACHED = frozenset(f"judge.{name}" for name in ("url", "seconds", "retries", "concurrency"))
"""How a judge is reached, not what it says: a server may have moved or become slower."""


def require_same_run(before: Recipe, after: Recipe) -> None:
    """ValueError for a change that makes another run."""
    for change in differences(before, after):
        key = change.partition(":")[0]
        if (key.partition(".")[0] in FIXED and key not in _REACHED) or key in ("train.critic", "train.critic_from"):
            command = "sft" if before.stage == "imitation" else "train"
            raise ValueError(f"{key} cannot change in the middle of a run; start a new one with `turnwise {command}`")


def require_more_steps(run: RunFolder, before: Recipe, after: Recipe) -> None:
    """ValueError if a run that is resumed has fewer steps to do than it has done."""
    if before.train.steps == after.train.steps:
        return
    if before.stage == "imitation":
        raise ValueError("the steps of imitation follow from sft.demonstrations, sft.batch and sft.epochs")
    checkpoint = run.checkpoints.latest()
    done = 0 if checkpoint is None else step_of(checkpoint)
    if after.train.steps < done:
        raise ValueError(
            f"{run.path} has done {counted(done, 'step')} already; train.steps={after.train.steps} must be more"
        )
