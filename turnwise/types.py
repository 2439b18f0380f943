"""The data types of an episode. They need no torch; the packed batch is in `batch`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import fmean
from typing import Any, cast


class NonFiniteError(ValueError):
    """A number that is NaN or infinite where training needs a finite one."""


class StopReason(StrEnum):
    """Why an episode ended. Failures are values here, never exceptions."""

    DONE = "done"
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"
    CONTEXT_FULL = "context_full"
    ENV_ERROR = "env_error"
    TIMEOUT = "timeout"
    INVALID = "invalid"

    @property
    def is_failure(self) -> bool:
        """Whether the episode says nothing about the policy; such trajectories never enter a batch."""
        return self in (StopReason.ENV_ERROR, StopReason.TIMEOUT)


POLICY = "policy"
"""The name of a recipe's only policy."""
ANY_EXPERT = -1
"""In place of a recorded expert: the router chooses."""
ENV = "env"
"""Where a judge pays: what the environment itself paid, kept beside the parts of a turn's reward and none of them."""
ENVIRONMENT = "environment"
"""The part of a reward that is the environment's own, where others are added."""
JUDGE = "judge"
"""The part of a reward that a judge gives."""
CUTS = (StopReason.MAX_TURNS, StopReason.MAX_TOKENS, StopReason.CONTEXT_FULL)
"""Endings by our limits, not by the environment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One chat message: `Message(role="user", content="Capital of the country where Mahis lies?")`."""

    role: str
    content: str


@dataclass(kw_only=True, slots=True)
class Turn:
    """What one model call added to an episode.

    `prompt_ids` is the *delta*: the tokens that came in since the last sampled token, never the whole prompt. A
    two-turn search episode whose full sequence is `[1, 5, 6, 40, 41, 2, 7, 8, 50, 2]` is stored as

        Turn(prompt_ids=[1, 5, 6], sampled_ids=[40, 41, 2], logprobs=[-0.1, -0.7, -0.2])   # question, then a query
        Turn(prompt_ids=[7, 8],    sampled_ids=[50, 2],     logprobs=[-0.3, -0.1], reward=1.0)  # result, then an answer
    """

    prompt_ids: Sequence[int] = ()
    sampled_ids: Sequence[int] = ()
    logprobs: Sequence[float] | None = None
    """The sampler's log-prob of each sampled token (`mu`); None when unknown, as in demonstrations."""
    policy: str = POLICY
    """Who spoke: a policy of the recipe (`rival`), a snapshot of one (`rival@20`), "" for scripted agents."""
    policy_version: int = 0
    """The oldest policy version used, in the weights or in the keys and values."""
    reward: float = 0.0
    reward_parts: Mapping[str, float] = field(default_factory=dict[str, float])
    observation: str = ""
    """The text that this turn answers."""
    call: Mapping[str, Any] | None = None
    """If a user's program asked, or the template shows an environment's tools: the number of the call, the earlier call
    whose answer it follows, the new messages in their roles and, at the beginning of a conversation, its tools. Numbers
    tell the order in which turns were made."""
    action: str = ""
    """The text of the turn itself."""
    valid: bool = True
    """Whether the environment parsed and allowed the action; false for a truncated turn."""
    state_key: str | None = None
    """Turns with equal keys inside a group started from the same state (anchor-state credit)."""
    restarts: bool = False
    """The history was rewritten, not just extended: `prompt_ids` is a whole prompt and opens a new sequence."""
    heard: Sequence[Sequence[int]] = field(default_factory=list[Sequence[int]])
    """Which of `prompt_ids` other agents said, as spans: `[[2, 5]]` is the third to the fifth token."""
    streams: Mapping[str, Sequence[Any]] = field(default_factory=dict[str, Sequence[Any]])
    """More for `TokenBatch.extra_T`: numbers of the turn's last sampled token, such as the features that it answers; or
    a row for each token that the sampler ran for this turn, such as its experts. It has not run the last token, so the
    last row belongs to the one before."""
    sample_seconds: float = 0.0
    env_seconds: float = 0.0


@dataclass(kw_only=True, slots=True)
class Trajectory:
    """One seat's path through one episode.

    The two turns of `Turn`'s example, ended by the environment:

        Trajectory(id="geo-17/0", turns=[search, answer], stop=StopReason.DONE, terminated=True)

    Had the turn limit cut it before the answer, it would be `stop=StopReason.MAX_TURNS, truncated=True`, with the last
    search result as `final_ids=[7, 8]`: the critic values the state after them, and that value bootstraps the return.
    """

    id: str
    turns: list[Turn]
    stop: StopReason
    terminated: bool = False
    truncated: bool = False
    """Cut, not finished. A trajectory that is both counts as terminated."""
    task: Any = None
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Arguments that the environment was built with."""
    seed: int | None = None
    seat: str = "agent"
    episode: str = ""
    """The episode that the seats of one game share; the trajectory's own id if there is one seat."""
    final_ids: Sequence[int] = ()
    """Tokens that arrived after the last turn (a truncated episode's last observation)."""
    final_observation: str = ""
    final_streams: Mapping[str, Sequence[float]] = field(default_factory=dict[str, Sequence[float]])
    """The same for the last of `final_ids`."""
    bootstrap: float | None = None
    """Value of the state after `final_ids` if known; else the critic fills it in."""
    info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The environment's last info: success and whatever else it reports."""

    def __post_init__(self) -> None:
        self.episode = self.episode or self.id

    @property
    def reward(self) -> float:
        """Undiscounted sum of the turn rewards."""
        return sum(turn.reward for turn in self.turns)

    @property
    def reward_parts(self) -> dict[str, float]:
        """The named parts of its reward, summed over its turns; nothing if no turn has any."""
        sums: dict[str, float] = {}
        parted = any(turn.reward_parts for turn in self.turns)
        for turn in self.turns if parted else ():
            own = {ENVIRONMENT: turn.reward} if turn.reward else {}
            for name, part in (turn.reward_parts or own).items():
                if name != ENV:
                    sums[name] = sums.get(name, 0.0) + part
        return sums

    @property
    def last_pay(self) -> float:
        """What the end of a game paid this seat, also one that never acted and has no turn with a reward."""
        paid = self.info.get("rewards")
        return float(cast("Mapping[str, Any]", paid).get(self.seat, 0.0)) if isinstance(paid, Mapping) else 0.0

    @property
    def success(self) -> bool:
        """What the environment reported, else whether any reward was earned."""
        return bool(self.info.get("success", self.reward > 0))

    @property
    def is_own(self) -> bool:
        """Whether a policy played it: turns from files and experts have no log-probs."""
        spoken = [turn for turn in self.turns if len(turn.sampled_ids)]
        return not spoken or any(turn.logprobs is not None for turn in spoken)

    @property
    def scores(self) -> dict[str, float]:
        """The numbers in `info["scores"]`, by name; another environment may use the key for something else."""
        said = self.info.get("scores")
        table = cast("Mapping[Any, Any]", said if isinstance(said, Mapping) else {})
        return {str(name): float(value) for name, value in table.items() if isinstance(value, int | float)}


@dataclass(kw_only=True, slots=True)
class Group:
    """Trajectories that are compared with each other: tries at one task, or the seats of one game.

    Example: `Group(id="geo-17", trajectories=[first, second])` with rewards 1 and 0; a group-mean baseline gives the
    tokens of the first +0.5 and those of the second -0.5.
    """

    id: str
    trajectories: list[Trajectory]
    task_id: str = ""
    """The task that its members try; the groups of a game's seats share it."""

    def __post_init__(self) -> None:
        self.task_id = self.task_id or self.id


def mean_scores(trajectories: Iterable[Trajectory]) -> dict[str, float]:
    """The mean of every score, over the trajectories that have it."""
    values: dict[str, list[float]] = {}
    for trajectory in trajectories:
        for name, value in trajectory.scores.items():
            values.setdefault(name, []).append(value)
    return {name: fmean(each) for name, each in values.items()}


def mean_reward_parts(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """The mean of every part of the reward over all of them: an episode without it counts as 0, so that they add up."""
    sums: dict[str, float] = {}
    for trajectory in trajectories:
        for name, part in trajectory.reward_parts.items():
            sums[name] = sums.get(name, 0.0) + part
    return {name: total / len(trajectories) for name, total in sums.items()}
