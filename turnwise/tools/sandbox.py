"""Run untrusted Python code where it can do no harm.

`bubblewrap` gives each run its own namespaces: no network, a read-only system, a small private `/tmp`, an empty
environment, no other process visible. Resource limits apply inside, and a deadline kills the whole namespace. Without
bubblewrap nothing runs: there is no unprotected fallback.

Memory is limited per process (`memory_bytes` of `SandboxLimits`); a whole run can use that times `processes`. A
system-call filter closes the known ways to make the kernel hold more than that for a program.
Namespaces leave finished processes for the machine's init to reap: start containers with one (`docker run --init`).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from turnwise.tools.seccomp import forbidden_calls
from turnwise.waiting import finish

_NOBODY = 65534
_SCRIPT = "/code/main.py"
_PYTHON_HOME = "/python"
PYTHON = f"{_PYTHON_HOME}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
LIBRARIES = {"LD_LIBRARY_PATH": f"{_PYTHON_HOME}/lib"}
"""The interpreter inside, which is the one that runs us, and where it finds its libraries."""
_STAGED_PYTHON, _STAGED_TEMP = "/tmp/python", "/tmp/temp"
"""Where the interpreter and the program's /tmp are kept between the two steps of a start."""
_OWN_CODE = Path(__file__).resolve().parents[1]
"""Programs inside must not see how tasks are made and tested, even if this package is installed for everyone."""
MOUNT = '"$0" -n -t tmpfs -o "$1" none "$2"'
"""What every script of the first step begins with: it gets the program mount, the options and the place."""
_GO_ON = ' && shift 2 && exec "$@"'
_PENDING_SIGNALS = 64
"""Timers count as these; the kernel's own limit depends on the size of the machine."""

_INSTALL = (
    "install it with `apt install bubblewrap util-linux mount` (Debian, Ubuntu) or `dnf install bubblewrap util-linux` "
    "(Fedora); code is never run without it"
)
_ALLOW = (
    "allow unprivileged user namespaces (on Ubuntu `sysctl kernel.apparmor_restrict_unprivileged_userns=0`, in a "
    "container a seccomp profile that permits them); code is never run without them"
)


@dataclass(frozen=True, kw_only=True)
class SandboxLimits:
    """What one run may use: `SandboxLimits(wall_seconds=2.0)`.

    Processes include threads; output bytes count per stream. `temp_files` also counts the folders and links in `/tmp`.
    """

    wall_seconds: float = 5.0
    cpu_seconds: int = 5
    memory_bytes: int = 256 * 2**20
    processes: int = 16
    open_files: int = 64
    file_bytes: int = 8 * 2**20
    temp_bytes: int = 16 * 2**20
    temp_files: int = 4096
    output_bytes: int = 64 * 2**10

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise ValueError(f"limit {name} must be above zero, not {value!r}")


@dataclass(frozen=True, kw_only=True)
class Execution:
    """The result of a run: `Execution(stdout="4\\n", stderr="", exit_code=0, timed_out=False, output_full=False)`.

    `exit_code` is 128 + the signal number if a signal ended the program, and None if we ended it ourselves.
    """

    stdout: str
    stderr: str
    exit_code: int | None
    timed_out: bool
    output_full: bool

    @property
    def ok(self) -> bool:
        """Whether the program ended by itself without an error."""
        return self.exit_code == 0


async def run_python(code: str, limits: SandboxLimits | None = None) -> Execution:
    """Run a program in the sandbox; it and everything it started are gone when this returns or is cancelled."""
    limits = limits or SandboxLimits()
    check_sandbox()
    with _prepared(code, limits) as (command, descriptors):
        return await run_confined(command, descriptors, limits)


async def run_confined(
    command: Sequence[str], descriptors: Sequence[int], limits: SandboxLimits, *, stdin: int = subprocess.DEVNULL
) -> Execution:
    """Run a command of `stage`, `isolate` and `limit` to its end; `descriptors` are the open files that it names."""
    # The environment is already empty here: /proc/1/environ inside shows what bubblewrap itself was started with.
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={},
        cwd="/",
        pass_fds=descriptors,
    )
    return await _watch(process, limits)


def run_python_sync(code: str, limits: SandboxLimits | None = None) -> Execution:
    """`run_python` for synchronous code, in a notebook too."""
    return finish(run_python(code, limits))


@cache
def check_sandbox() -> None:
    """ValueError, with the fix, if this machine cannot run the sandbox. Only a success is remembered."""
    for program in ("bwrap", "mount", "prlimit", "setpriv"):
        if shutil.which(program) is None:
            raise ValueError(f"the Python sandbox needs the program {program!r}: {_INSTALL}")
    with _prepared("", SandboxLimits()) as (command, descriptors):
        trial = subprocess.run(command, env={}, cwd="/", pass_fds=descriptors, capture_output=True, timeout=30)
    if trial.returncode != 0:
        reason = trial.stderr.decode(errors="replace").strip()
        raise ValueError(f"bubblewrap cannot make a sandbox here ({reason}): {_ALLOW}")


def kill_sandbox(pid: int) -> None:
    """Kill a bubblewrap and its child. One that has just started does not yet die with its parent."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    with suppress(OSError):  # it has ended, or this kernel has no such list
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)


def _end(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError, ChildProcessError):  # it ended just now
        kill_sandbox(process.pid)


async def _watch(process: asyncio.subprocess.Process, limits: SandboxLimits) -> Execution:
    """Collect output until the namespace is empty: the pipes close only when its last process is gone."""
    assert process.stdout is not None
    assert process.stderr is not None
    ended_by_us: set[str] = set()

    def end(reason: str) -> None:
        if process.returncode is None:
            ended_by_us.add(reason)
            _end(process)

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
            _end(process)
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


@contextmanager
def _prepared(code: str, limits: SandboxLimits) -> Iterator[tuple[list[str], tuple[int, int]]]:
    """The command for a program, and the open files that it reads: the program and the system-call filter."""
    script, calls = memory_file(code.encode(errors="replace")), memory_file(forbidden_calls())
    try:
        yield _command(limits, script, calls), (script, calls)
    finally:
        os.close(script)
        os.close(calls)


def memory_file(content: bytes) -> int:
    """An open file in memory, read from its beginning; the caller closes it."""
    descriptor = os.memfd_create("sandbox")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _command(limits: SandboxLimits, script: int, calls: int) -> list[str]:
    return [
        *stage(limits, MOUNT + _GO_ON),
        *enter(isolate(calls, user=_NOBODY, environment=LIBRARIES, folders={"/tmp": ""}, files={_SCRIPT: script})),
        *limit(limits),
        *(PYTHON, "-I", "-S", _SCRIPT),
    ]


def stage(limits: SandboxLimits, script: str) -> list[str]:
    """A first step that prepares the second: it mounts `/tmp` with a limit on files, which bubblewrap cannot set.

    `script` begins with `MOUNT`. One signal kills its whole process namespace; the change of user detaches the inner
    one from its parent.
    """
    user = [] if _is_root() else _root_of_a_namespace()
    options = f"size={limits.temp_bytes},nr_inodes={limits.temp_files},mode=1777"
    return [
        *(_program("bwrap"), "--unshare-pid", "--die-with-parent", *user, "--dev-bind", "/", "/"),
        *("--tmpfs", "/tmp", "--ro-bind", sys.base_prefix, _STAGED_PYTHON, "--dir", _STAGED_TEMP),
        *("/bin/sh", "-c", script, _program("mount"), options, _STAGED_TEMP),
    ]


def owner_of_files() -> int:
    """The user who owns a program's files, as the first step sees it."""
    return _NOBODY if _is_root() else 0


def _is_root() -> bool:
    return os.geteuid() == 0


def _root_of_a_namespace() -> list[str]:
    """A user who may mount, read whatever a program leaves, and pass its own identity to an inner namespace."""
    names = ("CAP_SYS_ADMIN", "CAP_SETFCAP", "CAP_DAC_OVERRIDE")
    capabilities = (argument for name in names for argument in ("--cap-add", name))
    return ["--unshare-user", "--uid", "0", "--gid", "0", *capabilities]


def _step_down() -> list[str]:
    """Root becomes nobody, because the kernel exempts root's processes from the process limit.

    Nobody may be unable to read root's interpreter, so it is mounted where everyone can.
    """
    return [_program("setpriv"), "--reuid", str(_NOBODY), "--regid", str(_NOBODY), "--clear-groups"]


def enter(options: Sequence[str]) -> list[str]:
    """The second step, with what `isolate` says; bubblewrap also takes that from an open file, as `--args FILE`."""
    return [*(_step_down() if _is_root() else []), _program("bwrap"), *options]


def isolate(
    calls: int,
    *,
    user: int,
    environment: Mapping[str, str],
    folders: Mapping[str, str],
    files: Mapping[str, int],
    system: Sequence[str] = (),
) -> list[str]:
    """Options for namespaces in which only `folders` can be written. A program starts in the first of them.

    `folders` are inside the sized `/tmp` of the first step, `files` are open ones, `system` are paths of the host to
    see, and `calls` is the system-call filter.
    """
    return [
        *("--unshare-all", "--unshare-user", "--disable-userns", "--uid", str(user), "--gid", str(user)),
        *("--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv", "--hostname", "sandbox"),
        *(argument for name, value in environment.items() for argument in ("--setenv", name, value)),
        *_system(),
        *(argument for path in system for argument in ("--ro-bind-try", path, path)),
        *("--ro-bind", _STAGED_PYTHON, _PYTHON_HOME),
        *(argument for path in _places_of(_OWN_CODE) for argument in ("--tmpfs", path, "--remount-ro", path)),
        # /dev and the root are in memory too: writable they would bypass temp_bytes.
        *("--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"),
        *(argument for path, name in folders.items() for argument in ("--bind", f"{_STAGED_TEMP}/{name}", path)),
        *("--chdir", next(iter(folders))),
        *(argument for path, file in files.items() for argument in ("--ro-bind-data", str(file), path)),
        *("--seccomp", str(calls), "--remount-ro", "/"),
    ]


def _system() -> list[str]:
    """Shared libraries and programs, and nothing else from the host."""
    arguments = ["--ro-bind", "/usr", "/usr"]
    for path in map(Path, ("/bin", "/lib", "/lib32", "/lib64", "/sbin")):
        if path.is_symlink():
            arguments += ["--symlink", str(path.readlink()), str(path)]
        elif path.exists():
            arguments += ["--ro-bind", str(path), str(path)]
    return arguments


def _places_of(folder: Path) -> list[str]:
    """Where a folder of the host would be seen inside."""
    # Pairs, because both roots may be one folder: Debian's own Python lives in /usr.
    seen = ((Path("/usr").resolve(), "/usr"), (Path(sys.base_prefix).resolve(), _PYTHON_HOME))
    return [f"{place}/{folder.relative_to(root)}" for root, place in seen if folder.is_relative_to(root)]


def limit(limits: SandboxLimits) -> list[str]:
    """The last step before the program."""
    return [
        _program("prlimit"),
        f"--cpu={limits.cpu_seconds}",
        f"--as={limits.memory_bytes}",
        f"--nproc={limits.processes}",
        f"--nofile={limits.open_files}",
        f"--fsize={limits.file_bytes}",
        f"--sigpending={_PENDING_SIGNALS}",
        "--core=0",
    ]


def _program(name: str) -> str:
    return shutil.which(name) or name
