"""What the ops must give, by plain loops: ratios, mismatch, surrogates and their gradients, weights, penalties."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tests.ops.reference import Layout, Numbers


def ratios(made: Layout, now: Numbers, then: Numbers, *, level: str, pooling: str) -> list[float]:
    """exp of the mean (or sum) of log now − log then over the unit; 1 on environment tokens."""
    made_ratios = [1.0] * made.tokens
    for unit in made.units(level):
        total = sum(now[row] - then[row] for row in unit)
        for row in unit:
            made_ratios[row] = math.exp(total / len(unit) if pooling == "mean" else total)
    return made_ratios


def mismatch(made: Layout, old: Numbers, mu: Numbers, *, kind: str, level: str, bound: float) -> list[float]:
    """Truncated, masked or vetoed weights π_old / μ over the unit's product; 0 on environment tokens is not asked."""
    weights = [0.0] * made.tokens
    for unit in made.units(level):
        gaps = [math.exp(old[row] - mu[row]) for row in unit]
        product = math.prod(gaps)
        if kind == "truncated":
            weight = min(product, bound)
        elif kind == "masked":
            weight = product if 1 / bound <= product <= bound else 0.0
        else:
            weight = 1.0 if min(gaps) >= bound else 0.0
        for row in unit:
            weights[row] = weight
    return weights


def clipped(ratio: float, advantage: float, low: float, high: float) -> bool:
    """Core notes 1.4: too far already, and pushed further."""
    return (ratio > 1 + high and advantage > 0) or (ratio < 1 - low and advantage < 0)


def ppo(ratio: float, advantage: float, low: float, high: float, dual: float | None) -> float:
    """min(w A, clip(w) A), with the floor dual · A for negative advantages."""
    term = min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
    return max(term, dual * advantage) if dual is not None and advantage < 0 else term


def decoupled(weight: float, decision: float, advantage: float, logprob: float, low: float, high: float) -> float:
    """MiniRL's term with its weight cut at 5."""
    return 0.0 if clipped(decision, advantage, low, high) else min(weight, 5.0) * advantage * logprob


def cispo(weight: float, advantage: float, logprob: float, low: float, high: float) -> float:
    """The weight is clipped, the token stays."""
    return min(max(weight, 1 - low), 1 + high) * advantage * logprob


def gradient_coefficients(
    made: Layout,
    ratio: Numbers,
    advantage: Numbers,
    weight: Numbers,
    *,
    level: str,
    keep: Sequence[bool],
) -> list[float]:
    """Lemma 4.1 with token weights: every token of a unit gets w · mean of weight · A over its kept tokens.

    With `keep` = unclipped tokens it is the gradient of the clipped objective, with all tokens that of the unclipped
    one, with the clipped tokens it is the clipping bias C: the coefficients of ∇log π_t.
    """
    coefficients = [0.0] * made.tokens
    for unit in made.units(level):
        total = sum(weight[row] * advantage[row] for row in unit if keep[row])
        for row in unit:
            coefficients[row] = ratio[row] * total / len(unit)
    return coefficients


def weights(made: Layout, kept: Sequence[bool], *, kind: str, length: float = 1.0) -> list[float]:
    """Token weights of every kind of mean over the tokens that were not rejected."""

    def remaining(level: str) -> list[list[int]]:
        units = [[row for row in unit if kept[row]] for unit in made.units(level)]
        return [unit for unit in units if unit]

    sequences, trajectories = len(remaining("sequence")), len(remaining("trajectory"))
    result = [0.0] * made.tokens
    level = "trajectory" if kind == "unit-mean" else kind.removesuffix("-mean")  # the unit where nothing is compared
    for unit in remaining(level if level in ("turn", "trajectory") else "sequence"):
        for row in unit:
            result[row] = {
                "token-mean": 1 / len(remaining("token")),
                "turn-mean": 1 / (len(remaining("turn")) * len(unit)),
                "sequence-mean": 1 / (sequences * len(unit)),
                "sequence-sum": 1 / sequences,
                "trajectory-mean": 1 / (trajectories * len(unit)),
                "unit-mean": 1 / (trajectories * len(unit)),
                "trajectory-sum": 1 / trajectories,
                "constant": 1 / (trajectories * length),
            }[kind]
    return result


def kl_estimate(now: float, reference: float, kind: str) -> float:
    """k1, k2, k3 of x = log π_ref − log π."""
    x = reference - now
    return {"k1": -x, "k2": x * x / 2, "k3": math.exp(x) - x - 1}[kind]


def softmax(logits: Numbers) -> list[float]:
    """Probabilities of a row of logits."""
    total = sum(math.exp(logit) for logit in logits)
    return [math.exp(logit) / total for logit in logits]


def full_kl(first: Numbers, second: Numbers) -> float:
    """Σ_v p_v log(p_v / q_v) of two rows of logits."""
    return sum(p * math.log(p / q) for p, q in zip(softmax(first), softmax(second), strict=True))


def entropy(logits: Numbers) -> float:
    """− Σ_v p_v log p_v."""
    return -sum(p * math.log(p) for p in softmax(logits))


def squared(error: float) -> float:
    """½ e²."""
    return error * error / 2


def huber(error: float, delta: float) -> float:
    """½ e² near zero, a line of slope δ beyond."""
    return error * error / 2 if abs(error) <= delta else delta * (abs(error) - delta / 2)


def clipped_value(value: float, old: float, clip: float) -> float:
    """The value, moved at most `clip` from the old one."""
    return old + min(max(value - old, -clip), clip)


def gaussian_histogram(target: float, *, low: float, high: float, bins: int, spread: float) -> list[float]:
    """Mass of a Gaussian around the target in each bin, normalised over [low, high]."""
    width = (high - low) / bins
    centre = min(max(target, low), high)

    def below(edge: float) -> float:
        return 0.5 * (1 + math.erf((edge - centre) / (spread * width * math.sqrt(2))))

    masses = [below(low + (b + 1) * width) - below(low + b * width) for b in range(bins)]
    return [mass / sum(masses) for mass in masses]


def cross_entropy(target: Numbers, logits: Numbers) -> float:
    """− Σ_b q_b log p_b."""
    return -sum(q * math.log(p) for q, p in zip(target, softmax(logits), strict=True))
