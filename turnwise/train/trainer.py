"""The loop: play → prepare → learn → publish → guard → record, over and over, and nothing lost on the way.

A run is a function of (recipe, seed). Everything it needs to go on lies in its checkpoints, so that a run that was
killed and resumed ends with the same bits as one that was not.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from turnwise.console.screen import RunConsole
from turnwise.evaluate.evaluation import fewer_tasks, play_specs, summarize
from turnwise.guard.guard import Guard, Verdict
from turnwise.learn.learner import Learner, Report
from turnwise.learn.token_ledger import write_tokens
from turnwise.policy.text import Reference, TextPolicy
from turnwise.recipe.loading import plain_differences
from turnwise.recipe.schema import Recipe
from turnwise.rollout.episode import EpisodeSpec
from turnwise.rollout.rollout_metrics import answered, explain_failure, find_errors, find_traceback, read_rollout
from turnwise.runs.folder import RunFolder
from turnwise.runs.ledger import write_groups
from turnwise.runs.loggers import Loggers
from turnwise.sources.imitation import Imitation
from turnwise.sources.played import Demonstrated, Played, PlayedAhead, Source, plays_in_lockstep
from turnwise.sources.player import Player
from turnwise.train.interrupts import Interrupts
from turnwise.train.setup import make_renderer
from turnwise.train.state import load_learner, read_ahead, read_state, write_state
from turnwise.train.watch import Watch
from turnwise.types import Group, NonFiniteError

_SAMPLES = 3
"""Held-out episodes that are shown before and after."""
_RECORDED = 16
"""Held-out tasks of an evaluation whose episodes are written down, for the report."""
_TOLD = 3
"""Different errors of environments that are told on screen; `events.jsonl` has one for every step."""
_LOST_STEPS, _LOST_EPISODES = 3, 8
"""Steps and failures in a row without an episode that the environment carried to its end, after which a run ends."""


@dataclass(kw_only=True)
class Progress:
    """Where a run is: what a checkpoint keeps besides tensors."""

    step: int = 0
    good: int = 0
    """The newest checkpoint that was followed by healthy steps: what the guard restores."""
    saved: list[int] = field(default_factory=list[int])
    """Checkpoints that may yet turn out good."""
    best: int = 0
    best_success: float = -1.0
    reference: int = 0
    """The checkpoint that the reference is."""
    lost: int = 0
    """Steps in a row with failures and without one episode that the environment carried to its end."""
    failures: int = 0
    """Episodes that failed in these steps."""
    last_error: str = ""
    """What the last of them said."""
    answered: bool = False
    """Whether the environment ever carried an episode to its end."""


class Trainer:
    """One stage of a run, from its first step or from a checkpoint: `Trainer(...).run()`."""

    def __init__(
        self,
        recipe: Recipe,
        run: RunFolder,
        policy: TextPolicy,
        *,
        console: RunConsole,
        imitation: Imitation | None = None,
        checkpoint: Path | None = None,
    ) -> None:
        self.recipe, self.run_folder, self.console = recipe, run, console
        self.guard, self.progress, self.status = Guard(recipe.guard), Progress(), "finished"
        # Demonstrations were sampled by nobody, least of all at a temperature.
        temperature = recipe.rollout.temperature if imitation is None else 1.0
        self.learner = Learner(policy, recipe.algorithm, recipe.train, seed=recipe.seed, temperature=temperature)
        self.player = Player(
            policy,
            rollout=recipe.rollout,
            renderer=make_renderer(recipe, policy),
            seed=recipe.seed,
            lockstep=plays_in_lockstep(recipe),
        )
        self.learner.hold = self.player.paused
        self._begin(checkpoint)
        self.loggers = Loggers.of(recipe.log, run)
        self._imitation, self._told = imitation, set[str]()
        self.source = self._make_source(read_ahead(checkpoint) if checkpoint is not None else {})

    def run(self) -> dict[str, Any]:
        """Train to the last step, or until the user or the guard says stop; returns a summary."""
        with Interrupts(self.console.note) as interrupts:
            try:
                if self.progress.step == 0:
                    self._save()
                    self._evaluate(samples="before")
                while self._goes_on():
                    if interrupts.requested:
                        self.status = "interrupted"
                        break
                    self._step()
                return self._finish()
            finally:
                self.source.close()
                self.player.close()
                self.loggers.close()

    def _goes_on(self) -> bool:
        return self.progress.step < self.recipe.train.steps and self.status == "finished"

    def _step(self) -> None:
        step = self.progress.step + 1
        watch, busy = Watch(), self.player.engine.busy_seconds
        self.console.phase("playing")
        with watch.timing("rollout"):
            groups = self.source.groups(step)
        playing = self.player.engine.busy_seconds - busy
        row = {"step": step, **read_rollout(groups, version=step - 1)}
        report, error = self._learn(groups, step, watch)
        with watch.timing("publish"):
            self.source.publish(step)
        row |= report.metrics | watch.metrics(groups, tokens=report.metrics.get("train/tokens", 0), playing=playing)
        verdict = self.guard.judge(step, row)
        self.progress.step = step
        self._record(row, report, groups)
        self._act(verdict, error)
        self._keep_promises(step)

    def _learn(self, groups: list[Group], step: int, watch: Watch) -> tuple[Report, NonFiniteError | None]:
        """Learn from the groups; numbers that are not finite are the guard's business."""
        try:
            self.console.phase("scoring")
            with watch.timing("score"):
                batch = self.learner.prepare(groups)
            if batch is None:
                if errors := find_errors(groups, culprit="agent"):
                    # Nothing is left, and the policy itself could not go on: its numbers have gone.
                    self.guard.broken(step=step, text=errors[-1])
                return Report(), None
            self.console.phase("learning")
            with watch.timing("update"):
                report = self.learner.learn(batch, step, self.guard.allows)
            if self.recipe.log.rollouts and step % self.recipe.checkpoint.every == 0:
                write_tokens(self.run_folder.tokens_file(step), self.learner, batch)
            return report, None
        except NonFiniteError as error:
            self.guard.broken(step=step, text=str(error))
            return Report(), error

    def _record(self, row: dict[str, Any], report: Report, groups: list[Group]) -> None:
        step = self.progress.step
        self.run_folder.metrics.append(row)
        for turn in report.turns:
            self.run_folder.turns.append({"step": step, **turn})
        every = self.recipe.log.rollouts
        if every and step % every == 0:
            write_groups(self.run_folder.rollouts_file(step), groups)
        self.loggers.row(row)
        self._count_faults(row, groups)
        self.console.step(row, guard="no sound episode" if self.progress.lost else self.guard.state)

    def _count_faults(self, row: dict[str, Any], groups: list[Group]) -> None:
        progress, errors = self.progress, find_errors(groups)
        if answered(groups):
            progress.lost, progress.failures, progress.answered = 0, 0, True
        if not errors:
            return
        progress.last_error = errors[-1]
        self._event("faults", share=row["rollout/faults"], last_error=errors[-1], traceback=find_traceback(groups))
        if errors[-1] not in self._told and len(self._told) < _TOLD:
            self._told.add(errors[-1])
            self.console.note(f"an episode failed: {errors[-1]}")
        if not answered(groups):
            progress.lost, progress.failures = progress.lost + 1, progress.failures + len(errors)
            enough = progress.failures >= _LOST_EPISODES or row["rollout/faults"] == 1
            if progress.lost >= _LOST_STEPS and enough:
                self._give_up()

    def _give_up(self) -> None:
        """End a run whose environment does not work."""
        text = explain_failure(self.recipe.env.id, self.progress.failures, self.progress.last_error)
        self._event("failed", text=text)
        raise ValueError(f"{text}. events.jsonl in {self.run_folder.path} has the stack trace")

    def _act(self, verdict: Verdict, error: NonFiniteError | None) -> None:
        """Do what the guard says; numbers that are not finite end the run if it has nothing to say."""
        for incident in verdict.incidents:
            self._event(**incident.as_row())
            self.console.incident(incident)
        if verdict.action in ("restore", "stop") and not verdict.blames_env:
            self._restore()
        if verdict.action == "stop":
            self.status = "stopped"
        if error is not None and verdict.action not in ("restore", "stop"):
            raise error
        self.learner.rate_factor = verdict.learning_rate_factor

    def _restore(self) -> None:
        """Go back to the last good weights, critic and optimisers; the count of steps goes on."""
        good = self.progress.good
        self._event("restored", good=good)
        self.console.note(f"restoring the state of step {good}")
        with self.player.paused():
            load_learner(self.run_folder.checkpoints.at(good), self.learner)
        self.player.publish(self.progress.step)
        # What was played ahead was played by a policy that is given up.
        self.source.close()
        self.source = self._make_source({})
        self.progress.saved = [step for step in self.progress.saved if step <= good]
        if self.progress.reference > good:  # it was taken from what is now given up
            self.progress.reference = good
            self._load_reference()
        self.guard.restored(good)

    def _keep_promises(self, step: int) -> None:
        """What is due every so many steps: a new reference, an evaluation, a checkpoint."""
        recipe, last = self.recipe, step == self.recipe.train.steps or self.status != "finished"
        every = recipe.train.reference_every
        renew = every is not None and self.learner.reference is not None and step % every == 0
        if last or (recipe.eval.every and step % recipe.eval.every == 0):
            self._evaluate(samples="after" if last else "")
        self._promote()
        if renew:
            self.progress.reference = step
        if last or renew or step % recipe.checkpoint.every == 0 or self.progress.best == step:
            self._save()
        if renew:
            self._load_reference()

    def _promote(self) -> None:
        """A checkpoint is good once enough healthy steps have followed it; by then it is decided."""
        progress, decided = self.progress, self.progress.step - self.recipe.guard.patience
        good = [saved for saved in progress.saved if saved <= decided and self.guard.healthy_since(saved)]
        progress.good = max([progress.good, *good])
        progress.saved = [saved for saved in progress.saved if saved > decided]

    @cached_property
    def _held_out(self) -> list[EpisodeSpec]:
        return play_specs(self.recipe)

    def _evaluate(self, *, samples: str) -> None:
        specs = self._held_out
        if not specs:
            return
        if samples == "before" and (fewer := fewer_tasks(self.recipe, specs)):
            self.console.note(fewer)
        self.console.phase("evaluating")
        started = time.perf_counter()
        groups = self.player.play(specs, temperature=self.recipe.eval.temperature)
        step = self.progress.step
        row = {"step": step, **summarize(groups, tries=self.recipe.eval.tries)}
        row["time/evaluate"] = time.perf_counter() - started
        if self.recipe.log.rollouts:
            write_groups(self.run_folder.evaluation_file(step), groups[:_RECORDED])
        self.run_folder.evals.append(row)
        self.loggers.row(row)
        if row.get("eval/success", -1.0) > self.progress.best_success:
            self.progress.best, self.progress.best_success = step, row["eval/success"]
        self.console.evaluated(row)
        for group in groups[:_SAMPLES] if samples else ():
            self.console.sample(f"{samples}, held-out task {group.id}", group.trajectories[0])

    def _save(self, *, may_turn_out_good: bool = True) -> None:
        """Write a checkpoint, and remove those that nothing needs any more."""
        self.console.phase("saving")
        progress, run = self.progress, self.run_folder
        if may_turn_out_good:
            progress.saved = sorted({*progress.saved, progress.step})
        state = {"progress": vars(progress), "guard": self.guard.state_dict()}
        ahead = self.source.ahead() if progress.step else {}
        run.checkpoints.write(progress.step, lambda path: write_state(path, self.learner, state, ahead), run.marks())
        self._prune()

    def _prune(self) -> None:
        """Whichever of the newest checkpoints a run goes on from, it finds those that this one names."""
        checkpoints, keep = self.run_folder.checkpoints, self.recipe.checkpoint.keep
        needed: set[int] = set()
        for step in checkpoints.steps()[-keep:]:
            with suppress(OSError, ValueError):  # a broken one is passed over when a run is resumed, too
                progress = Progress(**read_state(checkpoints.path(step))["progress"])
                needed |= {progress.good, progress.best, *progress.saved}
                needed |= {progress.reference} if self.learner.reference is not None else set()
        checkpoints.prune(keep=keep, always=needed)

    def _begin(self, checkpoint: Path | None) -> None:
        """Go to where the run is, and have its history say that it goes on from there, and with which recipe."""
        run, config = self.run_folder, self.recipe.model_dump(mode="json")
        changes = plain_differences(run.config, config)
        if checkpoint is None:
            run.begin(config, command=sys.argv, changes=changes)
            return
        self._load(checkpoint)
        said = any(event.get("kind") == "stopped" for event in run.undone(self.progress.step))
        if self.guard.stopped and not said and not changes:
            self.status = "stopped"  # the run was cut before it could say so
        else:
            self.guard.stopped = ""  # who carries on after a stop knows why
        run.carry_on(self.progress.step, config, command=sys.argv, changes=changes)

    def _load(self, checkpoint: Path) -> None:
        state = read_state(checkpoint)
        self.progress = Progress(**state["progress"])
        self.guard.load_state_dict(state["guard"])
        load_learner(checkpoint, self.learner)
        self.learner.rate_factor = self.guard.learning_rate_factor
        if self.learner.reference is not None:
            self._load_reference()
        self.player.publish(self.progress.step)

    def _load_reference(self) -> None:
        """Take the reference from its checkpoint, always: a resumed run must have the same bits."""
        policy, step = self.learner.policy, self.progress.reference
        if step == 0 and policy.has_adapter:  # which began as nothing: the first policy is the base under it
            self.learner.reference = Reference.base_of(policy)
        else:
            self.learner.reference = Reference.of_folder(self.run_folder.checkpoints.at(step), like=policy)

    def _make_source(self, kept: dict[int, list[Group]]) -> Source:
        """Where episodes come from; `kept` are those of later steps that a checkpoint has."""
        if self._imitation is not None:
            return Demonstrated(self._imitation, self.player)
        if self.recipe.algorithm.max_lag == 0:
            return Played(self.player, self.recipe)
        return PlayedAhead(self.player, self.recipe, first=self.progress.step + 1, kept=kept)

    def _finish(self) -> dict[str, Any]:
        if self.status == "interrupted" and self.progress.step not in self.run_folder.checkpoints.steps():
            self._save(may_turn_out_good=False)  # where the user stops must not change what the guard restores
        if self.status == "finished" and self.progress.failures and not self.progress.answered:
            self._give_up()
        self._event(self.status, **({"reason": self.guard.stopped} if self.status == "stopped" else {}))
        return {"status": self.status, "step": self.progress.step, "folder": str(self.run_folder.path)}

    def _event(self, kind: str, **content: Any) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.run_folder.events.append({"step": self.progress.step, "time": now, "kind": kind, **content})
