"""A player of Dhumbal that learns by PPO: a masked feature policy, the library's own learner, coins as the reward."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from torch import Tensor

from turnwise.algorithm import Algorithm, preset
from turnwise.envs.cards.dhumbal_rules import Decision, Known
from turnwise.learn.learner import Learner
from turnwise.policy.features import FEATURES, LEGAL
from turnwise.recipe.schema import Train
from turnwise.train.card_files import decide, new_network, save_network
from turnwise.train.card_rollouts import SeatRound, Taken, play_rounds
from turnwise.types import Group, StopReason, Trajectory, Turn


class PpoPlayer:
    """Learns when it is made, then plays: `PpoPlayer(seed=1, steps=60)`."""

    def __init__(self, *, seed: int = 0, steps: int = 60, rounds: int = 256, learning_rate: float = 1e-3) -> None:
        self.policy = new_network("ppo", seed=seed)
        self._generator = torch.Generator().manual_seed(seed)
        self.rewards: list[float] = []
        """Mean coins a round / 100, step by step."""
        settings = Train(steps=steps, learning_rate=learning_rate, critic_learning_rate=learning_rate)
        learner, rng = Learner(self.policy, card_row(), settings, seed=seed), random.Random(f"rounds:{seed}")
        for step in range(1, steps + 1):
            played = play_rounds(self._choose, count=rounds, rng=rng)
            self.rewards.append(sum(each.reward for each in played) / len(played))
            batch = learner.prepare([_group(f"{step}/{place}", each) for place, each in enumerate(played)])
            assert batch is not None, "no filter drops a whole round"
            learner.learn(batch, step)

    def decide(self, known: Known, rng: random.Random) -> Decision:
        """What the policy samples."""
        return decide(self.policy, "ppo", known, self._generator)

    def save(self, path: str | Path) -> None:
        """Write what it has learned to a file that `LearnedCards` plays."""
        save_network(self.policy, "ppo", path)

    def _choose(self, features_N: Tensor, legal_NA: Tensor) -> tuple[list[int], list[float]]:
        chosen = self.policy.act(features_N, generator=self._generator, legal_NA=legal_NA)
        return chosen.chosen_N.tolist(), chosen.logprob_N.tolist()


def card_row() -> Algorithm:
    """PPO as in the paper: clip 0.2, five epochs, λ 0.95, entropy 0.01; rounds end, so nothing is discounted."""
    return preset("ppo").override(
        {
            "advantage": {"gamma": 1.0, "lam": 0.95},
            "weights": "token-mean",
            "regularizers": [{"kind": "entropy", "coef": 0.01}],
            "epochs": 5,
            "minibatches": 4,
        }
    )


def _group(name: str, played: SeatRound) -> Group:
    """A seat's round as an episode that ended by itself; the coins are its last turn's."""
    turns = [_turn(taken) for taken in played.taken]
    turns[-1].reward = played.reward
    return Group(id=name, trajectories=[Trajectory(id=name, turns=turns, stop=StopReason.DONE, terminated=True)])


def _turn(taken: Taken) -> Turn:
    streams = {FEATURES: taken.features, LEGAL: [float(each) for each in taken.legal]}
    return Turn(sampled_ids=[taken.slot], logprobs=[min(taken.logprob, 0.0)], streams=streams)
