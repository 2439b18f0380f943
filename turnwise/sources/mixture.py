"""Several sources in one step: what the policy plays, and fixed groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any, Protocol

from turnwise.sources.player import Playing
from turnwise.sources.source import Source
from turnwise.types import Group


class Supply(Protocol):
    """Groups that need no playing."""

    def groups(self, step: int) -> list[Group]:
        """The groups of a step, counted from 1: a pure function of the step."""
        ...


class Shelf:
    """A fixed number of groups for each step, in an order that is shuffled for every epoch.

    Example: of 5 groups with `count=2`, step 3 gets the last of the first epoch and the first of the second.
    """

    def __init__(self, groups: Sequence[Group], *, count: int, key: str) -> None:
        self._groups, self._count, self._key = list(groups), count, key

    def groups(self, step: int) -> list[Group]:
        """The next `count`. A group may come twice in a step where an epoch ends, so its id says which epoch it is."""
        epoch, start = divmod((step - 1) * self._count, len(self._groups))
        dealt = list[Group]()
        while len(dealt) < self._count:
            rest = shuffled(self._groups, f"{self._key}:{epoch}")[start:][: self._count - len(dealt)]
            dealt += [replace(group, id=f"{group.id}/{epoch}") for group in rest]
            epoch, start = epoch + 1, 0
        return dealt


class Mixture(Source):
    """What the policy plays, if anything, and then what each supply has for the step."""

    def __init__(
        self,
        player: Playing,
        supplies: Sequence[Supply],
        *,
        played: Source | None = None,
        held_out: Sequence[Group] = (),
    ) -> None:
        self._player, self._supplies, self._played, self._held_out = player, supplies, played, held_out

    def groups(self, step: int) -> list[Group]:
        """All of them, in the order of the recipe."""
        played = [] if self._played is None else self._played.groups(step)
        return [*played, *(group for supply in self._supplies for group in supply.groups(step))]

    def publish(self, version: int) -> None:
        """Evaluations play with the new policy even where training plays nothing."""
        (self._played or self._player).publish(version)

    def metrics(self) -> dict[str, float]:
        """Those of the played episodes."""
        return {} if self._played is None else self._played.metrics()

    def held_out(self) -> list[Group]:
        """Preferences or demonstrations that were set apart."""
        return list(self._held_out)

    def ahead(self) -> dict[int, list[Group]]:
        """Only what is played can be ahead."""
        return {} if self._played is None else self._played.ahead()

    def state_dict(self) -> dict[str, Any]:
        """Only what is played is measured."""
        return {} if self._played is None else self._played.state_dict()

    def close(self) -> None:
        """Stop playing."""
        if self._played is not None:
            self._played.close()


def shuffled(groups: Sequence[Group], key: str) -> list[Group]:
    """The groups in an order that follows from the key."""
    order = list(range(len(groups)))
    Random(key).shuffle(order)
    return [groups[index] for index in order]
