"""A player of Dhumbal that learns by deep Q-learning: replay, a target network, and no value after a round's end."""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from turnwise.envs.cards.dhumbal_rules import Decision, Known
from turnwise.policy.features import FeaturePolicy
from turnwise.train.card_files import decide, new_network, save_network, values
from turnwise.train.card_rollouts import SeatRound, Taken, play_rounds

_LEAST_EXPLORATION = 0.01


@dataclass(frozen=True, kw_only=True)
class _Step:
    """A decision with what followed: the next decision of the same seat, or the end with its reward."""

    taken: Taken
    then: Taken | None
    reward: float


class DqnPlayer:
    """Learns when it is made, then plays: `DqnPlayer(seed=1, steps=60)`."""

    def __init__(
        self,
        *,
        seed: int = 0,
        steps: int = 60,
        rounds: int = 256,
        updates: int = 64,
        batch: int = 128,
        learning_rate: float = 1e-3,
        replay: int = 50_000,
        gamma: float = 0.99,
        decay: float = 0.9,
    ) -> None:
        """Each step plays rounds, draws `updates` batches from the replay, and copies the network to the target."""
        self.network = new_network("dqn", seed=seed)
        self._rng, self._exploration = random.Random(f"rounds:{seed}"), 1.0
        self.rewards: list[float] = []
        """Mean coins a round / 100, step by step."""
        memory: deque[_Step] = deque(maxlen=replay)
        optimizer = torch.optim.Adam(self.network.parameters(), lr=learning_rate)
        for _ in range(steps):
            played = play_rounds(self._choose, count=rounds, rng=self._rng)
            self.rewards.append(sum(each.reward for each in played) / len(played))
            memory.extend(step for each in played for step in _steps(each))
            target = copy.deepcopy(self.network)
            for _ in range(updates):
                loss = _loss(self.network, target, self._rng.choices(memory, k=batch), gamma)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.network.parameters(), 10.0)
                optimizer.step()
            self._exploration = max(_LEAST_EXPLORATION, self._exploration * decay)

    def decide(self, known: Known, rng: random.Random) -> Decision:
        """The decision of highest value."""
        return decide(self.network, "dqn", known, torch.Generator())

    def save(self, path: str | Path) -> None:
        """Write what it has learned to a file that `LearnedCards` plays."""
        save_network(self.network, "dqn", path)

    @torch.no_grad()
    def _choose(self, features_N: Tensor, legal_NA: Tensor) -> tuple[list[int], list[float]]:
        best = values(self.network, features_N, legal_NA).argmax(-1).tolist()
        for place, legal in enumerate(legal_NA.tolist()):
            if self._rng.random() < self._exploration:
                best[place] = self._rng.choice([slot for slot, allowed in enumerate(legal) if allowed])
        return best, [0.0] * len(best)


def _steps(played: SeatRound) -> list[_Step]:
    following = [*played.taken[1:], None]
    return [
        _Step(taken=taken, then=then, reward=played.reward if then is None else 0.0)
        for taken, then in zip(played.taken, following, strict=True)
    ]


def _loss(network: FeaturePolicy, target: FeaturePolicy, steps: Sequence[_Step], gamma: float) -> Tensor:
    """Huber's loss of Q(s, a) against r + γ max Q_target(s′); after the end there is no s′."""
    features_N, legal_NA = _tensors([step.taken for step in steps])
    slot_N = torch.tensor([step.taken.slot for step in steps])
    goal_N = torch.tensor([step.reward for step in steps])
    ongoing = [place for place, step in enumerate(steps) if step.then is not None]
    if ongoing:
        following = [step.then for step in steps if step.then is not None]
        with torch.no_grad():
            goal_N[ongoing] += gamma * values(target, *_tensors(following)).max(-1).values
    found_N = values(network, features_N, legal_NA).gather(1, slot_N[:, None]).squeeze(1)
    return nn.functional.smooth_l1_loss(found_N, goal_N)


def _tensors(taken: Sequence[Taken]) -> tuple[Tensor, Tensor]:
    return torch.tensor([each.features for each in taken]), torch.tensor([each.legal for each in taken])
