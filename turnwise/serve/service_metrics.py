"""What a server counts, and how Prometheus reads it."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

TEXT = "text/plain; version=0.0.4; charset=utf-8"
"""The kind of text that Prometheus reads."""
_BOUNDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Seconds."""


@dataclass(kw_only=True)
class Seconds:
    """A histogram of times."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(_BOUNDS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        """One more."""
        self.counts[bisect_left(_BOUNDS, seconds)] += 1
        self.total += seconds

    def lines(self, name: str) -> Iterator[str]:
        """In Prometheus' form: every bucket counts those below it, too."""
        seen = 0
        for bound, count in zip((*map(str, _BOUNDS), "+Inf"), self.counts, strict=True):
            seen += count
            yield f'{name}_bucket{{le="{bound}"}} {seen}'
        yield f"{name}_sum {self.total:.6f}"
        yield f"{name}_count {seen}"


@dataclass(kw_only=True)
class ServiceMetrics:
    """Counts since the start."""

    requests: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])
    """By route and status."""
    open_requests: int = 0
    left: int = 0
    """Clients that did not wait for their answers."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    request_seconds: Seconds = field(default_factory=Seconds)
    first_token_seconds: Seconds = field(default_factory=Seconds)
    """Until a stream has its first token."""

    def text(self, engine: Mapping[str, float]) -> str:
        """Everything; `engine` are numbers of the engine by name: those that end in _total only grow."""
        return "\n".join([*self._lines(engine), ""])

    def _lines(self, engine: Mapping[str, float]) -> Iterator[str]:
        yield "# TYPE turnwise_requests_total counter"
        for (route, status), count in sorted(self.requests.items()):
            yield f'turnwise_requests_total{{route="{route}",status="{status}"}} {count}'
        numbers = {
            "open_requests": self.open_requests,
            "clients_left_total": self.left,
            "prompt_tokens_total": self.prompt_tokens,
            "completion_tokens_total": self.completion_tokens,
            **{f"engine_{name}": value for name, value in engine.items()},
        }
        for name, value in numbers.items():
            yield f"# TYPE turnwise_{name} {'counter' if name.endswith('_total') else 'gauge'}"
            yield f"turnwise_{name} {value:g}" if isinstance(value, float) else f"turnwise_{name} {value}"
        for name, histogram in {
            "request_seconds": self.request_seconds,
            "first_token_seconds": self.first_token_seconds,
        }.items():
            yield f"# TYPE turnwise_{name} histogram"
            yield from histogram.lines(f"turnwise_{name}")
