"""Planning in a small world whose transitions are known."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

DISCOUNT, SWEEPS, TOLERANCE = 0.99, 1000, 1e-9

Transitions = Mapping[int, Mapping[int, list[tuple[float, int, float, bool]]]]
"""state -> action -> (probability, next state, reward, ended), as Gymnasium publishes it."""


def best_actions(transitions: Transitions) -> list[int]:
    """The best action of each state by value iteration; ties go to the lowest action."""
    values = [0.0] * len(transitions)

    def worth(state: int, action: int) -> float:
        return sum(
            probability * (reward + (0.0 if ended else DISCOUNT * values[after]))
            for probability, after, reward, ended in transitions[state][action]
        )

    for _ in range(SWEEPS):
        change = 0.0
        for state, actions in transitions.items():
            best = max(map(partial(worth, state), actions))
            change = max(change, abs(best - values[state]))
            values[state] = best
        if change < TOLERANCE:
            break
    return [max(transitions[state], key=partial(worth, state)) for state in range(len(transitions))]
