"""What the episodes of a step say: rates over sound episodes, the share of the others, lags and repetition."""

import math
from dataclasses import replace

import pytest

from turnwise.rollout.scheduler import at_seats
from turnwise.sources.rollout_metrics import find_errors, read_rollout
from turnwise.types import Group, StopReason, Trajectory, Turn


def trajectory(name: str, *turns: Turn, stop: StopReason = StopReason.DONE, **info: object) -> Trajectory:
    return Trajectory(id=name, turns=list(turns), stop=stop, info=info)


def turn(ids: list[int], *, reward: float = 0.0, version: int = 3, valid: bool = True) -> Turn:
    logprobs = [-1.0] * len(ids)
    return Turn(sampled_ids=ids, logprobs=logprobs, reward=reward, policy_version=version, valid=valid)


GROUPS = [
    Group(
        id="a",
        trajectories=[
            trajectory("a/0", turn([1, 2], version=3), turn([3, 4, 5], reward=1.0, version=4), success=True),
            trajectory("a/1", turn([1, 2, 3], valid=False), stop=StopReason.MAX_TURNS),
        ],
    ),
    Group(
        id="b",
        trajectories=[
            trajectory("b/0", turn([1] * 9, reward=0.5), success=False),
            trajectory("b/1", turn([7] * 50), stop=StopReason.TIMEOUT, error="no answer within 1 s", culprit="env"),
        ],
    ),
    Group(
        id="c",
        trajectories=[
            trajectory("c/0", stop=StopReason.ENV_ERROR, error="log-prob nan", culprit="agent"),
            trajectory("c/1", turn([2, 2, 3], version=1), stop=StopReason.MAX_TOKENS),
        ],
    ),
]


def test_rates_are_those_of_sound_episodes_and_faults_the_share_of_the_others() -> None:
    metrics = read_rollout(GROUPS, version=5)
    assert metrics["rollout/episodes"] == 6
    assert metrics["rollout/tasks"] == 3
    assert metrics["rollout/faults"] == pytest.approx(2 / 6)
    assert metrics["rollout/success"] == pytest.approx(1 / 4)
    assert metrics["rollout/reward"] == pytest.approx(1.5 / 4)
    assert metrics["rollout/cut"] == pytest.approx(2 / 4)
    assert metrics["rollout/turns"] == pytest.approx(5 / 4)
    assert metrics["rollout/tokens"] == pytest.approx((2 + 3 + 3 + 9 + 3) / 4)
    assert metrics["rollout/valid"] == pytest.approx(4 / 5)


def test_a_turns_lag_is_how_far_its_sampler_was_behind() -> None:
    metrics = read_rollout(GROUPS, version=5)
    assert metrics["rollout/lag_mean"] == pytest.approx((2 + 1 + 2 + 2 + 4) / 5)
    assert metrics["rollout/lag_max"] == 4


def test_what_nobody_sampled_has_no_lag() -> None:
    shown = Group(id="d", trajectories=[trajectory("d/0", Turn(sampled_ids=[1, 2]))])
    assert "rollout/lag_mean" not in read_rollout([shown], version=5)


def test_perplexity_is_that_of_the_samplers_own_tokens() -> None:
    sampled = [Turn(sampled_ids=[1, 2], logprobs=[-1.0, -2.0]), Turn(sampled_ids=[3], logprobs=[0.0])]
    group = Group(id="d", trajectories=[trajectory("d/0", *sampled), trajectory("d/1", Turn(sampled_ids=[1, 2]))])
    assert read_rollout([group], version=5)["rollout/perplexity"] == pytest.approx(math.e)


def test_scores_of_the_environment_are_averaged() -> None:
    one, two = trajectory("d/0", turn([1])), trajectory("d/1", turn([1]))
    one.info, two.info = {"scores": {"true": 0.5}}, {"scores": {"true": 1.0, "length": 4}}
    metrics = read_rollout([Group(id="d", trajectories=[one, two])], version=5)
    assert (metrics["rollout/score_true"], metrics["rollout/score_length"]) == (0.75, 4)


def test_four_tokens_that_come_again_in_their_turn_are_repetition() -> None:
    looping = Group(id="e", trajectories=[trajectory("e/0", turn([1, 2, 3, 4, 1, 2, 3, 4]), turn([1, 2, 3, 4]))])
    assert read_rollout([looping], version=3)["rollout/repetition"] == pytest.approx(1 / 6)
    assert read_rollout(GROUPS, version=5)["rollout/repetition"] == pytest.approx(5 / 6)  # nine equal tokens
    short = Group(id="f", trajectories=[trajectory("f/0", turn([1, 1, 1]))])
    assert read_rollout([short], version=3)["rollout/repetition"] == 0


def test_groups_of_equal_rewards_are_counted_among_groups_of_several() -> None:
    equal = Group(id="g", trajectories=[trajectory("g/0", turn([1])), trajectory("g/1", turn([2]))])
    alone = Group(id="h", trajectories=[trajectory("h/0", turn([1]))])
    assert read_rollout([*GROUPS[:1], equal, alone], version=3)["rollout/zero_variance"] == pytest.approx(1 / 2)
    assert "rollout/zero_variance" not in read_rollout([alone], version=3)


@pytest.mark.parametrize(
    ("paid", "share"),
    [([{"a": 1, "b": -1}, {"a": -0.5, "b": 0.5}], 1), ([{"a": 1, "b": -1}, {"a": 1, "b": 1}], 1 / 2)],
)
def test_games_in_which_a_policy_wins_what_it_loses_are_counted(paid: list[dict[str, float]], share: float) -> None:
    def seated(game: int, seat: str, rewards: dict[str, float]) -> Trajectory:
        return replace(trajectory(f"{game}/{seat}", turn([1]), rewards=rewards), seat=seat, episode=str(game))

    endings = enumerate([*paid, {"a": 0.0, "b": 0.0}])
    groups = [Group(id=f"{game}", trajectories=[seated(game, seat, end) for seat in end]) for game, end in endings]
    assert read_rollout(groups, version=3)["rollout/zero_sum"] == share
    assert "rollout/zero_sum" not in read_rollout(groups[-1:], version=3)  # a draw, or all failed
    assert "rollout/zero_sum" not in read_rollout(at_seats(groups, ["a"]), version=3)  # another plays the other seat


def test_a_step_without_one_sound_episode_has_faults_and_no_rates() -> None:
    lost = Group(id="i", trajectories=[trajectory("i/0", turn([1]), stop=StopReason.ENV_ERROR)])
    assert read_rollout([lost], version=3) == {
        "rollout/episodes": 1.0,
        "rollout/tasks": 1.0,
        "rollout/faults": 1.0,
    }


def test_errors_are_told_by_whoever_made_them() -> None:
    assert find_errors(GROUPS) == ["no answer within 1 s", "log-prob nan"]
    assert find_errors(GROUPS, culprit="env") == ["no answer within 1 s"]
    assert find_errors(GROUPS, culprit="agent") == ["log-prob nan"]
    assert find_errors(GROUPS[:1]) == []
