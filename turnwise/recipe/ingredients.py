"""Sections of a recipe that say what is learned from and what is rewarded: imitation, sources, reward functions."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from turnwise.algorithm import Part
from turnwise.frozen_settings import Settings

Schedule = Literal["constant", "linear", "cosine"]
TooLong = Literal["refuse", "drop", "cut-left", "cut-right"]
"""What becomes of a demonstration that is too long."""


class Sft(Settings):
    """Imitation before reinforcement: from the environment's expert, or from a file of chats."""

    chats: str | None = None
    """A JSONL file with {"messages": [{"role": ..., "content": ...}, ...]}, {"prompt": ..., "completion": ...} or
    ShareGPT's {"conversations": [{"from": ..., "value": ...}, ...]} on each line. None: the expert plays."""
    demonstrations: int = Field(default=512, ge=1)
    """Episodes of the expert, or the most chats to take from the file."""
    held_out: float | str | None = None
    """Chats or demonstrations that are never learned from, and whose loss each evaluation measures (eval/nll): a share
    such as 0.1, chosen by a hash of the prompt, or another file of chats."""
    context: int | None = Field(default=None, ge=2)
    """Maximum tokens per chat; None: the model's own limit."""
    too_long: TooLong = "refuse"
    """What happens to a longer chat: refuse the file; drop the chat; cut-left, which drops its oldest messages and then
    the beginning of the user's; or cut-right, which drops the end."""
    epochs: int = Field(default=2, ge=1)
    batch: int = Field(default=32, ge=1)
    """Demonstrations per optimiser step."""
    learning_rate: float = Field(default=1e-4, gt=0)
    warmup: int = Field(default=5, ge=0)
    schedule: Schedule = "cosine"

    @field_validator("held_out")
    @classmethod
    def _is_share(cls, value: float | str | None) -> float | str | None:
        if isinstance(value, float) and not 0 < value < 1:
            raise ValueError("write a share between 0 and 1, or the path of a file")
        return value

    @model_validator(mode="after")
    def _of_chats(self) -> Self:
        if self.chats is None and isinstance(self.held_out, str):
            raise ValueError("held_out names a file, but the expert plays; write a share, or give chats a file too")
        return self


class RewardChoice(Settings):
    """One of several rewards. In YAML `exact` is short for `{function: exact}`."""

    function: str
    name: str | None = Field(default=None, pattern=r"^[\w.-]+$")
    weight: float = Field(default=1.0, allow_inf_nan=False)
    per: Literal["episode", "turn"] = "episode"
    success: float | None = Field(default=None, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"function": value} if isinstance(value, str) else value


class Ingredient(Settings):
    """One of several sources of a step. In YAML `played` is short for `{kind: played}`."""

    kind: Literal["played", "demonstrations", "chats", "preferences", "text"]
    path: str | None = None
    count: int | None = Field(default=None, ge=1)
    weight: float = Field(default=1.0, gt=0)
    limit: int | None = Field(default=None, ge=1)
    held_out: float | str | None = None
    """Preferences that are measured and not learned from: a share such as 0.1, or another file."""

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value

    @property
    def compares(self) -> bool:
        """Whether it is a file of answers of which some are preferred."""
        return self.kind == "preferences"

    @property
    def plays(self) -> bool:
        """Whether it is what the policy plays."""
        return self.kind == "played"

    @model_validator(mode="after")
    def _has_its_file(self) -> Ingredient:
        is_file = not self.plays and self.kind != "demonstrations"
        if is_file and self.path is None:
            raise ValueError(f"{self.kind} are read from a file; give its path")
        if not is_file and self.path is not None:
            raise ValueError(f"{self.kind} is not a file; remove the path")
        if self.held_out is not None and not self.compares:
            raise ValueError(f"held_out is a part of preferences; {self.kind} has none: remove it")
        if isinstance(self.held_out, float) and not 0 < self.held_out < 1:
            raise ValueError(f"held_out is {self.held_out:g}; write a share between 0 and 1, or the path of a file")
        return self


class SourceChoice(Settings):
    """Where a step's groups come from. Empty: the policy plays one new task after another."""

    tasks: Part = Part(kind="uniform")
    """Which tasks the policy plays: uniform, epochs (every listed task once, then again), curriculum (stages),
    difficulty (those near 50 % success), or your own sampler as package.module:Class."""
    expert: int = Field(default=0, ge=0)
    """Episodes of the environment's expert that join each group; the log-probs of its tokens are unknown."""
    mix: tuple[Ingredient, ...] = ()
    """Several sources in one step: a list of played, demonstrations and files (chats, preferences, text), each with
    kind, path, limit (lines or episodes to read), and count (groups per step) or weight (its share of the rest).
    preferences also takes held_out, a share or a file of pairs that evaluations measure."""

    @property
    def plays(self) -> bool:
        """Whether the policy plays episodes to learn from."""
        return not self.mix or any(part.plays for part in self.mix)

    @property
    def prefers(self) -> bool:
        """Whether all that is learned from are files of preferences."""
        return bool(self.mix) and all(part.compares for part in self.mix)
