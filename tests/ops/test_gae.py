"""Advantages that walk along the tokens or turns of an episode: GAE in its forms, and returns."""

import pytest
import torch
from hypothesis import given
from torch import Tensor

from tests.ops import reference
from tests.ops.batches import Case, EpisodeShape, TurnShape, assign, cases, close, known, make_case, make_groups, ragged
from turnwise.batch import TokenBatch
from turnwise.ops.advantages import bilevel_gae, gae, return_to_go, split_gae, turn_gae


def episode(
    *lengths: int, rewards: tuple[float, ...] = (), bootstrap: float | None = None, restart: int | None = None
) -> Case:
    """One trajectory with turns of these lengths; by default a reward of 1 at the end."""
    rewards = rewards or (0.0,) * (len(lengths) - 1) + (1.0,)
    turns = [
        TurnShape(sampled=length, reward=reward, restarts=place == restart)
        for place, (length, reward) in enumerate(zip(lengths, rewards, strict=True))
    ]
    return make_case([[EpisodeShape(turns=turns, bootstrap=bootstrap)]])


def valued(case: Case, *values: float) -> TokenBatch:
    """The batch with these values on its sampled tokens."""
    value_T = torch.full((case.batch.tokens,), torch.nan, dtype=torch.float64)
    value_T[case.batch.sampled_T] = torch.tensor(values, dtype=torch.float64)
    return case.batch.with_(value_T=value_T)


def sampled(batch: TokenBatch, stream_T: Tensor | None) -> Tensor:
    return known(stream_T)[batch.sampled_T]


def test_token_gae_by_hand():
    batch = valued(episode(2, 1, rewards=(0.5, 1.0)), 0.2, 0.4, 0.6)
    credit = gae(batch, gamma=0.9, lam=0.5)
    # δ_2 = 1 − 0.6 = 0.4;                      A_2 = 0.4
    # δ_1 = 0.5 + 0.9·0.6 − 0.4 = 0.64;         A_1 = 0.64 + 0.45·0.4 = 0.82
    # δ_0 = 0 + 0.9·0.4 − 0.2 = 0.16;           A_0 = 0.16 + 0.45·0.82 = 0.529
    close(sampled(batch, credit.advantage_T), [0.529, 0.82, 0.4])
    close(sampled(batch, credit.return_T), [0.729, 1.22, 1.0])  # A + V


def test_split_gae_by_hand():
    batch = valued(episode(2, 1, rewards=(0.5, 1.0)), 0.2, 0.4, 0.6)
    credit = split_gae(batch, gamma_token=1.0, lam_token=0.5, gamma_turn=0.9, lam_turn=0.8)
    # A_2 = 0.4;  A_1 = 0.64 + 0.9·0.8·0.4 = 0.928 (between turns);  A_0 = 0.4 − 0.2 + 0.5·0.928 = 0.664 (inside)
    close(sampled(batch, credit.advantage_T), [0.664, 0.928, 0.4])


def test_turn_gae_by_hand():
    batch = valued(episode(2, 1, rewards=(0.5, 1.0)), 0.2, 0.4, 0.6)
    credit = turn_gae(batch, gamma=0.9, lam=0.5)
    # A_1 = 1 − 0.6 = 0.4;  A_0 = 0.5 + 0.9·0.6 − 0.2 + 0.45·0.4 = 1.02; the 0.4 inside turn 0 is never read
    close(sampled(batch, credit.advantage_T), [1.02, 1.02, 0.4])
    close(sampled(batch, credit.return_T), [1.22, 1.22, 1.0])


def test_bilevel_gae_by_hand():
    batch = valued(episode(2, 1, rewards=(0.5, 1.0)), 0.2, 0.4, 0.6)
    credit = bilevel_gae(batch, gamma_turn=0.9, gamma_token=0.8, lam=0.5)
    # ends: A_1 = 1 − 0.6 = 0.4;  A_0 = 0.5 + 0.9·0.6 − 0.4 + 0.45·0.4 = 0.82
    # inside turn 0: last token (0.82 + 0.4) − 0.4 = 0.82; first 0.8·0.4 − 0.2 + 0.4·0.82 = 0.448
    close(sampled(batch, credit.advantage_T), [0.448, 0.82, 0.4])
    close(sampled(batch, credit.return_T), [0.648, 1.22, 1.0])


def test_returns_by_hand():
    batch = episode(2, 1, rewards=(0.5, 1.0)).batch
    by_turn = return_to_go(batch, level="turn", gamma=0.9).advantage_T
    by_token = return_to_go(batch, level="token", gamma=0.9).advantage_T
    close(sampled(batch, by_turn), [1.4, 1.4, 1.0])  # 0.5 + 0.9·1
    close(sampled(batch, by_token), [1.26, 1.4, 1.0])  # one discount more for the first token


@ragged
@given(cases)
def test_gae_of_every_level_agrees_with_loops(case: Case):
    made, batch = reference.layout(case.groups), case.batch
    streams = (made, made.rewards, known(batch.value_T).tolist())
    close(gae(batch, gamma=0.9, lam=0.8).advantage_T, reference.token_gae(*streams, gamma=0.9, lam=0.8))
    close(
        split_gae(batch, gamma_token=0.97, lam_token=0.9, gamma_turn=0.8, lam_turn=0.7).advantage_T,
        reference.split_gae(*streams, inside=(0.97, 0.9), between=(0.8, 0.7)),
    )
    close(turn_gae(batch, gamma=0.9, lam=0.8).advantage_T, reference.turn_gae(*streams, gamma=0.9, lam=0.8))
    close(
        bilevel_gae(batch, gamma_turn=0.9, gamma_token=0.95, lam=0.8).advantage_T,
        reference.bilevel_gae(*streams, gamma_turn=0.9, gamma_token=0.95, lam=0.8),
    )


@ragged
@given(cases)
def test_returns_of_both_levels_agree_with_loops(case: Case):
    made, batch = reference.layout(case.groups), case.batch
    by_token = return_to_go(batch, level="token", gamma=0.9).advantage_T
    close(by_token, reference.token_returns(made, made.rewards, gamma=0.9))
    by_turn = return_to_go(batch, level="turn", gamma=0.9).advantage_T
    close(by_turn, reference.turn_returns(made, made.rewards, gamma=0.9))


@ragged
@given(cases)
def test_critic_targets_are_advantage_plus_value(case: Case):
    batch = case.batch
    for credit in (gae(batch, gamma=0.9), split_gae(batch), bilevel_gae(batch)):
        close(sampled(batch, credit.return_T), sampled(batch, credit.advantage_T + known(batch.value_T)))


def test_poad_oracle_discounts_turns_and_not_tokens():
    batch = valued(episode(2, 5, 10), *[0.0] * 17)
    poad = split_gae(batch, gamma_token=1.0, lam_token=1.0, gamma_turn=0.95, lam_turn=1.0).advantage_T
    close(sampled(batch, poad), [0.9025] * 2 + [0.95] * 5 + [1.0] * 10)
    ntpo = sampled(batch, gae(batch, gamma=0.95, lam=1.0).advantage_T)
    close(ntpo, [0.95 ** (16 - place) for place in range(17)])
    assert float(ntpo[0]) == pytest.approx(0.440, abs=5e-4)


@pytest.mark.parametrize(("length", "reward", "flat"), [(2, 0.9, 0.855), (10, 1.0, 0.630)])
def test_poad_miniature_flat_discounting_prefers_the_short_action(length: int, reward: float, flat: float):
    batch = valued(episode(length, rewards=(reward,)), *[0.0] * length)
    ntpo = sampled(batch, gae(batch, gamma=0.95).advantage_T)
    poad = sampled(batch, split_gae(batch, gamma_turn=0.95, lam_turn=1.0, lam_token=1.0).advantage_T)
    assert float(ntpo[0]) == pytest.approx(flat, abs=5e-4)
    assert float(poad[0]) == pytest.approx(reward)


@ragged
@given(cases)
def test_token_gae_without_discount_telescopes_to_return_minus_value(case: Case):
    batch = case.batch
    returns_T = return_to_go(batch, level="token").advantage_T
    close(gae(batch).advantage_T, returns_T - known(batch.value_T), where=batch.sampled_T)


@ragged
@given(cases)
def test_split_gae_with_equal_pairs_is_token_gae(case: Case):
    flat = split_gae(case.batch, gamma_token=0.9, lam_token=0.8, gamma_turn=0.9, lam_turn=0.8)
    close(flat.advantage_T, gae(case.batch, gamma=0.9, lam=0.8).advantage_T)


def test_gae_levels_coincide_for_one_token_turns():
    batch = valued(episode(1, 1, 1, rewards=(0.3, 0.0, 1.0), bootstrap=0.5), 0.2, 0.4, 0.6)
    flat = gae(batch, gamma=0.9, lam=0.8).advantage_T
    close(turn_gae(batch, gamma=0.9, lam=0.8).advantage_T, flat)
    close(split_gae(batch, gamma_turn=0.9, lam_turn=0.8).advantage_T, flat)
    close(bilevel_gae(batch, gamma_turn=0.9, lam=0.8).advantage_T, flat)


def test_cut_episode_continues_with_its_bootstrap_and_a_finished_one_does_not():
    finished, cut = episode(1, 1), episode(1, 1, bootstrap=0.5)
    # finished: A_1 = 1 − 0.4 = 0.6; cut: 0.9·0.5 more. A_0 = 0.9·0.4 − 0.2 + 0.45·A_1.
    close(sampled(finished.batch, gae(valued(finished, 0.2, 0.4), gamma=0.9, lam=0.5).advantage_T), [0.43, 0.6])
    close(sampled(cut.batch, gae(valued(cut, 0.2, 0.4), gamma=0.9, lam=0.5).advantage_T), [0.6325, 1.05])
    turns = sampled(cut.batch, turn_gae(valued(cut, 0.2, 0.4), gamma=0.9, lam=0.5).advantage_T)
    close(turns, [0.6325, 1.05])
    close(sampled(cut.batch, return_to_go(cut.batch, gamma=0.9).advantage_T), [0.9 * 1.45, 1.45])


def test_cut_episode_without_bootstrap_is_an_error_for_critics_and_zero_without_one():
    groups = make_groups([[EpisodeShape(turns=[TurnShape(sampled=1, reward=1.0)], bootstrap=0.5)]])
    groups[0].trajectories[0].bootstrap = None
    batch = assign(groups).batch
    assert batch.bootstrap_S is None
    for advantage in (gae, split_gae, turn_gae, bilevel_gae):
        with pytest.raises(ValueError, match=r"'task-0/0' was truncated and has no bootstrap value.*bootstrap_S"):
            advantage(batch)
    close(sampled(batch, return_to_go(batch).advantage_T), [1.0])


def test_known_bootstraps_stay_while_another_trajectory_waits():
    shape = EpisodeShape(turns=[TurnShape(sampled=1, reward=1.0)], bootstrap=0.5)
    groups = make_groups([[shape, shape]])
    groups[0].trajectories[1].bootstrap = None
    batch = assign(groups).batch
    assert batch.waiting_S.tolist() == [False, True]
    close(sampled(batch, return_to_go(batch).advantage_T), [1.5, 1.0])
    with pytest.raises(ValueError, match=r"'task-0/1' was truncated and has no bootstrap value"):
        gae(batch)


def test_bootstrap_of_a_finished_episode_is_ignored():
    case = episode(1, 1)
    case.groups[0].trajectories[0].bootstrap = 100.0
    packed = assign(case.groups).batch
    # A critic that values the end of every sequence must not matter either.
    filled = packed.with_(bootstrap_S=torch.full((1,), 100.0, dtype=torch.float64))
    for batch in (packed, filled):
        close(sampled(batch, return_to_go(batch, gamma=0.9).advantage_T), [0.9, 1.0])


def test_credit_flows_across_a_restart():
    whole, restarted = episode(2, 3, 1), episode(2, 3, 1, restart=1)
    assert (whole.batch.sequences, restarted.batch.sequences) == (1, 2)
    for advantage in (gae, split_gae, turn_gae, bilevel_gae, return_to_go):
        close(advantage(restarted.batch).advantage_T, advantage(whole.batch).advantage_T)
    close(sampled(restarted.batch, return_to_go(restarted.batch).advantage_T), [1.0] * 6)


def test_credit_does_not_flow_between_trajectories():
    case = make_case([[EpisodeShape(), EpisodeShape(turns=[TurnShape(reward=1.0)])]])
    close(sampled(case.batch, return_to_go(case.batch, level="token").advantage_T), [0.0, 0.0, 1.0, 1.0])


def test_reward_of_an_empty_turn_lands_on_the_last_sampled_token():
    case = episode(2, 0, 1, rewards=(0.0, 0.5, 1.0))
    close(sampled(case.batch, case.batch.reward_T), [0.0, 0.5, 1.0])
    # The empty turn costs no discount: G_0 = 0.5 + 0.9·1.
    close(sampled(case.batch, return_to_go(case.batch, gamma=0.9).advantage_T), [1.4, 1.4, 1.0])


def test_advantages_without_values_say_what_is_missing():
    for advantage in (gae, split_gae, turn_gae, bilevel_gae):
        with pytest.raises(ValueError, match="value_T is not assigned"):
            advantage(episode(2).batch.with_(value_T=None))
