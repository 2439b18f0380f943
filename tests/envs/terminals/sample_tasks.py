"""Small terminal tasks for tests."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.tools.test_sandbox import host_commands
from turnwise.envs.terminals.terminal_task import TerminalTask, write_task
from turnwise.envs.terminals.terminal_world import check_worlds


def _why_not() -> str:
    try:
        check_worlds()
    except ValueError as error:
        return str(error)
    return ""


needs_worlds = pytest.mark.skipif(bool(_why_not()), reason=_why_not() or "worlds run here")
INITIAL_TEST = "import os\nassert os.path.exists('/home/user/in.txt') and not os.path.exists('/home/user/out.txt')\n"
FINAL_TEST = """
import json, sys
wanted = json.load(sys.stdin)["lines"]
assert open("/home/user/out.txt").read().split() == [str(wanted)]
"""


def counting_task(lines: int) -> TerminalTask:
    """Count the lines of a file."""
    return TerminalTask(
        name=f"count-{lines}",
        instruction="Write the number of lines of /home/user/in.txt to /home/user/out.txt.",
        truth={"lines": lines, "secret": f"swordfish-{lines}"},
        setup=f"seq {lines} > in.txt",
        initial_test=INITIAL_TEST,
        final_test=FINAL_TEST,
        solution=("cd /home/user", "wc -l < in.txt > out.txt"),
        family="count",
        complexity=2,
    )


def write_samples(folder: Path, count: int = 12) -> str:
    """A folder with so many tasks."""
    for lines in range(3, 3 + count):
        write_task(folder, counting_task(lines))
    return str(folder)


def wait_until_gone(part: str) -> None:
    """Wait until no process of the machine has this in its command line."""
    for _ in range(200):
        if not any(part in command for command in host_commands()):
            return
        time.sleep(0.05)
    raise AssertionError(f"{part} still runs")
