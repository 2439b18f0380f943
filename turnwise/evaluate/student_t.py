"""Student's t distribution with only the standard library, for confidence intervals."""

from __future__ import annotations

import math

_ROUNDS, _PRECISION, _TINY = 10_000, 1e-16, 1e-300
_SERIES_FROM = 1e3
"""From here on the gamma ratio's series is exact to rounding, while a difference of logarithms is not."""


def student_t_tail(t: float, freedom: float) -> float:
    """P(T > t) for `freedom` degrees of freedom: I_x(ν/2, 1/2) / 2 with x = ν / (ν + t²), mirrored for t < 0."""
    if not freedom > 0:
        raise ValueError(f"degrees of freedom must be above zero, got {freedom}")
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    half = incomplete_beta_half(freedom / 2, t * t / freedom) / 2
    return half if t >= 0 else 1 - half


def student_t_quantile(probability: float, freedom: float) -> float:
    """The t with P(T < t) = `probability`."""
    if not 0 < probability < 1:
        raise ValueError(f"a probability must be strictly between 0 and 1, got {probability}")
    if probability == 0.5:
        return 0.0
    if probability < 0.5:
        return -student_t_quantile(1 - probability, freedom)
    low, high = 0.0, 1.0
    while student_t_tail(high, freedom) > 1 - probability:
        low, high = high, 2 * high
    while (middle := (low + high) / 2) not in (low, high):  # until two neighbouring floats enclose it
        low, high = (middle, high) if student_t_tail(middle, freedom) > 1 - probability else (low, middle)
    return high


def incomplete_beta_half(a: float, odds: float) -> float:
    """Regularised incomplete beta I_x(a, 1/2) at x = 1 / (1 + odds); odds keep precision near x = 1."""
    if odds == 0 or math.isinf(odds):
        return float(odds == 0)
    x, rest = 1 / (1 + odds), odds / (1 + odds)
    power = math.exp(-a * math.log1p(odds)) * math.sqrt(rest) * _gamma_ratio(a) / math.sqrt(math.pi)
    if x < (a + 1) / (a + 2.5):
        return power * _continued_fraction(a, 0.5, x) / a
    return 1 - power * _continued_fraction(0.5, a, rest) / 0.5


def _gamma_ratio(a: float) -> float:
    """Γ(a + 1/2) / Γ(a)."""
    if a < _SERIES_FROM:
        return math.exp(math.lgamma(a + 0.5) - math.lgamma(a))
    return math.sqrt(a) * (1 - 1 / (8 * a) + 1 / (128 * a**2) + 5 / (1024 * a**3))


def _continued_fraction(a: float, b: float, x: float) -> float:
    """The fraction 1 / (1 + d₁ / (1 + d₂ / …)) of the incomplete beta, by Lentz's method from the front."""
    upper, lower = 1.0, 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    value = lower
    for m in range(1, _ROUNDS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for coefficient in (even, odd):
            upper = _away_from_zero(1 + coefficient / upper)
            lower = 1 / _away_from_zero(1 + coefficient * lower)
            value *= upper * lower
        if abs(upper * lower - 1) <= _PRECISION:
            return value
    raise AssertionError(f"the continued fraction of I_{x}({a}, {b}) did not converge")


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
