"""Networks that have learned Dhumbal, in files: `PpoPlayer(steps=40).save(file)`, `LearnedCards(file)`."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from turnwise.envs.cards.dhumbal_features import SLOTS, WIDTH, slots
from turnwise.envs.cards.dhumbal_rules import Decision, Known
from turnwise.policy.features import Discrete, FeaturePolicy
from turnwise.train.card_rollouts import view_of

Kind = Literal["ppo", "dqn"]
_PLAYER = "cards/dhumbal"
"""The key under which a file says how its network plays."""


class LearnedCards:
    """Plays as the network in a file says: PPO draws from its policy, DQN takes what it values most."""

    def __init__(self, path: str | Path) -> None:
        kind, self.network = _read(Path(path))
        self.kind: Kind = kind

    def decide(self, known: Known, rng: random.Random) -> Decision:
        """The network's decision; what is drawn comes from `rng` alone."""
        return decide(self.network, self.kind, known, torch.Generator().manual_seed(rng.getrandbits(63)))


def new_network(kind: Kind, *, seed: int) -> FeaturePolicy:
    """The network of a player before it learns; PPO's has a critic."""
    actions = Discrete(count=SLOTS)
    return FeaturePolicy.mlp(WIDTH, actions=actions, hidden=(128, 64), value=kind == "ppo", seed=seed)


def decide(network: FeaturePolicy, kind: Kind, known: Known, generator: torch.Generator) -> Decision:
    """What a network does with what a seat knows."""
    features, legal = view_of(known)
    features_N, legal_NA = torch.tensor([features]), torch.tensor([legal])
    if kind == "ppo":
        slot = int(network.act(features_N, generator=generator, legal_NA=legal_NA).chosen_N)
    else:
        slot = int(values(network, features_N, legal_NA).argmax(-1))
    decision = slots(known)[slot]
    assert decision is not None, "an action that is not legal has no probability and no value"
    return decision


def values(network: FeaturePolicy, features_N: Tensor, legal_NA: Tensor) -> Tensor:
    """Q of every slot; minus infinity where it is not legal."""
    return network.head(network.body(features_N)).masked_fill(~legal_NA, float("-inf"))


def save_network(network: FeaturePolicy, kind: Kind, path: str | Path) -> None:
    """Write a player's network to a file that a seat or a tournament can name."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    save_file(network.state_dict(), path, metadata={_PLAYER: kind})


def _read(path: Path) -> tuple[Kind, FeaturePolicy]:
    if not path.is_file():
        raise ValueError(f"there is no file {path}; write one with PpoPlayer(steps=40).save({str(path)!r})")
    try:
        with safe_open(path, "pt") as file:
            kind = (file.metadata() or {}).get(_PLAYER)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        if kind != "ppo" and kind != "dqn":
            raise ValueError(f"{path} is not a player of {_PLAYER}; name a file that PpoPlayer or DqnPlayer saved")
        network = new_network(kind, seed=0)
        network.load_state_dict(tensors)
    except (SafetensorError, RuntimeError) as error:
        raise ValueError(f"cannot read {path} as a player of {_PLAYER}: {error}; save it again") from error
    return kind, network.requires_grad_(False)
