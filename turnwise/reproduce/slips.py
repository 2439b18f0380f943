"""Demonstrations with random slips: a study should start from a policy that succeeds sometimes, not always."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Literal

from turnwise.envs.base import Env
from turnwise.envs.tasks.lookup import ANSWER, GET, SYMBOLS
from turnwise.recipe.schema import EnvChoice
from turnwise.runs.disk import write_whole

Slip = Literal["word", "action"]
"""What is replaced where the expert slips: a word of its action by another word of `lookup/…`, or the whole action by
the environment's own random one."""
_WORDS = (*SYMBOLS, GET, ANSWER)


def write_slips(path: Path, env: EnvChoice, *, count: int, share: float, seed: int, slip: Slip = "word") -> None:
    """Write `count` chats of the expert's episodes, in which a `share` of its words or actions are random ones.

    An episode is one chat for every seat. Unlike in plain `sft`, failed episodes are kept: the success rate of the
    demonstrations is the start's ceiling.
    """
    rng = Random(f"slips:{seed}")
    played = env.source().build()
    chats: list[list[dict[str, str]]] = []
    while len(chats) < count:
        chats += _play(played, rng, share, slip)
    write_whole(path, "".join(json.dumps({"messages": chat}) + "\n" for chat in chats[:count]).encode())


def _play(env: Env, rng: Random, share: float, slip: Slip) -> list[list[dict[str, str]]]:
    """One episode: a chat for every seat that acted."""
    reset, over = env.reset(seed=rng.getrandbits(31)), False
    assert isinstance(reset, tuple)
    (observation, info), chats = reset, dict[str, list[dict[str, str]]]()
    while not over:
        action, messages = _act(env, rng, share, slip), chats.setdefault(info.get("seat", ""), [])
        messages += [{"role": "user", "content": observation}, {"role": "assistant", "content": action}]
        step = env.step(action)
        assert isinstance(step, tuple)
        observation, _, terminated, truncated, info = step
        over = terminated or truncated
    return [*chats.values()]


def _act(env: Env, rng: Random, share: float, slip: Slip) -> str:
    if slip == "action":
        return env.sample_random_action() if rng.random() < share else env.oracle()
    return " ".join(rng.choice(_WORDS) if rng.random() < share else word for word in env.oracle().split())
