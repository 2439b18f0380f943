"""A claim about tables of players: each table is played on every seed, and its numbers are held against bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator

from turnwise.reproduce.claim import ClaimSection, read_claim, validate_claim
from turnwise.reproduce.criteria import Criterion


class PlayerChoice(ClaimSection):
    """Who sits down: `{player: cards/dhumbal:ismcts, options: {iterations: 100}}`; a name alone is its short form."""

    player: str
    options: dict[str, Any] = Field(default_factory=dict[str, Any])
    learns: bool = False
    """Made with `seed=…`, that of the table: a player that is trained first, on every seed by itself."""


class TableChoice(ClaimSection):
    """A table of Dhumbal: its players in the order of their seats, and the options of the game."""

    players: dict[str, PlayerChoice]
    options: dict[str, Any] = Field(default_factory=dict[str, Any])
    rounds: int | None = Field(default=None, ge=2)
    """None: the scale's."""

    @field_validator("players", mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: {"player": said} if isinstance(said, str) else said for name, said in value.items()}


class TableScale(ClaimSection):
    """How much is played."""

    rounds: int = Field(ge=2)
    seeds: int = Field(ge=1)
    first_seed: int = 0
    tables: list[str] | None = None
    """None: all of them."""


class TableClaim(ClaimSection):
    """The whole file. Its criteria name tables as arms and metrics by player, such as `win_rate/aggressive`."""

    folder: Path
    paper: str
    short: str = ""
    """The claim in a few words, for lists."""
    text: str
    tables: dict[str, TableChoice]
    criteria: list[Criterion] = Field(min_length=1)
    scales: dict[str, TableScale]

    @model_validator(mode="after")
    def _names_exist(self) -> TableClaim:
        named = [table for scale in self.scales.values() for table in scale.tables or []]
        for name in [*named, *(table for criterion in self.criteria for table in criterion.arms)]:
            if name not in self.tables:
                raise ValueError(f"{name!r} is not one of the tables {', '.join(self.tables)}")
        return self

    def scale(self, name: str) -> TableScale:
        """One of its scales; ValueError names the others."""
        if name not in self.scales:
            raise ValueError(f"there is no scale {name!r} in {self.folder}; it has {', '.join(self.scales)}")
        return self.scales[name]


def load_table_claim(paper: str) -> TableClaim | None:
    """The claim of a folder as `load_claim` finds it; None if it is about trained arms."""
    folder, content = read_claim(paper)
    return validate_claim(TableClaim, folder, content) if "tables" in content else None
