"""Questions of one's own with no environment to write: the rows of a file, and rewards from the recipe."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from turnwise.envs.base import Step
from turnwise.envs.task_lists import HeldOutTasks, Row, TaskEnv, TaskSource

_FIELD = re.compile(r"\{(\w+)\}")
_QUESTIONS = ("prompt", "question")


class OwnTasks(TaskEnv):
    """Ask what each row says, and end with the answer: `make("tasks/own", tasks="my.jsonl")`.

    The question is the row's `prompt` or `question`, or `prompt` here with fields of the row: `"Translate: {text}"`. It
    pays nothing by itself: `env.rewards` in the recipe, or a judge, does.
    """

    reward_range: ClassVar[tuple[float, float]] = (0.0, 0.0)

    def __init__(
        self, *, tasks: TaskSource, prompt: str | None = None, held_out: HeldOutTasks = 0.1, split: str = "train"
    ) -> None:
        super().__init__(tasks=tasks, held_out=held_out, split=split)
        self.prompt = prompt
        for row in self.tasks:
            self.begin(row)  # a row without a question is found before the first episode

    def begin(self, task: Row) -> str:
        """The question."""
        wanted = _FIELD.findall(self.prompt) if self.prompt else []
        if missing := [name for name in wanted if name not in task]:
            raise ValueError(f"the prompt shows {{{missing[0]}}}, which a task does not have: {_short(task)}")
        if self.prompt:
            return _FIELD.sub(lambda found: str(task[found[1]]), self.prompt)
        asked = next((task[name] for name in _QUESTIONS if isinstance(task.get(name), str)), "")
        if not asked.strip():
            raise ValueError(
                f"a task has no prompt or question: {_short(task)}; add one, or say how to ask in "
                'env.kwargs.prompt, such as "Translate: {text}"'
            )
        return asked

    def step(self, action: str) -> Step:
        """The answer ends the episode."""
        return "", 0.0, True, False, {}

    def sample_random_action(self) -> str:
        """A word of the question."""
        return self.rng.choice(self.begin(self.task).split() or ["yes"])

    def oracle(self) -> str:
        """The row's answer."""
        return self._answer(self.task)

    def has_oracle(self) -> bool:
        """Whether every row has an answer."""
        return all(self._answer(row) for row in self.tasks)

    def _answer(self, row: Row) -> str:
        said: Any = row.get("answer")
        said = said[0] if isinstance(said, list) and said else said
        return "" if said is None else str(said)


def _short(row: Row) -> str:
    text = repr(row)
    return text if len(text) <= 120 else text[:117] + "..."
