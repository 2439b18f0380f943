"""Critics of language models: a head on the policy's trunk, or a separate model; scalar or categorical.

A critic values the state before every sampled token. The algorithm's row decides whether it is read per token or per
turn, not the critic.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from turnwise.batch import TokenBatch
from turnwise.exactness import own_memory
from turnwise.ops.facts import Trait
from turnwise.ops.values import histogram_mean
from turnwise.policy.packed import Layout, packed_hidden
from turnwise.policy.packed_rows import rows_at_end, rows_before
from turnwise.policy.scalar_models import load_scalar_model, require_alike
from turnwise.policy.sharding import shard
from turnwise.policy.text_loading import check_packing, remove_dropout

if TYPE_CHECKING:
    from turnwise.algorithm import Algorithm
    from turnwise.expert_routing import Routing
    from turnwise.policy.text import TextPolicy


@dataclass(frozen=True, kw_only=True)
class Bins:
    """The support of a categorical critic; `Bins.of(row)` takes the numbers of the row's `hl-gauss` loss."""

    low: float = 0.0
    high: float = 1.0
    count: int = 51

    def __post_init__(self) -> None:
        if self.high <= self.low or self.count < 2:
            raise ValueError(f"bins need low < high and at least two of them, got {self}")

    @classmethod
    def of(cls, row: Algorithm) -> Bins | None:
        """The bins that the row's critic is trained on; None for a scalar critic."""
        options = row.critic.loss.options
        if not row.needs_critic or Trait.CATEGORICAL not in row.facts("value_loss"):
            return None
        return cls(low=options["low"], high=options["high"], count=options["bins"])


@dataclass(frozen=True, kw_only=True)
class Values:
    """A critic's output per sampled token; zero elsewhere."""

    value_T: Tensor
    logits_TB: Tensor | None = None
    """Only for a categorical critic."""


class Critic(nn.Module):
    """A value head in single precision over hidden states. It starts at zero: every state has the same value."""

    def __init__(
        self, width: int, *, trunk: PreTrainedModel | None = None, detached: bool = False, bins: Bins | None = None
    ) -> None:
        super().__init__()
        self.trunk, self.detached, self.bins = trunk, detached, bins
        self.head = nn.Linear(width, bins.count if bins else 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    @classmethod
    def shared(cls, policy: TextPolicy, *, detached: bool = False, bins: Bins | None = None) -> Critic:
        """A head on the policy's trunk; `detached`: the value loss does not move the trunk."""
        weight_Vd = policy.head.weight_Vd
        return cls(weight_Vd.shape[1], detached=detached, bins=bins).to(weight_Vd.device)

    @classmethod
    def separate(cls, model: PreTrainedModel, *, bins: Bins | None = None) -> Critic:
        """A critic with a separate trunk, copied from a model: the policy's, or any other causal LM's.

        What trains in the model also trains in the copy; what does not, such as the base under an adapter, is shared.
        """
        check_packing(model)
        still = [each for each in model.base_model.parameters() if not each.requires_grad]
        shared = {id(each): nn.Parameter(each.data, requires_grad=False) for each in still}
        trunk = copy.deepcopy(model.base_model, shared)
        assert isinstance(trunk, PreTrainedModel)
        remove_dropout(trunk)
        own_memory(trunk, also_aligned=False)
        return cls(trunk.config.hidden_size, trunk=trunk.train(), bins=bins).to(model.device)

    @classmethod
    def of_reward_model(cls, folder: Path, policy: TextPolicy) -> Critic:
        """A critic that begins as a reward model: the value of a state is the score of the text so far."""
        require_alike(folder, policy.model, policy.tokenizer)
        model, head = load_scalar_model(folder, dtype=policy.model.dtype)
        trunk = model.base_model
        assert isinstance(trunk, PreTrainedModel)
        own_memory(trunk, also_aligned=False)
        if policy.model.is_gradient_checkpointing:
            trunk.gradient_checkpointing_enable({"use_reentrant": False})
        critic = cls(trunk.config.hidden_size, trunk=trunk.train())
        critic.head.weight.data.copy_(head.weight)
        return critic.to(policy.device)

    def shard(self, device: torch.device) -> None:
        """Leave this rank its part of the trunk. The head is small and stays whole."""
        if self.trunk is not None:
            for parameter in self.trunk.parameters():
                if not parameter.requires_grad:  # it may be the policy's too, which is sharded by itself
                    parameter.data = parameter.data.clone()
            shard(self.trunk, device)
        self.head.to(device)

    def trainable(self) -> dict[str, nn.Parameter]:
        """The trainable parameters by name."""
        return {name: parameter for name, parameter in self.named_parameters() if parameter.requires_grad}

    def values(self, batch: TokenBatch, hidden_Td: Tensor | None = None) -> Values:
        """Values of the states before the sampled tokens, from the policy's hidden states or its own trunk's."""
        return self._values(batch, self._states(batch, hidden_Td))

    @torch.no_grad()
    def assess(self, batch: TokenBatch, policy: TextPolicy, routing: Routing | None = None) -> TokenBatch:
        """The batch with `value_T` filled in, and `bootstrap_S` for cut trajectories that still lack it.

        `routing` is that of the policy's trunk; a separate one chooses its own experts.
        """
        states_Td = self._states(batch, policy.hidden(batch, routing) if self.trunk is None else None)
        value_T = self._values(batch, states_Td).value_T
        return batch.with_(value_T=value_T, bootstrap_S=self._bootstrap(batch, states_Td))

    def _states(self, batch: TokenBatch, hidden_Td: Tensor | None) -> Tensor:
        if self.trunk is not None:
            return packed_hidden(self.trunk, batch.ids_T, batch.position_T, Layout.of(batch.length_S))
        assert hidden_Td is not None
        return hidden_Td.detach() if self.detached else hidden_Td

    def _values(self, batch: TokenBatch, states_Td: Tensor) -> Values:
        token_M = batch.sampled_T.nonzero().squeeze(1)
        value_M, logits_MB = self._read(states_Td.index_select(0, rows_before(batch, token_M)))
        value_T = value_M.new_zeros(batch.tokens).index_copy(0, token_M, value_M)
        if self.bins is None:
            return Values(value_T=value_T)
        blank_TB = logits_MB.new_zeros(batch.tokens, self.bins.count)
        return Values(value_T=value_T, logits_TB=blank_TB.index_copy(0, token_M, logits_MB))

    def _bootstrap(self, batch: TokenBatch, states_Td: Tensor) -> Tensor:
        """Values of the states in which trajectories were cut, if not known yet; equal in all their sequences."""
        waiting_S = batch.waiting_S
        if batch.bootstrap_S is not None and not bool(waiting_S.any()):
            return batch.bootstrap_S
        last_S = rows_at_end(batch)
        value_S, _ = self._read(states_Td[last_S])
        known_S = torch.zeros_like(value_S) if batch.bootstrap_S is None else batch.bootstrap_S
        return torch.where(waiting_S, torch.where(last_S >= 0, value_S, 0).to(known_S), known_S)

    def _read(self, states_Md: Tensor) -> tuple[Tensor, Tensor]:
        """Scalar values, and the raw output they come from."""
        output_MB = self.head(states_Md.to(self.head.weight.dtype))
        if self.bins is None:
            return output_MB.squeeze(1), output_MB
        return histogram_mean(output_MB, low=self.bins.low, high=self.bins.high), output_MB
