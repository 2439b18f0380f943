"""The headline figure: success against learning rate for each arm, as a self-contained SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import log10

from turnwise.evaluate.statistics import Interval

Point = tuple[float, float, Interval]
"""Learning rate, mean success, 95% interval."""

_WIDTH, _HEIGHT = 720, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 170, 52, 48
# Readable for the colour-blind and in print: nine hues and five dashes make 45 distinct pairs.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31", "#882255")
_DASHES = ("", "6 3", "2 2", "8 3 2 3", "12 3")


def draw_rates(curves: Mapping[str, Sequence[Point]], *, title: str, bar: float | None = None) -> str:
    """One line per arm over a logarithmic axis of rates; `bar` is the success that makes a rate usable."""
    rates = sorted({rate for points in curves.values() for rate, _, _ in points})
    if not rates:
        raise ValueError("there is nothing to draw: no arm has a finished run")
    parts = [_frame(title), *_axes(rates)]
    if bar is not None:
        parts.append(_line(_LEFT, _y(bar), _WIDTH - _RIGHT, _y(bar), "#999", dash="3 3"))
        parts.append(_text(_LEFT + 4, _y(bar) - 4, f"usable: {bar:.2f}", size=11, fill="#666"))
    for number, (name, points) in enumerate(curves.items()):
        parts += _curve(name, sorted(points), rates, number)
    return "\n".join([*parts, "</svg>\n"])


def _frame(title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        f'role="img" aria-label="{escape(title)}">\n<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>\n'
        + _text(_LEFT, 20, title, size=14)
    )


def _axes(rates: Sequence[float]) -> list[str]:
    parts: list[str] = []
    for tenth in range(0, 11, 2):
        height = _y(tenth / 10)
        parts.append(_line(_LEFT, height, _WIDTH - _RIGHT, height, "#e5e5e5"))
        parts.append(_text(_LEFT - 8, height + 4, f"{tenth / 10:.1f}", anchor="end"))
    for rate in rates:
        place = _x(rate, rates)
        parts.append(_line(place, _y(0), place, _y(0) + 5, "#666"))
        parts.append(_text(place, _y(0) + 18, f"{rate:g}", anchor="middle"))
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(_text(middle, _HEIGHT - 10, "learning rate", anchor="middle"))
    parts.append(_text(_LEFT, _TOP - 12, "held-out success at the end, mean and 95% interval over seeds", size=11))
    return parts


def _curve(name: str, points: Sequence[Point], rates: Sequence[float], number: int) -> list[str]:
    colour, dash = _COLOURS[number % len(_COLOURS)], _DASHES[number % len(_DASHES)]
    shift = (number - 3) * 2.0  # keep neighbouring intervals from overlapping
    places = [(_x(rate, rates) + shift, _y(mean), interval) for rate, mean, interval in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in places)
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>']
    for x, y, interval in places:
        parts.append(_line(x, _y(min(interval.high, 1.0)), x, _y(max(interval.low, 0.0)), colour, width=1))
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
    height = _TOP + 14 + 20 * number
    side = _WIDTH - _RIGHT + 14
    parts.append(_line(side, height - 4, side + 26, height - 4, colour, dash=dash, width=2))
    parts.append(_text(side + 32, height, name))
    return parts


def _x(rate: float, rates: Sequence[float]) -> float:
    span = log10(rates[-1] / rates[0]) or 1.0
    return _LEFT + 18 + log10(rate / rates[0]) / span * (_WIDTH - _LEFT - _RIGHT - 36)


def _y(success: float) -> float:
    return _HEIGHT - _BOTTOM - success * (_HEIGHT - _TOP - _BOTTOM)


def _line(x: float, y: float, to_x: float, to_y: float, colour: str, *, dash: str = "", width: float = 1) -> str:
    return (
        f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" stroke="{colour}" '
        f'stroke-width="{width:g}" stroke-dasharray="{dash}"/>'
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, fill: str = "#222") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{fill}">{escape(text)}</text>'
    )
