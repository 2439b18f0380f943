"""Builds TextWorld games once and keeps them in the user's cache folder."""

from __future__ import annotations

import tempfile
import warnings
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import textworld
from textworld.challenges.tw_cooking import cooking
from textworld.generator import compile_game, make_game

from turnwise.cache import cache_folder

_ROOMS = (1, 6, 9, 12)
"""Sizes of the houses that cooking games have."""
_MOST_INGREDIENTS = 5


@dataclass(frozen=True, kw_only=True)
class GameSettings:
    """The size of a game; `GameSettings(rooms=2, objects=3, quest=4)` is the guide's w2-o3-q4."""

    rooms: int
    objects: int
    quest: int
    first_command: str = ""

    def __post_init__(self) -> None:
        if min(self.rooms, self.objects, self.quest) < 1:
            raise ValueError("rooms, objects and quest must each be at least 1, as in textworld/w2-o3-q4")

    @property
    def name(self) -> str:
        """The folder of its games."""
        return f"w{self.rooms}-o{self.objects}-q{self.quest}"

    def make(self, options: textworld.GameOptions, seed: int) -> textworld.Game:
        """The game of a seed, not compiled."""
        options.nb_rooms, options.nb_objects, options.quest_length = self.rooms, self.objects, self.quest
        return make_game(options)


@dataclass(frozen=True, kw_only=True)
class CookingSettings:
    """A cooking game of First TextWorld Problems: fetch ingredients, prepare them by the recipe, eat the meal."""

    ingredients: int = 1
    cook: bool = True
    cut: bool = False
    rooms: int = 1
    quest: None = None
    """Its length differs from game to game."""

    def __post_init__(self) -> None:
        if not 1 <= self.ingredients <= _MOST_INGREDIENTS or self.rooms not in _ROOMS:
            raise ValueError(
                f"ingredients={self.ingredients} and rooms={self.rooms}: a recipe has 1 to {_MOST_INGREDIENTS} "
                f"ingredients, and a house {', '.join(map(str, _ROOMS))} rooms"
            )

    @property
    def name(self) -> str:
        """The folder of its games."""
        skills = "-cook" * self.cook + "-cut" * self.cut
        return f"cooking-i{self.ingredients}-w{self.rooms}{skills}"

    @property
    def first_command(self) -> str:
        """In a kitchen alone the cookbook is at hand, and its text begins the game."""
        return "examine cookbook" if self.rooms == 1 else ""

    def make(self, options: textworld.GameOptions, seed: int) -> textworld.Game:
        """The game of a seed, not compiled."""
        skills = {"recipe": self.ingredients, "take": self.ingredients, "go": self.rooms, "cook": self.cook}
        others = {"cut": self.cut, "open": False, "drop": False, "recipe_seed": seed, "split": None}
        with warnings.catch_warnings():  # it plays the game once, see `TextWorld`
            warnings.filterwarnings("ignore", message=".*is not fully supported")
            return cooking.make({**skills, **others}, options)


def game_file(settings: GameSettings | CookingSettings, seed: int) -> Path:
    """The compiled game of these settings and this seed, built on first use.

    It is built in a separate folder and renamed into place, so that readers and other builders see all of it or none.
    """
    folder = _cache() / settings.name / str(seed)
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{seed}-", dir=folder.parent) as scratch:
            building = Path(scratch) / "game"
            building.mkdir()
            _build(settings, seed, building / "game.z8")
            move_into_place(building, folder)
    return folder / "game.z8"


def _cache() -> Path:
    return cache_folder() / f"textworld-{version('textworld')}"


def _build(settings: GameSettings | CookingSettings, seed: int, path: Path) -> None:
    options = textworld.GameOptions()
    options.seeds = seed
    options.path = str(path)
    compile_game(settings.make(options, seed), options)


def move_into_place(building: Path, folder: Path) -> None:
    """Rename a finished game to its final path, unless another process was first: both are equal."""
    try:
        building.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
