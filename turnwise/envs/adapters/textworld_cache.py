"""Builds TextWorld games once and keeps them in the user's cache folder."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import textworld
from textworld.generator import compile_game, make_game

from turnwise.cache import cache_folder


@dataclass(frozen=True, kw_only=True)
class GameSettings:
    """The size of a game; `GameSettings(rooms=2, objects=3, quest=4)` is the guide's w2-o3-q4."""

    rooms: int
    objects: int
    quest: int

    def __post_init__(self) -> None:
        if min(self.rooms, self.objects, self.quest) < 1:
            raise ValueError("rooms, objects and quest must each be at least 1, as in textworld/w2-o3-q4")


def game_file(settings: GameSettings, seed: int) -> Path:
    """The compiled game of these settings and this seed, built on first use.

    It is built in a separate folder and renamed into place, so that readers and other builders see all of it or none.
    """
    folder = _cache() / f"w{settings.rooms}-o{settings.objects}-q{settings.quest}" / str(seed)
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


def _build(settings: GameSettings, seed: int, path: Path) -> None:
    options = textworld.GameOptions()
    options.nb_rooms, options.nb_objects, options.quest_length = settings.rooms, settings.objects, settings.quest
    options.seeds = seed
    options.path = str(path)
    compile_game(make_game(options), options)


def move_into_place(building: Path, folder: Path) -> None:
    """Rename a finished game to its final path, unless another process was first: both are equal."""
    try:
        building.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
