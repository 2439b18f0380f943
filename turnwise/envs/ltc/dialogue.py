"""`ltc/dialogue`: the roles of one agent, split over two."""

from __future__ import annotations

from typing import Any

from turnwise.envs.base import Env, Info, Reset, Step
from turnwise.envs.tasks.lookup import Lookup

_THINKER, _ACTOR = "thinker", "actor"


class Dialogue(Env):
    """A `lookup/…` in which one thinks and the other acts: `make("ltc/dialogue", hops=(2,))`.

        thinker  2 hops from c f  →  get c f
        actor    get c f          →  get c f
        thinker  a h              →  get a h   …

    The thinker reads what comes back from the table; the actor reads the thinker's words and nothing else, and what
    it says is done. Both earn what the actor's answer earns.
    """

    def __init__(self, *, hops: tuple[int, ...] = (2,), max_turns: int = 5, split: str = "train") -> None:
        super().__init__(split=split)
        self.seats = (_THINKER, _ACTOR)
        self.lookup = Lookup(hops=tuple(hops), max_turns=max_turns, split=split)
        self.thought: str | None = None
        """What the actor is to act on; None while the thinker thinks."""

    def reset(self, seed: int | None = None, task: Any = None) -> Reset:
        """The thinker reads the question."""
        super().reset(seed=seed)
        question, info = self.lookup.reset(seed=seed)
        self.thought = None
        return question, {**info, "seat": _THINKER}

    def step(self, action: str) -> Step:
        """The actor hears a thought, or does something."""
        if self.thought is None:
            self.thought = action
            return action, 0.0, False, False, {"seat": _ACTOR, "heard": [action]}
        self.thought = None
        observation, reward, terminated, truncated, info = self.lookup.step(action)
        return observation, reward, terminated, truncated, {**self._shared(info, reward), "seat": _THINKER}

    def sample_random_action(self) -> str:
        """One of the lookup's."""
        return self.lookup.sample_random_action()

    def oracle(self) -> str:
        """The thinker thinks of the expert's action, and the actor does what it hears."""
        return self.lookup.oracle() if self.thought is None else self.thought

    def _shared(self, info: Info, reward: float) -> Info:
        shared: Info = {**info, "rewards": dict.fromkeys(self.seats, reward)}
        return shared | ({"success": dict.fromkeys(self.seats, info["success"])} if "success" in info else {})
