"""Registrations of the planning environments."""

from turnwise.envs.registry import EnvSpec

_PLANNING = "turnwise.envs.plans.planning:Planning"

SPECS: tuple[EnvSpec, ...] = (
    EnvSpec(
        id="plans/order",
        entry_point=_PLANNING,
        summary="Call the tools of a request in an order that satisfies it; every request has a plan.",
    ),
    EnvSpec(
        id="plans/timed",
        entry_point=_PLANNING,
        kwargs={"timed": True},
        summary="The same with times of day, and durations that only a call reveals.",
    ),
)
