"""The agents that need no model."""

import asyncio

import pytest

from tests.envs.broken import Sound
from turnwise.rollout.agents import Agent, ConstantAgent, FunctionAgent, HumanAgent, OracleAgent, RandomAgent
from turnwise.rollout.episode import EpisodeSpec, tries
from turnwise.rollout.scheduler import Scheduler
from turnwise.types import StopReason


def play(specs, agent):
    async def run():
        async with Scheduler() as scheduler:
            return await scheduler.run(specs, agent)

    return asyncio.run(run())


def test_the_oracle_wins_every_episode():
    trajectories = play([EpisodeSpec(env=Sound, seed=seed) for seed in range(20)], OracleAgent())
    assert [(trajectory.success, len(trajectory.turns)) for trajectory in trajectories] == [(True, 1)] * 20


def test_random_tries_at_one_task_differ_from_each_other_but_repeat():
    specs = tries(EpisodeSpec(env=Sound, seed=3), 8)
    first, again = play(specs, RandomAgent()), play(specs, RandomAgent())
    played = [[turn.action for turn in trajectory.turns] for trajectory in first]
    assert played == [[turn.action for turn in trajectory.turns] for trajectory in again]
    assert len({tuple(actions) for actions in played}) > 4
    assert len({trajectory.reward for trajectory in first}) == 2


def test_the_constant_agent_says_one_thing():
    (trajectory,) = play([EpisodeSpec(env=Sound, seed=0)], ConstantAgent(text="pass"))
    assert [(turn.action, turn.valid) for turn in trajectory.turns] == [("pass", False)] * 4


def test_a_function_becomes_an_agent():
    (trajectory,) = play([EpisodeSpec(env=Sound, seed=0)], FunctionAgent(lambda view: f"pass {view.turn}"))
    assert [turn.action for turn in trajectory.turns] == ["pass 0", "pass 1", "pass 2", "pass 3"]


def test_an_oracle_where_there_is_none_ends_the_episode_and_says_so():
    class NoOracle(Sound):
        def oracle(self):
            raise NotImplementedError("NoOracle has no oracle()")

    (trajectory,) = play([EpisodeSpec(env=NoOracle)], OracleAgent())
    assert trajectory.stop is StopReason.ENV_ERROR
    assert "has no oracle()" in trajectory.info["error"]


def test_a_person_sees_the_observation_and_leaves_at_the_end_of_input():
    shown, lines = [], iter([r"\boxed{7}"])

    def read(prompt):
        shown.append(prompt)
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    (trajectory,) = play([EpisodeSpec(env=Sound)], HumanAgent(read=read, write=shown.append))
    assert shown == ["Guess a digit from 0 to 4.", "agent> ", r"Answer like \boxed{3}.", "agent> "]
    assert (trajectory.stop, len(trajectory.turns)) == (StopReason.INVALID, 1)


def test_an_agent_without_act_says_what_is_missing():
    with pytest.raises(NotImplementedError, match="must define `async def act"):
        asyncio.run(Agent().act(None))  # type: ignore[arg-type]
