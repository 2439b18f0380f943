"""The engine contract: continue token sequences, and report exactly what was sampled and how likely it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from turnwise.ranks import ALONE, Ranks

if TYPE_CHECKING:
    from torch import Tensor


Role = Literal["alone", "leads", "follows"]


class EngineError(Exception):
    """An engine failed to continue a session; says nothing about the policy. `timed_out`: it did not answer."""

    def __init__(self, text: str, *, timed_out: bool = False) -> None:
        super().__init__(text)
        self.timed_out = timed_out


class Finish(StrEnum):
    """Why a generation ended. Failures are values too, so other sessions continue."""

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
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}")
        if not 0 <= self.min_p < 1:
            raise ValueError(f"min_p must be in [0, 1), got {self.min_p}")
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
    oldest_version: int | None = None
    """The version that computed the oldest keys and values in use: below `versions` if they were kept across a publish.
    None: no older than the tokens."""
    top: Sequence[Sequence[tuple[int, float]]] = field(default_factory=tuple[Sequence[tuple[int, float]], ...])
    routing: Sequence[Sequence[int]] = ()
    """If asked for: the experts, all layers in a row, of every token that was run since the last completion of the
    session. The last sampled token was not run yet."""

    @property
    def policy_version(self) -> int:
        """The oldest version used, which decides how far off-policy the tokens are."""
        kept = () if self.oldest_version is None else (self.oldest_version,)
        return min((*self.versions, *kept), default=0)


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The weights of a policy, made only when asked for: an engine that shares the learner's memory never asks."""

    named: Callable[[], Iterator[tuple[str, Tensor]]]
    """Every tensor of the model under its `from_pretrained` name, with any adapter merged in."""


@dataclass(frozen=True, kw_only=True)
class ServerStart:
    """How to start engine servers on this machine."""

    servers: int = 1
    python: str = ""
    """The interpreter that has the server installed; empty: this one."""
    devices: tuple[str, ...] = ()
    """CUDA devices of each server, such as "1" or "2,3"."""
    arguments: tuple[str, ...] = ()
    """More arguments of its command."""
    env: dict[str, str] = field(default_factory=dict[str, str])
    """More environment variables."""
    seconds: float = 600.0
    """How long it may take until it answers."""


@dataclass(frozen=True, kw_only=True)
class Mixed:
    """A second model whose logits are mixed with the first one's before a token is drawn."""

    model: Any
    mix: Callable[[Any, Any], Any]
    """From the logits of both to those that are sampled."""


@dataclass(frozen=True, kw_only=True)
class EngineSetup:
    """What an engine is made from. An outside engine is called with it: `MyEngine(setup, **options)`."""

    policy: str
    """The policy's name in the recipe."""
    model_name: str
    """Where the model was loaded from. It may have been trained since; the first `publish` brings the weights."""
    model: Any
    """The learner's own module, in this process."""
    tokenizer: Any
    capacity: int
    """Tokens that a session must have room for."""
    memory_bytes: int
    """For keys and values."""
    seed: int
    urls: tuple[str, ...] = ()
    """The servers of this policy, if it samples in other processes."""
    start: ServerStart | None = None
    """Start such servers here, in place of `urls`."""
    folder: Path | None = None
    """Where weights for other processes are written; None: a temporary folder."""
    role: Role = "alone"
    """Whether other processes sample on the same servers, and if so who publishes to them."""
    ranks: Ranks = ALONE
    """All of them use the same servers; `publish` is called on each."""
    note: Callable[[str], None] = lambda _: None
    """Shows the user a line."""
    mixed: Mixed | None = None
    """Sample from a mixture; only the built-in engine does."""
    routing: bool = False
    """Report the experts that tokens go through."""


class Engine(Protocol):
    """Continues token sequences: in this process, in another, or in a pool.

    It is ready once constructed, and gets its first weights by `publish`. Sessions keep their keys and values between
    turns, so a turn brings only new tokens. A cancelled call closes its session.
    """

    @property
    def capacity(self) -> int:
        """Tokens that a session may hold."""
        ...

    @property
    def lockstep(self) -> bool:
        """Whether it can `expect`; without that, equal seeds may round differently."""
        ...

    @property
    def busy_seconds(self) -> float:
        """Time spent running the model so far."""
        ...

    async def generate(self, session: str, new_ids: Sequence[int], params: SamplingParams) -> Completion:
        """Append `new_ids` to the session (opened on first use) and sample its continuation."""
        ...

    def close(self, session: str) -> None:
        """Forget a session and free its memory; an unknown session is not an error."""
        ...

    def paused(self) -> AbstractContextManager[None]:
        """Pause while the learner's weights change. An engine with its own copy does nothing."""
        ...

    def publish(self, weights: Weights | None, version: int) -> None:
        """Sample from these weights; every token sampled after this returns carries the version.

        None: the weights are those of the learner's own module, which have changed in place.
        """
        ...

    def expect(self, requests: int | None) -> None:
        """Lock-step: sample only while this many requests wait for tokens, and take them up in order of their names.

        The number counts the requests of all engines that share a thread. Batches, and so rounding errors, then no
        longer depend on timing. None ends it.
        """
        ...

    def shutdown(self) -> None:
        """Free everything; waiting requests fail."""
        ...
