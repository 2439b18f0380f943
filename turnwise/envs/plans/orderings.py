"""What a plan must satisfy: which action comes before which, and which must end or start by a time of day."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

Pair = tuple[int, int]
"""Two actions, the first of which comes first; or an action and a minute of the day."""


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """Actions are numbers: `Constraints(actions=frozenset({0, 1, 2}), orders=frozenset({(0, 1)}))`."""

    actions: frozenset[int]
    orders: frozenset[Pair] = frozenset()
    """`(a, b)`: a ends no later than b starts."""
    ends_by: frozenset[Pair] = frozenset()
    """`(a, minute)`: a ends no later than this."""
    starts_from: frozenset[Pair] = frozenset()
    """`(a, minute)`: a starts no earlier than this."""

    def __or__(self, other: Constraints) -> Constraints:
        return Constraints(
            actions=self.actions | other.actions,
            orders=self.orders | other.orders,
            ends_by=self.ends_by | other.ends_by,
            starts_from=self.starts_from | other.starts_from,
        )

    def __len__(self) -> int:
        return len(self.orders) + len(self.ends_by) + len(self.starts_from)

    def without(self, done: Collection[int]) -> Constraints:
        """What is left for the other actions once these are done."""
        return Constraints(
            actions=self.actions.difference(done),
            orders=frozenset(pair for pair in self.orders if not {*pair} & {*done}),
            ends_by=frozenset(pair for pair in self.ends_by if pair[0] not in done),
            starts_from=frozenset(pair for pair in self.starts_from if pair[0] not in done),
        )

    @cached_property
    def predecessors(self) -> dict[int, frozenset[int]]:
        """The actions that must come directly before each."""
        return {each: frozenset(first for first, second in self.orders if second == each) for each in self.actions}

    def latest_end(self, action: int) -> float:
        """The tightest of its upper bounds; infinite without one."""
        return min((minute for each, minute in self.ends_by if each == action), default=inf)

    def earliest_start(self, action: int) -> int:
        """The tightest of its lower bounds; 0 without one."""
        return max((minute for each, minute in self.starts_from if each == action), default=0)

    def closure(self) -> Constraints:
        """All that follows: orders are transitive, and a bound holds for what comes before or after as well."""
        orders = set(self.orders)
        for middle in self.actions:
            before = [first for first, second in orders if second == middle]
            after = [second for first, second in orders if first == middle]
            orders |= {(first, second) for first in before for second in after}
        latest = {each: min(map(self.latest_end, self._at_or_after(each, orders))) for each in self.actions}
        earliest = {each: max(map(self.earliest_start, self._at_or_before(each, orders))) for each in self.actions}
        return replace(
            self,
            orders=frozenset(orders),
            ends_by=frozenset((each, int(minute)) for each, minute in latest.items() if minute < inf),
            starts_from=frozenset((each, minute) for each, minute in earliest.items() if minute),
        )

    def broken_orders(self, sequence: Sequence[int]) -> list[Pair]:
        """The orders that a sequence violates; one with an action that is not in it is violated too."""
        place = {action: number for number, action in enumerate(sequence)}
        last = len(sequence)
        return sorted(
            (first, second)
            for first, second in self.orders
            if not place.get(first, last) < place.get(second, last) < last
        )

    @staticmethod
    def _at_or_after(action: int, orders: Collection[Pair]) -> set[int]:
        return {action, *(second for first, second in orders if first == action)}

    @staticmethod
    def _at_or_before(action: int, orders: Collection[Pair]) -> set[int]:
        return {action, *(first for first, second in orders if second == action)}
