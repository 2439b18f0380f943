"""GEM environments: `make("gem/game:GuessTheNumber-v0-hard")`."""

from __future__ import annotations

from typing import Any

import gem
from gem.envs.registration import ENV_REGISTRY
from gem.utils.constants import TERMINAL_STATE

from turnwise.envs.adapters.isolated_random import IsolatedRandom
from turnwise.envs.adapters.names import check_name
from turnwise.envs.base import Env, Info, Reset, Step

SOLVED = 1.0 - 1e-6
_REASONING_GYM = "rg:"


class Gem(Env):
    """A GEM environment, with its prefix and suffix texts in place and its global seeding contained."""

    reward_range = (-1.0, 1.0)
    # GEM draws from the process-global generators: see `isolated_random`.
    execution = "process"

    def __init__(self, *, name: str, split: str = "train") -> None:
        super().__init__(split=split)
        check_name("GEM environment", name, ENV_REGISTRY)
        self.name = name
        self.random = IsolatedRandom(0)
        with self.random.swapped_in():
            self.inner = _load(name, 0)

    def reset(self, seed: int | None = None, task: Any = None) -> Reset:
        """Start an episode in a new environment: instances carry questions over from one episode to the next."""
        super().reset(seed=seed)
        number = self.rng.getrandbits(31)
        self.random = IsolatedRandom(number)
        self.total = 0.0
        with self.random.swapped_in():
            self.inner = _load(self.name, number)
            observation, info = self.inner.reset(seed=number)
        return full_text(observation, info), {}

    def step(self, action: str) -> Step:
        """Pass the text on. GEM marks unreadable text by a negative reward, and every end as terminated."""
        with self.random.swapped_in():
            observation, reward, terminated, truncated, info = self.inner.step(action)
        self.total += float(reward)
        ended: Info = {"valid": float(reward) >= 0.0}
        if terminated:
            ended["success"] = self.total >= SOLVED
        return full_text(observation, info), float(reward), bool(terminated), bool(truncated and not terminated), ended

    def sample_random_action(self) -> str:
        """The environment's own random action, drawn from our generator; a boxed digit if it has none."""
        if type(self.inner).sample_random_action is gem.Env.sample_random_action:
            return f"\\boxed{{{self.rng.randint(0, 9)}}}"
        with IsolatedRandom(self.rng.getrandbits(31)).swapped_in():
            return self.inner.sample_random_action()


def _load(name: str, seed: int) -> Any:
    arguments = {"seed": seed} if name.startswith(_REASONING_GYM) else {}
    if arguments:
        from turnwise.envs.adapters.confined_programs import confine_programs, require_confinement

        require_confinement(f"gem/{name}", name.removeprefix(_REASONING_GYM))
        confine_programs()
    try:
        return gem.make(name, **arguments)
    except (ImportError, LookupError, OSError) as error:
        raise ValueError(f"GEM cannot load {name!r} here; make this available or choose another: {error}") from error


def full_text(observation: str, info: Info) -> str:
    """What GEM shows: its prefix, the observation and its suffix."""
    parts = (info.get("prefix"), "" if observation == TERMINAL_STATE else observation, info.get("suffix"))
    return "\n".join(part for part in parts if part) or "The episode is over."
