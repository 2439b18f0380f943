"""Programs that try to get out of the sandbox or to exhaust the machine: each must be confined, and gone in time.

A program says ESCAPED when something worked that must not. It is not believed when it says nothing: the host looks at
its own file, its listener and its processes too. `tests/tools/test_sandbox.py` asks the same of single mechanisms.
The programs run through the Python tool, and once more in the shell of a terminal.
"""

from __future__ import annotations

import os
import random
import secrets
import socket
import tempfile
import textwrap
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tests.tools.test_sandbox import host_commands
from tests.torture.hostile_programs import PRELUDE, PROGRAMS, SHELL_PROGRAMS
from tests.torture.tally import Tally, shortened
from turnwise.envs.terminals.terminal_world import World, check_worlds
from turnwise.tools.sandbox import LIBRARIES, PYTHON, Execution, SandboxLimits, check_sandbox, run_python_sync

COUNT, SHELL_COUNT = len(PROGRAMS), len(SHELL_PROGRAMS)
_WALL, _SLACK = 4.0, 40.0
"""Seconds that a program may run, and that a busy machine may take to start it and to clear up."""
_GONE_WITHIN = 5.0

Run = Callable[[str, SandboxLimits], Execution]


@dataclass(frozen=True, kw_only=True)
class Host:
    """What a program would like to reach on the host."""

    canary: Path
    secret: str
    listener: socket.socket

    def fill(self, program: str) -> str:
        """The program with the places that it attacks."""
        names = {"@CANARY": repr(str(self.canary)), "@ADDRESS": repr(self.listener.getsockname())}
        names |= {"@PROCESS": str(os.getpid()), "@COMMAND": repr(Path("/proc/self/cmdline").read_text())}
        for sign, value in names.items():
            program = program.replace(sign, value)
        return PRELUDE + textwrap.dedent(program)

    def fault(self) -> str:
        """What happened to it."""
        if not self.canary.is_file() or self.canary.read_text() != self.secret:
            return "the host's file was changed"
        try:
            self.listener.accept()
        except TimeoutError:
            return ""
        return "the host's listener was reached"


def campaign(
    *, count: int = COUNT, seed: int = 0, run: Run = run_python_sync, programs: Mapping[str, str] = PROGRAMS
) -> Tally:
    """Run `count` of the programs, all of them before any comes again."""
    tally, rng = Tally(), random.Random(seed)
    if run is run_python_sync:
        try:
            check_sandbox()
        except ValueError as error:
            return Tally(skipped=str(error))
    names = [name for _ in range(-(-count // len(programs))) for name in rng.sample(sorted(programs), len(programs))]
    with tempfile.TemporaryDirectory(prefix="turnwise-programs-") as folder, _listening() as listener:
        for name in names[:count]:
            canary = Path(folder) / secrets.token_hex(8)
            secret = secrets.token_hex(16)
            canary.write_text(secret)
            host = Host(canary=canary, secret=secret, listener=listener)
            limits = SandboxLimits(wall_seconds=_WALL, cpu_seconds=3, file_bytes=10**6 + secrets.randbelow(10**6))
            started = time.monotonic()
            execution = run(host.fill(programs[name]), limits)
            if wrong := _fault(execution, host, limits, time.monotonic() - started):
                tally.fail(f"{name}: {wrong}")
            else:
                tally.note(_how(execution))
    return tally


def shell_campaign(*, count: int = SHELL_COUNT, seed: int = 0, programs: Mapping[str, str] = SHELL_PROGRAMS) -> Tally:
    """The same in the shell of a terminal."""
    try:
        check_worlds()
    except ValueError as error:
        return Tally(skipped=str(error))
    return campaign(count=count, seed=seed, run=run_in_shell, programs=programs)


def run_in_shell(code: str, limits: SandboxLimits) -> Execution:
    """Run a program as an agent in a terminal would, from a file that a command writes."""
    variables = " ".join(f"{name}={value}" for name, value in LIBRARIES.items())
    command = f"cat > /tmp/main.py <<'END_OF_PROGRAM'\n{code}\nEND_OF_PROGRAM\n{variables} {PYTHON} -I -S /tmp/main.py"
    with World.open("", limits=replace(limits, wall_seconds=_SLACK)) as world:
        output = world.shell(characters=limits.output_bytes).run(command, limits.wall_seconds)
    return Execution(
        stdout=output.text, stderr="", exit_code=output.code, timed_out=output.timed_out, output_full=False
    )


def _listening() -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.01)
    return listener


def _how(execution: Execution) -> str:
    if execution.timed_out:
        return "ended at the deadline"
    if execution.output_full:
        return "ended for its output"
    return "ended by itself" if execution.ok else "ended with an error"


def _fault(execution: Execution, host: Host, limits: SandboxLimits, seconds: float) -> str:
    """Whether a program got out, in words; empty when it did not."""
    output = execution.stdout + execution.stderr
    if "ESCAPED" in execution.stdout or host.secret in output:
        return f"it got out: {shortened(output)}"
    if "ready" not in execution.stdout and not execution.output_full:
        return f"it never began: {shortened(output)}"
    if seconds > _WALL + _SLACK:
        return f"it was there for {seconds:.0f} seconds"
    if len(execution.stdout.encode()) > limits.output_bytes * 4:
        return "its output was not cut"
    return host.fault() or _left_behind(f"--fsize={limits.file_bytes} ")


def _left_behind(sign: str) -> str:
    """Processes that outlived their program: those of its namespace show its limits in their command line."""
    deadline = time.monotonic() + _GONE_WITHIN
    while left := [command for command in host_commands() if sign in command]:
        if time.monotonic() > deadline:
            return f"it left a process behind: {left[0][:200]}"
        time.sleep(0.05)
    return ""
