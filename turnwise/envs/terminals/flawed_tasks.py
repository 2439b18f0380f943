"""Tasks that are broken on purpose: what the gates of the generator must remove."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from turnwise.envs.terminals.terminal_task import TerminalTask

_OUT_OF_REACH = "/usr/share/copy-of-the-answer.txt"


def wrong_truth(task: TerminalTask) -> TerminalTask:
    """The hidden test asks for something else than the words do."""
    first, *others = task.truth["checks"]
    wanted: Any = first.get("want")
    if wanted is None:
        wrong = {"kind": "text", "path": first["path"], "want": "gone\n"}
    else:
        wrong = {**first, "want": {**wanted, "extra": ""} if isinstance(wanted, dict) else [*wanted, "extra"]}
        if isinstance(wanted, str):
            wrong["want"] = f"{wanted.rstrip()}0\n"
    return replace(task, truth={"checks": [wrong, *others]})


def no_permission(task: TerminalTask) -> TerminalTask:
    """The words also ask for a file where nobody may write."""
    check = {"kind": "text", "path": _OUT_OF_REACH, "want": "done\n"}
    return replace(
        task,
        instruction=f"{task.instruction} Also write the word done to {_OUT_OF_REACH}.",
        truth={"checks": [*task.truth["checks"], check]},
        solution=(*task.solution, f"echo done > {_OUT_OF_REACH}"),
    )


def already_done(task: TerminalTask) -> TerminalTask:
    """The outputs are there from the start."""
    done = "".join(f"bash -c {shlex.quote(command)} || true\n" for command in task.solution)
    return replace(task, setup=f"{task.setup}{done}")


def no_tree(task: TerminalTask) -> TerminalTask:
    """The setup stops with an error."""
    return replace(task, setup=f"false\n{task.setup}" if "set -e" not in task.setup else f"{task.setup}false\n")


def always_passes(task: TerminalTask) -> TerminalTask:
    """The hidden test looks at nothing."""
    return replace(task, final_test="import sys\n\nsys.exit(0)\n")


def no_program(task: TerminalTask) -> TerminalTask:
    """The hidden test is not Python."""
    return replace(task, final_test="check that all files are as asked\n")


FLAWS: dict[str, Callable[[TerminalTask], TerminalTask]] = {
    each.__name__.replace("_", "-"): each
    for each in (wrong_truth, no_permission, already_done, no_tree, always_passes, no_program)
}
HIDDEN_FLAWS = ("wrong-truth", "no-permission", "always-passes")
"""Those of tasks whose start is as promised."""
