"""A claim as a file: what a paper says, what decides it, and every run it takes, fixed before the first run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from turnwise.recipe.layers import RECIPES, join, read_layers
from turnwise.reproduce.criteria import Criterion
from turnwise.reproduce.slips import Slip

_FILE = "claim.yaml"
_Kind = TypeVar("_Kind", bound=BaseModel)


class ClaimSection(BaseModel):
    """A part of a claim's file."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class ArmChoice(ClaimSection):
    """One arm or control: settings on top of the recipe, and what it reuses from another arm's runs."""

    settings: dict[str, Any] = {}
    """As in a recipe: `{algorithm: {preset: ppo}, train: {grad_clip: 0.1}}`."""
    matched: str | None = None
    """Learn at the rate times the mean scale that this other arm applied on the same seed."""
    permuted: str | None = None
    """Replay the scales of this other arm on the same seed, in random order."""
    epoch_share: float = Field(default=1.0, gt=0, le=1)
    """Of the cell's passes over a rollout."""
    rate_share: float = Field(default=1.0, gt=0)
    """Of the cell's learning rate, for a method whose losses are of another size."""
    from_start: bool = True
    """Begin from the common start; False: from the recipe's own model, as if nothing had been imitated."""

    @property
    def source(self) -> str | None:
        """The arm that must run first."""
        return self.matched or self.permuted


class Cells(ClaimSection):
    """A block of runs: every arm with every rate, number of updates and lag, on the first seeds."""

    arms: list[str]
    rates: list[float] | None = None
    """None: the claim's one rate."""
    updates: list[int] | None = None
    """Optimiser steps per rollout; None: the claim's stress."""
    lags: list[int] = [0]
    seeds: int | None = Field(default=None, ge=1)
    """None: all of them."""


class PairChoice(ClaimSection):
    """Pairs for the arms: a file, or the environment's expert gives two answers to a task and the better is chosen."""

    path: str | None = None
    """A file of preferences, the same for all seeds."""
    count: int = Field(default=1024, ge=1)
    """How many the expert provides."""
    noise: float = Field(default=0.0, ge=0)
    """0: its better answer is always chosen. Else by chance, with probability σ(difference / noise)."""


class Start(ClaimSection):
    """How the common start of all arms is made, once for each seed."""

    model: str | None = None
    """A model that depends on the seed, such as `pico-{seed}`; None: the recipe's."""
    slips: float | None = Field(default=None, ge=0, lt=1)
    """Imitate an expert with this share of random words, failures included; None: the unchanged expert."""
    pairs: PairChoice | None = None
    """Preferences for arms whose settings name the file `{pairs}`."""
    slip: Slip = "word"
    """What is randomised: single words, for `lookup/…`, or whole `action`s, for any environment."""


class Thresholds(ClaimSection):
    """What decides. Shares are of seeds; differences are of held-out success at the end."""

    baseline: str = "ppo"
    method: str = "st-ppo"
    baseline_collapses: float = 0.5
    """The baseline collapses in at least this share of seeds."""
    method_collapses: float = 0.1
    """The method in at most this share."""
    usable: float = 0.75
    """A rate is usable if mean success reaches this share of the best mean of any arm at any rate."""
    range_ratio: float = 2.0
    """The method's usable range of rates (highest over lowest) over the baseline's is at least this."""
    margin: float = 0.05
    """Differences below this do not matter."""


class TaskChoice(ClaimSection):
    """One of several tasks that every arm is trained on: settings on top of the scale's, and what else is its own."""

    settings: dict[str, Any] = {}
    start: Start | None = None
    """None: the scale's."""
    rate: float | None = Field(default=None, gt=0)
    """None: the scale's."""


class StudyScale(ClaimSection):
    """The study at one scale."""

    recipe: str
    """A recipe beside the claim."""
    start: Start = Start()
    seeds: int = Field(ge=1)
    first_seed: int = 0
    rate: float = Field(gt=0)
    """The one learning rate of the stress test, the same for every arm and tuned for none."""
    updates: int = Field(ge=1)
    """Optimiser steps per rollout of the stress test."""
    minibatches: int = Field(default=4, ge=1)
    settings: dict[str, Any] = {}
    """On top of the recipe, for every run."""
    blocks: dict[str, Cells]
    """By name, most important first: they run in this order."""
    parts: list[str] | None = None
    """The parts of the claim that it is to decide. None: all for whose criteria it has runs."""
    tasks: dict[str, TaskChoice] = {}
    """By name: every block runs on each, and each is judged by itself. None: the one task of the recipe."""

    def on(self, task: str) -> StudyScale:
        """The study of one of the tasks alone; of the recipe's own if the name is empty."""
        if not task:
            return self
        own = self.tasks[task]
        return self.model_copy(
            update={
                "settings": join([*read_layers(None, self.settings), *read_layers(None, own.settings)]),
                "start": own.start or self.start,
                "rate": own.rate or self.rate,
                "tasks": {},
            }
        )


class Claim(ClaimSection):
    """The whole file: `load_claim("st-ppo")`."""

    folder: Path
    paper: str
    short: str = ""
    """The claim in a few words, for lists."""
    text: str
    arms: dict[str, ArmChoice]
    controls: list[str] = []
    """Arms that the method must beat for the effect to be due to it."""
    thresholds: Thresholds | None = None
    """For a claim that a method holds where a baseline collapses, over learning rates."""
    criteria: list[Criterion] = []
    """For any other claim: each is a bound on final results."""
    scales: dict[str, StudyScale]

    @model_validator(mode="after")
    def _names_exist(self) -> Claim:
        named = [arm for scale in self.scales.values() for block in scale.blocks.values() for arm in block.arms]
        named += [*self.controls, *(arm for criterion in self.criteria for arm in criterion.arms)]
        if self.thresholds is not None:
            named += [self.thresholds.baseline, self.thresholds.method]
        named += [choice.source for choice in self.arms.values() if choice.source is not None]
        for name in named:
            if name not in self.arms:
                raise ValueError(f"{name!r} is not one of the arms {', '.join(self.arms)}")
        return self

    @model_validator(mode="after")
    def _parts_exist(self) -> Claim:
        known = dict.fromkeys(criterion.part for criterion in self.criteria)
        for part in [part for scale in self.scales.values() for part in scale.parts or []]:
            if part not in known:
                raise ValueError(f"{part!r} is not one of the parts {', '.join(known)}")
        return self

    @model_validator(mode="after")
    def _something_decides(self) -> Claim:
        if self.thresholds is None and not any(criterion.decides for criterion in self.criteria):
            raise ValueError("nothing decides the claim; give it thresholds or criteria")
        if self.controls and self.thresholds is None:
            raise ValueError("controls are compared with the method in thresholds; give thresholds, or write criteria")
        return self

    def scale(self, name: str) -> StudyScale:
        """One of its scales; ValueError names the others."""
        if name not in self.scales:
            raise ValueError(f"there is no scale {name!r} in {self.folder / _FILE}; it has {', '.join(self.scales)}")
        return self.scales[name]


def shipped_claims() -> list[str]:
    """The names that `load_claim` knows."""
    return sorted(file.parent.name for file in RECIPES.glob(f"*/{_FILE}"))


def load_claim(paper: str) -> Claim:
    """A paper's claim, by the name of its folder in `recipes/` or by the folder's own path."""
    return validate_claim(Claim, *read_claim(paper))


def read_claim(paper: str) -> tuple[Path, Mapping[str, Any]]:
    """The folder of a claim and what its file says."""
    folder = next((place for place in (Path(paper), RECIPES / paper) if (place / _FILE).is_file()), None)
    if folder is None:
        known = ", ".join(shipped_claims())
        raise ValueError(f"there is no claim {paper!r}; name a folder with a {_FILE}, or one of {known}")
    return folder, yaml.safe_load((folder / _FILE).read_text())


def validate_claim(kind: type[_Kind], folder: Path, content: Mapping[str, Any]) -> _Kind:
    """The claim as a checked object; ValueError names the first mistake."""
    try:
        return kind.model_validate({**content, "folder": folder})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{folder / _FILE}: {place}: {first['msg']}".replace("Value error, ", "")) from None
