"""`terminal/tasks`: a task in words, a real shell, and a hidden test of what the agent left (Endless Terminals)."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar, Literal

from turnwise.envs.base import Env, Execution, Info, Reset, Step
from turnwise.envs.terminals.task_source import tasks_of_split
from turnwise.envs.terminals.terminal_protocol import DONE, INVALID, ask, parse, show, write
from turnwise.envs.terminals.terminal_shell import MOST_CHARACTERS, Shell
from turnwise.envs.terminals.terminal_task import TerminalTask
from turnwise.envs.terminals.terminal_world import World, check_worlds

_RANDOM_COMMANDS = (
    "ls",
    "pwd",
    "cd ..",
    "cd",
    "ls -a /home",
    "head -n 3 *",
    "echo hello > note.txt",
    "wc -c *",
    "false",
)
Ending = Literal["done", "turns", "shell", "time"]

COMMAND_SECONDS = 10.0
"""After which a command is interrupted, here and where tasks are filtered."""


class Terminal(Env):
    """A task in a real shell: `make("terminal/tasks", tasks="csv,logs", complexity=1)`.

    `tasks` are families, a folder of tasks (ours, or of Harbor and Terminal-Bench), or a file of names; `complexity`,
    from 1 to 6, chooses among them. An episode ends when the agent is done, after `turns`, and when the shell ends;
    then the hidden test decides between 1 and 0. It is worth 0, without a test, once its commands have taken `seconds`
    together. A command is interrupted after `command_seconds`, and `output_limit` characters of its output are shown.
    With `prompt="terse"` the task stands alone, without the rules. Outputs with times or process numbers in them differ
    from play to play.
    """

    execution: ClassVar[Execution] = "thread"
    shared: ClassVar[frozenset[str]] = frozenset({"tasks"})

    def __init__(
        self,
        *,
        tasks: str = "files",
        complexity: int | Sequence[int] = (),
        turns: int = 16,
        seconds: float = 300.0,
        command_seconds: float = COMMAND_SECONDS,
        output_limit: int = MOST_CHARACTERS,
        think: bool = True,
        prompt: Literal["full", "terse"] = "full",
        split: str = "train",
    ) -> None:
        super().__init__(split=split)
        if min(turns, seconds, command_seconds, output_limit) <= 0:
            raise ValueError("turns, seconds, command_seconds and output_limit must be above zero")
        check_worlds()
        chosen = (complexity,) if isinstance(complexity, int) else tuple(complexity)
        self.tasks = tasks_of_split(tasks, chosen, split)
        self.turns, self.seconds, self.command_seconds = turns, seconds, command_seconds
        if prompt not in ("full", "terse"):
            raise ValueError(f"prompt is {prompt!r}; choose full or terse")
        self.output_limit, self.think, self.prompt = output_limit, think, prompt
        self.task: TerminalTask | None = None
        self.world: World | None = None

    def reset(self, seed: int | None = None, task: Any = None) -> Reset:
        """Open a new world for a task of this split, or for the given one (a dict as in `info["task"]`)."""
        super().reset(seed=seed)
        self.close()
        chosen = self.rng.choice(self.tasks) if task is None else TerminalTask.from_dict(task)
        _require_promised_state(chosen.setup, chosen.initial_test, chosen.folder)
        self.world = World.open(chosen.setup, folder=chosen.folder)
        self.shell: Shell = self.world.shell(characters=self.output_limit)
        self.task, self.turn, self.spent = chosen, 0, 0.0
        self.commands: list[str] = []
        rules = ask(chosen.instruction, think=self.think, turns=self.turns, seconds=self.command_seconds)
        said = chosen.instruction if self.prompt == "terse" else rules
        return said, {**self._info(chosen), "task": chosen.as_dict()}

    def list_tasks(self) -> list[dict[str, Any]]:
        """Every task of the split."""
        return [task.as_dict() for task in self.tasks]

    def step(self, action: str) -> Step:
        """Run the command of a turn, or test what is there."""
        task = self._running()
        self.turn += 1
        command = parse(action)
        if command == DONE:
            return self._end(task, "The task is over.", "done", valid=True)
        if command is None:
            said, ending = INVALID, None
        else:
            said, ending = self._run(command)
        if ending is None and self.turn == self.turns:
            ending = "turns"
        if ending is not None:
            return self._end(task, said, ending, valid=command is not None)
        info = {**self._info(task), "valid": command is not None, "parsed_action": command and command[:200]}
        return said, 0.0, False, False, info

    def sample_random_action(self) -> str:
        """A harmless command, or done."""
        command = DONE if self.rng.random() < 0.1 else self.rng.choice(_RANDOM_COMMANDS)
        return write(command, think=self.think)

    def oracle(self) -> str:
        """The next command of the known solution, then done."""
        solution = self._running().solution
        if not solution:
            raise ValueError(f"no solution of {self._running().name} is known")
        left = solution[len(self.commands) :]
        return write(left[0] if left else DONE, think=self.think)

    def has_oracle(self) -> bool:
        """Whether every task has a known solution."""
        return all(task.solution for task in self.tasks)

    def get_state(self) -> dict[str, Any]:
        """Not available: a running shell cannot be copied."""
        raise NotImplementedError("a running shell cannot be copied")

    def close(self) -> None:
        """End the world of the episode."""
        if self.world is not None:
            self.world.close()
        self.task, self.world = None, None

    def _running(self) -> TerminalTask:
        if self.task is None:
            raise ValueError("no episode is running; call reset() first")
        return self.task

    def _run(self, command: str) -> tuple[str, Ending | None]:
        """What a command answers, and whether it ends the episode."""
        self.commands.append(command)
        # The time of the agent's thoughts does not count: a slow sampler must not change an episode.
        began = time.monotonic()
        output = self.shell.run(command, min(self.command_seconds, self.seconds - self.spent))
        self.spent += time.monotonic() - began
        ending: Ending | None = "time" if self.spent >= self.seconds else "shell" if output.ended else None
        return show(output, self.command_seconds), ending

    def _end(self, task: TerminalTask, said: str, ending: Ending, *, valid: bool) -> Step:
        assert self.world is not None
        solved = ending != "time" and self.world.check(task.final_test, json.dumps(dict(task.truth))).ok
        info = {**self._info(task, solved), "success": solved, "valid": valid, "ending": ending}
        self.close()
        verdict = "The task is solved." if solved else "The task is not solved."
        return f"{said}\n{verdict}", float(solved), True, False, info

    def _info(self, task: TerminalTask, solved: bool = False) -> Info:
        """Scores stand in every info: an episode that a limit cuts is not a success."""
        typed = hashlib.sha256("\0".join(self.commands).encode(errors="replace")).hexdigest()[:16]
        scores = {f"success_{task.complexity}": float(solved)} if task.complexity else {}
        return {"state_key": f"{task.name} > {typed}", "scores": scores}


@lru_cache(maxsize=1024)
def _require_promised_state(setup: str, initial_test: str, folder: str) -> None:
    """Run the initial test, once per task; ValueError if it fails."""
    with World.open(setup, folder=folder) as world:
        check = world.check(initial_test)
    if not check.ok:
        raise ValueError(f"the start of this task is not as promised: {check.output.strip()[-500:]}")
