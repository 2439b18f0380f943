"""A text policy with a scalar head: what a learner trains, and how it is saved for transformers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES

from turnwise.batch import Scores, TokenBatch
from turnwise.learn.batches import micro_batches
from turnwise.ops.facts import Need
from turnwise.ops.segments import segment_max
from turnwise.policy.packed import Layout, packed_hidden
from turnwise.policy.text import TextPolicy
from turnwise.policy.text_loading import without_progress_bars
from turnwise.rollout.packing import pack
from turnwise.types import Group, Trajectory

_Classifier: Any = AutoModelForSequenceClassification


def token_scores(model: PreTrainedModel, head: nn.Linear, batch: TokenBatch) -> Tensor:
    """What the head reads after each token, this token included."""
    hidden_Td = packed_hidden(model, batch.ids_T, batch.position_T, Layout.of(batch.length_S))
    return head(hidden_Td.to(head.weight.dtype)).squeeze(1)


@torch.no_grad()
def turn_scores(
    score: Callable[[TokenBatch], Tensor], trajectories: Sequence[Trajectory], *, tokens: int, device: torch.device
) -> list[list[float]]:
    """A number for every turn of every trajectory, at its last token; in passes of at most `tokens` tokens."""
    found: list[list[float]] = [[0.0] * len(each.turns) for each in trajectories]
    groups = [Group(id=str(place), trajectories=[each]) for place, each in enumerate(trajectories)]
    for part in micro_batches(pack(groups), tokens=tokens) if groups else ():
        part = part.to(device)
        last_K = segment_max(torch.arange(part.tokens, device=device), part.turn_T, part.turns)
        owner_K = part.trajectory_S[part.sequence_K]
        for owner, turn, value in zip(
            owner_K.tolist(), part.index_K.tolist(), score(part)[last_K].tolist(), strict=True
        ):
            found[owner][turn] = value
    return found


class RewardPolicy:
    """A policy for `Learner` whose scores are numbers for answers, not log-probs of tokens."""

    provides = frozenset({Need.ANSWER_SCORES, Need.WHOLE_GROUPS, Need.GRADIENT, Need.OLD})
    """Log-probs are zero before and after: no part of a row for answers reads the ratio."""
    has_adapter = False

    def __init__(self, policy: TextPolicy, *, seed: int = 0) -> None:
        require_classifier(policy.model)
        self.policy = policy
        width = policy.head.weight_Vd.shape[1]
        self.head = nn.Linear(width, 1, bias=False)
        generator = torch.Generator().manual_seed(seed)
        nn.init.normal_(self.head.weight, std=width**-0.5, generator=generator)  # first scores are about ±1
        self.head.to(policy.device)

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.policy.device

    def trainable(self) -> dict[str, nn.Parameter]:
        """The trainable parameters by name; the head over words is not used, unless it is the embedding too."""
        model = self.policy.model
        embedding, words = model.get_input_embeddings().weight, self.policy.head.weight_Vd
        unused = set[int]() if words is embedding else {id(words)}
        named = {name: each for name, each in self.policy.trainable().items() if id(each) not in unused}
        return {**named, **{f"score.{name}": each for name, each in self.head.named_parameters()}}

    def score(self, batch: TokenBatch, **_: Any) -> Scores:
        """The score after each token as `value_T`; log-probs are not computed."""
        value_T = token_scores(self.policy.model, self.head, batch)
        return Scores(logprob_T=torch.zeros_like(value_T), value_T=value_T)

    def make_critic(self, **_: Any) -> Any:
        """A reward model has no critic."""
        raise ValueError("a reward model learns without a critic; set critic.level to none")

    def make_reference(self) -> Any:
        """A reward model has no reference."""
        raise ValueError("a reward model learns without a reference; remove the part that needs one")

    def shard(self, critic: Any, reference: Any) -> None:
        """Reward models are trained on one rank."""
        raise ValueError("a reward model is trained by one process; set train.ranks to replicas")

    def save(self, folder: str | Path) -> None:
        """Write a model that `AutoModelForSequenceClassification` loads, any adapter merged in, and the tokenizer."""
        model, tokenizer = self.policy.model, self.policy.tokenizer
        config = copy.deepcopy(model.config)
        config.num_labels, config.pad_token_id = 1, padding_of(tokenizer)
        with torch.device("meta"):  # nothing is drawn for weights that are replaced
            classifier = _Classifier.from_config(config, dtype=model.dtype, trust_remote_code=False)
        weights = {name: tensor.detach() for name, tensor in self.policy.named_weights()}
        missing, _ = classifier.load_state_dict(weights, strict=False, assign=True)
        (head,) = missing
        weights = {name: tensor for name, tensor in weights.items() if name in classifier.state_dict()}
        with without_progress_bars():
            classifier.save_pretrained(folder, state_dict={**weights, head: self.head.weight.detach().to(model.dtype)})
        tokenizer = copy.deepcopy(tokenizer)
        tokenizer.pad_token_id = config.pad_token_id
        tokenizer.save_pretrained(folder)


def require_classifier(model: PreTrainedModel) -> None:
    """ValueError if transformers has no form of this model with a scalar head."""
    if model.config.model_type not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES:
        raise ValueError(
            f"transformers has no sequence classifier for {type(model).__name__}, so it cannot be saved as a reward "
            "model; use a family such as Llama, Qwen or Gemma"
        )


def padding_of(tokenizer: Any) -> int | None:
    """A token to pad with that ends no answer: transformers reads the score at the last token that is not padding."""
    ends = {tokenizer.eos_token_id}
    candidates = [tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.bos_token_id, *tokenizer.all_special_ids]
    return next((each for each in candidates if each is not None and each not in ends), None)
