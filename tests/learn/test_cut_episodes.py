"""An episode that one of our limits ended is worth what it earned, and nothing that the critic hopes for."""

from typing import Literal

import pytest
import torch

from turnwise.algorithm import preset
from turnwise.learn.learner import Learner
from turnwise.policy.critics import Critic
from turnwise.policy.text import TextPolicy
from turnwise.recipe.schema import Train
from turnwise.types import Group, StopReason, Trajectory, Turn


def group(stop: StopReason, *, terminated: bool = False) -> Group:
    turn = Turn(prompt_ids=[5, 6, 7], sampled_ids=[8, 9], logprobs=[-1.0, -1.0])
    cut = Trajectory(id="task/0", turns=[turn], stop=stop, terminated=terminated, truncated=True, final_ids=[7])
    won = Turn(prompt_ids=[5, 6, 7], sampled_ids=[9, 9], logprobs=[-1.0, -1.0], reward=1.0)
    solved = Trajectory(id="task/1", turns=[won], stop=StopReason.DONE, terminated=True)
    return Group(id="task", trajectories=[cut, solved])


def last_return(cut: Literal["lost", "bootstrap"], stop: StopReason, *, terminated: bool = False) -> float:
    """The critic's target at the end of the episode that was cut, when the critic expects 0.9 everywhere."""
    learner = Learner(TextPolicy.load("pico"), preset("ppo").override({"cut": cut}), Train())
    assert isinstance(learner.critic, Critic)
    with torch.no_grad():
        learner.critic.head.bias.fill_(0.9)
    batch = learner.prepare([group(stop, terminated=terminated)])
    assert batch is not None
    assert batch.return_T is not None
    return float(batch.return_T[batch.sampled_T & (batch.sequence_T == 0)][-1])


@pytest.mark.parametrize("stop", [StopReason.MAX_TURNS, StopReason.MAX_TOKENS, StopReason.CONTEXT_FULL])
def test_running_into_a_limit_earns_nothing(stop: StopReason) -> None:
    assert last_return("lost", stop) == 0.0
    assert last_return("bootstrap", stop) == pytest.approx(0.9)


def test_what_the_environment_cut_goes_on_as_the_critic_expects() -> None:
    assert last_return("lost", StopReason.DONE) == pytest.approx(0.9)


@pytest.mark.parametrize("cut", ["lost", "bootstrap"])
@pytest.mark.parametrize("stop", [StopReason.DONE, StopReason.MAX_TURNS])
def test_a_terminated_episode_is_not_bootstrapped_even_if_truncated(
    cut: Literal["lost", "bootstrap"], stop: StopReason
) -> None:
    assert last_return(cut, stop, terminated=True) == 0.0
