"""A chat model that writes terminal tasks, stage by stage (Endless Terminals)."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from random import Random
from typing import Any, cast

from turnwise.chat_endpoint import ChatEndpoint
from turnwise.envs.terminals.families.material import ROLES
from turnwise.envs.terminals.terminal_task import HOME, TerminalTask
from turnwise.untrusted import parse_shallow

_SIZES = {
    1: "a single command solves it",
    2: "two or three commands solve it",
    3: "three or four commands solve it",
    4: "several steps solve it, each of which needs the one before",
    5: "several parts that do not depend on each other",
    6: "five to ten commands solve it",
}
_PLACE = (
    f"The agent works in bash on a plain Linux system. Its home is {HOME}, it is not root, and there is no network. "
    "Use absolute paths."
)
_DESCRIBE = (
    "Invent a task for an agent in a terminal. Subject: {family}. Size: {size}. The agent helps {role}. "
    + _PLACE
    + "\n"
    "Say exactly which files and formats are wanted, so that a program can check the result, but name no commands. "
    "Nothing may depend on today's date or on facts from the internet.\n"
    "Write the words for the agent in <task>...</task>, and in <truth>...</truth> a JSON object with what the checker "
    "must know about the right result. The words must not give that away."
)
_PREPARE = (
    "Here is a task for an agent in a terminal.\n<task>{words}</task>\n<truth>{truth}</truth>\n" + _PLACE + "\n"
    f"Write a bash script that makes the files which the agent finds, starting from an empty {HOME}, in "
    "<setup>...</setup>. It must not make anything that the agent is asked to make, nor contain the truth.\n"
    "Then write a Python program, with the standard library only, in <test>...</test>. It exits with 0 if those files "
    "are there and no file is that the agent is asked to make, otherwise with 1."
)
_EXAMINE = (
    "Here is a task for an agent in a terminal.\n<task>{words}</task>\n<truth>{truth}</truth>\n"
    "This program checked the files before the agent began:\n<before>{initial}</before>\n"
    "Write a Python program, with the standard library only, in <test>...</test> that checks them after the agent is "
    "done. It reads the truth as JSON from standard input. It exits with 0 if the task is solved, otherwise with 1."
)
_INVENTIVE, _CAREFUL = 1.0, 0.6
_NAME = re.compile(r"([a-z]+)-c([1-6])-s\d+")
_FENCE = re.compile(r"\A```\w*\n(.*?)\n?```\Z", re.DOTALL)


class ChatAuthor:
    """`ChatAuthor(endpoint).describe("logs-c2-s7")`: a new task about logs; the seed draws whom the agent helps."""

    def __init__(self, endpoint: ChatEndpoint) -> None:
        self._endpoint = endpoint

    def describe(self, name: str) -> TerminalTask:
        """Words and truth."""
        found = _NAME.fullmatch(name)
        if found is None:
            raise ValueError(f"{name} does not name a task; write FAMILY-cCOMPLEXITY-sSEED such as csv-c3-s17")
        family, complexity = found[1], int(found[2])
        question = _DESCRIBE.format(family=family, size=_SIZES[complexity], role=Random(name).choice(ROLES))
        answer = self._ask(question, _INVENTIVE)
        truth = parse_shallow(json.loads, _part(answer, "truth"))
        if not isinstance(truth, dict):
            raise ValueError("the truth is not a JSON object")
        _require_writable(json.dumps(truth, ensure_ascii=False))
        return TerminalTask(
            name=name,
            instruction=_part(answer, "task"),
            truth=cast("dict[str, Any]", truth),
            setup="",
            initial_test="",
            final_test="",
            family=family,
            complexity=complexity,
        )

    def prepare(self, task: TerminalTask) -> TerminalTask:
        """With a setup and an initial test."""
        answer = self._ask(_PREPARE.format(words=task.instruction, truth=json.dumps(task.truth)), _CAREFUL)
        return replace(task, setup=_part(answer, "setup"), initial_test=_part(answer, "test"))

    def examine(self, task: TerminalTask) -> TerminalTask:
        """With a final test."""
        parts = {"words": task.instruction, "truth": json.dumps(task.truth), "initial": task.initial_test}
        return replace(task, final_test=_part(self._ask(_EXAMINE.format(**parts), _CAREFUL), "test"))

    def _ask(self, question: str, temperature: float) -> str:
        answer = self._endpoint.reply([{"role": "user", "content": question}], temperature=temperature)
        _require_writable(answer)
        return answer


def _require_writable(text: str) -> None:
    """ValueError for half a character (a lone surrogate), which JSON can escape and no file can hold."""
    text.encode()


def _part(answer: str, tag: str) -> str:
    """What the answer has in a tag, behind its thoughts and without a code fence; ValueError if it has nothing."""
    said = answer.rpartition("</think>")[2]
    _, opened, rest = said.partition(f"<{tag}>")
    part, closed, _ = rest.partition(f"</{tag}>")
    text = _FENCE.sub(r"\1", part.strip())
    if not (opened and closed and text):
        raise ValueError(f"the answer has no <{tag}>...</{tag}>")
    return text + "\n"
