"""What a campaign did: how many attempts, how each came out, and which of them should not have come out so."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class Tally:
    """Counts that add up; a failure counts as an attempt too."""

    outcomes: Counter[str] = field(default_factory=Counter[str])
    failures: list[str] = field(default_factory=list[str])
    skipped: str = ""
    """Why nothing was tried on this machine."""

    @property
    def attempts(self) -> int:
        """All of them, however they came out."""
        return self.outcomes.total() + len(self.failures)

    def note(self, outcome: str) -> None:
        """Count an attempt that came out as it may."""
        self.outcomes[outcome] += 1

    def fail(self, what: str) -> None:
        """Count an attempt that came out as it must not; `what` is enough to try it again."""
        self.failures.append(what)


def shares(count: int, parts: int) -> list[int]:
    """`count` in so many parts that differ by one at most, the larger ones first: `shares(7, 3) == [3, 2, 2]`."""
    return [count // parts + (place < count % parts) for place in range(parts)]


def shortened(text: str, length: int = 120) -> str:
    """A hostile text as one line that can be printed anywhere."""
    shown = ascii(text)
    return shown if len(shown) <= length else f"{shown[: length - 20]} ... {len(text)} characters"
