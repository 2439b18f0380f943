"""What all wrappers share: anything they do not change is read from the wrapped environment on demand."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from turnwise.envs.base import Env, Execution, Info, Reset, Step
from turnwise.tools.native_calls import MESSAGES

T = TypeVar("T")
U = TypeVar("U")


def then(value: T | Awaitable[T], function: Callable[[T], U | Awaitable[U]]) -> U | Awaitable[U]:
    """Apply `function` to a value now, or to an awaitable's value later: one body for sync and async.

    A future of the running event loop gives another such future.
    """
    if not inspect.isawaitable(value):
        return function(value)

    async def wait() -> U:
        found: Any = function(await value)
        return await found if inspect.isawaitable(found) else found

    return asyncio.ensure_future(wait()) if asyncio.isfuture(value) else wait()


class Wrapper(Env):
    """Base of wrappers. A subclass overrides `on_reset` and `on_step`; both see the inner result and return their own.

    Example, a wrapper that shouts:

        class Loud(Wrapper):
            def on_step(self, action, step):
                observation, *rest = step
                return (observation.upper(), *rest)
    """

    shared: ClassVar[frozenset[str]] = frozenset({"env"})
    acting_seat: str | None = None
    """Whose action `on_step` sees, if the environment names seats."""

    def __init__(self, env: Env) -> None:
        if isinstance(env, str | type):
            raise ValueError(f"{type(self).__name__} wraps an environment, not {env!r}; build it first, as make() does")
        # Not Env.__init__: split and generator belong to the wrapped environment.
        self.env = env

    def on_reset(self, reset: Reset) -> Reset:
        """Turn the inner environment's reset into this one's."""
        return reset

    def on_step(self, action: str, step: Step) -> Step:
        """Turn the inner environment's step into this one's."""
        return step

    def reset(self, seed: int | None = None, task: Any = None) -> Reset | Awaitable[Reset]:
        """Reset the inner environment, then apply `on_reset`."""
        return then(self.env.reset(seed=seed, task=task), self._after_reset)

    def step(self, action: str) -> Step | Awaitable[Step]:
        """Step the inner environment, then apply `on_step`."""
        return then(self.env.step(action), lambda step: self._after_step(action, step))

    def _after_reset(self, reset: Reset) -> Reset:
        self.acting_seat = reset[1].get("seat")
        changed = self.on_reset(reset)
        self._require_told(reset[0], reset[1], changed[0])
        return changed

    def _after_step(self, action: str, step: Step) -> Step:
        changed = self.on_step(action, step)
        self.acting_seat = step[4].get("seat")
        self._require_told(step[0], step[4], changed[0])
        return changed

    def _require_told(self, before: str, info: Info, after: str) -> None:
        """ValueError for an observation that the agent would not read, because it reads messages in its place."""
        if MESSAGES in info and after != before:
            raise ValueError(
                f"{type(self).__name__} changes an observation that the agent reads as messages "
                f"(info[{MESSAGES!r}]); list this wrapper before the tools"
            )

    def __getattr__(self, name: str) -> Any:
        # Only for names not found on the wrapper. `env` itself is missing while a copy is being made.
        if name == "env" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.env, name)

    @property
    def unwrapped(self) -> Env:
        """The environment inside all wrappers."""
        return self.env.unwrapped if isinstance(self.env, Wrapper) else self.env

    @property
    def reward_range(self) -> tuple[float, float]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Bounds of one step's reward."""
        return self.env.reward_range

    @property
    def execution(self) -> Execution:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Where the wrapped environment is meant to run."""
        return self.env.execution

    @property
    def seats(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Names of the agents that act."""
        return self.env.seats

    def sample_random_action(self) -> str:
        """A random action of the wrapped environment."""
        return self.env.sample_random_action()

    def oracle(self) -> str:
        """The wrapped environment's expert."""
        return self.env.oracle()

    def has_oracle(self) -> bool:
        """Whether the wrapped environment has an expert."""
        return self.env.has_oracle()

    def list_tasks(self) -> Sequence[Any] | None:
        """The tasks of the wrapped environment."""
        return self.env.list_tasks()

    def get_state(self) -> Mapping[str, Any]:
        """A snapshot of the whole chain."""
        return {**super().get_state(), "env": self.env.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Return the whole chain to a snapshot."""
        env = self.env
        env.set_state(state["env"])
        super().set_state({**state, "env": env})

    def close(self) -> None:
        """Close the wrapped environment."""
        self.env.close()
