"""The available step scales; `step_scale` defines the interface."""

from turnwise.ops.clip_bias import ClipBiasScale
from turnwise.ops.drift import DriftScale
from turnwise.ops.facts import Trait, declares


@declares(Trait.NEUTRAL)
def no_scale() -> None:
    """Take the step as it is.

    scale = 1
    """
    return None


SCALES = {"none": no_scale, "clip-bias": ClipBiasScale, "drift": DriftScale}
