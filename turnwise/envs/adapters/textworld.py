"""TextWorld games: adventures by rooms, objects and quest length (`textworld/w2-o3-q4`), and `textworld/cooking`."""

from __future__ import annotations

import copy
import hashlib
import math
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import textworld

from turnwise.envs.adapters.textworld_cache import CookingSettings, GameSettings, game_file
from turnwise.envs.base import Env, Reset, Step

GAME_SEEDS = {"test": range(1, 101), "validation": range(10_001, 10_501), "train": range(30_001, 35_001)}
"""Game seeds of each split, those of published results; training may ask for others."""
_COOKING_GAMES = 32
"""Of each split: building one takes seconds."""
STEPS_PER_QUEST_COMMAND = 3
MAX_COMMAND_CHARACTERS = 200
PARTS = {"sparse": 1, "balanced": 2}
"""Number of equal rewards on the way to the goal; dense gives one for each command of the quest."""
_INFOS = textworld.EnvInfos(
    description=True, inventory=True, feedback=True, objective=True, verbs=True, policy_commands=True,
    admissible_commands=True, won=True, lost=True,
)  # fmt: skip
_SECOND_COMMAND = re.compile(r"[.\n]|\bthen\b")
_PROMPT_LINE = re.compile(r"\n>\s|\*\*\* The End \*\*\*")
Rewards = Literal["sparse", "balanced", "dense"]


def make_adventure(*, rooms: int, objects: int, quest: int, rewards: Rewards = "sparse", split: str = "train") -> Env:
    """`make("textworld/w2-o3-q4", rewards="dense")`."""
    return TextWorld(settings=GameSettings(rooms=rooms, objects=objects, quest=quest), rewards=rewards, split=split)


def make_cooking(
    *,
    ingredients: int = 1,
    cook: bool = True,
    cut: bool = False,
    rooms: int = 1,
    rewards: Rewards = "sparse",
    split: str = "train",
) -> Env:
    """`make("textworld/cooking", ingredients=2, cut=True)`: read the recipe, prepare the ingredients, eat the meal."""
    settings = CookingSettings(ingredients=ingredients, cook=cook, cut=cut, rooms=rooms)
    return TextWorld(settings=settings, rewards=rewards, games=_COOKING_GAMES, split=split)


class TextWorld(Env):
    """A generated text adventure. The quest is in the first observation; each action is one command.

    Rewards sum to 1 when the quest is done: all at the end (sparse), half of it halfway (balanced), or an equal
    part for each step that leads closer than ever before (dense).
    """

    # The interpreter is a C library that is not known to be thread-safe, and a new game takes a second to build.
    execution = "process"

    def __init__(
        self,
        *,
        settings: GameSettings | CookingSettings,
        rewards: Rewards = "sparse",
        games: int | None = None,
        split: str = "train",
    ) -> None:
        super().__init__(split=split)
        if rewards not in (*PARTS, "dense"):
            raise ValueError(f"unknown rewards {rewards!r}; choose sparse, balanced or dense")
        self.settings, self.rewards, self.games = settings, rewards, GAME_SEEDS[split][:games]
        self.path: Path | None = None
        self.commands: list[str] = []
        self.engine: Any = None

    def reset(self, seed: int | None = None, task: int | None = None) -> Reset:
        """Start the game that the seed draws from the split's range, or the game whose own seed is `task`."""
        super().reset(seed=seed)
        number = self.rng.choice(self.games) if task is None else self._check(task)
        self.path = game_file(self.settings, number)
        self._replay([])
        parts = (self.state.objective, self.opening, self._look())
        return "\n\n".join(part for part in parts if part), {"game_seed": number, "state_key": self._state_key()}

    def list_tasks(self) -> list[int]:
        """The game seeds of the split."""
        return list(self.games)

    def step(self, action: str) -> Step:
        """Type one command at the game's prompt; anything after a full stop or `then` is ignored."""
        command = " ".join(_SECOND_COMMAND.split(action[:MAX_COMMAND_CHARACTERS].strip())[0].split())
        admissible = command in self.state.admissible_commands
        credit, state_key = self._credit(), self._state_key()
        self._type(command)
        valid = admissible or self._state_key() != state_key
        ended = bool(self.state.won or self.state.lost)
        truncated = not ended and len(self.commands) >= self.max_steps
        info = {"valid": valid, "success": bool(self.state.won), "parsed_action": command}
        return self._look(), self._credit() - credit, ended, truncated, {**info, "state_key": self._state_key()}

    def sample_random_action(self) -> str:
        """Any command the game accepts now."""
        return self.rng.choice(self.state.admissible_commands)

    def oracle(self) -> str:
        """The first command of the known way from here to the goal."""
        return self.state.policy_commands[0] if self.state.policy_commands else "look"

    def get_state(self) -> Mapping[str, Any]:
        """The commands so far, because the interpreter cannot be copied."""
        return copy.deepcopy({name: value for name, value in vars(self).items() if name not in ("engine", "state")})

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Start the game of the snapshot and type its commands again."""
        vars(self).update(copy.deepcopy(dict(state)))
        if self.path is not None:
            self._replay(self.commands)

    def close(self) -> None:
        """End the interpreter."""
        if self.engine is not None:
            self.engine.close()
            self.engine = None

    def _check(self, number: int) -> int:
        owner = next((split for split, seeds in GAME_SEEDS.items() if number in seeds), "train")
        if owner != self.split:
            raise ValueError(f"game seed {number} belongs to the {owner} split; make the env with split={owner!r}")
        return number

    def _replay(self, commands: list[str]) -> None:
        self.close()
        with warnings.catch_warnings():
            # The interpreter's package warns that it does not know the game; TextWorld reads score and moves itself.
            warnings.filterwarnings("ignore", message=".*is not fully supported")
            self.engine = textworld.start(str(self.path), _INFOS)
            self.state = self.engine.reset()
        self.opening = ""
        if self.settings.first_command:
            self.state, _, _ = self.engine.step(self.settings.first_command)
            self.opening = re.sub(r"\n{2,}", "\n", _PROMPT_LINE.split(self.state.feedback)[0]).strip()
        self.total = self.nearest = len(self.state.policy_commands)
        length = self.settings.quest or self.total
        self.parts, self.max_steps = PARTS.get(self.rewards, length), STEPS_PER_QUEST_COMMAND * length
        self.feedback, self.commands = "", []
        for command in commands:
            self._type(command)

    def _type(self, command: str) -> None:
        # Only plain text that starts with a verb of the game reaches the interpreter: control characters crash it, and
        # `save`, `restart` or `quit` would leave the game.
        self.commands.append(command)
        plain = command.isascii() and command.isprintable()
        if not plain or command.lower().partition(" ")[0] not in self.state.verbs:
            self.feedback = f"Unknown command. The verbs are: {', '.join(self.state.verbs)}."
            return
        self.state, _, _ = self.engine.step(command)
        self.feedback = _PROMPT_LINE.split(self.state.feedback)[0]
        if self.state.won or self.state.policy_commands:
            self.nearest = min(self.nearest, 0 if self.state.won else len(self.state.policy_commands))

    def _credit(self) -> float:
        return math.floor((self.total - self.nearest) * self.parts / self.total) / self.parts

    def _state_key(self) -> str:
        facts = "|".join(sorted(map(str, self.state["_facts"])))
        return hashlib.sha256(facts.encode()).hexdigest()[:16]

    def _look(self) -> str:
        """Room, feedback and inventory; on entering a room the feedback repeats its description."""
        feedback = "" if "-=" in self.feedback else self.feedback
        parts = (self.state.description, feedback, self.state.inventory)
        return "\n\n".join(re.sub(r"\n{3,}", "\n\n", part).strip() for part in parts if part and part.strip())
