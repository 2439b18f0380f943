"""Policies without text: small networks over observation features, scored through the same batch as language models.

An action is a turn of one token. A discrete action is the token's id; a Gaussian one is in `extra_T["actions"]`, and
its id means nothing. The observation for an action is in `extra_T["features"]` at the action's own row. If some actions
were not allowed, `extra_T["legal"]` has a one for each that was: the others have no probability, in play and learning.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from turnwise.batch import Scores, TokenBatch
from turnwise.ops.facts import Need
from turnwise.policy.critics import Bins
from turnwise.policy.packed_rows import rows_at_end

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)
FEATURES, ACTIONS, LEGAL = "features", "actions", "legal"
"""Names of the streams."""
_NEVER = -1e30
"""The log-prob of an action that is not allowed: it stays finite, so that 0 × log 0 is 0."""


@dataclass(frozen=True, kw_only=True)
class Discrete:
    """One of `count` actions."""

    count: int


@dataclass(frozen=True, kw_only=True)
class Gaussian:
    """A vector of `size` numbers, each with a mean from the network and a learned spread, the same in every state."""

    size: int


@dataclass(frozen=True, kw_only=True)
class Actions:
    """What a policy chose: ids [N] or vectors [N, size], and their log-probs [N]."""

    chosen_N: Tensor
    logprob_N: Tensor


class FeaturePolicy(nn.Module):
    """A network that chooses actions: `FeaturePolicy.mlp(4, actions=Discrete(count=2))` plays CartPole."""

    provides = frozenset(
        {
            *(Need.OLD, Need.SAMPLER, Need.REFERENCE, Need.ENTROPY),
            *(Need.COLLISION, Need.VOCABULARY_MEAN, Need.GRADIENT, Need.WHOLE_GROUPS),
        }
    )
    has_adapter = False

    def __init__(
        self, body: nn.Module, width: int, *, actions: Discrete | Gaussian, value: bool = False, seed: int = 0
    ) -> None:
        """`body` turns features [N, ...] into [N, width]."""
        super().__init__()
        noise = torch.Generator().manual_seed(seed)
        size = actions.count if isinstance(actions, Discrete) else actions.size
        self.actions, self.body = actions, body
        # A nearly uniform start: the first actions explore.
        self.head = _linear(width, size, noise, gain=0.01)
        self.log_spread = nn.Parameter(torch.zeros(size)) if isinstance(actions, Gaussian) else None
        self.value = nn.Sequential(copy.deepcopy(body), _linear(width, 1, noise)) if value else None
        self._width, self._seed = width, seed

    @classmethod
    def mlp(
        cls,
        inputs: int,
        *,
        actions: Discrete | Gaussian,
        hidden: Sequence[int] = (64, 64),
        value: bool = False,
        seed: int = 0,
    ) -> FeaturePolicy:
        """For vectors of `inputs` numbers."""
        noise = torch.Generator().manual_seed(seed)
        layers: list[nn.Module] = [nn.Flatten()]
        widths = [inputs, *hidden]
        for before, after in itertools.pairwise(widths):
            layers += [_linear(before, after, noise), nn.Tanh()]
        return cls(nn.Sequential(*layers), widths[-1], actions=actions, value=value, seed=seed + 1)

    @classmethod
    def cnn(
        cls,
        shape: tuple[int, int, int],
        *,
        actions: Discrete | Gaussian,
        channels: Sequence[int] = (16, 32),
        width: int = 128,
        value: bool = False,
        seed: int = 0,
    ) -> FeaturePolicy:
        """For images of (channels, height, width); every layer but the first halves height and width."""
        noise = torch.Generator().manual_seed(seed)
        layers: list[nn.Module] = []
        depth, height, breadth = shape
        for place, after in enumerate(channels):
            stride = 1 if place == 0 else 2
            layers += [_started(nn.Conv2d(depth, after, 3, stride, padding=1), noise), nn.ReLU()]
            depth, height, breadth = after, -(-height // stride), -(-breadth // stride)
        layers += [nn.Flatten(), _linear(depth * height * breadth, width, noise), nn.ReLU()]
        return cls(nn.Sequential(*layers), width, actions=actions, value=value, seed=seed + 1)

    @property
    def device(self) -> torch.device:
        """Where its parameters are."""
        return self.head.weight.device

    def trainable(self) -> dict[str, nn.Parameter]:
        """The parameters that train, by name; those of the value network are the critic's."""
        named = self.named_parameters()
        return {name: each for name, each in named if each.requires_grad and not name.startswith("value.")}

    def make_critic(self, *, bins: Bins | None, shared: bool, source: str | None = None) -> FeatureCritic:
        """The value network, made if there is none yet. It never shares a trunk."""
        if source is not None:
            raise ValueError("a feature policy has no reward model; leave train.critic_from out")
        if bins is not None:
            raise ValueError("a feature policy has a scalar critic; set critic.loss to mse or huber")
        if self.value is None:
            noise = torch.Generator().manual_seed(self._seed)
            self.value = nn.Sequential(copy.deepcopy(self.body), _linear(self._width, 1, noise)).to(self.device)
        return FeatureCritic(self.value)

    def make_reference(self) -> FeaturePolicy:
        """The policy as it is now, frozen."""
        return copy.deepcopy(self).requires_grad_(False)

    def shard(self, critic: object, reference: object) -> None:
        """Refuse: such a policy is small."""
        raise ValueError("policies over features are not sharded; set train.ranks=replicas")

    def save(self, folder: str | Path) -> None:
        """Write the parameters to `model.safetensors`."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        save_file(self.state_dict(), Path(folder) / "model.safetensors")

    @torch.no_grad()
    def act(
        self,
        features_N: Tensor,
        *,
        generator: torch.Generator,
        temperature: float = 1.0,
        legal_NA: Tensor | None = None,
    ) -> Actions:
        """Choose an action for each observation, one that is legal."""
        choice = self._choice(features_N, temperature, legal_NA)
        chosen_N = choice.sample(generator)
        return Actions(chosen_N=chosen_N, logprob_N=choice.logprob(chosen_N))

    def score(
        self,
        batch: TokenBatch,
        *,
        temperature: float = 1.0,
        entropy: bool = False,
        collision: bool = False,
        reverse_kl: bool = False,
        uniform: bool = False,
        reference: Any = None,
        critic: Any = None,
        routing: Any = None,
    ) -> Scores:
        """The policy's scores of the actions taken, and values if it has them; zero elsewhere."""
        token_M = batch.sampled_T.nonzero().squeeze(1)
        features_M = _stream(batch, FEATURES)[token_M]
        taken = batch.ids_T if isinstance(self.actions, Discrete) else _stream(batch, ACTIONS)
        legal_T = batch.extra_T.get(LEGAL)
        choice = self._choice(features_M, temperature, None if legal_T is None else legal_T[token_M])

        def put(values_M: Tensor) -> Tensor:
            return values_M.new_zeros(batch.tokens).index_copy(0, token_M, values_M)

        return Scores(
            logprob_T=put(choice.logprob(taken[token_M])),
            entropy_T=put(choice.entropy()) if entropy else None,
            collision_T=put(choice.collision()) if collision else None,
            uniform_T=put(choice.uniform().detach()) if uniform else None,
            value_T=put(self.value(features_M).squeeze(1)) if self.value is not None else None,
        )

    @torch.no_grad()
    def assess(self, batch: TokenBatch) -> TokenBatch:
        """The batch with `value_T` filled in, and `bootstrap_S` for cut trajectories that still lack it.

        A cut trajectory ends with an environment token (`Trajectory.final_ids`) that has the last features.
        """
        if self.value is None:
            raise ValueError("this policy has no value network; make it with value=True")
        value_T = self.value(_stream(batch, FEATURES)).squeeze(1)
        waiting_S = batch.waiting_S
        if batch.bootstrap_S is not None and not bool(waiting_S.any()):
            return batch.with_(value_T=value_T)
        last_S = rows_at_end(batch)
        missing_S = waiting_S & (last_S >= 0) & batch.sampled_T[last_S]
        if bool(missing_S.any()):
            raise ValueError(
                f"{batch.place(int(last_S[missing_S][0]))} is the last of a cut trajectory, whose next observation is "
                "missing; give it one final id and put the observation's features there"
            )
        known_S = torch.zeros_like(value_T[last_S]) if batch.bootstrap_S is None else batch.bootstrap_S
        new_S = torch.where(last_S >= 0, value_T[last_S], 0).to(known_S)
        return batch.with_(value_T=value_T, bootstrap_S=torch.where(waiting_S, new_S, known_S))

    def _choice(self, features_N: Tensor, temperature: float, legal_NA: Tensor | None) -> _OneOf | _Vector:
        if temperature <= 0:
            raise ValueError(f"temperature must be positive, got {temperature}")
        output = self.head(self.body(features_N))
        if self.log_spread is None:
            return _one_of(output / temperature, legal_NA)
        if legal_NA is not None:
            raise ValueError("legal actions are a matter of discrete ones; leave 'legal' out for vectors")
        # A density to the power 1/τ, normalised, is the Gaussian whose variance is τ times as large.
        return _Vector(mean=output, log_spread=self.log_spread + math.log(temperature) / 2)


class FeatureCritic:
    """The value network of a feature policy, as a learner trains it."""

    bins = None

    def __init__(self, network: nn.Module) -> None:
        self._network = network

    def trainable(self) -> dict[str, nn.Parameter]:
        """The parameters that train, by name."""
        return dict(self._network.named_parameters())

    def assess(self, batch: TokenBatch, policy: FeaturePolicy, routing: Any = None) -> TokenBatch:
        """The batch with `value_T` filled in, and `bootstrap_S` where it is missing."""
        return policy.assess(batch)


@dataclass(frozen=True, kw_only=True)
class _OneOf:
    """A categorical distribution per row."""

    log_p: Tensor
    legal: Tensor | None

    def sample(self, generator: torch.Generator) -> Tensor:
        return torch.multinomial(self.log_p.exp(), 1, generator=generator).squeeze(1)

    def logprob(self, ids: Tensor) -> Tensor:
        return self.log_p.gather(1, ids[:, None]).squeeze(1)

    def entropy(self) -> Tensor:
        return -(self.log_p.exp() * self.log_p).sum(-1)

    def collision(self) -> Tensor:
        return (2 * self.log_p).exp().sum(-1)

    def uniform(self) -> Tensor:
        if self.legal is None:
            return self.log_p.mean(-1)
        return (self.log_p * self.legal).sum(-1) / self.legal.sum(-1)


def _one_of(logits: Tensor, legal: Tensor | None) -> _OneOf:
    if legal is None:
        return _OneOf(log_p=logits.log_softmax(-1), legal=None)
    legal = legal.bool()
    if bool((~legal.any(-1)).any()):
        raise ValueError("in some state no action is legal; an episode must end there")
    return _OneOf(log_p=logits.masked_fill(~legal, _NEVER).log_softmax(-1), legal=legal)


@dataclass(frozen=True, kw_only=True)
class _Vector:
    """Independent Gaussians per row."""

    mean: Tensor
    log_spread: Tensor

    def sample(self, generator: torch.Generator) -> Tensor:
        noise = torch.randn(self.mean.shape, generator=generator, device=self.mean.device)
        return self.mean + self.log_spread.exp() * noise

    def logprob(self, vectors: Tensor) -> Tensor:
        away = (vectors - self.mean) / self.log_spread.exp()
        return -(away.square() / 2 + self.log_spread + math.log(2 * math.pi) / 2).sum(-1)

    def entropy(self) -> Tensor:
        return (self.log_spread + math.log(2 * math.pi * math.e) / 2).sum().expand(self.mean.shape[0])

    def collision(self) -> Tensor:
        raise ValueError("Σp² needs discrete actions; use another estimator of the clipping bias than 'logit'")

    def uniform(self) -> Tensor:
        raise ValueError("a mean over all actions needs discrete ones; choose another surrogate")


def _stream(batch: TokenBatch, name: str) -> Tensor:
    if name not in batch.extra_T:
        raise ValueError(
            f"the batch has no {name!r}; add them with batch.with_(extra_T={{{name!r}: ...}}), one row per token"
        )
    return batch.extra_T[name]


def _linear(inputs: int, outputs: int, noise: torch.Generator, *, gain: float = math.sqrt(2)) -> nn.Linear:
    return _started(nn.Linear(inputs, outputs), noise, gain=gain)


def _started(layer: Layer, noise: torch.Generator, *, gain: float = math.sqrt(2)) -> Layer:
    nn.init.orthogonal_(layer.weight, gain, generator=noise)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer
