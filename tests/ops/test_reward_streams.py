"""Changes of the reward before credit, and the filters that act before any denominator."""

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given

from tests.ops import reference
from tests.ops.batches import Case, EpisodeShape, TurnShape, cases, close, known, make_case, make_groups, ragged
from turnwise.batch import Moments, Remembered, TokenBatch
from turnwise.ops.filters import errored, zero_variance
from turnwise.ops.filters import overlong as overlong_filter
from turnwise.ops.rewards import next_kl_coef, overlong, running, token_kl
from turnwise.sources.rollout_metrics import read_rollout
from turnwise.types import Group, StopReason, Trajectory, Turn


@pytest.mark.parametrize(("length", "penalty"), [(6, 0.0), (7, 0.25), (8, 0.5), (10, 1.0), (12, 1.0)])
def test_soft_overlong_punishment_by_hand(length: int, penalty: float):
    # limit 10, margin 4: free up to 6, then a quarter per token, never more than 1
    turns = [TurnShape(sampled=length - 2, prompt=30), TurnShape(sampled=2, reward=1.0, restarts=True)]
    batch = make_case([[EpisodeShape(turns=turns, final=2)]]).batch
    reward_T = overlong(batch, limit=10, margin=4)[batch.sampled_T]
    close(reward_T, [0.0] * (length - 1) + [1.0 - penalty])


def test_token_kl_by_hand():
    batch = make_case([[EpisodeShape(turns=[TurnShape(sampled=2, reward=1.0)])]]).batch
    batch = batch.with_(ref_T=known(batch.old_T) - 0.5)
    close(token_kl(batch, coef=0.1), [0.0, -0.05, 0.95])  # 0.1 · 0.5 off each sampled token


def test_the_exact_token_kl_is_that_of_the_whole_distribution():
    batch = make_case([[EpisodeShape(turns=[TurnShape(sampled=2, reward=1.0)])]]).batch
    batch = batch.with_(ref_T=known(batch.old_T) - 0.5, old_kl_T=torch.tensor([9.0, 0.25, 2.0], dtype=torch.float64))
    close(token_kl(batch, coef=0.1, estimator="full"), [0.0, -0.025, 0.8])
    with pytest.raises(ValueError, match="old_kl_T is not assigned"):
        token_kl(batch.with_(old_kl_T=None), estimator="full")


def remembered(rewards: Sequence[float], past: Moments, **options: bool | float) -> list[float]:
    """What is left of one-token episodes with these rewards."""
    shapes = [[EpisodeShape(turns=[TurnShape(sampled=1, reward=reward)])] for reward in rewards]
    batch = make_case(shapes).batch.with_(history=Remembered(returns=past))
    return running(batch, **options)[batch.sampled_T].tolist()  # pyright: ignore[reportArgumentType]


def test_running_rewards_by_hand():
    past = Moments(count=4, mean=2.0, variance=0.25)
    assert remembered([2.0, 3.0, 1.75], past) == [0.0, 2.0, -0.5]
    assert remembered([2.0, 3.0, 1.75], past, clip=0.8) == pytest.approx([0.0, 0.8, -0.5])
    assert remembered([2.0, 3.0, -1.0], past, center=False) == [4.0, 6.0, -2.0]
    assert remembered([2.0, 0.2, -1.0], past, center=False, clip=0.8) == pytest.approx([0.8, 0.4, -0.8])


@pytest.mark.parametrize("past", [Moments(1, 3.0, 0.0), Moments(5000, 3.0, 1e-13), Moments(9, 0.0, 0.0)])
def test_returns_without_any_spread_are_not_blown_up(past: Moments):
    assert remembered([past.mean, past.mean + 1e-7], past) == [0.0, 0.0]
    assert remembered([3.0], past, center=False) == [3.0]


def test_running_rewards_keep_their_turns_and_the_last_token_gets_the_rest():
    turns = [TurnShape(sampled=2, reward=1.0), TurnShape(sampled=1), TurnShape(sampled=1, reward=2.0, restarts=True)]
    batch = make_case([[EpisodeShape(turns=turns)]]).batch.with_(history=Remembered(returns=Moments(3, 1.0, 4.0)))
    close(running(batch)[batch.sampled_T], [0.0, 0.5, 0.0, 0.5])  # 3 in all: (3 − 1) / 2 is 1
    close(running(batch, clip=0.8)[batch.sampled_T], [0.0, 0.5, 0.0, 0.3])


def test_after_token_kl_only_the_return_is_scaled():
    batch = make_case([[EpisodeShape(turns=[TurnShape(sampled=2, reward=3.0)])]]).batch
    batch = batch.with_(ref_T=known(batch.old_T) - 0.5, history=Remembered(returns=Moments(3, 1.0, 4.0)))
    scaled: TokenBatch = batch.with_(reward_T=running(batch))
    close(token_kl(scaled, coef=0.1), [0.0, -0.05, 0.95])


def test_the_coefficient_of_an_adaptive_kl_follows_its_target():
    assert next_kl_coef(0.2, 6.0, target=6.0, gain=0.1) == pytest.approx(0.2)
    assert next_kl_coef(0.2, 6.6, target=6.0, gain=0.1) == pytest.approx(0.2 * 1.01)
    assert next_kl_coef(0.2, 60.0, target=6.0, gain=0.1) == pytest.approx(0.2 * 1.02)  # at most a fifth counts
    assert next_kl_coef(0.2, -3.0, target=6.0, gain=0.1) == pytest.approx(0.2 * 0.98)


def test_an_adaptive_kl_pays_by_the_present_coefficient():
    batch = make_case([[EpisodeShape(turns=[TurnShape(sampled=2, reward=1.0)])]]).batch
    batch = batch.with_(ref_T=known(batch.old_T) - 0.5, history=Remembered(kl_coef=0.2))
    close(token_kl(batch, coef=0.1, target=6.0), [0.0, -0.1, 0.9])


def test_parts_name_the_history_that_they_miss():
    batch = make_case([[EpisodeShape()]]).batch.with_(history=None)
    with pytest.raises(ValueError, match=r"history\.returns is not assigned"):
        running(batch)
    with pytest.raises(ValueError, match=r"history\.kl_coef is not assigned"):
        token_kl(batch, target=6.0)


@ragged
@given(cases)
def test_reward_transforms_agree_with_loops(case: Case):
    made, batch = reference.layout(case.groups), case.batch
    close(batch.reward_T, made.rewards)
    expected = reference.token_kl(
        made, made.rewards, known(batch.old_T).tolist(), known(batch.ref_T).tolist(), coef=0.2
    )
    close(token_kl(batch, coef=0.2), expected)
    close(overlong(batch, limit=6, margin=5), reference.overlong(made, made.rewards, limit=6, margin=5))


@pytest.mark.parametrize("missing", ["old_T", "ref_T"])
def test_token_kl_names_the_missing_stream(missing: str):
    batch = make_case([[EpisodeShape()]]).batch.with_(**{missing: None})
    with pytest.raises(ValueError, match=f"{missing} is not assigned"):
        token_kl(batch)


def test_filters_leave_out_what_says_nothing():
    reward = [EpisodeShape(turns=[TurnShape(reward=value)]) for value in (1.0, 0.0, 0.0)]
    (group,) = make_groups([reward])
    group.trajectories[1].stop = StopReason.TIMEOUT
    group.trajectories[2].stop = StopReason.MAX_TOKENS
    assert [t.id for t in errored(group).trajectories] == ["task-0/0", "task-0/2"]
    assert [t.id for t in overlong_filter(group).trajectories] == ["task-0/0", "task-0/1"]
    assert len(zero_variance(group).trajectories) == 3
    group.trajectories[0].turns[0].reward = 0.0
    assert zero_variance(group).trajectories == []


def tries(*rewards: Sequence[float]) -> Group:
    """One trajectory for each list of turn rewards."""
    trajectories = [
        Trajectory(
            id=str(number),
            turns=[Turn(sampled_ids=[1], logprobs=[-0.1], reward=reward) for reward in turns],
            stop=StopReason.DONE,
        )
        for number, turns in enumerate(rewards)
    ]
    return Group(id="tries", trajectories=trajectories)


@pytest.mark.parametrize(
    "equal",
    [
        ([0.1, 0.2], [0.3]),  # 0.30000000000000004
        ([0.1] * 10, [1.0]),
        ([1e6, 0.1, -1e6], [0.1]),
        ([1.0], [1.0 + 1e-9]),  # single precision, in which batches keep rewards, has no such number
        ([1e-9], [1e-9]),
        ([0.0], [0.0], [0.0]),
    ],
)
def test_returns_that_only_rounding_tells_apart_are_equal(equal: tuple[list[float], ...]):
    assert zero_variance(tries(*equal)).trajectories == []
    assert read_rollout([tries(*equal)], version=0)["rollout/zero_variance"] == 1.0


@pytest.mark.parametrize(
    "different", [([1.0], [0.999]), ([1e-9], [2e-9]), ([1.0], [1.0 + 1e-6]), ([0.0], [1e-12]), ([1.0], [math.nan])]
)
def test_returns_that_differ_by_more_than_rounding_are_kept(different: tuple[list[float], ...]):
    assert len(zero_variance(tries(*different)).trajectories) == 2
