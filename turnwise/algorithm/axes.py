"""The axes of an algorithm: what the parts of each axis receive and return.

A part is called with the positional parameters below. Its other parameters are options and keyword-only. User-defined
parts follow the same contract.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

    from turnwise.batch import Scores, TokenBatch
    from turnwise.ops.credit import Credit
    from turnwise.ops.step_scale import StepScale
    from turnwise.ops.terms import Ratios, Terms
    from turnwise.ops.tries import SamplingPlan
    from turnwise.ops.weights import Counts
    from turnwise.ranks import Reduce
    from turnwise.types import Group


class SamplingPart(Protocol):
    """How many tries each task gets."""

    def __call__(self) -> SamplingPlan: ...


class FilterPart(Protocol):
    """The group without the filtered trajectories; an empty group is dropped."""

    def __call__(self, group: Group, /) -> Group: ...


class RewardPart(Protocol):
    """The changed reward of every token."""

    def __call__(self, batch: TokenBatch, /) -> Tensor: ...


class AdvantagePart(Protocol):
    """An advantage for every token, and the critic's target if there is a critic; None if the row uses no credit."""

    def __call__(self, batch: TokenBatch, /) -> Credit | None: ...


class NormalizerPart(Protocol):
    """The advantage of every token on another scale; `reduce` sums a tensor over ranks."""

    def __call__(self, batch: TokenBatch, advantage_T: Tensor, reduce: Reduce, /) -> Tensor: ...


class RatioPart(Protocol):
    """The importance ratio of every token. The part declares its denominator: `Need.OLD` or `Need.SAMPLER`."""

    def __call__(self, batch: TokenBatch, logprob_T: Tensor, /) -> Tensor: ...


class MismatchPart(Protocol):
    """A constant weight for every token, zero if rejected; None if all weights are one."""

    def __call__(self, batch: TokenBatch, /) -> Tensor | None: ...


class SurrogatePart(Protocol):
    """The terms to maximise, one per token, turn, sequence or unit."""

    def __call__(self, batch: TokenBatch, scores: Scores, ratios: Ratios, /) -> Terms: ...


class ScalePart(Protocol):
    """A stateful step scale, one per run; None if steps are not scaled."""

    def __call__(self) -> StepScale | None: ...


class RoutingPart(Protocol):
    """The experts that a pass must use for every token, `[T, columns]`; None if routers choose."""

    def __call__(self, batch: TokenBatch, /) -> Tensor | None: ...


class WeightsPart(Protocol):
    """The weight of every token in a plain sum; a term above the token gets the sum of its tokens' weights."""

    def __call__(self, batch: TokenBatch, counts: Counts, /) -> Tensor: ...


class RegularizerPart(Protocol):
    """A penalty for every token, or `Terms` at another level."""

    def __call__(self, batch: TokenBatch, scores: Scores, /) -> Tensor | Terms: ...


class ExtrapolatePart(Protocol):
    """A weight after a step, from what the updates of this step and of the step before made of it; or the same of
    logits, if the part declares `Need.PREVIOUS_POLICY`."""

    def __call__(self, now: Tensor, before: Tensor, /) -> Tensor: ...


class ValueLossPart(Protocol):
    """The critic's loss at every token."""

    def __call__(self, batch: TokenBatch, scores: Scores, /) -> Tensor: ...


Contract = TypeVar("Contract", bound=Callable[..., Any])


@dataclass(frozen=True)
class Axis(Generic[Contract]):
    """One axis: its name, its table and how its parts are called. The table loads on first use."""

    name: str
    home: str
    contract: Callable[..., Any]

    @property
    def table(self) -> Mapping[str, Contract]:
        """The built-in parts by kind."""
        module, _, table = self.home.partition(":")
        return getattr(import_module(f"turnwise.ops.{module}"), table)

    @property
    def handed(self) -> list[str]:
        """Names of a part's positional parameters."""
        return list(inspect.signature(self.contract).parameters)[1:]


SAMPLING = Axis[SamplingPart]("sampling", "tries:SAMPLING", SamplingPart.__call__)
FILTERS = Axis[FilterPart]("filters", "filters:FILTERS", FilterPart.__call__)
REWARD = Axis[RewardPart]("reward", "rewards:REWARDS", RewardPart.__call__)
ADVANTAGE = Axis[AdvantagePart]("advantage", "advantages:ADVANTAGES", AdvantagePart.__call__)
NORMALIZER = Axis[NormalizerPart]("normalizer", "normalizers:NORMALIZERS", NormalizerPart.__call__)
RATIO = Axis[RatioPart]("ratio", "ratios:RATIOS", RatioPart.__call__)
MISMATCH = Axis[MismatchPart]("mismatch", "mismatch:MISMATCHES", MismatchPart.__call__)
SURROGATE = Axis[SurrogatePart]("surrogate", "surrogates:SURROGATES", SurrogatePart.__call__)
SCALE = Axis[ScalePart]("scale", "scales:SCALES", ScalePart.__call__)
WEIGHTS = Axis[WeightsPart]("weights", "weights:WEIGHTS", WeightsPart.__call__)
ROUTING = Axis[RoutingPart]("routing", "routing:ROUTINGS", RoutingPart.__call__)
REGULARIZERS = Axis[RegularizerPart]("regularizers", "regularizers:REGULARIZERS", RegularizerPart.__call__)
EXTRAPOLATE = Axis[ExtrapolatePart]("extrapolate", "extrapolations:EXTRAPOLATIONS", ExtrapolatePart.__call__)
VALUE_LOSS = Axis[ValueLossPart]("value_loss", "values:VALUE_LOSSES", ValueLossPart.__call__)

_ALL: Mapping[str, Axis[Any]] = {
    axis.name: axis
    for axis in (
        *(SAMPLING, FILTERS, REWARD, ADVANTAGE, NORMALIZER, RATIO, MISMATCH, SURROGATE, SCALE, WEIGHTS),
        *(ROUTING, REGULARIZERS, EXTRAPOLATE, VALUE_LOSS),
    )
}


class _Tables(Mapping[str, Mapping[str, Callable[..., Any]]]):
    """The tables by axis name. They load on first use: naming an axis or an algorithm needs no torch."""

    def __getitem__(self, axis: str) -> Mapping[str, Callable[..., Any]]:
        return _ALL[axis].table

    def __iter__(self) -> Iterator[str]:
        return iter(_ALL)

    def __len__(self) -> int:
        return len(_ALL)


AXES: Mapping[str, Mapping[str, Callable[..., Any]]] = _Tables()
"""Each axis owns a table of functions; an algorithm picks from them."""


def axis_named(name: str) -> Axis[Any]:
    """The axis of that name."""
    return _ALL[name]
