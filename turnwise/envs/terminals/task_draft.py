"""What a family fills in: start files, requests, hidden checks and the commands that satisfy them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

from turnwise.envs.terminals.families.material import FOLDERS, ROLES
from turnwise.envs.terminals.final_state import digest
from turnwise.envs.terminals.terminal_task import HOME, TerminalTask

FINAL_TEST = (Path(__file__).parent / "final_state.py").read_text(encoding="utf-8")
_INITIAL_TEST = '''\
"""The initial test: inputs are there, and no output is."""

import hashlib
import os
import sys

PRESENT = {present!r}
ABSENT = {absent!r}

for path, want in PRESENT.items():
    if not os.path.lexists(path):
        sys.exit("missing: " + path)
    if want and hashlib.sha256(open(path, "rb").read()).hexdigest() != want:
        sys.exit("not as promised: " + path)
for path in ABSENT:
    if os.path.lexists(path):
        sys.exit("already there: " + path)
'''
_SETUP = "set -eu\nexport LC_ALL=C\numask 022\n"


class Draft:
    """A task in the making. A family's jobs each add one request, which one command satisfies.

    `draft.write(out, "3\\n", ask="Count …", solve="grep -c …")` asks for a file with that text.
    """

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.texts: dict[str, str] = {}
        """Expected text of every output so far."""
        self._setup: list[str] = []
        self._requests: list[str] = []
        self._commands: list[str] = []
        self._checks: list[Mapping[str, Any]] = []
        self._present: dict[str, str] = {}
        self._absent: list[str] = []
        self._inputs: dict[str, str] = {}
        self._changed: set[str] = set()
        self._taken: set[str] = set()

    @property
    def commands(self) -> int:
        """How many commands the solver needs so far."""
        return len(self._commands)

    def area(self) -> str:
        """A new folder for inputs."""
        path = self._unused(lambda: f"{HOME}/{self.rng.choice(FOLDERS)}-{self.rng.randint(10, 99)}")
        self.prepare(f"mkdir -p {path}")
        return path

    def output(self, stem: str, ending: str = ".txt") -> str:
        """A new path that does not exist at the start."""
        path = self._unused(lambda: f"{HOME}/{stem}-{self.rng.randint(100, 999)}{ending}")
        self._absent.append(path)
        return path

    def file(self, path: str, text: str, *, mode: str | None = None) -> str:
        """An input with this text (which ends with a line break); returns its path."""
        self._setup.append(f"mkdir -p {shlex.quote(str(Path(path).parent))}")
        self._setup.append(f"cat > {shlex.quote(path)} <<'END_OF_FILE'\n{text}END_OF_FILE")
        self._present[path] = digest(text.encode())
        self._inputs[path] = text
        if mode is not None:
            self._setup.append(f"chmod {mode} {shlex.quote(path)}")
        return path

    def prepare(self, command: str, *paths: str) -> None:
        """A further command of the setup, and what it makes."""
        self._setup.append(command)
        self._present.update(dict.fromkeys(paths, ""))

    def input_text(self, path: str) -> str:
        """The text of an input."""
        return self._inputs[path]

    def forget(self, *paths: str) -> None:
        """Inputs that the setup itself takes away again."""
        for path in paths:
            del self._present[path]

    def absent(self, path: str) -> str:
        """A path that the solver makes, so that nothing may be there at the start."""
        self._absent.append(path)
        return path

    def ask(self, request: str, solve: str) -> None:
        """One request and the command that satisfies it."""
        self._requests.append(request)
        self._commands.append(solve)

    def check(self, kind: str, path: str, **wanted: Any) -> None:
        """A hidden check of `final_state`."""
        self._checks.append({"kind": kind, "path": path, **wanted})

    def write(self, path: str, text: str, *, ask: str, solve: str) -> str:
        """Ask for a file with exactly this text; returns its path."""
        assert text.strip(), "an empty output could be guessed"
        self.ask(ask, solve)
        self.check("text", path, want=text)
        self.texts[path] = text
        return path

    def changes(self, *paths: str) -> None:
        """Inputs that the task asks to change, move or delete; all others must stay as they were."""
        self._changed.update(paths)

    def finish(self, *, name: str, family: str, complexity: int, order: str | None) -> TerminalTask:
        """The whole task; `order` says how its parts depend on each other; None: the words are the bare request."""
        kept = {path: want for path, want in self._present.items() if want and path not in self._changed}
        unchanged = [{"kind": "content", "path": path, "want": want} for path, want in kept.items()]
        return TerminalTask(
            name=name,
            instruction=self._instruction(order),
            truth={"checks": [*self._checks, *unchanged]},
            setup=_SETUP + "\n".join(self._setup) + "\n",
            initial_test=_INITIAL_TEST.format(present=self._present, absent=self._absent),
            final_test=FINAL_TEST,
            solution=tuple(self._commands),
            family=family,
            complexity=complexity,
        )

    def _instruction(self, order: str | None) -> str:
        if order is None:
            return self._requests[0]
        opening = f"You work in {HOME} for {self.rng.choice(ROLES)}."
        closing = "End every line of a text file with a line break, and leave all other files as they are."
        if len(self._requests) == 1:
            return f"{opening} {self._requests[0]} {closing}"
        parts = "\n".join(f"{place}. {request}" for place, request in enumerate(self._requests, 1))
        return f"{opening} {order}\n{parts}\n{closing}"

    def _unused(self, draw: Callable[[], str]) -> str:
        while (path := draw()) in self._taken:
            pass
        self._taken.add(path)
        return path
