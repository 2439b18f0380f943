"""A curve of shares between 0 and 1, drawn in characters."""

from __future__ import annotations

from collections.abc import Sequence

_BLOCKS = " ▁▂▃▄▅▆▇█"
_MARGIN = 6
"""Width of the scale on the left."""


def draw_curve(points: Sequence[tuple[int, float]], *, width: int, height: int = 6) -> list[str]:
    """Lines of a filled curve of (step, share) points, no wider than `width`; empty if there is nothing to draw."""
    columns = min(width - _MARGIN - 1, 100)
    if not points or columns < 8:
        return []
    heights = [share * height for share in _spread([share for _, share in points], columns)]
    rows = ["".join(_block(value - level) for value in heights) for level in reversed(range(height))]
    scale = {0: "1.0", height // 2: "0.5"}
    lines = [f"{scale.get(index, ''):>{_MARGIN - 2}} ┤{row}" for index, row in enumerate(rows)]
    return [*lines, f"{'0.0':>{_MARGIN - 2}} └{'─' * columns}", _steps_below(points[0][0], points[-1][0], columns)]


def _spread(values: Sequence[float], columns: int) -> list[float]:
    """One value per column: the mean of the values that fall on it, or the value that spans it."""
    spread: list[float] = []
    for column in range(columns):
        first = column * len(values) // columns
        last = max(first + 1, (column + 1) * len(values) // columns)
        spread.append(sum(values[first:last]) / (last - first))
    return spread


def _block(filled: float) -> str:
    """The character filled to this share of its height."""
    return _BLOCKS[round(min(1.0, max(0.0, filled)) * 8)]


def _steps_below(first: int, last: int, columns: int) -> str:
    left, right = f"step {first}", str(last)
    if first == last or len(left) + len(right) >= columns:
        return " " * _MARGIN + left
    return f"{' ' * _MARGIN}{left}{right:>{columns - len(left)}}"
