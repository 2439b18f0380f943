"""A person plays an environment in the terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from turnwise.envs.base import Env
from turnwise.envs.faults import EpisodeError
from turnwise.envs.process import EnvSource
from turnwise.envs.workers import Host, Workers

_PATIENCE_SECONDS = 600.0


def play_in_terminal(
    env: str | Callable[..., Env],
    kwargs: Mapping[str, Any],
    *,
    seed: int,
    read: Callable[[str], str] = input,
    write: Callable[[str], None] = print,
) -> None:
    """Play one episode, one line per turn, until it ends or the player leaves (end of input, Ctrl-C)."""
    source = EnvSource(env=env, kwargs=kwargs)
    _ = source.spec  # an unknown id raises before anything starts
    with asyncio.Runner() as runner:
        host: Host | None = None
        try:
            host = runner.run(Workers(execution="inline").open(source, deadline=_PATIENCE_SECONDS))
            _play(runner, host, seed, read, write)
        except EpisodeError as error:
            raise ValueError(f"{source.name}: {error}") from error
        except (EOFError, KeyboardInterrupt):
            write("\nYou left the game.")
        finally:
            if host is not None:
                runner.run(host.close(deadline=_PATIENCE_SECONDS))


def _play(
    runner: asyncio.Runner, host: Host, seed: int, read: Callable[[str], str], write: Callable[[str], None]
) -> None:
    # Lines are read outside the event loop: inside it, Ctrl-C would not interrupt the waiting.
    observation, info = runner.run(host.reset(seed, None, deadline=_PATIENCE_SECONDS))
    total, terminated, truncated = 0.0, False, False
    while not (terminated or truncated):
        write(observation)
        action = read(f"{info.get('seat', '')}> ")
        observation, reward, terminated, truncated, info = runner.run(host.step(action, deadline=_PATIENCE_SECONDS))
        total += reward
        write(f"[reward {reward:g}]")
    write(observation)
    success = info.get("success", total > 0)
    write(f"{'Won' if success else 'Over'} ({'terminated' if terminated else 'truncated'}), total reward {total:g}.")
