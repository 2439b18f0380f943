"""Python code that nobody has read, run where it can do no harm.

`bubblewrap` gives each run its own namespaces: no network, a read-only system, a small private `/tmp`, an empty
environment, no other process in sight. Resource limits bind inside, and a deadline ends the whole namespace. Without
bubblewrap nothing runs: there is no unprotected fallback.

Memory is limited per process (`Limits.memory_bytes`); a run as a whole can use that times `Limits.processes`.
Namespaces leave a finished process for the machine's init to collect: start containers with one (`docker run --init`).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_NOBODY = 65534
_SCRIPT = "/code/main.py"
_PYTHON_HOME = "/python"
_STAGED_PYTHON = "/tmp/python"
"""Where the interpreter waits between the two steps of a start by root."""

_INSTALL = (
    "install it with `apt install bubblewrap util-linux` (Debian, Ubuntu) or `dnf install bubblewrap util-linux` "
    "(Fedora); code is never run without it"
)
_ALLOW = (
    "allow unprivileged user namespaces (on Ubuntu `sysctl kernel.apparmor_restrict_unprivileged_userns=0`, in a "
    "container a seccomp profile that permits them); code is never run without them"
)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one run may use: `Limits(wall_seconds=2.0)`. Processes include threads; bytes of output count per stream."""

    wall_seconds: float = 5.0
    cpu_seconds: int = 5
    memory_bytes: int = 256 * 2**20
    processes: int = 16
    open_files: int = 64
    file_bytes: int = 8 * 2**20
    temp_bytes: int = 16 * 2**20
    output_bytes: int = 64 * 2**10

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise ValueError(f"limit {name} must be above zero, not {value!r}")


@dataclass(frozen=True, kw_only=True)
class Execution:
    """What a run left: `Execution(stdout="4\\n", stderr="", exit_code=0, timed_out=False, output_full=False)`.

    `exit_code` is 128 + the signal number when a signal ended the program, and None when we ended it ourselves.
    """

    stdout: str
    stderr: str
    exit_code: int | None
    timed_out: bool
    output_full: bool

    @property
    def ok(self) -> bool:
        """Whether the program ended by itself and without an error."""
        return self.exit_code == 0


async def run_python(code: str, limits: Limits | None = None) -> Execution:
    """Run a program in the sandbox; it is gone, with everything it started, when this returns or is cancelled."""
    limits = limits or Limits()
    check_sandbox()
    script = _script(code)
    try:
        # An empty environment already here: /proc/1/environ inside shows what bubblewrap itself was started with.
        process = await asyncio.create_subprocess_exec(
            *_command(limits, script),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={},
            cwd="/",
            pass_fds=(script,),
        )
    finally:
        os.close(script)
    return await _watch(process, limits)


def run_python_sync(code: str, limits: Limits | None = None) -> Execution:
    """`run_python` for code without an event loop."""
    return asyncio.run(run_python(code, limits))


@cache
def check_sandbox() -> None:
    """Raise ValueError, with the fix, when this machine cannot run the sandbox. Only a success is remembered."""
    for program in ("bwrap", "prlimit", "setpriv"):
        if shutil.which(program) is None:
            raise ValueError(f"the Python sandbox needs the program {program!r}: {_INSTALL}")
    script = _script("")
    try:
        trial = subprocess.run(
            _command(Limits(), script), env={}, cwd="/", pass_fds=(script,), capture_output=True, timeout=30
        )
    finally:
        os.close(script)
    if trial.returncode != 0:
        reason = trial.stderr.decode(errors="replace").strip()
        raise ValueError(f"bubblewrap cannot make a sandbox here ({reason}): {_ALLOW}")


async def _watch(process: asyncio.subprocess.Process, limits: Limits) -> Execution:
    """Collect output until the namespace is empty: the pipes close only when its last process is gone."""
    assert process.stdout is not None
    assert process.stderr is not None
    ended_by_us: set[str] = set()

    def end(reason: str) -> None:
        # bubblewrap dies with its parent, and the namespace with bubblewrap: one signal ends all of it.
        if process.returncode is None:
            ended_by_us.add(reason)
            process.kill()

    deadline = asyncio.get_running_loop().call_later(limits.wall_seconds, end, "deadline")
    try:
        stdout, stderr, _ = await asyncio.gather(
            _read(process.stdout, limits.output_bytes, end),
            _read(process.stderr, limits.output_bytes, end),
            process.wait(),
        )
    finally:
        deadline.cancel()
        if process.returncode is None:
            process.kill()
            await process.wait()
    return Execution(
        stdout=stdout,
        stderr=stderr,
        exit_code=None if ended_by_us else process.returncode,
        timed_out="deadline" in ended_by_us,
        output_full="output" in ended_by_us,
    )


async def _read(stream: asyncio.StreamReader, room: int, end: Callable[[str], None]) -> str:
    kept = bytearray()
    while chunk := await stream.read(2**16):
        if len(kept) + len(chunk) > room:
            end("output")
        kept += chunk[: room - len(kept)]
    return kept.decode(errors="replace")


def _script(code: str) -> int:
    """A file descriptor that holds the program; bubblewrap shows it inside as a read-only file."""
    descriptor = os.memfd_create("main.py")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(code.encode(errors="replace"))
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _command(limits: Limits, script: int) -> list[str]:
    home = sys.base_prefix
    python = f"{_PYTHON_HOME}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    if os.geteuid() == 0:
        return [
            *_step_down(home),
            *_isolate(limits, script, _STAGED_PYTHON),
            *_limit(limits),
            python,
            "-I",
            "-S",
            _SCRIPT,
        ]
    return [*_isolate(limits, script, home), *_limit(limits), python, "-I", "-S", _SCRIPT]


def _step_down(python_home: str) -> list[str]:
    """Root becomes nobody first, because the kernel exempts root's processes from the limit on their number.

    Nobody may not be able to read root's interpreter, so it is mounted to where everyone can. The outer process
    namespace is what one signal ends: a change of user cuts the inner one loose from its parent.
    """
    mounts = [
        "--unshare-pid",
        "--die-with-parent",
        "--dev-bind",
        "/",
        "/",
        "--tmpfs",
        "/tmp",
        "--ro-bind",
        python_home,
        _STAGED_PYTHON,
    ]
    identity = ["--reuid", str(_NOBODY), "--regid", str(_NOBODY), "--clear-groups"]
    return [_program("bwrap"), *mounts, _program("setpriv"), *identity]


def _isolate(limits: Limits, script: int, python_home: str) -> list[str]:
    # The root and /dev are memory file systems too: left writable they would be a way around the size of /tmp.
    return [
        _program("bwrap"),
        *("--unshare-all", "--unshare-user", "--disable-userns", "--uid", str(_NOBODY), "--gid", str(_NOBODY)),
        *("--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"),
        *("--setenv", "LD_LIBRARY_PATH", f"{_PYTHON_HOME}/lib", "--hostname", "sandbox"),
        *_system(),
        *("--ro-bind", python_home, _PYTHON_HOME, "--ro-bind-data", str(script), _SCRIPT),
        *("--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"),
        *("--size", str(limits.temp_bytes), "--tmpfs", "/tmp", "--chdir", "/tmp", "--remount-ro", "/"),
    ]


def _system() -> list[str]:
    """Shared libraries and programs, and nothing else of the host."""
    arguments = ["--ro-bind", "/usr", "/usr"]
    for path in map(Path, ("/bin", "/lib", "/lib32", "/lib64", "/sbin")):
        if path.is_symlink():
            arguments += ["--symlink", str(path.readlink()), str(path)]
        elif path.exists():
            arguments += ["--ro-bind", str(path), str(path)]
    return arguments


def _limit(limits: Limits) -> list[str]:
    return [
        _program("prlimit"),
        f"--cpu={limits.cpu_seconds}",
        f"--as={limits.memory_bytes}",
        f"--nproc={limits.processes}",
        f"--nofile={limits.open_files}",
        f"--fsize={limits.file_bytes}",
        "--core=0",
    ]


def _program(name: str) -> str:
    return shutil.which(name) or name
