"""Earlier selves as opponents: who is in the pools, how the learners fare against each, and who is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.evaluate.ratings import Result, rate
from turnwise.policy.text import TextPolicy
from turnwise.runs.checkpoints import Checkpoints
from turnwise.sources.cast import Cast, Pool, Voice
from turnwise.sources.player import Playing
from turnwise.train.state import Progress, load_weights
from turnwise.train.trainee import Trainee
from turnwise.types import Group, Trajectory

_WON, _DRAWN, _LOST = range(3)


class League:
    """The pools of a run. Its state is in the run's progress, so that a resumed run has the same opponents."""

    def __init__(self, cast: Cast, player: Playing, checkpoints: Checkpoints, trainees: Sequence[Trainee]) -> None:
        self._pools, self._player, self._checkpoints = cast.pools, player, checkpoints
        self._trainees = {trainee.name: trainee for trainee in trainees}
        self._learners = {
            seat: voice.name for seat, voice in cast.seats.items() if isinstance(voice, Voice) and voice.learns
        }

    def begin(self, progress: Progress) -> None:
        """Every pool starts with the first policy."""
        progress.pools = {seat: [0] for seat in self._pools}

    def fill(self, progress: Progress, *, afresh: bool = False) -> None:
        """Load snapshots, always from their checkpoints: a resumed run has the same ones."""
        for seat, pool in self._pools.items():
            if afresh:
                pool.held.clear()
            with self._player.paused():
                changed = pool.fill(progress.pools[seat], self._loader(pool))
            self._weigh(seat, pool, progress)
            self._player.replaced(changed)

    def record(self, groups: Sequence[Group], progress: Progress) -> None:
        """Count who won; opponents that are hard to beat are drawn more often from the next step on."""
        if not self._pools:
            return
        episodes: dict[str, dict[str, Trajectory]] = {}
        for group in groups:
            for each in group.trajectories:
                if each.turns and not each.stop.is_failure:
                    episodes.setdefault(each.episode, {})[each.seat] = each
        for seats in episodes.values():
            for seat, pool in self._pools.items():
                for own, learner in self._learners.items():
                    if seat in seats and own in seats:
                        self._count(progress, seats[own], seats[seat], self._label(learner, pool, progress))
        for seat, pool in self._pools.items():
            self._weigh(seat, pool, progress)

    def join(self, progress: Progress) -> bool:
        """Let the policies of this step into their pools, where that is due; whether any was."""
        due = {seat: pool for seat, pool in self._pools.items() if progress.step % pool.every == 0}
        for seat, pool in due.items():
            progress.pools[seat] = pool.after(progress.pools[seat], progress.step)
        return bool(due)

    def discard(self, name: str, good: int, progress: Progress) -> None:
        """A policy went back to step `good`: its later snapshots leave the pools."""
        for seat, pool in self._pools.items():
            if pool.of == name:
                kept = [step for step in progress.pools[seat] if step <= good]
                progress.pools[seat] = kept or [good]

    def table(self, progress: Progress) -> list[dict[str, Any]]:
        """The ratings of all selves so far, the best first; empty without a pool."""
        ratings = rate(
            Result(_until(player, progress.step), other, *counts)
            for rivals in progress.league.values()
            for player, others in rivals.items()
            for other, counts in others.items()
        )
        return [
            {
                "player": each.player,
                "rating": each.value,
                "low": each.interval.low,
                "high": each.interval.high,
                "games": each.games,
                "score": each.score,
            }
            for each in ratings
        ]

    def _loader(self, pool: Pool) -> Any:
        names = self._trainees[pool.of].learner.policy.trainable().keys()

        def load(step: int, policy: TextPolicy) -> None:
            parameters = {name: value for name, value in policy.model.named_parameters() if name in names}
            load_weights(self._checkpoints.at(step), pool.of, parameters)

        return load

    def _label(self, learner: str, pool: Pool, progress: Progress) -> str:
        """A learner has the name of the snapshot that it becomes."""
        return f"{learner}@{(progress.step // pool.every + 1) * pool.every}"

    def _count(self, progress: Progress, own: Trajectory, other: Trajectory, label: str) -> None:
        rivals = progress.league.setdefault(other.seat, {}).setdefault(label, {})
        counts = rivals.setdefault(other.turns[0].policy, [0, 0, 0])
        counts[_WON if own.reward > other.reward else _LOST if own.reward < other.reward else _DRAWN] += 1

    def _weigh(self, seat: str, pool: Pool, progress: Progress) -> None:
        """Weigh snapshots by the learners' losses to them since the newest one joined, and one game of two before."""
        if pool.draw == "uniform":
            return
        labels = {self._label(learner, pool, progress) for learner in self._learners.values()}
        rivals: list[Mapping[str, list[int]]] = [progress.league.get(seat, {}).get(label, {}) for label in labels]
        for step, voice in pool.held.items():
            counts = [each.get(voice.label, [0, 0, 0]) for each in rivals]
            lost = sum(each[_LOST] + each[_DRAWN] / 2 for each in counts)
            pool.weights[step] = (lost + 1) / (sum(map(sum, counts)) + 2)


def _until(player: str, step: int) -> str:
    """A learner that is not yet the snapshot it becomes has the name of the present step."""
    name, _, becomes = player.rpartition("@")
    return f"{name}@{min(int(becomes), step)}"
