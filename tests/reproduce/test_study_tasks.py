"""What studies of preferences are made of: shifts, noise, pairs of the expert, and a game without a best answer."""

import json
import math
from statistics import pstdev

import pytest

from turnwise.envs import check_env, make
from turnwise.envs.chat.reviews import Subject, score_review
from turnwise.recipe.schema import EnvChoice
from turnwise.reproduce.cyclic_game import ANSWERS, CyclicGame
from turnwise.reproduce.expert_pairs import write_pairs
from turnwise.reproduce.noisy_judge import NoisyJudge
from turnwise.reproduce.shifted_rewards import ShiftedReward
from turnwise.types import StopReason, Trajectory, Turn


def answer(prompt: str, reward: float) -> Trajectory:
    turn = Turn(observation=prompt, action="?", reward=reward)
    return Trajectory(id=prompt, turns=[turn], stop=StopReason.MAX_TOKENS)


def test_all_answers_to_a_prompt_are_shifted_alike_and_the_better_one_still_wins():
    judge = ShiftedReward(spread=10.0)
    for number in range(5):
        better, worse = answer(f"prompt {number}", 1.0), answer(f"prompt {number}", 0.0)
        (high,), (low,) = judge.score([better, worse], per="episode")
        assert high - low == pytest.approx(1.0)
        assert judge.prefer(None, better, worse) == pytest.approx(1 / (1 + math.exp(-1)))


def test_shifts_of_different_prompts_have_the_stated_spread():
    answers = [answer(f"prompt {number}", 0.0) for number in range(400)]
    shifts = [shift for (shift,) in ShiftedReward(spread=10.0).score(answers, per="episode")]
    assert 9.0 < pstdev(shifts) < 11.0  # the deviation of 400 draws is off by 10 / √800 = 0.35


def test_a_noisy_judge_contradicts_itself_never_and_errs_as_often_as_it_says():
    judge = NoisyJudge(noise=1.0)
    said = [judge.prefer(None, answer(f"a{n}", 1.0), answer(f"b{n}", 0.0)) for n in range(1000)]
    back = [judge.prefer(None, answer(f"b{n}", 0.0), answer(f"a{n}", 1.0)) for n in range(1000)]
    assert [one + other for one, other in zip(said, back, strict=True)] == [1.0] * 1000
    assert sum(said) / 1000 == pytest.approx(1 / (1 + math.exp(-1)), abs=0.05)  # three deviations are 0.042


def test_pairs_of_the_expert_are_two_answers_of_which_the_better_is_chosen(tmp_path):
    write_pairs(tmp_path / "pairs.jsonl", EnvChoice(id="chat/prompts"), count=20, noise=0.0, seed=0)
    env = make("chat/prompts")
    for line in map(json.loads, (tmp_path / "pairs.jsonl").read_text().splitlines()):
        topic = line["prompt"].split()[-1]
        task = next(each for each in env.list_tasks() or [] if Subject(**each).prompt == line["prompt"])
        scores = [score_review(line[name], Subject(**task))["true"] for name in ("chosen", "rejected")]
        assert scores[0] > scores[1]
        assert topic in line["chosen"]


def test_the_expert_of_the_cyclic_game_says_every_letter_and_the_doctor_finds_nothing_wrong():
    env = CyclicGame()
    said = [(env.reset(seed=seed), env.oracle())[1] for seed in range(300)]
    assert all(80 < said.count(letter) < 120 for letter in ANSWERS)
    assert check_env(CyclicGame).ok
