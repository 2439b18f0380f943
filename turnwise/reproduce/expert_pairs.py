"""Preferences between answers of an environment's expert, for studies of losses that learn from pairs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from random import Random
from typing import Any

from turnwise.envs.base import Env
from turnwise.envs.faults import close_quietly
from turnwise.recipe.schema import EnvChoice
from turnwise.runs.disk import write_whole

PATH = "{pairs}"
"""What an arm's settings write for the path of its seed's file."""
_DRAWS = 20
"""Attempts at a task until two answers differ in reward."""


def write_pairs(path: Path, env: EnvChoice, *, count: int, noise: float, seed: int) -> None:
    """Write `count` lines of prompt, chosen and rejected. The expert answers a task twice, in one turn each."""
    rng, played = Random(f"pairs:{seed}"), env.source().build()
    try:
        tasks = played.list_tasks()
        if not tasks:
            raise ValueError(f"start.pairs asks for two answers to a task, and {env.id} has no list of them; remove it")
        lines = [_pair(played, rng.choice(tasks), rng, noise) for _ in range(count)]
    finally:
        close_quietly(played)
    write_whole(path, "".join(json.dumps(line) + "\n" for line in lines).encode())


def _pair(env: Env, task: Any, rng: Random, noise: float) -> dict[str, str]:
    prompt, better, lead = _two(env, task, rng)
    chosen, rejected = better if noise == 0 or rng.random() < 1 / (1 + math.exp(-lead / noise)) else better[::-1]
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def _two(env: Env, task: Any, rng: Random) -> tuple[str, tuple[str, str], float]:
    """The prompt, two answers with the better one first, and by how much it is better."""
    for _ in range(_DRAWS):
        prompt, first, earned = _answer(env, task, rng)
        _, second, other = _answer(env, task, rng)
        if earned != other:
            return prompt, (first, second) if earned > other else (second, first), abs(earned - other)
    raise ValueError(f"the expert's answers to {task!r} never differ in reward; start.pairs needs answers that do")


def _answer(env: Env, task: Any, rng: Random) -> tuple[str, str, float]:
    reset = env.reset(seed=rng.getrandbits(31), task=task)
    assert isinstance(reset, tuple)
    answer = env.oracle()
    step = env.step(answer)
    assert isinstance(step, tuple)
    return reset[0], answer, float(step[1])


def fill_in(settings: Any, path: Path) -> Any:
    """The settings with the file's path in place of `{pairs}`."""
    if isinstance(settings, dict):
        return {key: fill_in(value, path) for key, value in settings.items()}
    if isinstance(settings, list):
        return [fill_in(value, path) for value in settings]
    return str(path) if settings == PATH else settings
