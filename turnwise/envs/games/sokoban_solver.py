"""A Sokoban solver: best-first search over pushes, with walks between them filled in."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import permutations
from math import inf
from operator import getitem

from turnwise.envs.games.game import DIRECTIONS

Cell = tuple[int, int]
Boxes = frozenset[Cell]
Position = tuple[Boxes, Cell]
Node = tuple[float, int, int, Position, tuple[str, ...]]

MAX_POSITIONS = 5_000
"""Positions after which the search gives up. Levels here need a few hundred; dead ends can cost a hundred thousand."""


def beyond(cell: Cell, move: str) -> Cell:
    """The next cell in a direction."""
    return cell[0] + DIRECTIONS[move][0], cell[1] + DIRECTIONS[move][1]


def behind(cell: Cell, move: str) -> Cell:
    """The cell from which a box on `cell` is pushed in a direction."""
    return cell[0] - DIRECTIONS[move][0], cell[1] - DIRECTIONS[move][1]


def reachable(start: Cell, free: frozenset[Cell]) -> dict[Cell, tuple[str, ...]]:
    """All cells reachable over free cells, each with a shortest walk."""
    walks: dict[Cell, tuple[str, ...]] = {start: ()}
    for cell in (queue := [start]):
        for move in DIRECTIONS:
            target = beyond(cell, move)
            if target in free and target not in walks:
                walks[target] = (*walks[cell], move)
                queue.append(target)
    return walks


def push_distances(floor: frozenset[Cell], goal: Cell) -> dict[Cell, int]:
    """Pushes that a single box needs from each cell to the goal; cells without a way are missing."""
    distances = {goal: 0}
    for cell in (queue := [goal]):
        for move in DIRECTIONS:
            source = behind(cell, move)
            if source in floor and behind(source, move) in floor and source not in distances:
                distances[source] = distances[cell] + 1
                queue.append(source)
    return distances


def pushes_to_go(boxes: Boxes, tables: list[dict[Cell, int]]) -> float:
    """A lower bound: the best assignment of boxes to goals, ignoring other boxes; infinite in a dead end."""
    rows = [[table.get(box, inf) for table in tables] for box in boxes]
    return min(sum(map(getitem, rows, goals)) for goals in permutations(range(len(tables))))


def solve(
    floor: frozenset[Cell], goals: Boxes, boxes: Boxes, player: Cell, greed: float = 1.0
) -> tuple[str, ...] | None:
    """Steps that bring all boxes home, or None if none were found.

    With `greed` 1 they have the fewest pushes, so replanning at every step never turns back; above 1 the search is
    faster and the plan may be longer.
    """
    tables = [push_distances(floor, goal) for goal in goals]
    counter = 0  # ties leave the queue in order of arrival, so equal levels get equal plans
    queue: list[Node] = [(pushes_to_go(boxes, tables), counter, 0, (boxes, player), ())]
    seen = set[Position]()
    while queue and queue[0][0] < inf and len(seen) < MAX_POSITIONS:
        _, _, pushes, (boxes, player), steps = heappop(queue)
        if boxes == goals:
            return steps
        walks = reachable(player, floor - boxes)
        region = (boxes, min(walks))
        if region in seen:
            continue
        seen.add(region)
        for after, walk in _pushes(floor, boxes, walks):
            counter += 1
            total = pushes + 1 + greed * pushes_to_go(after[0], tables)
            heappush(queue, (total, counter, pushes + 1, after, steps + walk))
    return None


def _pushes(
    floor: frozenset[Cell], boxes: Boxes, walks: dict[Cell, tuple[str, ...]]
) -> Iterator[tuple[Position, tuple[str, ...]]]:
    free = floor - boxes
    for box in sorted(boxes):
        for move in DIRECTIONS:
            target = beyond(box, move)
            if behind(box, move) in walks and target in free:
                yield (boxes - {box} | {target}, box), (*walks[behind(box, move)], move)
