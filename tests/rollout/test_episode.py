"""One episode: what a turn holds, how episodes end, who is paid."""

import asyncio
import math
from dataclasses import replace
from typing import Any

import pytest

from tests.rollout.faulty import Duel, RaisingClose, Walk
from turnwise.envs import Env
from turnwise.rollout.agents import Action, Agent, ConstantAgent, FunctionAgent
from turnwise.rollout.episode import EpisodeSpec, Limits, tries
from turnwise.rollout.scheduler import Scheduler
from turnwise.types import StopReason


def play(env, agents, *, spec=None, **limits):
    async def run():
        async with Scheduler(limits=Limits(**limits)) as scheduler:
            return await scheduler.run([spec or EpisodeSpec(env=env, seed=1)], agents), scheduler.stats

    return asyncio.run(run())


class Tokens(Agent):
    """Acts with tokens, as a policy does; stops for want of context at turn `full`."""

    def __init__(self, full: int = 99, text: str = "go") -> None:
        self.full, self.text, self.ended = full, text, []

    async def act(self, view):
        if view.turn == self.full:
            return Action(text=self.text, sampled_ids=[9] if self.text else [], stop=StopReason.CONTEXT_FULL)
        return Action(
            text="go", prompt_ids=[1, view.turn], sampled_ids=[5, 2], logprobs=[-0.5, -0.25], policy_version=7
        )

    async def end(self, trajectory):
        trajectory.final_ids = [3, 4]
        self.ended.append(trajectory.id)


def test_a_turn_holds_what_was_seen_said_sampled_and_earned():
    agent = Tokens()
    (trajectory,), _ = play(Walk, agent)
    env = Walk()
    first, _ = env.reset(seed=1)
    replies = [env.step("go") for _ in range(3)]
    assert [turn.observation for turn in trajectory.turns] == [first, replies[0][0], replies[1][0]]
    assert [turn.reward for turn in trajectory.turns] == [reply[1] for reply in replies]
    assert [turn.state_key for turn in trajectory.turns] == ["start", "turn 1", "turn 2"]
    assert [list(turn.prompt_ids) for turn in trajectory.turns] == [[1, 0], [1, 1], [1, 2]]
    assert trajectory.turns[2].sampled_ids == [5, 2]
    assert trajectory.turns[2].logprobs == [-0.5, -0.25]
    assert trajectory.turns[2].policy_version == 7
    assert (trajectory.stop, trajectory.terminated, trajectory.truncated) == (StopReason.DONE, True, False)
    assert (trajectory.final_observation, trajectory.final_ids) == (replies[2][0], [3, 4])
    assert (trajectory.id, trajectory.seed, agent.ended) == ("Walk:1/0", 1, ["Walk:1/0"])


def test_the_turn_limit_truncates_and_keeps_the_last_observation():
    (trajectory,), _ = play(Walk, ConstantAgent(text="go"), max_turns=2)
    assert (trajectory.stop, trajectory.terminated, trajectory.truncated) == (StopReason.MAX_TURNS, False, True)
    assert len(trajectory.turns) == 2
    env = Walk()
    env.reset(seed=1)
    assert trajectory.final_observation == [env.step("go")[0] for _ in range(2)][1]


def test_an_episode_that_ends_by_itself_at_the_limit_is_done():
    (trajectory,), _ = play(Walk, ConstantAgent(text="go"), max_turns=3)
    assert (trajectory.stop, trajectory.terminated) == (StopReason.DONE, True)


class Cut(Walk):
    def step(self, action):
        observation, reward, _, _, info = super().step(action)
        return observation, reward, False, True, info


def test_an_environment_that_truncates_is_not_taken_for_one_that_terminates():
    (trajectory,), _ = play(Cut, ConstantAgent(text="go"))
    assert (trajectory.stop, trajectory.terminated, trajectory.truncated) == (StopReason.DONE, False, True)


class DoneAndCut(Walk):
    def step(self, action):
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, terminated, info


def test_an_environment_that_says_both_has_terminated():
    (trajectory,), _ = play(DoneAndCut, ConstantAgent(text="go"))
    assert (trajectory.stop, trajectory.terminated, trajectory.truncated) == (StopReason.DONE, True, False)


@pytest.mark.parametrize(("text", "turns"), [("half a sen", 3), ("", 2)])
def test_an_agent_that_cannot_go_on_ends_the_episode_without_another_step(text, turns):
    (trajectory,), _ = play(lambda: Walk(length=9), Tokens(full=2, text=text), spec=None)
    assert (trajectory.stop, trajectory.truncated) == (StopReason.CONTEXT_FULL, True)
    assert len(trajectory.turns) == turns
    assert trajectory.turns[-1].action == (text or "go")
    assert [turn.valid for turn in trajectory.turns] == [True, True, False][:turns]
    assert trajectory.final_observation.endswith("after go")


def test_invalid_actions_are_marked_on_their_turn():
    (trajectory,), _ = play(Walk, FunctionAgent(function=lambda view: "bad" if view.turn == 1 else "go"))
    assert [turn.valid for turn in trajectory.turns] == [True, False, True]


def test_each_seat_has_its_own_agent_turns_and_rewards():
    agents = {"white": ConstantAgent(text="w"), "black": ConstantAgent(text="b")}
    (white, black), stats = play(Duel, agents)
    assert (white.id, white.seat, black.id, black.seat) == ("Duel:1/0/white", "white", "Duel:1/0/black", "black")
    assert [(turn.observation, turn.action) for turn in white.turns] == [("white, begin", "w"), ("turn 2", "w")]
    assert [(turn.observation, turn.action) for turn in black.turns] == [("turn 1", "b")]
    assert [turn.reward for turn in white.turns] == [1.0, 1.0]
    # Before its first turn black earned 0.25, with it 2, and after it 0.25 more.
    assert [turn.reward for turn in black.turns] == [2.5]
    assert (white.reward, black.reward) == (2.0, 2.5)
    assert white.final_observation == black.final_observation == "turn 3"
    assert (stats.episodes, stats.turns) == (1, 3)


def test_a_view_tells_what_the_seat_earned_since_its_last_turn():
    seen = []

    def watch(view):
        seen.append((view.seat, view.turn, view.reward))
        return "x"

    play(Duel, FunctionAgent(function=watch))
    assert seen == [("white", 0, 0.0), ("black", 0, 0.25), ("white", 1, 1.0)]


def test_an_environment_that_fails_to_close_is_counted_but_its_episode_is_whole():
    (trajectory,), stats = play(RaisingClose, ConstantAgent(text="x"))
    assert (trajectory.stop, len(trajectory.turns)) == (StopReason.DONE, 3)
    assert stats.faults == {("RaisingClose", "env"): 1}
    assert "already gone" in stats.last_error["RaisingClose"]


class ParsesTask(Env):
    def reset(self, seed=None, task=None):
        return f"task {task}", {}

    def step(self, action):
        return "", 1.0, True, False, {"reward_parts": {"format": 0.25, "answer": 0.75}, "success": False}


def test_task_reward_parts_and_success_are_carried_through():
    spec = EpisodeSpec(env=ParsesTask, task={"question": 7}, group="q7", index=3)
    (trajectory,), _ = play(None, ConstantAgent(text="x"), spec=spec)
    assert trajectory.turns[0].observation == "task {'question': 7}"
    assert trajectory.turns[0].reward_parts == {"format": 0.25, "answer": 0.75}
    assert (trajectory.task, trajectory.id, trajectory.success) == ({"question": 7}, "q7/3", False)
    assert math.isclose(trajectory.reward, 1.0)


def test_tries_differ_in_their_index_alone():
    spec = EpisodeSpec(env="game/hanoi-easy", seed=2)
    assert [(each.id, each.seed) for each in tries(spec, 2)] == [("game/hanoi-easy:2/0", 2), ("game/hanoi-easy:2/1", 2)]


def test_arguments_and_task_belong_to_the_name_of_a_group():
    plain = EpisodeSpec(env="game/hanoi-easy", seed=2)
    others = [{"kwargs": {"split": "test"}}, {"kwargs": {"split": "validation"}}, {"task": 7}, {"task": (object(),)}]
    names = [replace(plain, **other).group_id for other in others]
    assert len({plain.group_id, *names}) == 5
    assert names[0] == "game/hanoi-easy:2#03d83a10"
    assert names[3] == replace(plain, task=(object(),)).group_id  # where an object lies in memory is no part of it


class CutDuel(Duel):
    """White has the word when the game is cut after black's turn."""

    def step(self, action):
        observation, reward, _, _, info = super().step(action)
        return observation, reward, False, self.turn == 2, info


def test_the_last_observation_of_a_game_that_was_cut_is_its_readers_alone():
    (white, black), _ = play(CutDuel, ConstantAgent(text="x"))
    assert white.truncated
    assert (white.final_observation, black.final_observation) == ("turn 2", "")


@pytest.mark.parametrize(
    ("success", "expected"),
    [({"white": False, "black": True}, (False, True)), (True, (True, False)), ({"black": True}, (True, True))],
)
def test_each_seat_has_its_own_success(success, expected):
    class Won(Duel):
        def step(self, action):
            return "over", 1.0, True, False, {"success": success}

    (white, black), _ = play(Won, ConstantAgent(text="x"))
    assert (white.success, black.success) == expected


def test_an_environment_with_several_seats_must_say_who_acts():
    class Silent(Duel):
        def reset(self, seed=None, task=None):
            return super().reset(seed=seed)[0], {}

    (white, _), _ = play(Silent, ConstantAgent(text="x"))
    assert white.stop is StopReason.ENV_ERROR
    assert white.info["error"] == "info['seat'] must name the seat that acts next, one of white, black"


def test_agents_hear_of_the_end_of_a_cancelled_episode():
    class Waiting(Tokens):
        async def act(self, view):
            playing.cancel()
            await asyncio.sleep(30)
            return Action(text="too late")

    async def run():
        nonlocal playing
        playing = asyncio.current_task()
        async with Scheduler() as scheduler:
            await scheduler.run([EpisodeSpec(env=Walk, seed=1)], agent)

    playing: Any = None
    agent = Waiting()
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())
    assert agent.ended == ["Walk:1/0"]


class Prompted(Walk):
    """Says what a turn earns that a limit cuts."""

    def reset(self, seed=None, task=None):
        observation, info = super().reset(seed=seed, task=task)
        return observation, {**info, "cut_reward": -3.0}


def test_a_turn_that_a_limit_cuts_earns_what_the_environment_said_before_it():
    (trajectory,), _ = play(Prompted, Tokens(full=0))
    assert [turn.reward for turn in trajectory.turns] == [-3.0]
    assert (trajectory.success, trajectory.stop) == (False, StopReason.CONTEXT_FULL)
    (trajectory,), _ = play(Prompted, Tokens(full=1))
    assert trajectory.turns[-1].reward == 0.0  # the environment said nothing before its second turn
    (trajectory,), _ = play(Prompted, Tokens())
    assert min(turn.reward for turn in trajectory.turns) >= 0.0
