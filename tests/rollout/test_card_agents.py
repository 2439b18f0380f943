"""Card players as agents at a seat: they see what the seat may know, and nothing else is asked of the environment."""

import asyncio

import pytest

from tests.envs.broken import Sound
from turnwise.recipe.schema import SeatChoice
from turnwise.recipe.seating import AGENTS
from turnwise.rollout.agents import Agent
from turnwise.rollout.card_agents import CARD_AGENTS
from turnwise.rollout.episode import EpisodeSpec
from turnwise.rollout.scheduler import Scheduler
from turnwise.train.casting import make_agent
from turnwise.types import StopReason, Trajectory


def play(spec: EpisodeSpec, *agents: Agent) -> list[Trajectory]:
    async def run():
        async with Scheduler() as scheduler:
            return await scheduler.run([spec], {f"player_{place}": agent for place, agent in enumerate(agents)})

    return asyncio.run(run())


def test_every_player_sits_at_a_seat_by_its_name_and_plays_legally():
    names = list(CARD_AGENTS)
    assert set(names) <= set(AGENTS)
    for first, second in zip(names, [*names[1:], names[0]], strict=True):
        made = [
            make_agent("seat", SeatChoice(agent=name, options={"iterations": 3} if "mcts" in name else {}))
            for name in (first, second)
        ]
        spec = EpisodeSpec(env="cards/dhumbal", kwargs={"players": 2, "max_turns": 12}, seed=1)
        trajectories = play(spec, *made)
        assert [each.stop for each in trajectories] == [StopReason.DONE] * 2, trajectories[0].info
        assert all(turn.valid for each in trajectories for turn in each.turns)
        assert sum(each.reward for each in trajectories) == pytest.approx(0)
        assert sum(each.success for each in trajectories) == 1


def test_options_are_checked_before_a_run():
    with pytest.raises(ValueError, match="cards/dhumbal:ismcts: unknown option 'depth'; it takes"):
        make_agent("seat", SeatChoice(agent="cards/dhumbal:ismcts", options={"depth": 3}))


def test_a_card_player_elsewhere_says_where_it_plays():
    async def run():
        async with Scheduler() as scheduler:
            return await scheduler.run([EpisodeSpec(env=Sound)], CARD_AGENTS["cards/dhumbal:aggressive"]())

    (trajectory,) = asyncio.run(run())
    assert "plays cards/dhumbal only" in trajectory.info["error"]
