"""One reward as a recipe lists it: a function of what was said, its name and its weight.

A function names what it wants to know of an episode, and gets that: `def right(task, answer)`. See `ARGUMENTS`.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

from turnwise.envs.faults import FAULTS, MAX_REWARD, EpisodeError, describe, is_cancellation, trace_of
from turnwise.outside import is_unread, load
from turnwise.types import ENV, ENVIRONMENT, JUDGE
from turnwise.untrusted import shown

Per = Literal["episode", "turn"]
RESERVED = (ENV, JUDGE, "low", "high")
"""Names that mean something else among the metrics and parts of a reward."""
ARGUMENTS: Mapping[str, str] = {
    "task": "the row or task that is played, as the environment names it",
    "messages": 'the chat, up to the last answer: [{"role": "user", "content": "..."}, ...]',
    "answer": "what the agent said last",
    "answers": "all that it has said, in order",
    "observation": "what the environment replied to it",
    "info": "the environment's last info",
    "reward": "what the environment itself pays, for the episode or for the turn",
    "cut": "whether a limit of turns, tokens or context ended the episode",
}
"""What a function may ask for, by the names of its parameters."""
FUNCTIONS: Mapping[str, str] = {
    "exact": "turnwise.envs.tasks.answer_rewards:exact",
    "f1": "turnwise.envs.tasks.answer_rewards:overlap",
    "number": "turnwise.envs.tasks.answer_rewards:number",
}
"""Rewards by name, for tasks with an `answer`."""
_SHOWN = 80


@dataclass(frozen=True, kw_only=True)
class RewardFunction:
    """A function with its name and weight: `RewardFunction.of({"function": "my_rewards.py:right", "weight": 0.5})`."""

    name: str
    place: str
    function: Callable[..., Any]
    weight: float = 1.0
    per: Per = "episode"
    success: float | None = None
    """An episode succeeds if the function gives at least this much; None: it does not say."""

    @classmethod
    def of(cls, choice: Mapping[str, Any]) -> RewardFunction:
        """The function that a recipe names; ValueError with the fix."""
        place = choice["function"]
        function = _find(place)
        if unknown := [name for name in _required(function) if name not in ARGUMENTS]:
            raise ValueError(f"{place} asks for {unknown[0]!r}; a reward may ask for {', '.join(ARGUMENTS)}")
        return cls(**{**choice, "name": choice.get("name") or name_of(place), "place": place, "function": function})

    @property
    def waits(self) -> bool:
        """Whether it is asynchronous."""
        return inspect.iscoroutinefunction(self.function)

    def ask(self, known: Mapping[str, Any]) -> Any:
        """What it gives, or an awaitable of that; EpisodeError if it raises."""
        try:
            return self.function(**{name: known[name] for name in self._wants})
        except FAULTS as error:
            raise self._fault(error) from error

    async def wait(self, value: Any) -> Any:
        """The same for an awaitable."""
        try:
            return await value if inspect.isawaitable(value) else value
        except FAULTS as error:
            if is_cancellation(error):
                raise
            raise self._fault(error) from error

    def read(self, value: Any) -> float | None:
        """A finite number, or None where the reward does not apply; EpisodeError for anything else."""
        if value is None:
            return None
        item = getattr(value, "item", None)  # scalars of arrays and tensors
        try:
            number = item() if callable(item) else value
            if isinstance(number, Real) and abs(float(number)) <= MAX_REWARD:  # NaN is not
                return float(number)
        except (OverflowError, ValueError, TypeError, RuntimeError):  # an array of several numbers
            pass
        raise EpisodeError(
            f"the reward {self.name} ({self.place}) gave {shown(value)[:_SHOWN]}; return a finite number, or None "
            "where it does not apply"
        )

    @property
    def _wants(self) -> list[str]:
        parameters = inspect.signature(self.function).parameters.values()
        if any(each.kind is each.VAR_KEYWORD for each in parameters):
            return list(ARGUMENTS)
        return [each.name for each in parameters if each.name in ARGUMENTS]

    def _fault(self, error: BaseException) -> EpisodeError:
        return EpisodeError(f"the reward {self.name} ({self.place}) raised {describe(error)}", trace=trace_of(error))


def name_of(place: str) -> str:
    """The name of a reward that has no other: that of its function."""
    return place.rpartition(":")[2]


def check_rewards(choices: Sequence[Mapping[str, Any]]) -> None:
    """ValueError if two rewards share a name, one has a name that is taken, or a function is none."""
    names = [choice.get("name") or name_of(choice["function"]) for choice in choices]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"two rewards are named {repeated[0]!r}; give one of them another name")
    if taken := [name for name in names if name in RESERVED]:
        raise ValueError(f"a reward is named {taken[0]!r}, which is taken; give it another name")
    for choice in choices:
        if choice["function"] != ENVIRONMENT and not is_unread(choice["function"]):
            RewardFunction.of(choice)


def _find(place: str) -> Callable[..., Any]:
    if place in FUNCTIONS:
        return load(FUNCTIONS[place])
    if ":" not in place:
        close = difflib.get_close_matches(place, [*FUNCTIONS, ENVIRONMENT], n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ValueError(
            f"unknown reward {place!r}; {hint}There are {', '.join(FUNCTIONS)}, {ENVIRONMENT} (its own reward), and "
            "my_rewards.py:name or package.module:name is yours."
        )
    try:
        found = load(place)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{place} does not load: {error}; write it as my_rewards.py:name") from error
    # Decided without a call, because a recipe may name anything, even `os:system`.
    if not inspect.isfunction(found):
        raise ValueError(f"{place} is not a function; write one such as def {name_of(place)}(task, answer)")
    return found


def _required(function: Callable[..., Any]) -> list[str]:
    """The parameters that have no default, also those that only a place can fill."""
    skipped = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = [each for each in inspect.signature(function).parameters.values() if each.kind not in skipped]
    hidden = [f"/{each.name}" for each in parameters if each.kind is each.POSITIONAL_ONLY]
    return hidden or [each.name for each in parameters if each.default is each.empty]
