"""Who plays: the models, and the player of each seat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from turnwise.policy.mixed_policy import MixedPolicy
from turnwise.policy.rendering import Renderer
from turnwise.policy.sampling_copy import SamplingCopy
from turnwise.policy.text import TextPolicy
from turnwise.rollout.agents import Agent
from turnwise.types import POLICY


@dataclass(kw_only=True)
class Voice:
    """A model that plays: a policy that learns, or one that is frozen."""

    name: str
    """Of its engine: a policy, the folder of a checkpoint, or a place in a pool."""
    policy: TextPolicy
    renderer: Renderer
    label: str = ""
    """Its name in turns; a pool place has the name of its snapshot, such as `rival@20`."""
    learns: bool = False
    copy: SamplingCopy | None = None
    """What an engine in this process samples from where the policy is sharded, or the precision another."""
    mixture: MixedPolicy | None = None
    """What is sampled from where the policy is mixed with its past."""
    routing: bool = False
    """Whether its engine reports the experts that tokens go through."""
    version: int = 0
    """Of its weights, where it is frozen."""

    def __post_init__(self) -> None:
        self.label = self.label or self.name


@dataclass(kw_only=True)
class Pool:
    """Snapshots of a policy. The seat's generator draws which one plays an episode."""

    of: str
    every: int
    places: list[Voice]
    draw: Literal["uniform", "hardest"] = "uniform"
    held: dict[int, Voice] = field(default_factory=dict[int, Voice])
    """The places in use, by the step of their snapshot."""
    weights: dict[int, float] = field(default_factory=dict[int, float])
    """How likely each snapshot is to be drawn, by its step; none: all equally."""

    def after(self, steps: Sequence[int], step: int) -> list[int]:
        """The snapshots after adding that of `step`: the newest, as many as there are places."""
        return sorted({*steps, step})[-len(self.places) :]

    def fill(self, steps: Sequence[int], load: Callable[[int, TextPolicy], None]) -> list[Voice]:
        """Hold the snapshots of these steps; returns the places that changed."""
        kept = {step: place for step, place in self.held.items() if step in steps}
        free = [place for place in self.places if place not in kept.values()]
        coming = [step for step in steps if step not in kept]
        changed = free[: len(coming)]
        for step, place in zip(coming, changed, strict=True):
            load(step, place.policy)
            place.label, place.version = f"{self.of}@{step}", step
            kept[step] = place
        self.held = dict(sorted(kept.items()))
        return changed


@dataclass(kw_only=True)
class Cast:
    """All players: `Cast.alone(policy, renderer)` is one policy at every seat."""

    voices: list[Voice]
    seats: dict[str, Voice | Pool | Agent]
    """Empty: the only voice plays every seat."""

    @classmethod
    def alone(cls, policy: TextPolicy, renderer: Renderer) -> Cast:
        """One policy at every seat."""
        return cls(voices=[Voice(name=POLICY, policy=policy, renderer=renderer, learns=True)], seats={})

    @property
    def learning(self) -> Voice:
        """The first voice that learns, or the first of all."""
        return next((voice for voice in self.voices if voice.learns), self.voices[0])

    def mixture(self, name: str) -> MixedPolicy | None:
        """What the voice of this name samples from, if not its policy itself."""
        return next((voice.mixture for voice in self.voices if voice.name == name), None)

    @property
    def pools(self) -> dict[str, Pool]:
        """The pools by seat."""
        return {seat: player for seat, player in self.seats.items() if isinstance(player, Pool)}
