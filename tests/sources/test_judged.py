"""Judged groups: win probabilities next to the reward, or rewards in its place; in training and in evaluation."""

import math
from pathlib import Path
from typing import Any

import pytest

from tests.train.small_runs import LostMachineError, Stopping, last_tensors, played, rows, run, timeless, trajectories
from turnwise.evaluate.statistics import wilson_interval
from turnwise.judges.reward_judge import RewardJudge
from turnwise.judges.table_judge import TableJudge
from turnwise.outside import unread
from turnwise.ranks import block
from turnwise.recipe.loading import load_recipe
from turnwise.rollout.packing import pack
from turnwise.sources.judged import Jury
from turnwise.train.win_rate import WinRate
from turnwise.trust import outside_names
from turnwise.types import Group, StopReason, Trajectory, Turn

HERE = __name__
GROUPS = {"algorithm": {"preset": "grpo", "sampling": {"size": 4}}}


class Wordy:
    """Prefers more words, by the square of their number."""

    def prefer(self, task: Any, first: Trajectory, second: Trajectory) -> float:
        one, other = (1 + len(each.turns[-1].action.split()) ** 2 for each in (first, second))
        return one / (one + other)


def answer(name: str, *rewards: float, stop: StopReason = StopReason.DONE) -> Trajectory:
    turns = [Turn(prompt_ids=[1], sampled_ids=[2, 3], action=name, reward=reward) for reward in rewards]
    return Trajectory(id=name, turns=turns, stop=stop)


def test_wins_are_a_stream_at_the_last_token_and_the_reward_stays() -> None:
    group = Group(id="task", trajectories=[answer("a", 0.0, 1.0), answer("b", 0.0)])
    Jury(RewardJudge()).judge([group])
    first, second = group.trajectories
    assert first.info["rivals"] == second.info["rivals"] == ["a", "b"]
    assert first.info["beats"] == pytest.approx([0.5, 0.7310586])
    assert second.info["beats"] == pytest.approx([0.2689414, 0.5])
    assert (first.reward, second.reward) == (1.0, 0.0)
    wins = pack([group]).extra_T["wins"]
    assert wins.shape == (9, 1)
    assert wins[5].item() == pytest.approx((0.5 + 0.7310586) / 2)
    assert wins[8].item() == pytest.approx((0.5 + 0.2689414) / 2)
    assert wins.count_nonzero() == 2


def test_a_failed_episode_is_not_compared() -> None:
    failed = answer("c", 9.0, stop=StopReason.ENV_ERROR)
    group = Group(id="task", trajectories=[answer("a", 1.0), failed, answer("b", 0.0)])
    Jury(RewardJudge()).judge([group])
    assert group.trajectories[0].info["rivals"] == ["a", "b"]
    assert "beats" not in failed.info
    assert not failed.turns[0].streams


def test_a_judges_reward_replaces_the_environments_which_is_kept() -> None:
    group = Group(id="task", trajectories=[answer("a", 0.0, 1.0), answer("b", 0.25)])
    Jury(RewardJudge(scale=3.0), gives="reward").judge([group])
    first, second = group.trajectories
    assert [turn.reward for turn in first.turns] == [0.0, 3.0]
    assert [turn.reward_parts["env"] for turn in first.turns] == [0.0, 1.0]
    assert second.reward == 0.75


def test_a_judge_that_pays_compares_what_the_environment_paid() -> None:
    jury = Jury(RewardJudge(scale=3.0), gives="reward")
    group = Group(id="task", trajectories=[answer("a", 0.0, 1.0), answer("b", 0.5)])
    jury.judge([group])
    first, second = group.trajectories
    assert jury.compare([(first, second)]) == pytest.approx([1 / (1 + math.exp(-1.5))])
    assert first.reward == 3.0


def test_success_stays_what_the_environment_said() -> None:
    group = Group(id="task", trajectories=[answer("a", 0.0), answer("b", 1.0)])
    table = TableJudge(answers=["a", "b"], wins=[[0.5, 1.0], [0.0, 0.5]])
    Jury(table, gives="reward").judge([group])
    assert [each.reward for each in group.trajectories] == [0.75, 0.25]
    assert [each.success for each in group.trajectories] == [False, True]


def test_every_turn_has_its_own_reward_if_the_judge_scores_turns() -> None:
    group = Group(id="task", trajectories=[answer("a", 0.5, 1.0)])
    Jury(RewardJudge(scale=2.0), gives="turn-reward").judge([group])
    assert [turn.reward for turn in group.trajectories[0].turns] == [1.0, 2.0]


class OneOfTwo:
    """Rank 1 of two; what rank 0 would say is handed to it."""

    rank, size = 1, 2

    def __init__(self, other: list[Any]) -> None:
        self.other = other

    def share(self, items: Any) -> list[Any]:
        return block(items, 1, 2)

    def gather(self, value: Any) -> list[Any]:
        return [self.other, value]

    def broadcast(self, value: Any) -> Any:
        raise NotImplementedError

    def reduce(self, values: Any) -> Any:
        raise NotImplementedError


def test_each_rank_judges_its_share_and_all_get_every_opinion() -> None:
    groups = [Group(id=name, trajectories=[answer(f"{name}1", 1.0), answer(f"{name}2", 0.0)]) for name in "xy"]
    first_rank = [[[0.5, 0.125], [0.875, 0.5]]]
    Jury(RewardJudge(), ranks=OneOfTwo(first_rank)).judge(groups)
    assert [each.info["beats"] for each in groups[0].trajectories] == first_rank[0]
    assert groups[1].trajectories[0].info["beats"] == pytest.approx([0.5, 0.7310586])


def test_the_recipe_names_the_judge_and_code_from_outside_needs_trust() -> None:
    recipe = load_recipe(None, {"algorithm": "grpo", "judge": {"kind": f"{HERE}:Wordy", "gives": "reward"}})
    assert outside_names(recipe.model_dump(mode="json")) == [f"{HERE}:Wordy"]
    assert outside_names({"judge": "mine:Judge"}) == ["mine:Judge"]
    assert load_recipe(None, {"judge": "reward"}).judge == load_recipe(None, {"judge": {"kind": "reward"}}).judge
    with unread():
        load_recipe(None, {"judge": "nowhere:Judge"})
    with pytest.raises(ValueError, match="judge: unknown kind 'tabel'; did you mean table"):
        load_recipe(None, {"judge": "tabel"})


def test_training_and_evaluation_are_judged_and_recorded(tmp_path: Path) -> None:
    judge = {"kind": f"{HERE}:Wordy", "gives": "reward"}
    changes = {**GROUPS, "judge": judge, "train": {"steps": 2}, "eval": {"episodes": 4, "tries": 2}}
    assert run(tmp_path / "run", changes)["status"] == "finished"
    groups = played(tmp_path / "run", 1)
    assert all("env" in turn.reward_parts for each in trajectories(groups) for turn in each.turns)
    for group in groups:
        assert sum(each.reward for each in group.trajectories) == pytest.approx(len(group.trajectories) / 2)
    assert rows(tmp_path / "run")[0]["rollout/reward"] == pytest.approx(0.5)
    assert rows(tmp_path / "run")[0]["rollout/env_reward"] < 0.5
    assert rows(tmp_path / "run", "evals")[-1]["eval/reward"] == pytest.approx(0.5)
    assert "eval/env_reward" in rows(tmp_path / "run", "evals")[-1]


def test_further_tries_and_experts_are_judged_with_their_group(tmp_path: Path) -> None:
    row = {"preset": "dars-et", "sampling": {"size": 2, "most": 4}}
    changes = {"algorithm": row, "judge": "reward", "source": {"expert": 1}, "train": {"steps": 1}}
    run(tmp_path / "run", changes)
    for group in played(tmp_path / "run", 1):
        names = [each.id for each in group.trajectories]
        assert len(names) == (3 if any(each.success for each in group.trajectories[:2]) else 4)
        assert all(each.info["rivals"] == names for each in group.trajectories)


@pytest.mark.parametrize(
    ("row", "gives"), [("grpo", "reward"), ("iterative-dpo", "wins"), ("sppo", "wins")], ids=lambda each: each
)
def test_a_judged_run_that_is_cut_and_resumed_ends_with_the_same_bits(tmp_path: Path, row: str, gives: str) -> None:
    judge = {"kind": f"{HERE}:Wordy", "gives": gives}
    changes = {
        "algorithm": {"preset": row, "sampling": {"size": 4}},
        "judge": judge,
        "eval": {"episodes": 4, "every": 2},
        "train": {"steps": 4, "reference_every": 2},
    }
    run(tmp_path / "whole", changes)
    with pytest.raises(LostMachineError):
        run(tmp_path / "cut", changes, console=Stopping(after=3))
    run(tmp_path / "cut")
    assert last_tensors(tmp_path / "cut") == last_tensors(tmp_path / "whole")
    for journal in ("metrics", "evals"):
        assert timeless(tmp_path / "cut", journal) == timeless(tmp_path / "whole", journal)


def test_the_judge_cannot_change_in_the_middle_of_a_run(tmp_path: Path) -> None:
    from turnwise.train.stages import resume

    run(tmp_path / "run", {**GROUPS, "judge": "reward", "train": {"steps": 2}})
    with pytest.raises(ValueError, match=r"judge.* cannot change in the middle of a run"):
        resume(tmp_path / "run", overrides={"judge": None, "train": {"steps": 4}})


def test_the_win_rate_compares_with_the_answers_of_step_0_also_after_a_resume(tmp_path: Path) -> None:
    changes = {**GROUPS, "judge": f"{HERE}:Wordy", "eval": {"episodes": 20, "every": 2}, "log": {"rollouts": 0}}
    run(tmp_path / "whole", changes)
    with pytest.raises(LostMachineError):
        run(tmp_path / "cut", changes, console=Stopping(after=3))
    run(tmp_path / "cut")
    evals = timeless(tmp_path / "whole", "evals")
    assert timeless(tmp_path / "cut", "evals") == evals
    assert "eval/win_rate" not in evals[0]
    for row in evals[1:]:
        assert 0 <= row["eval/win_rate_low"] < row["eval/win_rate"] < row["eval/win_rate_high"] <= 1
    assert evals[-1]["eval/win_rate"] != 0.5


def test_a_win_rate_is_the_mean_over_tasks_of_what_both_evaluations_played(tmp_path: Path) -> None:
    first = [Group(id=name, trajectories=[answer(name, 0.0)]) for name in "abc"]
    rewards = {"a": 9e9, "b": -9e9, "x": 1.0}
    now = [Group(id=name, trajectories=[answer(name, reward)]) for name, reward in rewards.items()]
    rates = WinRate(Jury(RewardJudge()), tmp_path / "none")
    assert rates.measure(now) == {}
    rates.begin([*first, Group(id="d", trajectories=[answer("d", 0.0, stop=StopReason.TIMEOUT)])])
    now.append(Group(id="d", trajectories=[answer("d", 9e9)]))
    measured = rates.measure([*now, Group(id="c", trajectories=[answer("c", 9e9)])])
    assert measured["eval/win_rate"] == pytest.approx(2 / 3)
    assert (measured["eval/win_rate_low"], measured["eval/win_rate_high"]) == pytest.approx(
        wilson_interval(successes=2, trials=3)
    )
