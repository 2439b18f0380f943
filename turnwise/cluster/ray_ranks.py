"""The ranks of a learner as Ray places them: what torchrun does on one machine, on any machines of the cluster."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from turnwise.cluster.ray_players import connect, first_line, import_ray
from turnwise.keeper import keep
from turnwise.recipe.machines import ClusterChoice

_PLACE_SECONDS = 120.0


class RankActor:
    """Holds the place of one rank and runs its process, which ends with it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def meeting_point(self) -> tuple[str, int]:
        """An address of this machine and a free port, for the ranks to meet at."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return import_ray().util.get_node_ip_address(), probe.getsockname()[1]

    def run(self, arguments: Sequence[str], variables: Mapping[str, str], folder: str) -> Iterator[str | int]:
        """Run `turnwise` with these arguments in a folder: its lines, then its exit code."""
        command, env = [sys.executable, "-m", "turnwise", *arguments], {**os.environ, **variables}
        self._process = keep(command, output=subprocess.PIPE, env=env, folder=folder, text=True)
        assert self._process.stdout is not None
        for line in self._process.stdout:  # noqa: UP028 (Ray sends to what it iterates over)
            yield line
        yield self._process.wait()

    def interrupt(self) -> None:
        """Ask the process to save and stop."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)


def run_ranks(arguments: Sequence[str], *, choice: ClusterChoice, ranks: int, show: Callable[[str], None]) -> int:
    """Run a `turnwise` command in this folder on several ranks; returns the first exit code that is not 0, or 0."""
    ours = connect(choice)
    ray = import_ray()
    places = _find_places(choice, ranks)
    try:
        actors = _occupy(choice, places, ranks)
        host, port = ray.get(actors[0].meeting_point.remote(), timeout=_PLACE_SECONDS)
        shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": host, "MASTER_PORT": str(port), "LOCAL_RANK": "0"}
        streams = [
            actor.run.options(num_returns="streaming").remote(
                list(arguments), {**shared, "RANK": str(rank)}, os.getcwd()
            )
            for rank, actor in enumerate(actors)
        ]
        return _follow(streams, actors, show)
    finally:
        ray.util.remove_placement_group(places)  # ends the ranks' actors too
        if ours:
            ray.shutdown()


def _find_places(choice: ClusterChoice, ranks: int) -> Any:
    ray = import_ray()
    from ray.util.placement_group import placement_group

    bundle = {"CPU": choice.cpus, **({"GPU": choice.gpus} if choice.gpus else {})}
    group = placement_group([bundle] * ranks, strategy="PACK")
    if not group.wait(_PLACE_SECONDS):
        there = {name: amount for name, amount in ray.available_resources().items() if name in ("CPU", "GPU")}
        raise ValueError(f"the cluster has no room for {ranks} ranks of {bundle}; free now: {there}")
    return group


def _occupy(choice: ClusterChoice, group: Any, ranks: int) -> list[Any]:
    ray = import_ray()
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    return [
        ray.remote(RankActor)
        .options(
            num_cpus=choice.cpus,
            num_gpus=choice.gpus,
            max_concurrency=2,  # `interrupt` while `run` runs
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank),
        )
        .remote()
        for rank in range(ranks)
    ]


def _follow(streams: Sequence[Any], actors: Sequence[Any], show: Callable[[str], None]) -> int:
    """Show what the ranks print until all have ended. Ctrl-C asks them to save and stop."""
    ray = import_ray()
    from ray import exceptions

    open_streams, codes = list(streams), list[int]()
    while open_streams:
        try:
            ready, _ = ray.wait(open_streams, timeout=1.0, fetch_local=False)
            for stream in ready:
                said = ray.get(next(stream))
                if isinstance(said, int):
                    codes.append(said)
                    open_streams.remove(stream)
                else:
                    show(said.rstrip("\n"))
        except KeyboardInterrupt:
            for actor in actors:
                actor.interrupt.remote()
        except (exceptions.RayActorError, StopIteration) as error:
            raise ValueError(
                f"a rank was lost with its machine ({first_line(error)}); "
                "continue from the newest checkpoint with: turnwise cluster resume RUN"
            ) from error
        except exceptions.RayTaskError as error:
            raise ValueError(f"a rank could not start: {error.cause}") from error
    return next((code for code in codes if code), 0)
