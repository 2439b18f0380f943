"""Single-reply tasksets of the verifiers package: `make("verifiers/my-taskset")`, once that taskset is installed."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from itertools import islice
from typing import Any

import verifiers.v1 as vf

from turnwise.envs.base import SPLITS, Env, Reset, Step

MAX_TASKS = 10_000
"""How much of an endless taskset is read."""
MAX_REPLY_CHARACTERS = 100_000
_SPLIT_OF_REMAINDER = {8: "validation", 9: "test"}


class Verifiers(Env):
    """One task of an installed taskset: its prompt, one reply, its own rewards.

    Of ten consecutive tasks eight are for training, one for validation, one for testing. `task` picks one by its index;
    `settings` go to the taskset's config. Tasksets that bring their own tools, containers, judges or environment
    run through a verifiers harness and a model endpoint; they are rejected with the reason.
    """

    reward_range = (float("-inf"), float("inf"))
    shared = frozenset({"tasks"})

    def __init__(self, *, name: str, settings: Mapping[str, Any] | None = None, split: str = "train") -> None:
        super().__init__(split=split)
        try:
            config = vf.taskset_config_type(name).model_validate({"id": name, **(settings or {})})
        except ModuleNotFoundError as error:
            raise ValueError(
                f"no verifiers taskset {name!r} is installed; install verifiers and the package that has the taskset,"
                f" for example with: pip install 'turnwise[verifiers]' {name} ({error})"
            ) from error
        taskset = vf.load_taskset(config)
        _refuse_what_needs_a_harness(name, taskset)
        tasks = list(islice(taskset, MAX_TASKS))
        self.tasks = {index: task for index, task in enumerate(tasks) if _split(index) == split}
        if not self.tasks:
            raise ValueError(f"the {len(tasks)} tasks of {name!r} leave none for {split}; choose one of {SPLITS}")

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
        reward = float(trace.reward)
        info = {"valid": True, "success": reward >= 1.0, "reward_parts": parts, "metrics": dict(trace.metrics)}
        return f"Score: {reward:g}", reward, True, False, info

    def sample_random_action(self) -> str:
        """A word of the prompt."""
        return self.rng.choice(self.prompt.split())


def _split(index: int) -> str:
    return _SPLIT_OF_REMAINDER.get(index % 10, "train")


def _refuse_what_needs_a_harness(name: str, taskset: Any) -> None:
    kind, config = taskset.task_type(), taskset.config
    needs = {
        "its own environment": vf.environment_class(name) is not vf.SingleAgentEnv,
        "a container": kind.NEEDS_CONTAINER,
        "tools": bool(kind.toolsets(config.task) or taskset.toolsets(config)),
        "a judge model": bool(config.task.judges),
        "a sandbox": kind.setup is not vf.Task.setup
        or kind.finalize is not vf.Task.finalize
        or _scores_a_sandbox(kind),
    }
    missing = [need for need, needed in needs.items() if needed]
    if missing:
        raise ValueError(
            f"verifiers taskset {name!r} needs {' and '.join(missing)}, which only a verifiers harness provides;"
            " use a taskset whose rewards read the reply alone"
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
