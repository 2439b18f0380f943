"""Single-reply tasksets of the verifiers package: `make("verifiers/my-taskset")`, once that taskset is installed."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import verifiers.v1 as vf
from pydantic import ValidationError
from verifiers.v1.configs.client import resolve_api_key

from turnwise.envs.base import SPLITS, Env, Reset, Step

MAX_TASKS = 10_000
"""How much of an endless taskset is read."""
MAX_REPLY_CHARACTERS = 100_000
_NO_KEY = "EMPTY"
"""What verifiers sends where it has no key."""
_SPLIT_OF_REMAINDER = {8: "validation", 9: "test"}


class Verifiers(Env):
    """One task of an installed taskset: its prompt, one reply, its own rewards.

    Of ten consecutive tasks eight are for training, one for validation, one for testing. `task` picks one by its index;
    `settings` go to the taskset's config. Those that `needs_harness` names are played through the gateway instead.
    """

    reward_range = (float("-inf"), float("inf"))
    shared = frozenset({"tasks"})

    def __init__(self, *, name: str, settings: Mapping[str, Any] | None = None, split: str = "train") -> None:
        super().__init__(split=split)
        tasks = list(islice(load_taskset(name, settings), MAX_TASKS))
        self.tasks = {index: tasks[index] for index in indices_of(name, split, len(tasks))}

    def reset(self, seed: int | None = None, task: int | None = None) -> Reset:
        """Draw a task of the split, or take the one with index `task`."""
        super().reset(seed=seed)
        self.index = self.rng.choice(list(self.tasks)) if task is None else task
        if self.index not in self.tasks:
            raise ValueError(
                f"task {task} is not in the {self.split} split; the first there is {next(iter(self.tasks))}"
            )
        data = self.tasks[self.index].data
        self.prompt = "\n\n".join(part for part in (data.system_prompt, data.prompt_text) if part)
        return self.prompt, {"task_index": self.index}

    def list_tasks(self) -> list[int]:
        """The indices of the split's tasks."""
        return list(self.tasks)

    async def step(self, action: str) -> Step:
        """Score the reply; the episode ends."""
        trace = _trace(self.tasks[self.index], action[:MAX_REPLY_CHARACTERS])
        await self.tasks[self.index].score(trace)
        parts = {name: reward.value for name, reward in trace.rewards.items() if reward is not None}
        scores = {name: value for name, value in trace.metrics.items() if value is not None}
        reward = float(trace.reward)
        info = {"valid": True, "success": reward >= 1.0, "reward_parts": parts, "scores": scores}
        return f"Score: {reward:g}", reward, True, False, info

    def sample_random_action(self) -> str:
        """A word of the prompt."""
        return self.rng.choice(self.prompt.split())


def split_of(index: int) -> str:
    """Where a task belongs."""
    return _SPLIT_OF_REMAINDER.get(index % 10, "train")


def indices_of(name: str, split: str, count: int) -> list[int]:
    """The tasks of a split, of the first `count`."""
    if found := [index for index in range(count) if split_of(index) == split]:
        return found
    raise ValueError(f"the {count} tasks of {name!r} leave none for {split}; choose one of {SPLITS}")


def load_taskset(name: str, settings: Mapping[str, Any] | None) -> Any:
    """The installed taskset with these settings; ValueError names the fix."""
    try:
        kind = vf.taskset_config_type(name)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"no verifiers taskset {name!r} is installed; install verifiers and the package that has the taskset,"
            f" for example with: pip install 'turnwise[verifiers]' {name} ({error})"
        ) from error
    with named_mistakes(name):
        config = kind.model_validate({"id": name, **(settings or {})})
    _require_judges(name, config.task.judges)
    return vf.load_taskset(config)


@contextmanager
def named_mistakes(name: str) -> Iterator[None]:
    """Tell a mistake in verifiers' own settings in one line."""
    try:
        yield
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"settings of verifiers/{name}: {place or 'all of them'}: {first['msg']}") from error
    except ModuleNotFoundError as error:
        raise ValueError(f"settings of verifiers/{name}: {error}") from error


def needs_harness(name: str, taskset: Any) -> bool:
    """Whether there is more to an episode than a prompt, one reply and rewards that read it."""
    kind, config = taskset.task_type(), taskset.config
    return (
        vf.environment_class(name) is not vf.SingleAgentEnv
        or vf.default_harness_id(name) == name
        or kind.NEEDS_CONTAINER
        or bool(kind.toolsets(config.task) or taskset.toolsets(config))
        or kind.setup is not vf.Task.setup
        or kind.finalize is not vf.Task.finalize
        or _scores_a_sandbox(kind)
    )


def _require_judges(name: str, judges: Sequence[vf.JudgeConfig]) -> None:
    """ValueError if a judge would ask a provider without a key."""
    for judge in judges:
        providers = (type(judge).model_fields["base_url"].default, vf.JudgeConfig().base_url)
        if judge.base_url in providers and resolve_api_key(judge) == _NO_KEY:
            raise ValueError(
                f"the judge {judge.name or judge.id!r} of verifiers taskset {name!r} has no model: set"
                f" {judge.api_key_var}, or env.kwargs.settings.task.judges to"
                f" [{{id: {judge.id}, model: NAME, base_url: http://127.0.0.1:8000/v1, api_key_var: MY_API_KEY}}]"
            )


def _scores_a_sandbox(kind: type) -> bool:
    hooks = [value for value in vars(kind).values() if hasattr(value, "reward") or hasattr(value, "metric")]
    return any("runtime" in inspect.signature(hook).parameters for hook in hooks)


def _trace(task: Any, reply: str) -> Any:
    """The record that a harness would make of this conversation."""
    nodes = [
        vf.MessageNode(message=vf.UserMessage(content=task.data.prompt_text)),
        vf.MessageNode(parent=0, message=vf.AssistantMessage(content=reply), sampled=True),
    ]
    recorded = vf.TraceTask(type=type(task).__name__, data=task.data)
    agent = vf.AgentInfo(config=vf.AgentConfig())
    return vf.Trace(task=recorded, agent=agent, nodes=nodes, is_completed=True, ok=True)
