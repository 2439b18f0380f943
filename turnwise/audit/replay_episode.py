"""Replays one recorded episode: the same actions in a fresh environment with the same seed."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from turnwise.audit.recorded import Recording
from turnwise.recipe.schema import Recipe
from turnwise.rollout.agents import Action, FunctionAgent, View
from turnwise.rollout.episode import EpisodeSpec, Limits
from turnwise.rollout.scheduler import Scheduler
from turnwise.trust import code_among, code_of, is_trusting
from turnwise.types import StopReason, Trajectory, Turn
from turnwise.waiting import finish

_CUT_BY_AGENT = (StopReason.MAX_TOKENS, StopReason.CONTEXT_FULL)


@dataclass(frozen=True, kw_only=True)
class ReplayedMoment:
    """The environment's answer at one point of an episode, then and now; None if there was none."""

    seat: str
    place: str
    """`turn 0`, or `end`."""
    action: str
    recorded: tuple[str, float | str] | None
    """The observation, and the reward of the turn that answers it (at the end: why it ended)."""
    replayed: tuple[str, float | str] | None

    @property
    def same_observation(self) -> bool:
        """Whether the observations are equal."""
        return _part(self.recorded, 0) == _part(self.replayed, 0)

    @property
    def same_outcome(self) -> bool:
        """Whether the reward (at the end: the reason) is the same."""
        return _part(self.recorded, 1) == _part(self.replayed, 1)


@dataclass(frozen=True, kw_only=True)
class ReplayedEpisode:
    """A replayed episode."""

    id: str
    moments: list[ReplayedMoment]
    deterministic: bool
    """Whether two fresh environments answered alike; checked only if the first differs from the record."""

    @property
    def same(self) -> bool:
        """Whether everything matches the record."""
        return all(moment.same_observation and moment.same_outcome for moment in self.moments)

    @property
    def conclusion(self) -> str:
        """The outcome in one line."""
        if self.same:
            return f"{self.id}: the environment answers as it was recorded"
        if not self.deterministic:
            return f"{self.id}: the environment is not deterministic: equal seeds and actions give different answers"
        return (
            f"{self.id}: the environment answers differently from what was recorded, but always in the same way: its "
            "code, its data or its settings have changed"
        )


def replay_episode(folder: Path, step: int, episode: str) -> ReplayedEpisode:
    """Replay an episode of a step and compare it turn by turn."""
    recording = Recording.open(folder)
    recording.require_ledgers([step])
    played = [trajectory for group in recording.groups(step) for trajectory in group.trajectories]
    seats = _seats_of(played, episode)
    recipe = recording.recipe_at(step)
    first = _play(recipe, seats)
    moments = _compare(seats, first)
    replayed = ReplayedEpisode(id=episode, moments=moments, deterministic=True)
    if replayed.same:
        return replayed
    again = ReplayedEpisode(id=episode, moments=_compare(first, _play(recipe, seats)), deterministic=True)
    return ReplayedEpisode(id=episode, moments=moments, deterministic=again.same)


def _seats_of(played: list[Trajectory], episode: str) -> dict[str, Trajectory]:
    """The trajectories of one episode by seat; a seat's own id names its episode too."""
    names = {trajectory.episode for trajectory in played if episode in (trajectory.id, trajectory.episode)}
    seats = {trajectory.seat: trajectory for trajectory in played if trajectory.episode in names}
    if not seats:
        near = difflib.get_close_matches(episode, [t.id for t in played], n=3, cutoff=0.0)
        raise ValueError(f"the step has no episode {episode!r}; it has {len(played)}, such as {', '.join(near)}")
    if any(trajectory.seed is None for trajectory in seats.values()):
        raise ValueError(f"{episode} was read from a file of chats; only what was played can be played again")
    return seats


def _play(recipe: Recipe, seats: Mapping[str, Trajectory]) -> dict[str, Trajectory]:
    one = next(iter(seats.values()))
    assert one.seed is not None
    _require_trust(recipe, one)
    spec = EpisodeSpec.of(recipe.env.source(one.kwargs), seed=one.seed, task=one.task)
    agent = FunctionAgent(lambda view: _recorded_action(seats[view.seat], view))
    limits = Limits(max_turns=recipe.rollout.max_turns, step_seconds=recipe.rollout.step_seconds)
    return {trajectory.seat: trajectory for trajectory in finish(_run(spec, agent, limits, recipe.seed))}


def _require_trust(recipe: Recipe, trajectory: Trajectory) -> None:
    """ValueError if the arguments on record name code that the recipe, which was trusted, does not."""
    known = code_of(recipe.model_dump(mode="json"))
    if not is_trusting() and (new := [name for name in code_among(trajectory.kwargs) if name not in known]):
        raise ValueError(
            f"{trajectory.id} was recorded with {new[0]}, code that the run's config does not name; "
            "read that code, then pass --trust to run it (docs/trust.md)"
        )


async def _run(spec: EpisodeSpec, agent: FunctionAgent, limits: Limits, seed: int) -> list[Trajectory]:
    async with Scheduler(concurrency=1, limits=limits, seed=seed) as scheduler:
        return await scheduler.run([spec], agent)


def _recorded_action(trajectory: Trajectory, view: View) -> Action:
    """The seat's recorded action; ends an episode that outlasts the recording."""
    cut = trajectory.stop if trajectory.stop in _CUT_BY_AGENT else None
    if view.turn >= len(trajectory.turns):
        return Action(text="", stop=cut or StopReason.INVALID)
    turn = trajectory.turns[view.turn]
    is_last = view.turn == len(trajectory.turns) - 1
    # The ledger has the text of a truncated turn, but the environment never saw it.
    return Action(text=turn.action, stop=cut if is_last and not turn.env_seconds else None)


def _compare(recorded: Mapping[str, Trajectory], replayed: Mapping[str, Trajectory]) -> list[ReplayedMoment]:
    moments: list[ReplayedMoment] = []
    for seat, then in recorded.items():
        now = replayed.get(seat)
        pairs = zip_longest(then.turns, now.turns if now is not None else [])
        moments += [_turn(seat, place, *pair) for place, pair in enumerate(pairs)]
        ends = (then.final_observation, then.stop.value), now and (now.final_observation, now.stop.value)
        moments.append(ReplayedMoment(seat=seat, place="end", action="", recorded=ends[0], replayed=ends[1]))
    return moments


def _turn(seat: str, place: int, then: Turn | None, now: Turn | None) -> ReplayedMoment:
    said = then or now
    return ReplayedMoment(
        seat=seat,
        place=f"turn {place}",
        action=said.action if said is not None else "",
        # A judge's reward is not the environment's to repeat.
        recorded=then and (then.observation, then.reward_parts.get("env", then.reward)),
        replayed=now and (now.observation, now.reward),
    )


def _part(said: tuple[str, float | str] | None, place: int) -> float | str | None:
    return None if said is None else said[place]
