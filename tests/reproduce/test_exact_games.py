"""SPPO's theory on the cyclic game without a network: each iteration meets its targets exactly."""

import numpy as np
import pytest

from turnwise.judges.judge import judge_matrix
from turnwise.judges.judge_kinds import make_judge
from turnwise.recipe.layers import RECIPES
from turnwise.recipe.loading import load_recipe
from turnwise.reproduce.cyclic_game import ANSWERS
from turnwise.types import StopReason, Trajectory, Turn


def preferences() -> np.ndarray:
    """The matrix of the study's own judge."""
    choice = load_recipe(RECIPES / "sppo" / "cpu.yaml", {"algorithm": "sppo", "train": {"learning_rate": 1e-3}}).judge
    assert choice is not None
    said = [Trajectory(id=each, turns=[Turn(action=each)], stop=StopReason.DONE) for each in ANSWERS]
    return np.array(judge_matrix(make_judge(choice.kind, choice.options), None, said))


def exploitability(policy: np.ndarray, wins: np.ndarray) -> float:
    """How much more often than half the best reply wins."""
    return float((wins @ policy).max() - 0.5)


@pytest.mark.parametrize(("iterations", "expected"), [(50, 0.0772), (200, 0.0139), (800, 0.0065)])
def test_the_average_policy_of_exact_iterations_approaches_the_unbeaten_mixture(iterations: int, expected: float):
    wins, eta = preferences(), 0.5
    policy, total = np.array([0.6, 0.3, 0.1]), np.zeros(3)
    for _ in range(iterations):
        total += policy
        policy = policy * np.exp(eta * (wins @ policy - 0.5))  # the log-ratio is the target of each answer
        policy /= policy.sum()
    found = exploitability(total / iterations, wins)
    assert found == pytest.approx(expected, abs=5e-5)


def test_no_answer_beats_the_mixture_and_every_answer_is_beaten():
    wins = preferences()
    assert exploitability(np.array([0.3, 0.3, 0.4]), wins) == pytest.approx(0.0, abs=1e-12)
    assert all(exploitability(np.eye(3)[each], wins) >= 0.3 for each in range(3))
