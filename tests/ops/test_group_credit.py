"""Comparisons inside a group, and the normalisers that bring advantages to one scale."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given
from torch import Tensor

from tests.ops import reference
from tests.ops.batches import (
    Case,
    EpisodeShape,
    TurnShape,
    cases,
    close,
    known,
    make_case,
    make_groups,
    ragged,
    random_case,
)
from tests.ops.ranks import on_ranks
from turnwise.algorithm import compute_credit, preset
from turnwise.ops.advantages import return_to_go
from turnwise.ops.groups import anchor_state, group_mean, leave_one_out
from turnwise.ops.normalizers import batch_tokens, batch_turns, group_std, no_normalizer
from turnwise.ranks import alone
from turnwise.rollout.packing import pack
from turnwise.types import Group


def tries(*rewards: float, length: int = 2) -> list[EpisodeShape]:
    """One-turn episodes with these rewards."""
    return [EpisodeShape(turns=[TurnShape(sampled=length, reward=reward)]) for reward in rewards]


def sampled(case: Case, stream_T: Tensor) -> Tensor:
    return stream_T[case.batch.sampled_T]


def test_group_comparisons_by_hand():
    case = make_case([tries(1.0, 0.0, 0.5), tries(2.0)])
    # mean of the first group 0.5; the second has one member and nothing to compare with
    close(sampled(case, group_mean(case.batch).advantage_T), [0.5, 0.5, -0.5, -0.5, 0, 0, 0, 0])
    # others: 0.25, 0.75, 0.5
    close(sampled(case, leave_one_out(case.batch).advantage_T), [0.75, 0.75, -0.75, -0.75, 0, 0, 0, 0])


def test_rloo_of_two_is_the_difference_of_their_returns():
    case = make_case([tries(0.7, 0.2, length=1)])
    close(sampled(case, leave_one_out(case.batch).advantage_T), [0.5, -0.5])


def test_a_try_without_sampled_tokens_still_counts_as_a_try():
    case = make_case([[*tries(1.0, length=1), EpisodeShape(turns=[TurnShape(sampled=0)])]])
    close(sampled(case, group_mean(case.batch).advantage_T), [0.5])  # mean of 1 and 0
    close(sampled(case, leave_one_out(case.batch).advantage_T), [1.0])


def test_anchor_state_by_hand():
    def episode(first: float, second: float, key: str | None) -> EpisodeShape:
        start, later = TurnShape(sampled=1, reward=first, key="start"), TurnShape(sampled=1, reward=second, key=key)
        return EpisodeShape(turns=[start, later])

    case = make_case([[episode(0.0, 1.0, "door"), episode(0.5, 0.0, None)], [episode(0.0, 9.0, "door")]])
    # Returns 1 and 0.5: episode part ±0.25. With γ = 0.5 the turn returns are (0.5, 1) and (0.5, 0): "start" is shared
    # and its returns are equal, so step 0. "door" of the other group is another state.
    credit = anchor_state(case.batch, gamma=0.5, std=False)
    close(sampled(case, credit.advantage_T), [0.25, 0.25, -0.25, -0.25, 0.0, 0.0])
    # γ = 1: turn returns (1, 1) and (0.5, 0), step part of "start" ±0.25, counted ω = 2 times.
    credit = anchor_state(case.batch, gamma=1.0, omega=2.0, std=False)
    close(sampled(case, credit.advantage_T), [0.75, 0.25, -0.75, -0.25, 0.0, 0.0])
    # Divided by the sample std of two values x, y, which is |x − y| / √2: each comparison becomes ±1/√2.
    credit = anchor_state(case.batch, gamma=1.0, std=True)
    half = 0.5**0.5
    torch.testing.assert_close(
        sampled(case, credit.advantage_T),
        torch.tensor([2 * half, half, -2 * half, -half, 0.0, 0.0], dtype=torch.float64),
        rtol=1e-5,
        atol=1e-9,
    )


@ragged
@given(cases)
def test_group_comparisons_agree_with_loops(case: Case):
    made, batch = reference.layout(case.groups), case.batch
    close(group_mean(batch).advantage_T, reference.group_mean(made, made.rewards))
    close(leave_one_out(batch).advantage_T, reference.leave_one_out(made, made.rewards))
    for std in (False, True):
        expected = reference.anchor_state(made, made.rewards, omega=0.7, gamma=0.9, std=std)
        close(anchor_state(batch, omega=0.7, gamma=0.9, std=std).advantage_T, expected)


@ragged
@given(cases)
def test_anchor_state_without_repeats_is_grpo(case: Case):
    for group in case.groups:
        for trajectory in group.trajectories:
            for place, turn in enumerate(trajectory.turns):
                turn.state_key = f"{trajectory.id}, {place}"
    batch = pack(case.groups, dtype=torch.float64)
    grpo_T = group_std(batch, group_mean(batch).advantage_T, alone)
    close(anchor_state(batch).advantage_T, grpo_T)


def test_group_std_is_the_sample_std_of_returns():
    case = make_case([tries(1.0, 0.0, length=1), tries(3.0, length=1)])
    scaled_T = group_std(case.batch, group_mean(case.batch).advantage_T, alone, eps=0.0)
    # returns 1 and 0: sample variance ((½)² + (½)²) / 1 = ½, so ±½ / √½ = ±√½
    close(sampled(case, scaled_T), [0.5**0.5, -(0.5**0.5), 0.0])


def test_group_of_equal_returns_gets_zero_and_not_nan():
    case = make_case([tries(1.0, 1.0)])
    close(sampled(case, group_std(case.batch, group_mean(case.batch).advantage_T, alone)), [0.0] * 4)


@pytest.mark.parametrize("reward", [-0.1, 10.1, 100.1, 1000.7])
@pytest.mark.parametrize("name", ["grpo", "gigpo", "reinforce++", "rebn", "ppo"])
def test_equal_rewards_in_single_precision_give_no_credit(name: str, reward: float):
    turn = TurnShape(sampled=3, reward=reward, key="start")
    batch = pack(make_groups([[EpisodeShape(turns=[turn])] * 7] * 3))
    zero_T = torch.zeros(batch.tokens)
    credited = compute_credit(preset(name), batch.with_(old_T=zero_T, ref_T=zero_T, value_T=zero_T))
    assert known(credited.advantage_T).abs().max() == 0
    assert known(credited.advantage_T).dtype == torch.float32


def test_token_whitening_by_hand():
    case = make_case([[EpisodeShape(turns=[TurnShape(sampled=3)])]])
    advantage_T = torch.zeros(case.batch.tokens, dtype=torch.float64)
    advantage_T[case.batch.sampled_T] = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    # mean 2, population variance 2/3
    close(sampled(case, batch_tokens(case.batch, advantage_T, alone, eps=0.0)), [-(1.5**0.5), 0.0, 1.5**0.5])


def test_rebn_counts_each_turn_once_with_the_population_std():
    case = make_case([[EpisodeShape(turns=[TurnShape(sampled=9, reward=1.0), TurnShape(sampled=1, reward=2.0)])]])
    returns_T = return_to_go(case.batch, gamma=0.0).advantage_T  # 1 for nine tokens, 2 for one
    # Over turns: mean 1.5, population std 0.5 (the sample std would give ±0.707). Tokens would give mean 1.1.
    close(sampled(case, batch_turns(case.batch, returns_T, alone, eps=0.0)), [-1.0] * 9 + [1.0])


@ragged
@given(cases)
def test_normalisers_agree_with_loops(case: Case):
    made, batch = reference.layout(case.groups), case.batch
    advantage_T = torch.nan_to_num(known(batch.advantage_T))
    advantage = advantage_T.tolist()
    close(no_normalizer(batch, advantage_T, alone), advantage)
    expected = reference.group_std(made, made.rewards, advantage, eps=1e-6)
    close(group_std(batch, advantage_T, alone), expected)
    close(batch_tokens(batch, advantage_T, alone, eps=1e-3), reference.whiten_tokens(made, advantage, eps=1e-3))
    per_turn_T = return_to_go(batch, gamma=0.9).advantage_T
    expected = reference.whiten_turns(made, per_turn_T.tolist(), eps=1e-3)
    close(batch_turns(batch, per_turn_T, alone, eps=1e-3), expected)


@pytest.mark.parametrize("normalizer", [batch_tokens, batch_turns])
def test_batch_statistics_are_those_of_all_ranks(normalizer: Callable[..., Tensor]):
    whole = random_case(3, groups=4)
    shards = [pack([group], dtype=torch.float64) for group in whole.groups]
    work = [partial(normalizer, shard, return_to_go(shard).advantage_T) for shard in shards]
    everything = normalizer(whole.batch, return_to_go(whole.batch).advantage_T, alone)
    close(torch.cat(on_ranks(work)), everything)


def test_permutation_inside_a_group_permutes_the_credit():
    case = random_case(5, groups=1, tries=3)
    (group,) = case.groups
    shuffled = pack([Group(id=group.id, trajectories=group.trajectories[::-1])], dtype=torch.float64)
    for advantage in (group_mean, leave_one_out, anchor_state):
        forward, backward = advantage(case.batch).advantage_T, advantage(shuffled).advantage_T
        for place in range(len(group.trajectories)):
            mirrored = len(group.trajectories) - 1 - place
            own = forward[case.batch.trajectory_S[case.batch.sequence_T] == place]
            close(backward[shuffled.trajectory_S[shuffled.sequence_T] == mirrored], own)
