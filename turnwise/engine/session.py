"""A session: one growing token sequence, the slot that holds its keys and values, and the request being served."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from turnwise.engine.contract import Completion, Finish, SamplingParams

Decode = Callable[[list[int]], str]
Heard = Callable[[int, float, Sequence[tuple[int, float]]], None]
"""Called with each token as it is sampled, its log-prob and the likeliest tokens in its place."""


@dataclass(kw_only=True, eq=False)
class Session:
    """`ids[:filled]` have keys and values in the slot; the rest is still to be run."""

    name: str
    seed: int
    ids: list[int] = field(default_factory=list[int])
    filled: int = 0
    slot: int | None = None
    request: Request | None = None
    touched: int = 0
    """Step at which it was last used; the longest idle session is evicted first."""
    oldest_version: int = 0
    """Policy version of its oldest keys and values."""
    reported: int = 0
    """How many tokens' experts have been reported."""

    def drop(self) -> None:
        """Drop the keys and values; the ids stay, so a refill restores them exactly."""
        self.slot, self.filled = None, 0


@dataclass(kw_only=True, eq=False)
class Request:
    """One `generate` call while it is served."""

    session: Session
    slot: int = -1
    params: SamplingParams
    done: Callable[[Completion], None]
    heard: Heard | None = None
    prompt: int
    """Length of the session when sampling starts."""
    carried: int = 0
    """Tokens sampled before the keys and values were dropped and refilled mid-turn."""
    launched: int = 0
    """Tokens launched; if the device runs ahead, the newest are not known yet."""
    ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    versions: list[int] = field(default_factory=list[int])
    top: list[Sequence[tuple[int, float]]] = field(default_factory=list[Sequence[tuple[int, float]]])
    ended: bool = False

    @property
    def unread(self) -> int:
        """Prompt tokens that must be run before the first token can be sampled."""
        return self.prompt - self.session.filled

    @property
    def is_known(self) -> bool:
        """Whether every launched token has been returned."""
        return self.carried + self.launched == len(self.ids)

    def may_launch(self, capacity: int) -> bool:
        """Whether another token may be sampled, as far as is known."""
        room = self.carried + self.launched < self.params.max_tokens and self.prompt + self.launched < capacity
        return room and self.launched > 0 and not self.ended

    def restart(self) -> None:
        """The keys and values are gone: treat the tokens sampled so far as prompt."""
        self.carried, self.prompt, self.launched = len(self.ids), len(self.session.ids), 0

    def accept(self, token: int, logprob: float, version: int, top: Sequence[tuple[int, float]]) -> None:
        """Record a sampled token."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        self.session.ids.append(token)
        if top:
            self.top.append(top)
        if self.heard is not None:
            self.heard(token, logprob, top)

    def finish(self, capacity: int, decode: Decode | None) -> Finish | None:
        """Why the newest token ends the turn, or None."""
        if self.ids[-1] in self.params.stop_ids or self._ends_in_stop_string(decode):
            return Finish.STOP
        if len(self.ids) >= self.params.max_tokens:
            return Finish.MAX_TOKENS
        return Finish.CONTEXT_FULL if len(self.session.ids) >= capacity else None

    def _ends_in_stop_string(self, decode: Decode | None) -> bool:
        if not self.params.stop_strings or decode is None:
            return False
        # A stop string ends in the newest token, so decode only a tail long enough to hold it.
        longest = max(len(text.encode()) for text in self.params.stop_strings)
        tail = decode(self.ids[-(longest + 4) :])
        return any(text in tail for text in self.params.stop_strings)

    def completion(self, finish: Finish, routing: Sequence[Sequence[int]]) -> Completion:
        """The result for the caller."""
        return Completion(
            ids=self.ids,
            logprobs=self.logprobs,
            versions=self.versions,
            finish=finish,
            oldest_version=self.session.oldest_version,
            top=tuple(self.top),
            routing=routing,
        )
