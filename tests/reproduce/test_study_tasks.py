"""What studies add to environments: shifts that carry no information, and a game without a best answer."""

from statistics import pstdev

from turnwise.envs import check_env
from turnwise.envs.tasks.arithmetic import Arithmetic
from turnwise.reproduce.cyclic_game import ANSWERS, CyclicGame
from turnwise.reproduce.shifted_rewards import ShiftedReward


def shift_of(seed: int, answer: str) -> tuple[float, float, bool]:
    env = ShiftedReward(Arithmetic(), spread=10.0)
    env.reset(seed=seed)
    plain = Arithmetic()
    plain.reset(seed=seed)
    answer = plain.oracle() if answer == "right" else answer
    step = env.step(answer)
    assert isinstance(step, tuple)
    _, reward, _, _, info = step
    return reward - plain.step(answer)[1], reward, info["success"]


def test_all_answers_to_a_prompt_are_shifted_alike_and_success_is_not():
    for seed in range(5):
        right, wrong = shift_of(seed, "right"), shift_of(seed, r"\boxed{-1}")
        assert abs(right[0] - wrong[0]) < 1e-9
        assert (right[2], wrong[2]) == (True, False)


def test_shifts_of_different_prompts_have_the_stated_spread():
    shifts = [shift_of(seed, "right")[0] for seed in range(400)]
    assert 9.0 < pstdev(shifts) < 11.0  # the deviation of 400 draws is off by 10 / √800 = 0.35


def test_the_expert_of_the_cyclic_game_says_every_letter_and_the_doctor_finds_nothing_wrong():
    env = CyclicGame()
    said = [(env.reset(seed=seed), env.oracle())[1] for seed in range(300)]
    assert all(80 < said.count(letter) < 120 for letter in ANSWERS)
    assert check_env(CyclicGame).ok
