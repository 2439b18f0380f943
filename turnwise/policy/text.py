"""Language-model policies: any transformers causal LM, scored on packed batches; and frozen references."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from turnwise.batch import Scores, TokenBatch
from turnwise.exactness import own_memory
from turnwise.expert_routing import Routing, follow_routing
from turnwise.ops.facts import Need
from turnwise.policy.critics import Bins, Critic, Values
from turnwise.policy.logprobs import Head, TokenStatistics, token_statistics
from turnwise.policy.packed import Layout, packed_hidden
from turnwise.policy.packed_rows import rows_before
from turnwise.policy.sharding import shard, whole, within
from turnwise.policy.text_loading import (
    Precision,
    Train,
    check_packing,
    choose_trainable,
    fuse_layers,
    head_of,
    load_model,
    remove_dropout,
    without_progress_bars,
)
from turnwise.policy.text_lora import LoraSettings, adapter_off, attach_lora, is_adapter, merged_weights
from turnwise.residual_stream import widen_residual


class TextPolicy:
    """A causal language model that scores packed batches.

    `TextPolicy.load("runs/my-model", lora=LoraSettings(rank=8))`, or `TextPolicy(model)` around an existing model.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Any = None,
        *,
        lora: LoraSettings | None = None,
        train: Train | None = None,
        checkpointing: bool = False,
        compile_layers: bool = False,
    ) -> None:
        if not isinstance(model, PreTrainedModel):
            raise ValueError(f"a TextPolicy wraps a transformers model, not {type(model).__name__}")
        self.model, self.tokenizer, self.has_adapter = model, tokenizer, lora is not None
        self.begins_as_base = lora is not None and lora.adapter is None
        """Whether its adapter changes nothing at first."""
        routed = {Need.ROUTING, Need.OLD_ROUTING} if follow_routing(model) else set[Need]()
        self.provides = frozenset(Need) - {Need.ANSWER_SCORES, Need.ROUTING, Need.OLD_ROUTING} | routed
        """What the parts of a row may ask for."""
        self.home = model.device
        """Where it runs once it is sharded."""
        own_memory(model, also_aligned=False)
        if lora is not None:
            attach_lora(model, lora)
        choose_trainable(model, train, has_adapter=self.has_adapter)
        remove_dropout(model)
        widen_residual(model)
        model.train()  # only this mode checkpoints; otherwise the modes differ only in dropout, and there is none
        check_packing(model)
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        if compile_layers:
            fuse_layers(model)

    @classmethod
    def load(
        cls,
        name: str | Path,
        *,
        dtype: Precision = "fp32",
        device: str | torch.device = "cpu",
        home: str | torch.device | None = None,
        lora: LoraSettings | None = None,
        train: Train | None = None,
        checkpointing: bool = False,
        compile_layers: bool = False,
    ) -> TextPolicy:
        """A policy from a local folder or a name that transformers knows.

        - `home`: where it runs once it is sharded, if not where it is loaded.
        - `train`: "all", "lora" or parameter-name patterns such as `["*.layers.2?.*"]`; by default the adapter if there
          is one, otherwise everything.
        - `checkpointing`: recompute layers in the backward pass; less memory, a third more work.
        - `compile_layers`: fuse the memory-bound parts of each layer; pays off on CUDA, after a slow first step.
        """
        model, tokenizer = load_model(name, dtype=dtype, device=device)
        policy = cls(
            model, tokenizer, lora=lora, train=train, checkpointing=checkpointing, compile_layers=compile_layers
        )
        policy.home = torch.device(home or policy.home)
        return policy

    @classmethod
    def without_weights(cls, name: str | Path, *, dtype: Precision = "fp32") -> TextPolicy:
        """Only its tokenizer and its shape, for a process that lets servers run the model."""
        policy = cls.__new__(cls)
        policy.model, policy.tokenizer = load_model(name, dtype=dtype, device="meta")
        policy.has_adapter = policy.begins_as_base = False
        return policy

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.model.device

    @property
    def head(self) -> Head:
        """The last layer."""
        return head_of(self.model)

    @property
    def room(self) -> int | None:
        """Maximum tokens per sequence; None if the model sets no limit."""
        return getattr(self.model.config, "max_position_embeddings", None)

    def trainable(self) -> dict[str, nn.Parameter]:
        """The trainable parameters by name."""
        return {name: parameter for name, parameter in self.model.named_parameters() if parameter.requires_grad}

    def twin(self, *, shares: bool = True) -> TextPolicy:
        """A frozen copy of the policy as it is now; what does not train is shared with it, if `shares`."""
        twin = self._frozen(shares=shares)
        nn.Module.to(twin.model, self.home)  # the model's own method has the wrong type
        return twin

    def _frozen(self, *, shares: bool) -> TextPolicy:
        still = (each for each in self.model.parameters() if shares and not each.requires_grad)
        twin, shared = copy.copy(self), {id(each): each for each in still}
        twin.model = copy.deepcopy(self.model, shared).requires_grad_(False)
        return twin

    def shard(self, critic: Critic | None, reference: Reference | None) -> None:
        """Leave this rank its part of every weight: the policy's, and those of its critic and reference."""
        if critic is not None:
            critic.shard(self.home)  # first: it may share frozen weights with the whole policy
        shard(self.model, self.home)
        if reference is not None:
            reference.shard(self.home)

    @torch.no_grad()
    def refresh(self, copy: TextPolicy) -> None:
        """Bring a `twin` up to date. Every rank must call it."""
        parameters = dict(copy.model.named_parameters())
        for name, parameter in self.trainable().items():
            parameters[name].copy_(whole(parameter))

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor under the name that `from_pretrained` knows, an adapter merged in. Every rank must read it."""
        if self.has_adapter:
            return merged_weights(self.model)
        return ((name, whole(tensor)) for name, tensor in self.model.state_dict().items())

    def as_saved(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Some of the weights as `save` writes them: under the names of files, without those that are tied."""
        every, once = (self.model.named_parameters(remove_duplicate=each) for each in (False, True))
        tied = {name for name, _ in every} - {name for name, _ in once}
        return revert_weight_conversion(self.model, {name: each for name, each in weights.items() if name not in tied})

    def hidden(self, batch: TokenBatch, routing: Routing | None = None) -> Tensor:
        """The trunk's output [T, d]; row t has seen the tokens of its sequence up to t itself."""
        return within(self.model, lambda: self._hidden(batch, routing))

    def _hidden(self, batch: TokenBatch, routing: Routing | None = None) -> Tensor:
        layout = Layout.of(batch.length_S, routing)
        self._require_fits(batch, layout)
        return packed_hidden(self.model, batch.ids_T, batch.position_T, layout)

    def score(
        self,
        batch: TokenBatch,
        *,
        temperature: float = 1.0,
        entropy: bool = False,
        collision: bool = False,
        reverse_kl: bool = False,
        uniform: bool = False,
        reference: Reference | None = None,
        critic: Critic | None = None,
        routing: Routing | None = None,
    ) -> Scores:
        """The policy's scores of the sampled tokens; zero elsewhere.

        With a `reference`, also the exact KL to it over the vocabulary, and from it with `reverse_kl`; with a `critic`,
        values. `uniform` asks for the mean log-prob of all words. `routing` records or replays the policy's experts; a
        reference chooses its own. The head runs only for sampled tokens.
        """
        token_M = batch.sampled_T.nonzero().squeeze(1)
        before_M = rows_before(batch, token_M)
        # The reference may be this very model without its adapter, so it runs before and not in between.
        other = None if reference is None else reference.states(batch, before_M)
        shared = critic if critic is not None and critic.trunk is None else None

        def run() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
            hidden_Td = self._hidden(batch, routing)
            found = token_statistics(
                hidden_Td.index_select(0, before_M),
                self.head,
                batch.ids_T[token_M],
                temperature=temperature,
                entropy=entropy,
                collision=collision,
                reverse_kl=reverse_kl,
                uniform=uniform,
                reference=other,
            )
            return vars(found), {} if shared is None else vars(shared.values(batch, hidden_Td))

        statistics, read = within(self.model, run)
        found = TokenStatistics(**statistics)
        values = Values(**read) if shared is not None else None if critic is None else critic.values(batch)
        return Scores(
            logprob_T=_put(batch, token_M, found.logprob_M),
            entropy_T=None if found.entropy_M is None else _put(batch, token_M, found.entropy_M),
            collision_T=None if found.collision_M is None else _put(batch, token_M, found.collision_M),
            reference_kl_T=None if found.kl_M is None else _put(batch, token_M, found.kl_M),
            reverse_kl_T=None if found.reverse_kl_M is None else _put(batch, token_M, found.reverse_kl_M),
            uniform_T=None if found.uniform_M is None else _put(batch, token_M, found.uniform_M),
            value_T=None if values is None else values.value_T,
            value_logits_TB=None if values is None else values.logits_TB,
        )

    def states(self, batch: TokenBatch, row_M: Tensor) -> tuple[Tensor, Head]:
        """The hidden states of these rows [M, d], and a head to read them with after this pass."""
        hidden_Td, weight_Vd, bias_V = within(self.model, lambda: (self._hidden(batch), *self._lasting_head()))
        return hidden_Td[row_M], replace(self.head, weight_Vd=weight_Vd, bias_V=bias_V)

    def _lasting_head(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of the head; of a sharded model copies, because the whole ones end with the pass."""
        head = self.head
        if not isinstance(self.model, FSDPModule):
            return head.weight_Vd, head.bias_V
        return head.weight_Vd.clone(), None if head.bias_V is None else head.bias_V.clone()

    def make_critic(self, *, bins: Bins | None, shared: bool, source: str | None = None) -> Critic:
        """A head on the policy's trunk, or a separate model: a copy of the policy's, or the reward model `source`."""
        if source is not None:
            return Critic.of_reward_model(Path(source), self)
        return Critic.shared(self, bins=bins) if shared else Critic.separate(self.model, bins=bins)

    def make_reference(self) -> Reference:
        """The policy as it is now: the base if its adapter changes nothing, else a copy of what trains, or of all."""
        if self.begins_as_base:
            return Reference.base_of(self)
        copied = self.has_adapter and Reference(self._frozen(shares=True), without_adapter=False)
        return copied or Reference.copy_of(self)

    def save_settings(self, folder: Path) -> None:
        """Save the model's configuration and the tokenizer."""
        config = self.model.config
        config.architectures = [type(self.model).__name__.removeprefix("FSDP")]
        config.dtype = str(self.model.dtype).removeprefix("torch.")
        config.save_pretrained(folder)
        self.model.generation_config.save_pretrained(folder)
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(folder)

    def save(self, folder: str | Path) -> None:
        """Save a complete model that `from_pretrained` loads, with any adapter merged in, and the tokenizer."""
        with without_progress_bars():
            self.model.save_pretrained(
                folder, state_dict=dict(merged_weights(self.model)) if self.has_adapter else None
            )
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(folder)

    def _require_fits(self, batch: TokenBatch, layout: Layout) -> None:
        if self.room is not None and layout.longest > self.room:
            raise ValueError(
                f"a sequence has {layout.longest} tokens but the model has room for {self.room}; make episodes shorter "
                "(rollout.context in a recipe)"
            )
        words = self.head.weight_Vd.shape[0]
        if batch.tokens and int(batch.ids_T.max()) >= words:
            token = int(batch.ids_T.argmax())
            raise ValueError(
                f"id {int(batch.ids_T[token])} at {batch.place(token)} is beyond the model's {words} words; "
                "was the batch made with another tokenizer?"
            )


class Reference:
    """A frozen policy to stay near: a copy, or the base under the policy's own LoRA, which costs no memory."""

    def __init__(self, policy: TextPolicy, *, without_adapter: bool) -> None:
        self._policy, self._without_adapter = policy, without_adapter

    @classmethod
    def copy_of(cls, policy: TextPolicy) -> Reference:
        """The policy as it is now."""
        frozen = TextPolicy(copy.deepcopy(policy.model), policy.tokenizer, train=[])
        return cls(frozen, without_adapter=False)

    @classmethod
    def base_of(cls, policy: TextPolicy) -> Reference:
        """The model under the policy's adapter."""
        if not policy.has_adapter:
            raise ValueError("the policy has no LoRA to turn off; use Reference.copy_of(policy)")
        moving = [name for name in policy.trainable() if not is_adapter(name)]
        if moving:
            raise ValueError(f"the base under the LoRA trains too ({moving[0]}); use Reference.copy_of(policy)")
        return cls(policy, without_adapter=True)

    @classmethod
    def of_folder(cls, folder: str | Path, *, like: TextPolicy) -> Reference:
        """The model in a folder, in the same form as `like`."""
        dtype = "bf16" if like.model.dtype == torch.bfloat16 else "fp32"
        device = "cpu" if isinstance(like.model, FSDPModule) else like.model.device
        return cls(TextPolicy.load(folder, dtype=dtype, device=device, train=[]), without_adapter=False)

    def shard(self, device: torch.device) -> None:
        """Leave this rank its part of every weight; the base under an adapter is the policy's own."""
        if not self._without_adapter:
            shard(self._policy.model, device)

    @torch.no_grad()
    def states(self, batch: TokenBatch, row_M: Tensor) -> tuple[Tensor, Head]:
        """The hidden states of these rows [M, d], and the head."""
        with adapter_off(self._policy.model) if self._without_adapter else nullcontext():
            return self._policy.states(batch, row_M)

    @torch.no_grad()
    def score(self, batch: TokenBatch, *, temperature: float = 1.0) -> Scores:
        """Log-probs of the sampled tokens under the reference."""
        with adapter_off(self._policy.model) if self._without_adapter else nullcontext():
            return self._policy.score(batch, temperature=temperature)


def _put(batch: TokenBatch, token_M: Tensor, values_M: Tensor) -> Tensor:
    return values_M.new_zeros(batch.tokens).index_copy(0, token_M, values_M)
