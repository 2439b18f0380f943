"""The user's own TextWorld game: a function that returns `textworld.start(...)` or `textworld.gym.make(...)`."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

from turnwise.envs.adapters.textworld import MAX_COMMAND_CHARACTERS
from turnwise.envs.base import Env, Info, Reset, Step

LEAVING = frozenset({"quit", "q", "restart", "save", "restore", "script", "unscript", "verify", "undo"})
"""Commands to the interpreter that would leave the game."""
_USUAL = ("look", "inventory", "go north", "go south", "go east", "go west")


class OwnTextWorld(Env):
    """Any TextWorld game; each action is one command, and a step's reward is what it added to the score.

    Request `won`, `lost` and `admissible_commands` (`textworld.EnvInfos`): the first two report success and tell an end
    from a step limit, the last gives random players commands to use.
    """

    # The interpreter is a C library that is not known to be thread-safe.
    execution = "process"
    reward_range = (-math.inf, math.inf)

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner
        self.seed: int | None = None
        self.commands: list[str] = []
        self.known: Mapping[str, Any] = {}
        self.score = 0.0

    def reset(self, seed: int | None = None, task: Any = None) -> Reset:
        """Start the game, or the one that the seed draws from a pool of games."""
        super().reset(seed=seed)
        self.seed = seed
        return self._start(), {}

    def step(self, action: str) -> Step:
        """Type one line at the game's prompt."""
        command = " ".join(action.split())[:MAX_COMMAND_CHARACTERS]
        # Control characters crash the interpreter.
        if not command.isascii() or not command.isprintable() or command.lower().partition(" ")[0] in LEAVING:
            return "That is not a command of the game.", 0.0, False, False, {"valid": False, "parsed_action": command}
        admissible = self.known.get("admissible_commands")
        text, reward, done = self._type(command)
        info: Info = {"valid": admissible is None or command in admissible, "parsed_action": command}
        won, lost = self.known.get("won"), self.known.get("lost")
        if won is not None:
            info["success"] = bool(won)
        cut = done and won is not None and not won and not lost
        return text, reward, done and not cut, cut, info

    def sample_random_action(self) -> str:
        """Any command that the game accepts now, as far as it reports them."""
        return self.rng.choice(self.known.get("admissible_commands") or _USUAL)

    def oracle(self) -> str:
        """The next command of the game's own solution, if `policy_commands` was requested."""
        return (self.known.get("policy_commands") or ["look"])[0]

    def has_oracle(self) -> bool:
        """Whether the game provides a solution."""
        wanted = getattr(self.inner, "request_infos", None)
        return bool(getattr(wanted, "policy_commands", False))

    def get_state(self) -> Mapping[str, Any]:
        """The commands so far, because the interpreter cannot be copied."""
        return copy.deepcopy({name: value for name, value in vars(self).items() if name not in ("inner", "known")})

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Start the game of the snapshot and type its commands again."""
        vars(self).update(copy.deepcopy(dict(state)))
        commands = self.commands
        self._start()
        for command in commands:
            self._type(command)

    def close(self) -> None:
        """End the interpreter."""
        self.inner.close()

    def _start(self) -> str:
        if self.seed is not None:
            self.inner.seed(self.seed)
        begun = self.inner.reset()
        # Games from `textworld.gym` answer with a text and infos, others with a state that is both.
        text, self.known = begun if isinstance(begun, tuple) else (begun.feedback, begun)
        self.commands, self.score = [], 0.0
        return text.strip()

    def _type(self, command: str) -> tuple[str, float, bool]:
        self.commands.append(command)
        first, score, done, *infos = self.inner.step(command)
        text, self.known = (first, infos[0]) if infos else (first.feedback, first)
        gained, self.score = float(score or 0.0) - self.score, float(score or 0.0)
        return text.strip(), gained, bool(done)
