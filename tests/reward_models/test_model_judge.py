"""A reward model as the judge of any environment."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.train.small_runs import played, rows, run, trajectories
from turnwise.envs.chat.prompts import Reviews
from turnwise.envs.chat.reviews import score_review
from turnwise.judges.judge import judge_matrix
from turnwise.judges.judge_kinds import check_judge, make_judge
from turnwise.reward_models import RewardModel, RewardTraining, train_reward_model
from turnwise.reward_models.model_judge import RewardModelJudge
from turnwise.types import StopReason, Trajectory, Turn

CHAT: dict[str, Any] = {
    "model": "pico-chat",
    "env": {"id": "chat/prompts", "check": False},
    "algorithm": {"preset": "grpo", "sampling": {"size": 4}},
    "rollout": {"episodes": 16, "max_turns": 1, "max_tokens": 12},
    "train": {"steps": 2, "learning_rate": 1e-3},
    "eval": {"episodes": 4},
}


def write_reviews(path: Path, *, lines: int = 160) -> Path:
    """Pairs of reviews that the environment's own score tells apart."""
    env, written = Reviews(), list[str]()
    for seed in range(lines):
        prompt, _ = env.reset(seed=seed)
        drawn = [env.sample_random_action() for _ in range(4)]
        answers = sorted(drawn, key=lambda text: score_review(text, env.subject)["true"])
        written.append(json.dumps({"prompt": prompt, "chosen": answers[-1], "rejected": answers[0]}))
    path.write_text("\n".join(written))
    return path


@pytest.fixture(scope="module")
def reviewer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reviewer")
    settings = RewardTraining.of({"model": "pico-chat", "epochs": 6, "train": {"learning_rate": 5e-3}})
    report = train_reward_model(write_reviews(folder / "pairs.jsonl"), folder / "model", settings)
    assert (report.all.accuracy or 0) > 0.7
    return folder / "model"


def said(*turns: tuple[str, str]) -> Trajectory:
    spoken = [Turn(observation=heard, action=text, sampled_ids=[1]) for heard, text in turns]
    return Trajectory(id="", turns=spoken, stop=StopReason.DONE)


ASKED = "review the style and the end of the film"
GOOD, BAD = (said((ASKED, f"the film is {word} and the end is {word} .")) for word in ("great", "dull"))


def test_it_prefers_by_the_difference_of_scores(reviewer: Path) -> None:
    judge = make_judge("reward-model", {"path": str(reviewer), "gives": "wins"})
    assert isinstance(judge, RewardModelJudge)
    matrix = judge_matrix(judge, None, [GOOD, BAD])
    assert judge.prefer(None, GOOD, BAD) == pytest.approx(matrix[0][1])
    assert matrix[0][1] + matrix[1][0] == pytest.approx(1)
    ((score,),) = judge.score([GOOD], per="episode")
    assert score == pytest.approx(RewardModel.load(reviewer).score_episodes([GOOD])[0][0], abs=1e-4)


def test_every_turn_has_a_score_and_words_are_scored_once(reviewer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge, asked = RewardModelJudge(path=str(reviewer)), list[int]()
    original = RewardModel.score_episodes

    def counting(self: RewardModel, episodes: Any) -> list[list[float]]:
        asked.append(len(episodes))
        return original(self, episodes)

    monkeypatch.setattr(RewardModel, "score_episodes", counting)
    long = said((ASKED, "the film is great ."), ("the end", "the end is dull ."))
    scores = judge.score([long, GOOD, long], per="turn")
    assert [len(each) for each in scores] == [2, 1, 2]
    assert scores[0] == scores[2]
    assert judge.score([long], per="episode") == [scores[0][-1:]]
    assert asked == [2, 0]


def test_an_empty_answer_has_a_score_too(reviewer: Path) -> None:
    (found,) = RewardModelJudge(path=str(reviewer)).score([said((ASKED, ""))], per="turn")
    assert len(found) == 1


def test_it_is_the_reward_of_a_run(reviewer: Path, tmp_path: Path) -> None:
    judge = {"kind": "reward-model", "path": str(reviewer), "gives": "reward"}
    run(tmp_path / "run", {**CHAT, "judge": judge})
    (first, *_), (evaluated, *_) = rows(tmp_path / "run"), rows(tmp_path / "run", "evals")
    assert "rollout/env_reward" in first
    assert "eval/env_reward" in evaluated
    episodes = trajectories(played(tmp_path / "run", 1))
    expected = [scores[-1] for scores in RewardModel.load(reviewer).score_episodes(episodes)]
    assert [each.reward for each in episodes] == pytest.approx(expected, abs=1e-4)


def test_a_folder_that_is_not_a_reward_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a reward model; train one with"):
        make_judge("reward-model", {"path": str(tmp_path), "gives": "reward"})
    with pytest.raises(ValueError, match="missing a required argument: 'path'"):
        check_judge("reward-model", {"gives": "reward"})
