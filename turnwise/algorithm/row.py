"""An algorithm is a row of independent choices, one per axis."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from turnwise.algorithm.axes import AXES
from turnwise.algorithm.parts import Part, complete, facts
from turnwise.ops.facts import Fact, Need, Trait

NONE = Part(kind="none")
_LISTS = frozenset({"filters", "reward", "regularizers"})
_OF_REFERENCE = frozenset({Need.REFERENCE, Need.KL_TO_REFERENCE, Need.KL_FROM_REFERENCE})
_OF_TEXTS = frozenset({Need.TEXTS, Need.OTHERS_WORDS, Need.SUCCESSES})


class Critic(BaseModel):
    """Whether there is a critic, what it values and how it learns.

    `level: token` values the state before every sampled token, `turn` the state before every turn.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
    level: Literal["none", "token", "turn"] = "none"
    loss: Part = Part(kind="mse")
    coef: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Weighs the value loss against the policy's. It matters if both share a trunk (`train.critic: shared`)."""
    warmup: int = Field(default=0, ge=0, strict=True)
    """Optimiser steps in which only the critic learns; epochs × minibatches of them are a step of the run."""

    @field_validator("loss")
    @classmethod
    def _complete_loss(cls, part: Part) -> Part:
        return complete("value_loss", part)


class Algorithm(BaseModel):
    """The row. Frozen, typed and serialisable: `Algorithm.of(algorithm.model_dump()) == algorithm`."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
    name: str = "custom"
    sampling: Part = Part(kind="plain")
    filters: tuple[Part, ...] = (Part(kind="errored"),)
    reward: tuple[Part, ...] = ()
    advantage: Part = NONE
    cut: Literal["lost", "bootstrap"] = "lost"
    """What follows when a limit of turns, tokens or context ends an episode: nothing, or the critic's value. A policy
    that is paid the critic's value learns to run into the limit."""
    normalizer: Part = NONE
    ratio: Part = Part(kind="token")
    mismatch: Part = NONE
    surrogate: Part = Part(kind="ppo-clip")
    scale: Part = NONE
    weights: Part = Part(kind="token-mean")
    routing: Part = Part(kind="free")
    """Which experts a mixture-of-experts model uses while it learns."""
    regularizers: tuple[Part, ...] = ()
    extrapolate: Part = NONE
    """What follows all updates of a step."""
    critic: Critic = Field(default_factory=Critic)
    epochs: int = Field(default=1, ge=1, strict=True)
    minibatches: int = Field(default=1, ge=1, strict=True)
    max_lag: int = Field(default=0, ge=0, strict=True)
    """How many versions a sampled turn may be behind the learner; 0 is synchronous."""
    compares: Literal["seat", "task"] = "seat"
    """What forms a group: the tries of one seat at a task, or of all seats that the policy plays."""

    @field_validator(
        *("sampling", "advantage", "normalizer", "ratio", "mismatch", "surrogate", "scale", "weights", "routing"),
        "extrapolate",
        mode="after",
    )
    @classmethod
    def _complete_part(cls, part: Part, info: ValidationInfo) -> Part:
        return complete(str(info.field_name), part)

    @field_validator("filters", "reward", "regularizers", mode="after")
    @classmethod
    def _complete_parts(cls, parts: tuple[Part, ...], info: ValidationInfo) -> tuple[Part, ...]:
        return tuple(complete(str(info.field_name), part) for part in parts)

    @classmethod
    def of(cls, choices: Mapping[str, Any]) -> Self:
        """Build a row from plain data; a mistake becomes one ValueError that names the axis and the fix."""
        for axis, choice in choices.items():
            if axis not in cls.model_fields:
                raise ValueError(_unknown_axis(axis, list(cls.model_fields)))
            _check_shape(axis, choice)
        try:
            return cls.model_validate(dict(choices))
        except ValidationError as error:
            raise ValueError("; ".join(_readable(item) for item in error.errors())) from None

    def override(self, changes: Mapping[str, Any]) -> Self:
        """The row with some choices changed. Options without a `kind` change only those options."""
        merged = self.model_dump()
        for axis, change in changes.items():
            merged[axis] = _merge(merged.get(axis), change)
        return self.of(merged)

    def to_yaml(self) -> str:
        """The row as recipe YAML."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)

    @property
    def updates_per_rollout(self) -> int:
        return self.epochs * self.minibatches

    @property
    def needs_critic(self) -> bool:
        return self.critic.level != "none"

    def parts(self) -> Iterator[tuple[str, Part]]:
        """Every part of the row, with its axis."""
        for axis in AXES:
            if axis in _LISTS:
                yield from ((axis, part) for part in getattr(self, axis))
            elif axis in type(self).model_fields:
                yield axis, getattr(self, axis)
        if self.needs_critic:
            yield "value_loss", self.critic.loss

    def facts(self, *axes: str) -> frozenset[Fact]:
        """What the parts of these axes declare; by default, of all axes."""
        chosen = [facts(axis, part) for axis, part in self.parts() if not axes or axis in axes]
        return frozenset[Fact]().union(*chosen)

    @property
    def needs(self) -> frozenset[Need]:
        """What the parts need; the learner provides exactly this."""
        return frozenset(fact for fact in self.facts() if isinstance(fact, Need))

    @property
    def needs_reference(self) -> bool:
        return not self.needs.isdisjoint(_OF_REFERENCE)

    @property
    def moves_by_advantage_alone(self) -> bool:
        """Whether tokens without advantage have no gradient: no critic, no penalty, a surrogate that scales with it.

        Sequences of such tokens are scored for scales and diagnostics, and left out of the backward pass.
        """
        return Trait.FOLLOWS_ADVANTAGE in self.facts("surrogate") and not self.needs_critic and not self.penalties

    @property
    def penalties(self) -> list[Part]:
        """The regularisers of what the policy played."""
        return [part for part in self.regularizers if _OF_TEXTS.isdisjoint(facts("regularizers", part))]

    @property
    def text_losses(self) -> list[Part]:
        """The regularisers of text that gets no credit."""
        return [part for part in self.regularizers if not _OF_TEXTS.isdisjoint(facts("regularizers", part))]


def _unknown_axis(axis: str, axes: list[str]) -> str:
    head, _, option = axis.partition(".")
    if option and head in axes:
        return f"unknown axis {axis!r}; write {head}: {{{option}: ...}}"
    close = difflib.get_close_matches(axis, axes, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"unknown axis {axis!r}; {hint}The axes are {', '.join(axes)}."


def _check_shape(axis: str, choice: Any) -> None:
    """Refuse a choice of the wrong shape and say how to write it."""
    nothing = choice is None or choice == "none"
    if axis == "critic" and not isinstance(choice, (Mapping, Critic)):
        raise ValueError(f"critic is a mapping; write critic: {{level: {'none' if nothing else choice}}}")
    if axis in _LISTS and not isinstance(choice, (list, tuple)):
        one = "{kind: ...}" if isinstance(choice, Mapping) else choice
        raise ValueError(f"{axis} is a list; write {axis}: [{'' if nothing else one}]")
    if axis in AXES.keys() - _LISTS and not isinstance(choice, (str, Mapping, Part)):
        kind = "none" if nothing and "none" in AXES[axis] else next(iter(AXES[axis]))
        raise ValueError(f"{axis} is a kind, or a mapping with one; write {axis}: {kind}")


def _merge(present: Any, change: Any) -> Any:
    if not (isinstance(present, dict) and isinstance(change, Mapping)) or "kind" in change:
        return change  # pyright: ignore[reportUnknownVariableType]
    merged: dict[str, Any] = dict(present)  # pyright: ignore[reportUnknownArgumentType]
    for key, value in change.items():  # pyright: ignore[reportUnknownVariableType]
        merged[str(key)] = _merge(merged.get(str(key)), value)  # pyright: ignore[reportUnknownArgumentType]
    return merged


def _readable(item: Any) -> str:
    message = str(item["msg"]).removeprefix("Value error, ")
    place = ".".join(str(step) for step in item["loc"])
    return message if any(message.startswith(axis) for axis in AXES) else f"{place}: {message}"
