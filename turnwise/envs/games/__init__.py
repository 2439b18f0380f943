"""Ten text games, each easy and hard: `make("game/sudoku-hard", dense=True)`."""

from collections.abc import Mapping
from typing import Any

from turnwise.envs.registry import EnvSpec

Settings = Mapping[str, Any]


def _levels(name: str, module: str, summary: str, *, easy: Settings, hard: Settings) -> list[EnvSpec]:
    entry_point = f"turnwise.envs.games.{module}:{module}"
    return [
        EnvSpec(id=f"game/{name}-{level}", entry_point=entry_point, summary=summary, kwargs=settings)
        for level, settings in (("easy", easy), ("hard", hard))
    ]


SPECS: tuple[EnvSpec, ...] = (
    *_levels(
        "guess-number",
        "guess_number",
        "find a number from higher and lower",
        easy={"high": 10, "max_turns": 4},
        hard={"high": 50, "max_turns": 7},
    ),
    *_levels(
        "mastermind",
        "mastermind",
        "find a code of different digits",
        easy={"length": 2, "digits": 6, "max_turns": 10},
        hard={"length": 4, "digits": 8, "max_turns": 30},
    ),
    *_levels(
        "minesweeper",
        "minesweeper",
        "clear a field by deduction, never by luck",
        easy={"size": 5, "mines": 5, "max_turns": 20},
        hard={"size": 8, "mines": 12, "max_turns": 52},
    ),
    *_levels(
        "wordle",
        "wordle",
        "find a five-letter word",
        easy={"max_turns": 10},
        hard={"max_turns": 6},
    ),
    *_levels(
        "hangman",
        "hangman",
        "uncover a word letter by letter",
        easy={"lengths": (6, 7, 8), "lives": 10, "max_turns": 18},
        hard={"lengths": (4, 5, 6, 7, 8), "lives": 9, "max_turns": 17},
    ),
    *_levels(
        "sudoku",
        "sudoku",
        "complete a board that has one solution",
        easy={"block": 2, "clues": 10, "max_turns": 15},
        hard={"block": 3, "clues": 50, "max_turns": 50},
    ),
    *_levels(
        "fifteen-puzzle",
        "fifteen_puzzle",
        "slide tiles into order",
        easy={"size": 3, "scramble": 6, "max_turns": 24},
        hard={"size": 4, "scramble": 24, "max_turns": 60},
    ),
    *_levels(
        "hanoi",
        "hanoi",
        "bring a scattered tower to one peg",
        easy={"disks": 3, "max_turns": 14},
        hard={"disks": 5, "max_turns": 62},
    ),
    *_levels(
        "2048",
        "twenty_forty_eight",
        "merge tiles up to a target",
        easy={"target": 128, "max_turns": 150},
        hard={"target": 256, "max_turns": 300},
    ),
    *_levels(
        "sokoban",
        "sokoban",
        "push boxes onto goals",
        easy={"size": 6, "boxes": 2, "pulls": 8, "max_turns": 60},
        hard={"size": 8, "boxes": 4, "pulls": 16, "max_turns": 150},
    ),
)
