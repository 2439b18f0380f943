"""What an agent in a terminal reads and writes, in the form of Endless Terminals."""

from __future__ import annotations

import re

from turnwise.envs.terminals.terminal_shell import Output
from turnwise.tools.tool import neutralise

DONE = "<action>done</action>"
INVALID = f"No command was found. Write exactly one of <command>...</command> and {DONE}."
_RULES = (
    "You work in a terminal, in one bash shell that keeps its state between your turns. You are not root, and there is "
    "no network. {think} exactly one of\n"
    "<command>a bash command</command>\n"
    f"{DONE}\n"
    "The answer to a command is its output and exit code. Say done when the task is complete. You have {turns} turns, "
    "and {seconds:g} seconds for each command; nothing waits for input.\n\n"
    "Task: {task}"
)
_THINK = "In each turn, think first, in <think>...</think>, and then write"
_DO_NOT_THINK = "In each turn, write"
_TAGS = ("think", "command", "action")
_OPEN, _CLOSE = "<command>", "</command>"
_DONE = re.compile(r"<action>\s*done\s*</action>", re.IGNORECASE)


def ask(instruction: str, *, think: bool, turns: int, seconds: float) -> str:
    """The first observation: the rules and the task."""
    return _RULES.format(think=_THINK if think else _DO_NOT_THINK, turns=turns, seconds=seconds, task=instruction)


def parse(action: str) -> str | None:
    """What a turn asks for, thoughts aside: `DONE` wins, otherwise the last command; None if there is neither."""
    said = action.rpartition("</think>")[2]
    if _DONE.search(said):
        return DONE
    before, closed, _ = said.rpartition(_CLOSE)
    _, opened, command = before.rpartition(_OPEN)
    return command.strip() or None if opened and closed else None


def write(command: str, *, think: bool) -> str:
    """A turn that asks for a command, or for `DONE`."""
    thought = "<think>The next step of a known solution.</think>\n" if think else ""
    return thought + (command if command == DONE else f"{_OPEN}{command}{_CLOSE}")


def show(output: Output, seconds: float) -> str:
    """What the agent reads about a command."""
    if output.ended:
        verdict = "The shell has ended."
    elif output.code is None:
        verdict = f"The command failed: it did not end within {seconds:g} seconds and was interrupted."
    else:
        verdict = f"The command {'succeeded' if output.code == 0 else 'failed'} (exit code {output.code})."
    text = neutralise(output.text.rstrip(), _TAGS)
    return f"{verdict}\n{text}" if text else f"{verdict} It printed nothing."
