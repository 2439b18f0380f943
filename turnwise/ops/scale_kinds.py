"""The step scales there are; what a scale is, `scales` says."""

from turnwise.ops.clip_bias import ClipBiasScale
from turnwise.ops.drift import DriftScale
from turnwise.ops.scales import no_scale

SCALES = {"none": no_scale, "clip-bias": ClipBiasScale, "drift": DriftScale}
