"""Players as Ray actors. Only this file and `ray_ranks` know Ray."""

from __future__ import annotations

import math
import os
from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar

from turnwise.cluster.actor import Build, PlayerActor
from turnwise.cluster.troupe import LostError
from turnwise.recipe.machines import ClusterChoice
from turnwise.rollout.episode import EpisodeSpec
from turnwise.types import Trajectory

Value = TypeVar("Value")


def import_ray() -> Any:
    """The package, or a ValueError that says how to get it."""
    try:
        import ray
    except ImportError as error:
        raise ValueError("a cluster needs Ray, which is not installed: pip install 'turnwise[ray]'") from error
    return ray


def connect(choice: ClusterChoice) -> bool:
    """Join the cluster, or start Ray on this machine; returns whether it is ours to end."""
    ray = import_ray()
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = choice.address or os.environ.get("RAY_ADDRESS") or "local"
    options: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        # Ray only counts CPUs. On one machine the recipe's word on how many players there are must be enough.
        asked = math.ceil(choice.players * choice.cpus)
        options |= {"num_cpus": max(asked, os.cpu_count() or 1), "include_dashboard": False}
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ValueError(f"cannot join the Ray cluster at {address}: {error}; see cluster.address") from error
    return True


def machines() -> set[str]:
    """The machines that are up."""
    ray = import_ray()
    return {f"{node['NodeManagerHostname']} ({node['NodeID'][:6]})" for node in ray.nodes() if node["Alive"]}


def list_machines(address: str | None) -> list[tuple[str, str, str, str, str]]:
    """Name, state, CPUs, GPUs and memory in GiB of every machine."""
    connect(ClusterChoice(address=address))
    found: list[tuple[str, str, str, str, str]] = []
    for node in import_ray().nodes():
        has, state = node["Resources"], "up" if node["Alive"] else "gone"
        cpus, gpus, memory = (has.get(name, 0) for name in ("CPU", "GPU", "memory"))
        found.append((node["NodeManagerHostname"], state, f"{cpus:g}", f"{gpus:g}", f"{memory / 2**30:.0f}"))
    return found


class RayPlayer:
    """A player in an actor: it is not restarted by Ray, because a new one must first get the weights."""

    def __init__(self, choice: ClusterChoice, build: Build, recipe: Mapping[str, Any]) -> None:
        self._ray = import_ray()
        actor = self._ray.remote(PlayerActor).options(
            num_cpus=choice.cpus,
            num_gpus=choice.gpus,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
        )
        self._actor = actor.remote(build, recipe)

    async def ready(self) -> str:
        """Wait until it has a place and has loaded its models."""
        return await self._answer(self._actor.ready.remote())

    async def update(self, news: Any) -> None:
        """Take over new weights."""
        await self._answer(self._actor.update.remote(news))

    async def play(
        self, spec: EpisodeSpec, temperature: float | None, alone: str | None
    ) -> tuple[list[Trajectory], float]:
        """Play an episode."""
        return await self._answer(self._actor.play.remote(spec, temperature, alone))

    def kill(self) -> None:
        """End it now."""
        self._ray.kill(self._actor)

    async def _answer(self, reference: Awaitable[Value]) -> Value:
        from ray import exceptions

        try:
            return await reference
        except exceptions.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else error
            raise cause from None  # a mistake that any player would make
        except (exceptions.RayActorError, exceptions.ObjectLostError, exceptions.RaySystemError) as error:
            raise LostError(first_line(error)) from error


def first_line(error: Exception) -> str:
    """What Ray says, without the pages that follow."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
