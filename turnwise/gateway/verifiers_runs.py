"""Episodes that verifiers plays: its environment, harness and tool servers, with the gateway as their model."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import cache
from itertools import islice
from statistics import fmean
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.configs.agent import agent_config_fields, resolve_agent

from turnwise.envs.adapters.verifiers import MAX_TASKS
from turnwise.envs.faults import EpisodeError
from turnwise.gateway.agent_session import MODEL

_NO_VARIABLE = "TURNWISE_HAS_NO_SUCH_VARIABLE"
"""Where verifiers would look for the key, which it is told in headers instead: every episode has its own."""

logging.getLogger("verifiers").addHandler(logging.NullHandler())  # what it logs of failures is in their episodes too


class TasksetRuns:
    """Plays one task per call, `await runs(task={"index": 3}, base_url=…, api_key=…)`; the outcome is a program's."""

    def __init__(self, env: vf.Env[Any]) -> None:
        self._env = env
        self.tasks: list[vf.Task[Any]] = list(islice(env.taskset, MAX_TASKS))
        self._serving, self._resources = asyncio.Lock(), AsyncExitStack()
        self._serves = False
        _in_loop(self._require_endpoints()).result()

    @property
    def needs_container(self) -> bool:
        """Whether a task runs in an image of its own."""
        return any(task.NEEDS_CONTAINER or task.data.image is not None for task in self.tasks)

    async def __call__(self, task: Mapping[str, int] | int, base_url: str, api_key: str) -> dict[str, Any]:
        """The program of an episode. `task` is a row or an index."""
        index = task["index"] if isinstance(task, Mapping) else task
        return await asyncio.wrap_future(_in_loop(self._play(index, base_url, api_key)))

    async def _play(self, index: int, base_url: str, api_key: str) -> dict[str, Any]:
        if not 0 <= index < len(self.tasks):
            raise EpisodeError(f"there is no task {index}; the taskset has {len(self.tasks)}")
        await self._serve()
        # The dialects overwrite the header in which they send keys; the other one stays.
        headers = {"x-api-key": api_key, "authorization": f"Bearer {api_key}"}
        client = vf.EvalClientConfig(base_url=base_url, api_key_var=_NO_VARIABLE, headers=headers)
        episode = await self._env.run_episode(self.tasks[index], vf.ModelContext(model=MODEL, client=client))
        if not self._env.complete(episode):
            raise _failure(episode)
        return _outcome([trace for trace in episode.traces if trace.agent is None or trace.agent.trainable])

    async def _serve(self) -> None:
        """Start what all episodes share, with the first of them; it ends with the process."""
        async with self._serving:
            if not self._serves:
                await self._resources.enter_async_context(self._env.serving())
                # A shared server would keep a client for every key that it has seen. Now each episode has its own.
                self._env._interception = None  # pyright: ignore[reportPrivateUsage]
                self._serves = True

    async def _require_endpoints(self) -> None:
        """ValueError if a seat that must not be trained has no model of its own."""
        specs, default = agent_config_fields(self._env.config), vf.default_agent_harness(self._env.config.taskset.id)
        agents = vf.Agents(
            self._env.config, lambda _, spec: vf.make_agent(resolve_agent(spec, model=MODEL, harness=default))
        )
        await self._env.setup(agents)
        for seat, spec in specs.items():
            if not getattr(agents, seat).trainable and spec.client is None:
                raise ValueError(
                    f"the seat {seat!r} of verifiers environment {self._env.config.env_id!r} is not trained, so it"
                    f" needs a model of its own: set env.kwargs.environment.{seat} to"
                    " {model: NAME, client: {base_url: http://127.0.0.1:8000/v1, api_key_var: MY_API_KEY}}"
                )


def _failure(episode: vf.Episode[Any, Any, Any]) -> EpisodeError:
    """The last error, which is the one that ended it."""
    errors = [*(error for trace in episode.traces for error in trace.errors), *episode.errors]
    if not errors:
        return EpisodeError("verifiers calls the episode incomplete and gives no reason")
    last = errors[-1]
    text = f"verifiers: {last.type}: {last.message.strip()}"
    return EpisodeError(text, timed_out=episode.is_timeout, trace=last.traceback or "")


def _outcome(traces: Sequence[vf.Trace[Any, Any, Any]]) -> dict[str, Any]:
    """The reward of the seats that are trained, with its parts; several traces are one trajectory with their mean."""
    if not traces:
        raise EpisodeError("no seat of the verifiers environment is trained")
    rewards = [{name: reward.value for name, reward in trace.rewards.items() if reward} for trace in traces]
    parts = {name: fmean(each.get(name, 0.0) for each in rewards) for row in rewards for name in row}
    metrics = [trace.metrics.items() for trace in traces]
    known = [
        (name, float(value)) for row in metrics for name, value in row if value is not None and math.isfinite(value)
    ]
    scores = {name: fmean(value for other, value in known if other == name) for name, _ in known}
    reward = sum(parts.values())
    return {"reward": reward, "success": reward >= 1.0, "parts": parts, "scores": scores}


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """The loop of all that verifiers does: its processes and locks belong to one, and end with its thread."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="turnwise-verifiers", daemon=True).start()
    return loop


def _in_loop(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run_coroutine_threadsafe(work, _loop())
