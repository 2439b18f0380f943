"""Numbers by step in a bounded number of points, whatever a run's length: what curves and heat maps are drawn from."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from math import inf
from typing import Any, Generic, TypeVar

from turnwise.runs.rows import is_number

MOST_POINTS = 512
"""Longer runs are shown in at most this many buckets of neighbouring steps."""
Key = TypeVar("Key", bound=Hashable)


class Columns(Generic[Key]):
    """One column per key, with a point per step: `columns.add(3, {"rollout/success": 0.5}.items())`.

    A bucket holds a power of two of steps. So another step changes the last point only, until all points are joined in
    pairs. `largest` says of which keys a bucket shows the largest number instead of the mean.
    """

    def __init__(self, *, most: int = MOST_POINTS, largest: Callable[[Key], bool] = lambda _: False) -> None:
        assert most % 2 == 0
        self.most, self.width, self.count = most, 1, 0
        self.steps: list[int] = []
        """The last step of each bucket."""
        self._largest = largest
        self._cells: dict[Key, tuple[list[float], list[int]]] = {}
        """For each key the sum, or the largest number, and the count in each bucket before the last."""
        self._last: dict[Key, list[Any]] = {}
        """For each key the same in the last bucket."""

    def add(self, step: int, values: Iterable[tuple[Key, Any]]) -> bool:
        """Add numbers of the newest step, or of a later one; others are left out, and False is returned."""
        if self.steps and step < self.steps[-1]:
            return False
        if not self.steps or step > self.steps[-1]:
            self._begin(step)
        last, largest = self._last, self._largest
        for key, value in values:
            # Long runs have millions of numbers, so the usual kind is told first.
            if not (type(value) is float and -inf < value < inf) and not is_number(value):
                continue
            cell = last.get(key)
            if cell is None:
                last[key] = [value, 1]
            else:
                cell[0] = max(cell[0], value) if largest(key) else cell[0] + value
                cell[1] += 1
        return True

    def bucket_of(self, count: int) -> int:
        """The bucket that held the newest step when there were `count` steps."""
        return max(0, count - 1) // self.width

    @property
    def keys(self) -> list[Key]:
        """What has a number in any step."""
        return list({**self._cells, **self._last})

    def column(self, key: Key, since: int = 0) -> list[float | int | None]:
        """The points of a key, from the bucket `since` on; None where nothing was measured."""
        totals, counts = self._cells.get(key, ((), ()))
        points = [*zip(totals[since:], counts[since:], strict=True)]
        points += [(0.0, 0)] * (len(self.steps) - 1 - since - len(points))
        if since < len(self.steps):
            total, count = self._last.get(key, (0.0, 0))
            points.append((total, count))
        largest = self._largest(key)
        return [rounded(total if largest else total / count) if count else None for total, count in points]

    def _begin(self, step: int) -> None:
        if self.count % self.width:
            self.steps[-1] = step
        else:
            self._settle()
            if self.count == self.width * self.most:
                self._join_pairs()
            self.steps.append(step)
        self.count += 1

    def _settle(self) -> None:
        """The last bucket is complete."""
        place = len(self.steps) - 1
        for key, (total, count) in self._last.items():
            totals, counts = self._cells.setdefault(key, ([], []))
            missing = place - len(counts)
            totals.extend([*[0.0] * missing, total])
            counts.extend([*[0] * missing, count])
        self._last = {}

    def _joined(self, key: Key, first: float, count: int, second: float, other: int) -> float:
        if not (count and other):
            return first if count else second
        return max(first, second) if self._largest(key) else first + second

    def _join_pairs(self) -> None:
        self.width *= 2
        self.steps = self.steps[1::2]
        for key, (totals, counts) in self._cells.items():
            if len(counts) % 2:
                totals.append(0.0)
                counts.append(0)
            pairs = zip(totals[::2], counts[::2], totals[1::2], counts[1::2], strict=True)
            self._cells[key] = (
                [self._joined(key, *pair) for pair in pairs],
                [first + second for first, second in zip(counts[::2], counts[1::2], strict=True)],
            )


def rounded(value: Any) -> float | int | None:
    """Five significant digits, more than a plot can show; None for non-numbers."""
    if not is_number(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.5g}")
