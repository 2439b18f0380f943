"""Held-out tasks during a run: played, summarized for every learning policy, and recorded."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

from turnwise.evaluate.evaluation import fewer_tasks, mean_over_policies, play_all_policies, play_specs, summarize
from turnwise.evaluate.text_losses import read_losses
from turnwise.learn.assessment import text_losses
from turnwise.recipe.schema import Recipe
from turnwise.rollout.episode import EpisodeSpec
from turnwise.rollout.scheduler import at_seats
from turnwise.runs.folder import RunFolder
from turnwise.runs.ledger import write_groups
from turnwise.sources.judged import Jury
from turnwise.sources.player import Playing
from turnwise.train.first_policy import FirstPolicy
from turnwise.train.setup import make_renderer
from turnwise.train.text_strategy import TextStrategy, measure_exploitability
from turnwise.train.trainee import Trainee
from turnwise.train.win_rate import WinRate
from turnwise.types import Group

_RECORDED = 16
"""Held-out tasks per evaluation whose episodes are recorded, for the report; a judge needs all of the first ones."""


class HeldOut:
    """The held-out tasks of a recipe: `row, groups = held_out.play(step)`."""

    def __init__(
        self,
        recipe: Recipe,
        run: RunFolder,
        player: Playing,
        trainees: Sequence[Trainee],
        *,
        jury: Jury,
        records: bool = True,
    ) -> None:
        self._recipe, self._run, self._player, self._trainees = recipe, run, player, trainees
        self._jury, self._records = jury, records
        self._win_rate = WinRate(jury, run.evaluation_file(0))

    @cached_property
    def specs(self) -> list[EpisodeSpec]:
        """The episodes to play, the same every time."""
        return play_specs(self._recipe)

    @cached_property
    def _first_policies(self) -> dict[str, FirstPolicy]:
        return {trainee.name: FirstPolicy(trainee, self._run.checkpoints) for trainee in self._trainees}

    @property
    def caveat(self) -> str:
        """A warning if the environment has fewer tasks than the recipe asks for."""
        return fewer_tasks(self._recipe, self.specs) or ""

    def play(self, step: int, pairs: Sequence[Group] = ()) -> tuple[dict[str, Any], list[Group]]:
        """Play them all with the current policies, and measure `pairs`; the row goes to `evals.jsonl`."""
        started = time.perf_counter()
        groups, played = list[Group](), dict[str, list[Group]]()
        if self.specs:
            seats = {trainee.name: trainee.seats for trainee in self._trainees}
            groups, played = play_all_policies(self._player, self._recipe, self.specs, seats, self._jury)
        summaries: list[dict[str, float]] = []
        for trainee in self._trainees:
            summary = self._summarize(trainee, played[trainee.name]) if groups else {}
            summary |= self._measure(trainee, pairs) | self._compare(step, trainee, groups) | self._exploit(trainee)
            summaries.append(summary)
        row: dict[str, Any] = {"step": step, **mean_over_policies(self._recipe, summaries)}
        for trainee, summary in zip(self._trainees, summaries, strict=True):
            row |= {f"{trainee.prefix}{name}": value for name, value in summary.items()}
        row["time/evaluate"] = time.perf_counter() - started
        if not self._records:
            return row, groups
        kept = groups if step == 0 and self._jury.asked else groups[: _RECORDED if self._recipe.log.rollouts else 0]
        if kept:
            write_groups(self._run.evaluation_file(step), kept)
        self._run.evals.append(row)
        return row, groups

    def _summarize(self, trainee: Trainee, groups: list[Group]) -> dict[str, float]:
        settings = self._recipe.eval
        summary = summarize(groups, tries=settings.tries, measures=settings.measures)
        if "kl" not in settings.measures or self._recipe.stage == "imitation":  # which begins with random weights
            return summary
        return summary | self._first_policies[trainee.name].distance(groups)

    def _compare(self, step: int, trainee: Trainee, groups: list[Group]) -> dict[str, float]:
        """The judge's win rate against the answers of step 0."""
        if self._jury.asked is None or not groups:
            return {}
        if step == 0:
            self._win_rate.begin(groups)
            return {}
        return self._win_rate.measure(at_seats(groups, trainee.seats), trainee.seats)

    def _exploit(self, trainee: Trainee) -> dict[str, float]:
        """What a best response earns against the policy, in games that are small enough."""
        recipe, learner = self._recipe, trainee.learner
        if not recipe.eval.exploitability:
            return {}
        score = partial(trainee.policy.score, temperature=learner.temperature)
        strategy = TextStrategy(
            lambda batch: learner.in_parts(batch.to(trainee.policy.device), score),
            make_renderer(trainee.recipe, trainee.policy),
        )
        return measure_exploitability(recipe.env.source(recipe.env.held_out), strategy, trainee.seats)

    def _measure(self, trainee: Trainee, pairs: Sequence[Group]) -> dict[str, float]:
        """What the policy makes of held-out examples: of demonstrations their loss, `eval/nll`; of preferences, against
        the first policy, `eval/pairs_accuracy` and so on."""
        if not pairs:
            return {}
        learner = trainee.learner
        if self._recipe.stage == "imitation":
            return read_losses(list(text_losses(learner, pairs).values()))
        stays = learner.reference is not None and trainee.recipe.train.reference_every is None
        first = None if stays else self._first_policies[trainee.name].reference
        measures = learner.assess(pairs, against=first)
        return {f"eval/{name.replace('/', '_')}": value for name, value in measures.items()}
