"""Tasksets of the verifiers package: `make("verifiers/my-taskset")`, once that taskset is installed.

One that scores a single reply is played directly. One with tools, seats or hooks of its own is run by verifiers itself:
its environment and harness are the program that calls the gateway.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import verifiers.v1 as vf

from turnwise.envs.adapters.verifiers import (
    Verifiers,
    indices_of,
    load_taskset,
    named_mistakes,
    needs_harness,
    split_of,
)
from turnwise.envs.base import Env
from turnwise.gateway.agent_run import AgentRun
from turnwise.gateway.verifiers_chat import CHAT_HARNESS
from turnwise.gateway.verifiers_runs import TasksetRuns

_LOCAL = "subprocess"


def make_taskset(
    *,
    name: str,
    settings: Mapping[str, Any] | None = None,
    harness: str | Mapping[str, Any] | None = None,
    environment: Mapping[str, Any] | None = None,
    split: str = "train",
    patience: float = 100.0,
    crash_reward: float | None = None,
) -> Env:
    """One task of an installed taskset per episode; `settings` go to the taskset's config.

    `harness` names the program that talks to the model (`bash`, or `{"id": "bash", "edit": False}`), `environment` is
    verifiers' own block of settings, by seat: `{"agent": {"max_turns": 4}}`. Of ten consecutive tasks eight are for
    training, one for validation, one for testing. The servers of tools start within `patience`, too.
    """
    taskset = load_taskset(name, settings)
    if harness is None and environment is None and not needs_harness(name, taskset):
        return Verifiers(name=name, settings=settings, split=split)
    chosen = {"settings": settings or {}, "harness": harness, "environment": environment or {}}
    runs = _runs(name, json.dumps(chosen, sort_keys=True, default=str))
    indices_of(name, split, len(runs.tasks))
    rows = [{"index": index, "split": split_of(index)} for index in range(len(runs.tasks))]
    return AgentRun(program=runs, tasks=rows, split=split, patience=patience, crash_reward=crash_reward)


@lru_cache(maxsize=32)
def _runs(name: str, chosen: str) -> TasksetRuns:
    """One for all environments of this process: a taskset is loaded, and its tool servers are started, once."""
    choices = json.loads(chosen)
    harness, block = choices["harness"], choices["environment"]
    harness = {"id": harness} if isinstance(harness, str) else harness
    with named_mistakes(name):
        fields = vf.env_config_type(name, block.get("id") or "").model_fields
        seats = {seat: each.default for seat, each in fields.items() if isinstance(each.default, vf.AgentConfig)}
        filled = {seat: _filled(name, author, block.get(seat), harness) for seat, author in seats.items()}
        config = vf.resolve_env_config({**block, **filled, "taskset": {"id": name, **choices["settings"]}})
        runs = TasksetRuns(vf.load_environment(config))
    _require_containers(name, {seat: getattr(config, seat) for seat in seats}, runs)
    return runs


def _filled(
    name: str, author: vf.AgentConfig, given: Mapping[str, Any] | None, harness: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What the recipe says of a seat, and for what neither it nor the author says: on this machine, in this process.

    verifiers' own defaults are a sandbox at a provider, and a harness that gives the model a shell.
    """
    seat = dict(given or {})
    if "runtime" not in author.model_fields_set:
        seat.setdefault("runtime", {"type": _LOCAL})
    if isinstance(seat.get("client"), Mapping):
        seat["client"] = {"type": "eval", **seat["client"]}  # the other kind speaks to one server only
    here = seat.get("runtime", {}).get("type", author.runtime.type) == _LOCAL
    plain = {"id": CHAT_HARNESS if here else "null"}
    if author.harness is None:
        has_own = vf.default_harness_id(name) == name
        seat.setdefault("harness", harness or (None if has_own else plain))
    elif author.harness.id == "null":
        seat.setdefault("harness", plain)
    return seat


def _require_containers(name: str, seats: Mapping[str, vf.AgentConfig], runs: TasksetRuns) -> None:
    """ValueError if something needs a container, and nothing has one."""
    local = [seat for seat, agent in seats.items() if agent.runtime.type == _LOCAL]
    needy = [(f"verifiers taskset {name!r}", local[0])] if runs.needs_container and len(local) == len(seats) else []
    for seat in local:
        harness = seats[seat].harness or vf.default_agent_harness(name)
        if vf.load_harness(harness).NEEDS_CONTAINER:
            needy.append((f"verifiers harness {harness.id!r}", seat))
    for who, seat in needy[:1]:
        raise ValueError(
            f"{who} needs a container, and the seat {seat!r} plays on this machine; set"
            f" env.kwargs.environment.{seat}.runtime.type to docker, podman or apptainer, which must be installed"
        )
