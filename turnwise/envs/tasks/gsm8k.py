"""Maths word problems from a JSONL file in GSM8K's form: `{"question": ..., "answer": "working #### 72"}`."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from turnwise.envs.base import Env, Reset, Step
from turnwise.envs.tasks.answers import INSTRUCTION, extract_answer, grade, split_of
from turnwise.envs.wrappers import ToolEnv, TurnLimit
from turnwise.tools import FencedFormat, TagFormat
from turnwise.tools.python import python_tool

_USAGE = 'pass questions="train.jsonl" (split by a stable hash), or "gsm8k/{split}.jsonl" for a file per split'


def make_gsm8k(
    *, questions: str | None = None, python: bool = False, max_tool_uses: int = 4, split: str = "train"
) -> Env:
    """`make("math/gsm8k", questions="train.jsonl", python=True)`: the problems, and a Python tool if wanted."""
    if questions is None:
        raise ValueError(f"math/gsm8k reads its problems from a file: {_USAGE}")
    env = WordProblems(questions=questions, split=split)
    if not python:
        return env
    tools = ToolEnv(env, [python_tool()], formats=(TagFormat(), FencedFormat()), max_tool_uses=max_tool_uses)
    # One turn more than tool uses for the answer, and one to recover from a malformed call.
    return TurnLimit(tools, max_turns=max_tool_uses + 2)


class WordProblems(Env):
    """One word problem per episode, answered in one turn."""

    shared: ClassVar[frozenset[str]] = frozenset({"problems"})

    def __init__(self, *, questions: str, split: str = "train") -> None:
        super().__init__(split=split)
        self.problems = _load(questions, split)
        self.question, self.answer = "", ""

    def reset(self, seed: int | None = None, task: Any = None) -> Reset:
        """Draw a problem, or take `task={"question": ..., "answer": ...}`."""
        super().reset(seed=seed)
        self.question, self.answer = (task["question"], task["answer"]) if task else self.rng.choice(self.problems)
        return f"{self.question}\n{INSTRUCTION}", {"task": {"question": self.question, "answer": self.answer}}

    def list_tasks(self) -> list[dict[str, str]]:
        """Every problem of the split, once."""
        return [{"question": question, "answer": answer} for question, answer in dict.fromkeys(self.problems)]

    def step(self, action: str) -> Step:
        """Grade the answer."""
        return grade(action, self.answer)

    def sample_random_action(self) -> str:
        """A small whole number."""
        return f"\\boxed{{{self.rng.randint(0, 100)}}}"

    def oracle(self) -> str:
        """The gold answer."""
        return f"\\boxed{{{self.answer}}}"


@cache
def _load(questions: str, split: str) -> tuple[tuple[str, str], ...]:
    """Question and final answer of every problem in the split; read once per process."""
    path = Path(questions.replace("{split}", split)).expanduser()
    if not path.is_file():
        raise ValueError(f"no such file: {path}; {_USAGE}")
    with path.open(encoding="utf-8", errors="replace") as lines:
        problems = [_read(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    kept = tuple(problem for problem in problems if "{split}" in questions or split_of(problem[0]) == split)
    if not kept:
        raise ValueError(f"{path} has no problem for the split {split!r} ({len(problems)} in all); {_USAGE}")
    return kept


def _read(line: str, place: str) -> tuple[str, str]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place}: not JSON ({error}); write one object per line") from None
    for field in ("question", "answer"):
        if not isinstance(row, dict) or not isinstance(row.get(field), str):
            raise ValueError(
                f'{place}: needs the text field "{field}", as in {{"question": "...", "answer": "#### 72"}}'
            )
    # MATH-style files give the bare answer, GSM8K the working and then the answer.
    return row["question"], extract_answer(row["answer"]) or row["answer"].strip()
