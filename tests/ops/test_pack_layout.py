"""`pack`: where tokens, turns and rewards land, and what it refuses."""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given

from tests.ops import reference
from tests.ops.batches import Case, EpisodeShape, TurnShape, cases, known, make_groups, ragged
from turnwise.rollout.packing import pack
from turnwise.types import Group, StopReason, Trajectory, Turn


def one(*turns: Turn, **fields: object) -> list[Group]:
    """A group with one trajectory."""
    trajectory = Trajectory(id="geo-17/0", turns=[*turns], stop=StopReason.DONE, terminated=True)
    for name, value in fields.items():
        setattr(trajectory, name, value)
    return [Group(id="geo-17", trajectories=[trajectory])]


def test_the_worked_example_of_the_docstring():
    search = Turn(prompt_ids=[1, 5, 6], sampled_ids=[40, 41, 2], logprobs=[-0.1, -0.7, -0.2])
    answer = Turn(prompt_ids=[7, 8], sampled_ids=[50, 2], logprobs=[-0.3, -0.1], reward=1.0)
    batch = pack(one(search, answer))
    assert batch.ids_T.tolist() == [1, 5, 6, 40, 41, 2, 7, 8, 50, 2]
    assert batch.position_T.tolist() == list(range(10))
    assert batch.turn_T.tolist() == [-1, -1, -1, 0, 0, 0, -1, -1, 1, 1]
    assert batch.index_T.tolist() == [-1, -1, -1, 0, 0, 0, -1, -1, 1, 1]
    assert batch.source_T.tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]
    assert batch.reward_T.tolist() == [0.0] * 9 + [1.0]
    assert known(batch.mu_T).tolist() == pytest.approx([0, 0, 0, -0.1, -0.7, -0.2, 0, 0, -0.3, -0.1])
    assert (batch.index_K.tolist(), batch.sequence_K.tolist(), batch.length_S.tolist()) == ([0, 1], [0, 0], [10])
    assert batch.place(8) == "trajectory 'geo-17/0', turn 1, token 8"


@ragged
@given(cases)
def test_layout_agrees_with_a_walk_over_the_trajectories(case: Case):
    made, batch = reference.layout(case.groups), case.batch
    turn_of = {row: number for number, step in enumerate(made.steps) for row in step.rows}
    assert batch.tokens == made.tokens
    assert batch.turn_T.tolist() == [turn_of.get(row, -1) for row in range(made.tokens)]
    assert batch.reward_T.tolist() == pytest.approx(made.rewards)
    assert batch.sequence_K.tolist() == [step.sequence for step in made.steps]
    assert batch.index_K.tolist() == [step.index for step in made.steps]
    states = {anchor: step.state for anchor, step in zip(batch.anchor_K.tolist(), made.steps, strict=True)}
    assert [states[anchor] for anchor in batch.anchor_K.tolist()] == [step.state for step in made.steps]
    assert len(set(states.values())) == len(states)
    assert int(batch.length_S.sum()) == batch.tokens


@ragged
@given(cases)
def test_sampled_ids_and_rewards_survive_packing(case: Case):
    trajectories = [trajectory for group in case.groups for trajectory in group.trajectories]
    sampled = [token for trajectory in trajectories for turn in trajectory.turns for token in turn.sampled_ids]
    assert case.batch.ids_T[case.batch.sampled_T].tolist() == sampled
    assert float(case.batch.reward_T.sum()) == pytest.approx(sum(trajectory.reward for trajectory in trajectories))
    assert case.batch.truncated_S.tolist() == [trajectories[row].truncated for row in case.batch.trajectory_S.tolist()]


def test_restart_opens_a_sequence_whose_positions_begin_again():
    batch = pack(make_groups([[EpisodeShape(turns=[TurnShape(), TurnShape(restarts=True)], final=1)]]))
    assert batch.position_T.tolist() == [0, 1, 2, 0, 1, 2, 3]
    assert batch.trajectory_S.tolist() == [0, 0]
    assert batch.index_K.tolist() == [0, 1]


def test_unknown_sampler_logprobs_stay_unassigned():
    assert pack(one(Turn(sampled_ids=[1]))).mu_T is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_bad_numbers_name_trajectory_and_turn(bad: float):
    good = Turn(sampled_ids=[3], logprobs=[-1.0])
    with pytest.raises(ValueError, match=r"'geo-17/0', turn 1: log-prob of sampled token 1 is"):
        pack(one(good, Turn(sampled_ids=[1, 2], logprobs=[-0.1, bad])))
    with pytest.raises(ValueError, match=r"'geo-17/0', turn 1: reward is .*must be a finite number"):
        pack(one(good, Turn(sampled_ids=[1], logprobs=[-0.1], reward=bad)))


def test_a_probability_above_one_is_refused():
    with pytest.raises(ValueError, match=r"'geo-17/0', turn 0: log-prob of sampled token 1 is 0.5; .*at most 0"):
        pack(one(Turn(sampled_ids=[1, 2], logprobs=[-0.1, 0.5])))
    pack(one(Turn(sampled_ids=[1], logprobs=[1e-4])))


@pytest.mark.parametrize("bad", [-1, 3.7, "7", None])
def test_ids_are_whole_numbers_from_zero_up(bad: Any):
    place = re.escape(f"entry 1 is {bad!r}")
    with pytest.raises(ValueError, match=rf"'geo-17/0', turn 0, sampled_ids: {place}"):
        pack(one(Turn(sampled_ids=[1, bad], logprobs=[-0.1, -0.1])))
    with pytest.raises(ValueError, match=rf"'geo-17/0', turn 0, prompt_ids: {place}"):
        pack(one(Turn(prompt_ids=[1, bad])))
    with pytest.raises(ValueError, match=rf"'geo-17/0', final_ids: {place}"):
        pack(one(Turn(prompt_ids=[1]), final_ids=[1, bad]))


@pytest.mark.parametrize("make", [np.array, torch.tensor, tuple])
def test_integers_of_numpy_and_torch_are_ids(make: Callable[[list[int]], Any]):
    batch = pack(one(Turn(prompt_ids=make([4, 5]), sampled_ids=make([6, 7]), logprobs=[-0.1, -0.2])))
    assert batch.ids_T.tolist() == [4, 5, 6, 7]


def test_wrong_nouns_are_refused():
    with pytest.raises(ValueError, match=r"'geo-17/0': stop is 'done'; give a StopReason"):
        pack(one(Turn(sampled_ids=[1]), stop="done"))
    trajectories: Any = one(Turn(sampled_ids=[1]))[0].trajectories
    with pytest.raises(ValueError, match=r"pack takes groups, not Trajectory; wrap them in Group\("):
        pack(trajectories)


def test_lengths_must_agree():
    with pytest.raises(ValueError, match=r"'geo-17/0', turn 0: 2 sampled ids but 1 log-probs"):
        pack(one(Turn(sampled_ids=[1, 2], logprobs=[-0.1])))


def test_the_logprob_of_an_unknown_sampler_is_nan_beside_known_ones_and_none_alone():
    known, unknown = Turn(sampled_ids=[1], logprobs=[-0.5]), Turn(prompt_ids=[4], sampled_ids=[2, 3])
    mu_T = pack(one(known, unknown)).mu_T
    assert mu_T is not None
    assert mu_T.isnan().tolist() == [False, False, True, True]
    assert mu_T[:2].tolist() == [-0.5, 0.0]
    assert pack(one(unknown)).mu_T is None


def test_an_empty_turn_has_no_logprobs_to_mix():
    batch = pack(one(Turn(sampled_ids=[1], logprobs=[-0.5]), Turn(prompt_ids=[4])))
    assert known(batch.mu_T).tolist() == [-0.5, 0.0]


def test_reward_before_any_sampled_token_is_refused():
    with pytest.raises(ValueError, match=r"turn 0: a reward of 0.5 but no sampled token to carry it"):
        pack(one(Turn(prompt_ids=[1], reward=0.5), Turn(sampled_ids=[1], logprobs=[-0.1])))


@pytest.mark.parametrize("stop", [StopReason.ENV_ERROR, StopReason.TIMEOUT])
def test_failed_episodes_never_enter_a_batch(stop: StopReason):
    with pytest.raises(ValueError, match=f"'geo-17/0' ended by {stop.value}.*'errored' filter"):
        pack(one(Turn(sampled_ids=[1], logprobs=[-0.1]), stop=stop))


def test_two_groups_with_one_id_are_refused():
    (group,) = one(Turn(sampled_ids=[1], logprobs=[-0.1]))
    with pytest.raises(ValueError, match=r"two groups have the id 'geo-17'; .* one Group"):
        pack([group, group])


def test_a_trajectory_that_terminated_is_not_a_cut_one_even_if_truncated():
    turn = Turn(prompt_ids=[1], sampled_ids=[2, 3], logprobs=[-0.5, -0.5], reward=1.0)
    batch = pack(one(turn, truncated=True, bootstrap=5.0))
    assert batch.truncated_S.tolist() == [False]
    assert known(batch.bootstrap_S).tolist() == [0.0]
    assert not bool(batch.waiting_S.any())


@pytest.mark.parametrize("empty", [list, lambda: [Group(id="none", trajectories=[])]])
def test_nothing_to_pack_is_an_error(empty: Callable[[], list[Group]]):
    with pytest.raises(ValueError, match="nothing to pack"):
        pack(empty())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_bootstrap_must_be_finite(bad: float):
    cut = one(Turn(sampled_ids=[1], logprobs=[-0.1]), truncated=True, terminated=False, bootstrap=bad)
    with pytest.raises(ValueError, match=r"'geo-17/0'.*bootstrap"):
        pack(cut, dtype=torch.float64)


@pytest.mark.parametrize("bad", [None, "1", math.nan])
def test_a_reward_that_is_no_finite_number_is_refused_with_its_turn(bad: Any):
    with pytest.raises(ValueError, match=rf"'geo-17/0', turn 0: reward is {bad}; it must be a finite number"):
        pack(one(Turn(sampled_ids=[1], logprobs=[-0.1], reward=bad)))
