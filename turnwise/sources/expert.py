"""The environment's expert as a member of every group, compared with the policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from turnwise.ranks import Ranks
from turnwise.recipe.schema import Recipe
from turnwise.rollout.agents import OracleAgent
from turnwise.rollout.episode import EpisodeSpec
from turnwise.rollout.scheduler import in_groups
from turnwise.sources.cursor import sampling_plan
from turnwise.sources.demonstrations import longest_sequence, require_expert, spell_turns
from turnwise.sources.player import Playing
from turnwise.types import Group, Trajectory
from turnwise.waiting import LoopRunner


class Expert:
    """Plays tasks as the environment's expert does, in the tokens that a model would have sampled.

    These tokens were not sampled, so their log-probs are unknown. Episodes that fail or are too long are left out.
    """

    def __init__(self, player: Playing, ranks: Ranks, *, members: int, first: int) -> None:
        self._player, self._ranks, self._indices = player, ranks, range(first, first + members)
        self._scheduler, self._runner = player.make_scheduler(), LoopRunner()

    @classmethod
    def of(cls, recipe: Recipe, player: Playing, ranks: Ranks) -> Expert | None:
        """The recipe's expert, if it has one."""
        if not recipe.source.expert:
            return None
        require_expert(recipe.env, fix="set source.expert=0")
        plan = sampling_plan(recipe.algorithm)
        return cls(player, ranks, members=recipe.source.expert, first=plan.longest)

    def join(self, tasks: Sequence[EpisodeSpec], groups: Sequence[Group]) -> None:
        """Add the expert's episodes to the groups of these tasks."""
        by_id = {group.id: group for group in groups}
        specs = [replace(task, index=index) for task in self._ranks.share(tasks) for index in self._indices]
        played = in_groups(self._runner.run(self._play(specs)))
        # An expert may fail on one rank and not on another, so each episode is played once.
        for group in [group for rank in self._ranks.gather(played) for group in rank]:
            if group.id in by_id:
                by_id[group.id].trajectories += [each for each in group.trajectories if self._spells(each)]

    def close(self) -> None:
        """Close the environments."""
        self._scheduler.close()
        self._runner.close()

    async def _play(self, specs: Sequence[EpisodeSpec]):
        return [episode async for episode in self._scheduler.episodes(specs, OracleAgent())]

    def _spells(self, trajectory: Trajectory) -> bool:
        """Fill in the tokens of an episode; returns whether it can be learned from."""
        spell_turns(trajectory.turns, self._player.renderer)
        whole = bool(trajectory.turns) and not trajectory.stop.is_failure
        return whole and longest_sequence(trajectory.turns) <= self._player.capacity
