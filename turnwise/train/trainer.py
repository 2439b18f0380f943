"""The training loop: play → prepare → learn → publish → guard → record.

A run is a function of (recipe, seed). Its checkpoints hold all its state, so a run that was killed and resumed ends
with the same bits as one that was not. Every policy that learns is a `Trainee`; most runs have one.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from turnwise.console.samples import episode_text
from turnwise.console.screen import RunConsole
from turnwise.guard.guard import Verdict
from turnwise.learn.token_ledger import write_tokens
from turnwise.policy.text import TextPolicy
from turnwise.ranks import ALONE, Ranks, on_first
from turnwise.recipe.loading import plain_differences
from turnwise.recipe.schema import Log, Recipe
from turnwise.recipe.seating import trained_policies
from turnwise.runs.folder import RunFolder
from turnwise.runs.ledger import write_groups
from turnwise.runs.loggers import Loggers
from turnwise.sources.imitation import Imitation
from turnwise.sources.judged import Jury
from turnwise.sources.making import make_source
from turnwise.sources.rollout_metrics import explain_ignored, find_ignored, find_traceback, require_room
from turnwise.sources.source import Source
from turnwise.train.casting import make_cast, make_player
from turnwise.train.exchange import Exchange
from turnwise.train.garbage import loaded_objects_set_aside
from turnwise.train.held_out import HeldOut
from turnwise.train.interrupts import Interrupts
from turnwise.train.league import League
from turnwise.train.state import Progress, load_learner, read_ahead, read_state, steps_needed, write_state
from turnwise.train.trainee import Lesson, Trainee, guard_states
from turnwise.train.watch import Watch
from turnwise.types import Group

Status = Literal["running", "finished", "interrupted", "stopped"]

PUBLISHED = "published"
"""The folder of a run where engines in other processes find the newest weights; it is removed at the end."""
_SAMPLES = 3
"""Held-out episodes shown before and after training."""
_SHOWN_ERRORS = 3
"""Different environment errors shown on screen; `events.jsonl` has one for every step."""


class Trainer:
    """One stage of a run, from its first step or from a checkpoint: `Trainer(...).run()`."""

    def __init__(
        self,
        recipe: Recipe,
        run: RunFolder,
        policies: Mapping[str, TextPolicy],
        *,
        console: RunConsole,
        imitation: Imitation | None = None,
        checkpoint: Path | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """Every rank has its own policies and a console; only rank 0 writes to the run folder."""
        self.recipe, self.run_folder, self.console, self.ranks = recipe, run, console, ranks
        self._writes = ranks.rank == 0
        self.progress = Progress()
        self.status: Status = "running"
        # Demonstrations were not sampled, so they have no temperature.
        temperature = recipe.rollout.temperature if imitation is None and recipe.source.plays else 1.0
        self.cast = make_cast(recipe, policies, ranks=ranks)
        self.trainees = [
            Trainee(recipe, name, policies[name], temperature=temperature, ranks=ranks, mixture=self.cast.mixture(name))
            for name in trained_policies(recipe)
        ]
        self.player = make_player(recipe, self.cast, note=console.note, ranks=ranks, folder=run.path / PUBLISHED)
        for trainee in self.trainees:
            trainee.learner.hold = self.player.paused
        self.exchange = Exchange(recipe.exchange, self.trainees)
        self.league = League(self.cast, self.player, run.checkpoints, self.trainees)
        self.jury = Jury.of(recipe, ranks)
        self.held_out = HeldOut(recipe, run, self.player, self.trainees, jury=self.jury, records=self._writes)
        self._begin(checkpoint)
        self.loggers = Loggers.of(recipe.log if self._writes else Log(), run)
        self._imitation, self._told = imitation, set[str]()
        measured = read_state(checkpoint)["source"] if checkpoint is not None else {}
        self.source = self._make_source(measured, read_ahead(checkpoint) if checkpoint is not None else {})

    def run(self) -> dict[str, Any]:
        """Train to the last step, or until the user or the guard stops it; returns a summary."""
        with Interrupts(self.console.note if self.ranks.size == 1 else None) as interrupts, loaded_objects_set_aside():
            try:
                if self.progress.step == 0:
                    self.league.begin(self.progress)
                    self._save()
                    self.league.fill(self.progress, afresh=True)
                    self._evaluate(samples="before")
                while self.status == "running" and self.progress.step < self.recipe.train.steps:
                    if any(self.ranks.gather(interrupts.requested)):
                        self.status = "interrupted"
                    else:
                        self._step()
                return self._finish()
            finally:
                self.source.close()
                self.player.close()
                self.loggers.close()

    def _step(self) -> None:
        step = self.progress.step + 1
        watch, busy = Watch(), self.player.busy_seconds
        self.console.phase("playing")
        with watch.timing("rollout"):
            groups = self.source.groups(step)
        if step == 1:
            require_room(groups, self.recipe.env.id, self.recipe.rollout.context)
        playing = self.player.busy_seconds - busy
        with watch.timing("record"):
            self._write_groups(step, groups)
        self.league.record(groups, self.progress)
        lessons = [trainee.learn(groups, step, watch, self.console.phase) for trainee in self.trainees]
        with watch.timing("publish"):
            self.source.publish(step)
        tokens = sum(lesson.report.metrics.get("train/tokens", 0) for lesson in lessons)
        # All ranks judge rank 0's numbers, so that their guards agree.
        shared = self.ranks.broadcast(self.source.metrics() | watch.metrics(groups, tokens=tokens, playing=playing))
        for trainee, lesson in zip(self.trainees, lessons, strict=True):
            lesson.report = trainee.learner.ranks.broadcast(lesson.report)
        verdicts = [
            trainee.guard.judge(step, {"step": step, **lesson.metrics, **shared})
            for trainee, lesson in zip(self.trainees, lessons, strict=True)
        ]
        self.progress.step = step
        self._record(lessons, groups, shared)
        for trainee, lesson, verdict in zip(self.trainees, lessons, verdicts, strict=True):
            self._act(trainee, lesson, verdict)
        if self.exchange.is_due(step):
            self._exchange()
        self._run_periodic_work(step)

    def _record(self, lessons: Sequence[Lesson], groups: list[Group], shared: dict[str, float]) -> None:
        row: dict[str, Any] = {"step": self.progress.step}
        for trainee, lesson in zip(self.trainees, lessons, strict=True):
            row |= {f"{trainee.prefix}{name}": value for name, value in lesson.metrics.items()}
        row |= shared
        if self._writes:
            self._write(row, lessons)
        self.loggers.row(row)
        self._tell_ignored(groups)
        self._count_faults(groups, share=lessons[0].played["rollout/faults"])
        self.console.step(row, guard="no sound episode" if self.progress.faults.lost else guard_states(self.trainees))

    def _write_groups(self, step: int, groups: list[Group]) -> None:
        """Record the episodes before they are learnt from, so that they can be read meanwhile.

        If the step does not end, no journal knows of them, and resuming removes them.
        """
        every = self.recipe.log.rollouts
        if self._writes and every and step % every == 0:
            write_groups(self.run_folder.rollouts_file(step), groups)

    def _write(self, row: dict[str, Any], lessons: Sequence[Lesson]) -> None:
        step = self.progress.step
        self.run_folder.metrics.append(row)
        for trainee, lesson in zip(self.trainees, lessons, strict=True):
            for turn in lesson.report.turns:
                self.run_folder.turns.append({"step": step, **self._whose(trainee), **turn})
        if tokens := [line for lesson in lessons for line in lesson.tokens]:
            write_tokens(self.run_folder.tokens_file(step), tokens)

    def _tell_ignored(self, groups: list[Group]) -> None:
        """Say once what the calls of a program ask for in vain."""
        if (ignored := find_ignored(groups)) and "ignored" not in self._told:
            self._told.add("ignored")
            self._event("ignored", text=explain_ignored(ignored))
            self.console.note(explain_ignored(ignored))

    def _count_faults(self, groups: list[Group], *, share: float) -> None:
        faults = self.progress.faults
        errors = faults.add(groups)
        if not errors:
            return
        self._event("faults", share=share, last_error=errors[-1], traceback=find_traceback(groups))
        if errors[-1] not in self._told and len(self._told) < _SHOWN_ERRORS:
            self._told.add(errors[-1])
            self.console.note(f"an episode failed: {errors[-1]}")
        if faults.is_enough(share=share):
            self._give_up()

    def _give_up(self) -> None:
        """End a run whose environment does not work."""
        text = self.progress.faults.explain(self.recipe.env.id)
        self._event("failed", text=text)
        raise ValueError(f"{text}. events.jsonl in {self.run_folder.path} has the stack trace")

    def _act(self, trainee: Trainee, lesson: Lesson, verdict: Verdict) -> None:
        """Act on a guard's verdict; without one, non-finite numbers end the run."""
        for incident in verdict.incidents:
            self._event(**incident.as_row(), **self._whose(trainee))
            self.console.incident(incident, policy=self._whose(trainee).get("policy", ""))
        if verdict.action in ("restore", "stop") and not verdict.blames_env:
            self._restore(trainee)
        if verdict.action == "stop":
            self.status = "stopped"
        if lesson.error is not None and verdict.action not in ("restore", "stop"):
            raise lesson.error
        trainee.learner.rate_factor = verdict.learning_rate_factor

    def _restore(self, trainee: Trainee) -> None:
        """Go back to a policy's last good weights, critic and optimisers; the step count continues."""
        good = trainee.standing.good
        self._event("restored", good=good, **self._whose(trainee))
        self.console.note(f"restoring the state of step {good}")
        with self.player.paused():
            trainee.restore(self.run_folder.checkpoints)
        self.player.publish(self.progress.step)
        self.league.discard(trainee.name, good, self.progress)
        self.league.fill(self.progress)
        # The discarded policy played the episodes that were played ahead.
        self.source.close()
        self.source = self._make_source(self.source.state_dict())

    def _exchange(self) -> None:
        with self.player.paused():
            swapped = self.exchange.take()
        self.player.publish(self.progress.step)
        self._event("exchanged", **swapped)

    def _run_periodic_work(self, step: int) -> None:
        """Work due every few steps: an evaluation, a new reference, a new pool snapshot, a checkpoint."""
        recipe, last = self.recipe, step == self.recipe.train.steps or self.status != "running"
        if last or (recipe.eval.every and step % recipe.eval.every == 0):
            self._evaluate(samples="after" if last else "")
        renewed = [trainee for trainee in self.trainees if trainee.renews_reference(step)]
        for trainee in self.trainees:
            trainee.promote(step)
        for trainee in renewed:
            trainee.standing.reference = step
        joined = self.league.join(self.progress)
        if (joined or last) and (table := self.league.table(self.progress)):
            self._event("league", table=table)
        due = last or step % recipe.checkpoint.every == 0 or self.progress.best == step
        if due or renewed or joined:
            self._save()
        for trainee in renewed:
            trainee.load_reference(self.run_folder.checkpoints)
        self.league.fill(self.progress)

    def _evaluate(self, *, samples: str) -> None:
        pairs = self.source.held_out()
        if not self.held_out.specs and not pairs:
            return
        if samples == "before" and self.held_out.caveat:
            self.console.note(self.held_out.caveat)
        self.console.phase("evaluating")
        step = self.progress.step
        row, groups = self.held_out.play(step, pairs)
        self.loggers.row(row)
        success = row.get(f"{self.trainees[0].prefix}eval/success", -1.0)
        if success > self.progress.best_success:
            self.progress.best, self.progress.best_success = step, success
        self.console.evaluated(row)
        shown = [episode_text(group.trajectories[0], title=f"held-out task {group.id}") for group in groups[:_SAMPLES]]
        self.loggers.episodes(step, [text.plain for text in shown])
        for group in groups[:_SAMPLES] if samples else ():
            self.console.sample(f"{samples}, held-out task {group.id}", group.trajectories[0])

    def _save(self, *, may_turn_out_good: bool = True) -> None:
        """Write a checkpoint, and remove those that are no longer needed."""
        self.console.phase("saving")
        step, run = self.progress.step, self.run_folder
        for trainee in self.trainees if may_turn_out_good else ():
            trainee.standing.saved = sorted({*trainee.standing.saved, step})
        policies = {trainee.name: trainee.state_dict() for trainee in self.trainees}
        state = {"progress": asdict(self.progress), "policies": policies, "source": self.source.state_dict()}
        learners = [trainee.learner for trainee in self.trainees]
        ahead = self.source.ahead() if step else {}
        marks = run.marks() if self._writes else None
        run.checkpoints.write(
            step, lambda path: write_state(path, learners, state, ahead, ranks=self.ranks), marks, ranks=self.ranks
        )
        if self._writes:
            self._prune()

    def _prune(self) -> None:
        """Remove old checkpoints, but keep those that any of the newest ones refers to."""
        checkpoints, keep = self.run_folder.checkpoints, self.recipe.checkpoint.keep
        # With the first policy; the loss of demonstrations needs no other.
        compared = self.recipe.stage != "imitation" and self.source.held_out()
        compared = compared or "kl" in self.recipe.eval.measures
        needed = {0} if compared else set[int]()
        for step in checkpoints.steps()[-keep:]:
            with suppress(OSError, ValueError):  # resuming skips a broken one too
                needed |= steps_needed(read_state(checkpoints.path(step)))
        checkpoints.prune(keep=keep, always=needed)

    def _begin(self, checkpoint: Path | None) -> None:
        """Restore the run's state, and record in its history where it resumes and with which recipe."""
        run, config = self.run_folder, self.recipe.model_dump(mode="json")
        changes = plain_differences(run.config, config)
        if checkpoint is None:
            if self._writes:
                run.begin(config, command=sys.argv, changes=changes)
            return
        self._load(checkpoint)
        said = any(event.get("kind") == "stopped" for event in run.undone(self.progress.step))
        if any(trainee.guard.stopped for trainee in self.trainees) and not said and not changes:
            self.status = "stopped"  # the run ended before it could record this
        else:
            for trainee in self.trainees:
                trainee.guard.stopped = ""  # the user who resumes knows about the stop
        self.ranks.gather(self.progress.step)  # wait until all ranks have read the checkpoint and the journals
        if self._writes:
            run.carry_on(self.progress.step, config, command=sys.argv, changes=changes)

    def _load(self, checkpoint: Path) -> None:
        state = read_state(checkpoint)
        self.progress = Progress.of(state["progress"])
        for trainee in self.trainees:
            trainee.load_state_dict(state["policies"][trainee.name])
            load_learner(checkpoint, trainee.learner)
            trainee.load_reference(self.run_folder.checkpoints)
        self.player.publish(self.progress.step)
        self.league.fill(self.progress, afresh=True)

    def _make_source(self, measured: dict[str, Any], kept: dict[int, list[Group]] | None = None) -> Source:
        """The source of groups; `kept` are a checkpoint's groups of later steps."""
        first, ranks, jury, shown = self.progress.step + 1, self.ranks, self.jury, self._imitation
        return make_source(
            self.recipe, self.player, imitation=shown, first=first, kept=kept, state=measured, ranks=ranks, jury=jury
        )

    def _finish(self) -> dict[str, Any]:
        self.status = "finished" if self.status == "running" else self.status
        is_saved = on_first(self.ranks, lambda: self.progress.step in self.run_folder.checkpoints.steps())
        if self.status == "interrupted" and not is_saved:
            self._save(may_turn_out_good=False)  # the user's stop must not change what the guard restores
        if self.status == "finished" and self.progress.faults.failures and not self.progress.faults.answered:
            self._give_up()
        reasons = [trainee.guard.stopped for trainee in self.trainees if trainee.guard.stopped]
        self._event(self.status, **({"reason": "; ".join(reasons)} if self.status == "stopped" else {}))
        return {"status": self.status, "step": self.progress.step, "folder": str(self.run_folder.path)}

    def _whose(self, trainee: Trainee) -> dict[str, str]:
        """The policy's name for a journal line, if several learn."""
        return {"policy": trainee.name} if trainee.prefix else {}

    def _event(self, kind: str, **content: Any) -> None:
        if not self._writes:
            return
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.run_folder.events.append({"step": self.progress.step, "time": now, "kind": kind, **content})
