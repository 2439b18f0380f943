"""What an engine is: it continues token sequences, and says exactly what it sampled and how likely that was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class Finish(StrEnum):
    """Why a generation ended. Trouble is a value here too: other sessions go on."""

    STOP = "stop"
    """A stop token or stop string was sampled; its tokens are part of the completion."""
    MAX_TOKENS = "max_tokens"
    CONTEXT_FULL = "context_full"
    CANCELLED = "cancelled"


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How to continue one session. The defaults sample from the model's own distribution."""

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0: no limit."""
    min_p: float = 0.0
    max_tokens: int = 256
    stop_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    bad_ids: tuple[int, ...] = ()
    """Tokens that are never sampled."""
    top_logprobs: int = 0
    """How many of the most likely tokens to report at each position."""

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature must be 0 (greedy) or more, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1], got {self.top_p}")
        if not 0 <= self.min_p < 1:
            raise ValueError(f"min_p must lie in [0, 1), got {self.min_p}")
        if self.top_k < 0 or self.top_logprobs < 0:
            raise ValueError("top_k and top_logprobs must be 0 (off) or more")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if any(not text for text in self.stop_strings):
            raise ValueError("a stop string is empty; leave it out")


@dataclass(frozen=True, kw_only=True)
class Completion:
    """What was sampled: `Completion(ids=[40, 2], logprobs=[-0.1, -0.2], versions=[3, 3], finish=Finish.STOP)`.

    `logprobs` belong to the distribution that was sampled from: after temperature, truncation and bad tokens. Greedy
    decoding reports those of temperature 1.
    """

    ids: Sequence[int]
    logprobs: Sequence[float]
    versions: Sequence[int]
    """The policy version that sampled each token."""
    finish: Finish
    oldest_version: int = 0
    """The version under which the oldest keys and values in use were computed: less than `versions` when they were kept
    across a publish."""
    top: Sequence[Sequence[tuple[int, float]]] = field(default_factory=tuple[Sequence[tuple[int, float]], ...])


class Engine(Protocol):
    """Sessions keep their KV across turns, so a turn brings only what is new."""

    @property
    def capacity(self) -> int:
        """Tokens that a session may hold."""
        ...

    async def generate(self, session: str, new_ids: Sequence[int], params: SamplingParams) -> Completion:
        """Append `new_ids` to the session (opened on first use) and sample its continuation."""
        ...

    def publish(self, version: int) -> None:
        """The weights have changed: tokens sampled from now on carry this version."""
        ...

    def close(self, session: str) -> None:
        """Forget a session and free its memory; one that is unknown is no error."""
        ...
