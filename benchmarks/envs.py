"""Speed of environment execution, as ratios within one run: `python benchmarks/envs.py`.

(a) 64 episodes whose steps take 50 ms, one in ten 1 s: steps per second of the scheduler against the ideal and against
    the asynchronous vector environment of `gem-llm` on the same environment with the same latencies.
(b) searches per second through `search/geo-2hop`.
(c) what the scheduler itself costs: 256 concurrent episodes of an environment that answers immediately.
(d) terminals: the median time of a reset to a new task (its tree is built and tested), of a reset to a known one, and
    of a command right after that reset, which waits for bash to start.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Callable
from statistics import median

from rich.console import Console
from rich.table import Table

from turnwise.envs import Env, make
from turnwise.rollout.agents import ConstantAgent
from turnwise.rollout.episode import EpisodeSpec, Limits
from turnwise.rollout.scheduler import Scheduler

EPISODES, TURNS, QUICK, SLOW = 64, 40, 0.05, 1.0
IDEAL = EPISODES / (0.9 * QUICK + 0.1 * SLOW)
BARRIER_STEPS = 10
"""Enough for the peer: with a barrier nearly every step takes as long as the slowest."""


class Tool(Env):
    """A step that waits: every tenth of each episode's steps, at places that depend on the seed, is a slow one."""

    execution = "thread"

    def reset(self, seed=None, task=None):
        super().reset(seed=seed)
        # Exactly one slow step in each ten, so that the ideal is exact for every episode.
        self.slow = {10 * block + self.rng.randrange(10) for block in range(TURNS // 10)}
        self.turn = 0
        return "call the tool", {}

    def step(self, action):
        time.sleep(SLOW if self.turn in self.slow else QUICK)
        self.turn += 1
        return "result", 0.0, self.turn == TURNS, False, {}


class Instant(Env):
    """An asynchronous step that takes no time at all."""

    async def reset(self, seed=None, task=None):
        self.turn = 0
        return "go", {}

    async def step(self, action):
        self.turn += 1
        return "on", 0.0, self.turn == 100, False, {}


def play(env: Callable[[], Env], episodes: int, concurrency: int) -> float:
    """Steps per second of the scheduler."""

    async def run() -> float:
        async with Scheduler(concurrency=concurrency, limits=Limits(max_turns=1000)) as scheduler:
            started = time.perf_counter()
            await scheduler.run([EpisodeSpec(env=env, seed=seed) for seed in range(episodes)], ConstantAgent(text="x"))
            return scheduler.stats.turns / (time.perf_counter() - started)

    return asyncio.run(run())


def play_gem() -> float | None:
    """Steps per second of gem's thread-pool vector environment, or None when gem is not installed."""
    try:
        from gem.vector.async_vector_env import AsyncVectorEnv  # type: ignore[import-not-found]
    except ModuleNotFoundError:
        return None
    envs = AsyncVectorEnv(env_ids=["tool"] * EPISODES, env_fns=[Tool] * EPISODES)
    envs.reset(seed=0)
    started = time.perf_counter()
    for _ in range(BARRIER_STEPS):
        envs.step(["x"] * EPISODES)
    return EPISODES * BARRIER_STEPS / (time.perf_counter() - started)


def search() -> float | None:
    """Queries per second through the search environment, or None when its extra is not installed."""
    try:
        env = make("search/geo-2hop", max_searches=10**9)
    except ValueError:
        return None
    env.reset(seed=0)
    rng, words = random.Random(0), ["capital", "Norway", "river", "Lagos"]
    count, started = 1000, time.perf_counter()
    for _ in range(count):
        step = env.step(f"<search>{' '.join(rng.sample(words, 3))}</search>")
        assert isinstance(step, tuple)
        words += re.findall("[A-Z][a-z]+", step[0])  # the next query uses what was found: queries hardly repeat
    return count / (time.perf_counter() - started)


def terminals(count: int = 40) -> dict[str, float]:
    """Median seconds of resets and first commands of terminals; nothing without bubblewrap."""
    try:
        env = make("terminal/tasks", tasks="csv,logs,text,json", complexity=1)
    except ValueError:
        return {}
    spent: dict[str, list[float]] = {"reset to a new task": [], "reset to a known task": [], "first command": []}

    def clock(name: str, act: Callable[[], object]) -> None:
        started = time.perf_counter()
        act()
        spent[name].append(time.perf_counter() - started)

    for task in (env.list_tasks() or [])[:count]:
        clock("reset to a new task", lambda task=task: env.reset(task=task))
        clock("reset to a known task", lambda task=task: env.reset(task=task))
        clock("first command", lambda: env.step("<command>pwd</command>"))
    env.close()
    return {name: median(values) for name, values in spent.items()}


def main() -> None:
    """Measure everything and print one table."""
    ours, gem, queries, instant = play(Tool, EPISODES, EPISODES), play_gem(), search(), play(Instant, 512, 256)
    table = Table("measurement", "value", "goal")
    table.add_row("(a) scheduler, steps/s", f"{ours:.0f}", f"ideal {IDEAL:.0f}")
    table.add_row("(a) share of the ideal", f"{ours / IDEAL:.0%}", ">= 80%")
    table.add_row("(a) gem-llm, steps/s", "not installed" if gem is None else f"{gem:.0f}", "")
    table.add_row("(a) scheduler / gem-llm", "" if gem is None else f"{ours / gem:.1f}x", ">= 5x")
    table.add_row("(b) searches/s", "not installed" if queries is None else f"{queries:.0f}", ">= 300")
    table.add_row("(c) scheduler time per step", f"{1000 / instant:.3f} ms", "< 1 ms")
    for name, seconds in terminals().items():
        table.add_row(f"(d) terminal, {name}", f"{1000 * seconds:.1f} ms", "< 50 ms" if "known" in name else "")
    Console().print(table)


if __name__ == "__main__":
    main()
