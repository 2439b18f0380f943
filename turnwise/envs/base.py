"""The environment contract: text in, text out.

It has the Gymnasium / GEM form, so existing text environments work unchanged. In addition, every environment owns its
random generator, knows its split, may name several seats, and may have a scripted expert.
"""

from __future__ import annotations

import copy
import inspect
import random
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, ClassVar, Literal

Info = dict[str, Any]
Reset = tuple[str, Info]
Step = tuple[str, float, bool, bool, Info]
Execution = Literal["inline", "thread", "process", "loop"]

SPLITS = ("train", "validation", "test")
ONE_SEAT = ("agent",)


def won(info: Info, reward: float) -> bool:
    """Whether an episode succeeded: what its last info says (for any seat, if by seat), otherwise its reward."""
    said = info.get("success", reward > 0)
    return any(said.values()) if isinstance(said, Mapping) else bool(said)


def listed_tasks(env: object) -> Sequence[Any] | None:
    """The tasks that an environment lists; None if seeds make them, or if it is of a class that has no lists."""
    return env.list_tasks() if isinstance(env, Env) else None


def is_asynchronous(env: Env) -> bool:
    """Whether the environment, or one that it wraps, has an async `reset` or `step`."""
    inner = getattr(env, "env", None)  # of a wrapper
    own = any(inspect.iscoroutinefunction(method) for method in (env.reset, env.step))
    return own or (isinstance(inner, Env) and is_asynchronous(inner))


class Env:
    """Base class of all environments. A subclass overrides `reset` and `step`, either of which may be `async`.

    Each asynchronous environment has its own event loop: create what belongs to a loop, such as an HTTP client, in
    `reset`, not once for all instances.

    `info` is free, but these keys mean something to the rest of the library:

    | key | where | meaning |
    |---|---|---|
    | `success` | last step | did the episode succeed? (missing: reward > 0) |
    | `success` | last step, several seats | a mapping by seat name (missing: the seat's own reward > 0) |
    | `valid` | any step | could the action be parsed and was it allowed? (missing: yes) |
    | `cut_reward` | before a turn | what the turn earns if a limit cuts it and no step sees it (missing: 0) |
    | `pays_cuts` | before a turn | a method `cut(action)` says in the form of a step what a limit's end earns |
    | `state_key` | any | equal strings mark equal states, for anchor-state credit |
    | `reward_parts` | any step | the named parts that sum to the reward; they become metrics, `rollout/reward_<name>` |
    | `scores` | last step | named numbers about the episode; their means become metrics, `rollout/score_<name>` |
    | `parsed_action` | any step | what the environment understood |
    | `tools` | any | tools in OpenAI's form, for agents that take them as functions |
    | `template_messages` | any | the observation as messages in roles, such as `tool`; the template shows `tools` |
    | `seat` | any, several seats | who reads this observation and acts next (required until the end) |
    | `heard` | before a turn, several seats | what other seats said in this observation, a list of texts in order |
    | `rewards` | any step, several seats | reward of each seat, by name; the step's `reward` is then the actor's |

    Example, a whole environment:

        class Coin(Env):
            def reset(self, seed=None, task=None):
                super().reset(seed=seed)
                self.face = self.rng.choice(["heads", "tails"])
                return "Guess the coin: heads or tails?", {}

            def step(self, action):
                right = action.strip().lower() == self.face
                return f"It was {self.face}.", float(right), True, False, {"success": right}
    """

    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    """Bounds of one step's reward; the env doctor checks them."""
    execution: ClassVar[Execution] = "inline"
    """Where `step` runs: inline if it takes microseconds, thread if it waits, process if it computes; loop if it
    returns at once with a future of the running event loop."""
    seats: tuple[str, ...] = ONE_SEAT
    """Names of the agents that act in this environment. An episode yields one trajectory per seat."""
    shared: ClassVar[frozenset[str]] = frozenset()
    """Attributes that never change after construction (an index, a word list): snapshots share them by reference."""

    def __init__(self, *, split: str = "train") -> None:
        if split not in SPLITS:
            raise ValueError(f"unknown split {split!r}; choose one of {', '.join(SPLITS)}")
        self.split = split
        self.rng = random.Random()

    def reset(self, seed: int | None = None, task: Any = None) -> Reset | Awaitable[Reset]:
        """Start an episode. Equal (split, seed, task) give equal episodes; splits never share a random stream.

        Without a seed the generator continues. Subclasses call this first and then draw from `self.rng`.
        """
        if not hasattr(self, "rng"):
            raise ValueError(f"{type(self).__name__} has no random generator; call super().__init__() in its __init__")
        if seed is not None:
            self.rng = random.Random(f"{self.split}:{seed}")
        return "", {}

    def step(self, action: str) -> Step | Awaitable[Step]:
        """Apply the text of one turn: (observation, reward, terminated, truncated, info).

        `terminated`: the episode ended by itself. `truncated`: it was cut and could have continued, so a critic may
        value what would have followed. An episode that is both counts as terminated.
        """
        raise NotImplementedError(f"{type(self).__name__} must define step(action)")

    def sample_random_action(self) -> str:
        """A random well-formed action in the current state (for checks and baselines), drawn from `self.rng`."""
        raise NotImplementedError(f"{type(self).__name__} has no sample_random_action()")

    def oracle(self) -> str:
        """The scripted expert's action in the current state; calling it changes nothing."""
        raise NotImplementedError(f"{type(self).__name__} has no oracle()")

    def has_oracle(self) -> bool:
        """Whether `oracle()` exists for this environment."""
        return type(self).oracle is not Env.oracle

    def list_tasks(self) -> Sequence[Any] | None:
        """Every task of this split in the form that `reset(task=…)` takes; None if seeds generate endless tasks.

        Evaluation plays each of a limited number once, instead of drawing with repetition.
        """
        return None

    def get_state(self) -> Mapping[str, Any]:
        """A snapshot from which `set_state` continues exactly, including the generator."""
        memo = {id(vars(self)[name]): vars(self)[name] for name in self.shared if name in vars(self)}
        return copy.deepcopy(vars(self), memo)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Return to a snapshot; the snapshot stays usable."""
        memo = {id(state[name]): state[name] for name in self.shared if name in state}
        vars(self).clear()
        vars(self).update(copy.deepcopy(dict(state), memo))

    def close(self) -> None:
        """Free processes, files and connections. Safe to call twice."""
