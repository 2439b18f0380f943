"""A trained reward model: `RewardModel.load("runs/rm").score_texts([[Message(...), ...]])`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedModel

from turnwise.batch import TokenBatch
from turnwise.policy.rendering import Renderer
from turnwise.policy.scalar_models import load_scalar_model
from turnwise.reward_models.reward_policy import token_scores, turn_scores
from turnwise.sources.chat_lines import read_messages
from turnwise.sources.chat_turns import finished, turns_of
from turnwise.sources.demonstrations import spell
from turnwise.types import Message, Trajectory, Turn

TOKENS = 4096
"""Tokens of one forward pass, unless a single answer has more."""


class RewardModel:
    """Scores chats. A chat's score does not depend on what is scored with it, up to rounding."""

    def __init__(self, model: PreTrainedModel, head: nn.Linear, tokenizer: Any, *, template: str | None = None) -> None:
        self.model, self.renderer, self._head = model, Renderer(tokenizer, template=template), head
        model.requires_grad_(False).eval()

    @classmethod
    def load(cls, path: str | Path, *, device: str | torch.device = "cpu", template: str | None = None) -> RewardModel:
        """The model in a folder that `turnwise reward-model` wrote, or another of transformers with one label."""
        model, head = load_scalar_model(Path(path))
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
        nn.Module.to(model, device)  # the model's own method has the wrong type
        return cls(model, head, tokenizer, template=template)

    def score_texts(self, chats: Sequence[Sequence[Message]]) -> list[float]:
        """The score of each chat after the assistant's last message."""
        trajectories = [self.read([{"role": each.role, "content": each.content} for each in chat]) for chat in chats]
        return [scores[-1] for scores in self.score_turns(trajectories)]

    def score_episodes(self, trajectories: Sequence[Trajectory]) -> list[list[float]]:
        """A number for every turn of episodes that any policy played; only their texts are read."""
        return self.score_turns([_spoken(each, self.renderer) for each in trajectories])

    def score_turns(self, trajectories: Sequence[Trajectory]) -> list[list[float]]:
        """A number for every turn of trajectories in this model's own tokens."""
        return turn_scores(self._score, trajectories, tokens=TOKENS, device=self.model.device)

    def read(self, messages: Sequence[Mapping[str, Any]]) -> Trajectory:
        """A chat in this model's own tokens, a turn for each message of the assistant."""
        return finished(turns_of(read_messages(list(messages)), self.renderer))

    def _score(self, batch: TokenBatch) -> Tensor:
        room, longest = getattr(self.model.config, "max_position_embeddings", None), int(batch.length_S.max())
        if room is not None and longest > room:
            raise ValueError(
                f"an episode has {longest} tokens for the reward model, which has room for {room}; make episodes "
                "shorter (rollout.context in a recipe), or train a reward model from a model with more room"
            )
        return token_scores(self.model, self._head, batch)


def _spoken(trajectory: Trajectory, renderer: Renderer) -> Trajectory:
    """What was said, turn by turn, in the renderer's tokens; an answer may be empty."""
    conversation, turns = renderer.open(), list[Turn]()
    for turn in trajectory.turns:
        prompt, ids = conversation.observe(turn.observation), spell(renderer, turn.action)
        conversation.record(ids)
        turns.append(Turn(prompt_ids=prompt.ids, restarts=prompt.restarts, sampled_ids=ids))
    return finished(turns)
