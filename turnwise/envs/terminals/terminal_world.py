"""A private file tree with a shell, in a bubblewrap sandbox.

The tree is in memory, with a limit on its size. Between two programs that run in it (the setup, a shell, a test) it is
kept as an archive. So a world starts from a copy in milliseconds, a test never meets a process of the agent, and
nothing is left behind. What a task hides enters only the sandbox of its test.
"""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from shutil import which
from threading import Lock
from typing import Self

from turnwise.envs.terminals.terminal_shell import HELPER_AND_BASH, MOST_CHARACTERS, Shell
from turnwise.envs.terminals.terminal_task import HOME
from turnwise.tools.sandbox import (
    LIBRARIES,
    MOUNT,
    PYTHON,
    Execution,
    SandboxLimits,
    check_sandbox,
    enter,
    isolate,
    limit,
    memory_file,
    owner_of_files,
    run_confined,
    stage,
)
from turnwise.tools.seccomp import forbidden_calls
from turnwise.waiting import finish

LIMITS = SandboxLimits(
    wall_seconds=30.0,
    cpu_seconds=60,
    memory_bytes=512 * 2**20,
    processes=64,
    open_files=256,
    file_bytes=32 * 2**20,
    temp_bytes=64 * 2**20,
    temp_files=8192,
)
"""What the programs of a world may use. Seconds of processor time and bytes of memory count per process."""
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin:/python/bin"
_USER = 1000
_ENVIRONMENT = {
    **{"HOME": HOME, "USER": "user", "LOGNAME": "user", "SHELL": "/bin/bash", "TERM": "dumb", "TZ": "UTC"},
    **{"LANG": "C.UTF-8", "PAGER": "cat", "GIT_PAGER": "cat", "PS1": "", "PS2": "", "PYTHONDONTWRITEBYTECODE": "1"},
    "PATH": PATH,
}
_SETTINGS = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ssl/openssl.cnf")
"""Files of the system without which some of its programs do not start."""
_USERS = {"/etc/passwd": f"user:x:{_USER}:{_USER}:user:{HOME}:/bin/bash\n", "/etc/group": f"user:x:{_USER}:\n"}
PROGRAM = "/code/program"
"""Where the text of a program is seen while it runs."""
# The script says nothing while the program runs: nobody may be there to read it.
_UNPACK_AND_RUN = (
    MOUNT + ' && "$3" -xpf - --numeric-owner -C "$2" && place=$2 tar=$3 && shift 3 && exec 2>/dev/null && '
    '"$@" </dev/null 2>&1'
)
# All that the program left running is dead before its files are read. No archive stands for files that cannot be kept.
_AND_PACK = (
    "; code=$?; kill -9 -1; ulimit -f {blocks}; "
    '"$tar" -cSf {kept} --format=posix --numeric-owner -C "$place" . || : > {kept}; exit $code'
)


@dataclass(frozen=True, kw_only=True)
class Check:
    """Whether a test passed, and what it printed."""

    ok: bool
    output: str


@dataclass(frozen=True, kw_only=True)
class _Command:
    """How to start a program in a tree: the command, its stdin, and all open files that it needs."""

    words: Sequence[str]
    stdin: int
    files: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class _Sandbox:
    """Where a tree is unpacked: the folder in which programs start, and what they may use."""

    folder: str
    limits: SandboxLimits

    @property
    def folders(self) -> dict[str, str]:
        """Where the parts of the tree are seen, the start folder first, and their names in the archive."""
        return {self.folder: "work", "/tmp": "tmp"} | ({} if self.folder == HOME else {HOME: "home"})

    @contextmanager
    def prepare(
        self,
        tree: bytes,
        program: Sequence[str],
        *,
        source: str,
        environment: Mapping[str, str] | None = None,
        kept: int | None = None,
    ) -> Iterator[_Command]:
        """A command that runs `program` in the tree; `source` is the text of `/code/program`.

        If there is an open file `kept`, the command writes the archive of the tree to it at the end.
        """
        with ExitStack() as opened:

            def open_file(content: str | bytes) -> int:
                file = memory_file(content if isinstance(content, bytes) else content.encode(errors="replace"))
                opened.callback(os.close, file)
                return file

            calls, texts = open_file(forbidden_calls()), {**_USERS, PROGRAM: source}
            files = {path: open_file(text) for path, text in texts.items()}
            environment = {**_ENVIRONMENT, **(environment or {})}
            options = isolate(
                calls, user=_USER, environment=environment, folders=self.folders, files=files, system=_SETTINGS
            )
            listed = open_file("\0".join(options))  # not in the command line, which `ps` shows
            first = [*stage(self.limits, self._script(kept)), which("tar") or "tar"]
            words = [*first, *enter(("--args", str(listed))), *limit(self.limits), *program]
            needed = (calls, listed, *files.values(), *(() if kept is None else (kept,)))
            yield _Command(words=words, stdin=open_file(tree), files=needed)

    def run(self, command: _Command, *files: int) -> Execution:
        """Run the command to its end."""
        running = run_confined(command.words, (*command.files, *files), self.limits, stdin=command.stdin)
        return finish(running)

    def _script(self, kept: int | None) -> str:
        blocks = (self.limits.temp_bytes + 4096 * self.limits.temp_files) // 512
        return _UNPACK_AND_RUN + ("" if kept is None else _AND_PACK.format(blocks=blocks, kept=f"/proc/self/fd/{kept}"))


class World:
    """One private file tree: `world = World.open("echo 3 > n.txt")`, then `world.shell()`, `world.check(source)`.

    A running sandbox dies with the thread that started it. Use a world in `with`, or close it.
    """

    def __init__(self, tree: bytes, sandbox: _Sandbox) -> None:
        self._tree, self._sandbox = tree, sandbox
        self._shell: Shell | None = None
        self._kept: int | None = None
        """An open file for the archive of what a shell leaves."""

    @classmethod
    def open(cls, setup: str, *, folder: str = HOME, limits: SandboxLimits = LIMITS) -> World:
        """A world as the bash script `setup` leaves it. The script starts in `folder` and runs once for equal worlds.

        ValueError if the script fails, or if this machine cannot run the sandbox.
        """
        check_worlds()
        sandbox = _Sandbox(folder=folder, limits=limits)
        return cls(_TEMPLATES.get(setup, sandbox), sandbox)

    def shell(self, *, characters: int = MOST_CHARACTERS) -> Shell:
        """A new shell, which ends the one before it. Its outputs have at most so many characters."""
        self._end_shell()
        kept = self._kept = memory_file(b"")

        def start(arguments: Sequence[str], files: Sequence[int], output: int) -> subprocess.Popen[bytes]:
            program = ["/bin/bash", PROGRAM, *arguments, str(kept)]
            with self._sandbox.prepare(self._tree, program, source=HELPER_AND_BASH, kept=kept) as command:
                return subprocess.Popen(
                    command.words,
                    stdin=command.stdin,
                    stdout=output,
                    stderr=output,
                    env={},
                    cwd="/",
                    pass_fds=(*command.files, *files),
                )

        self._shell = Shell(start, characters=characters)
        return self._shell

    def check(self, source: str, stdin: str = "") -> Check:
        """Run a Python program on a copy of the tree. Ends the shell and all that it left running."""
        self._end_shell()
        if not self._tree:
            return Check(ok=False, output="the files of this world were lost with its shell")
        given = memory_file(stdin.encode(errors="replace"))
        program = ["/bin/bash", "-c", f'exec "$@" <&{given} {given}<&-', "bash", PYTHON, "-I", "-S", PROGRAM]
        try:
            with self._sandbox.prepare(self._tree, program, source=source, environment=LIBRARIES) as command:
                execution = self._sandbox.run(command, given)
        finally:
            os.close(given)
        return Check(ok=execution.ok, output=execution.stdout + execution.stderr)

    def close(self) -> None:
        """Kill what runs and forget the files; safe to call twice."""
        if self._shell is not None:
            self._shell.kill()
        if self._kept is not None:
            os.close(self._kept)
        self._shell, self._kept, self._tree = None, None, b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end_shell(self) -> None:
        if self._shell is not None and self._kept is not None:
            self._shell.end()
            tree = _content(self._kept)
            self.close()
            self._tree = tree


@cache
def check_worlds() -> None:
    """ValueError, with the fix, if this machine cannot run terminals. Only a success is remembered."""
    check_sandbox()
    for program in ("bash", "tar"):
        if which(program) is None:
            raise ValueError(f"terminals need the program {program!r}; install it with the system's package manager")


class _Templates:
    """The trees that setups have made, the last ones used, up to a number of bytes in all."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes, self._bytes = most_bytes, 0
        self._trees: OrderedDict[tuple[str, _Sandbox], bytes] = OrderedDict()
        self._lock = Lock()

    def get(self, setup: str, sandbox: _Sandbox) -> bytes:
        """The tree of a setup, made if it is not there."""
        key = setup, sandbox
        with self._lock:
            if key in self._trees:
                self._trees.move_to_end(key)
                return self._trees[key]
        tree = _template(setup, sandbox)
        with self._lock:
            self._bytes += len(tree) - len(self._trees.pop(key, b""))
            self._trees[key] = tree
            while self._bytes > self._most_bytes and len(self._trees) > 1:
                self._bytes -= len(self._trees.popitem(last=False)[1])
        return tree


_TEMPLATES = _Templates(256 * 2**20)


def _template(setup: str, sandbox: _Sandbox) -> bytes:
    """The tree after the setup, as an archive."""
    kept = memory_file(b"")
    program = ["/bin/bash", "-c", f"exec {kept}>&-; exec /bin/bash {PROGRAM}"]
    try:
        with sandbox.prepare(_bare_tree(sandbox), program, source=setup, kept=kept) as command:
            execution = sandbox.run(command)
        archive = _content(kept)
    finally:
        os.close(kept)
    if not execution.ok:
        reason = "it took too long" if execution.timed_out else f"exit code {execution.exit_code}"
        raise ValueError(f"the setup failed ({reason}): {(execution.stdout + execution.stderr).strip()[-500:]}")
    if not archive:
        raise ValueError("the files of the setup cannot be kept; make fewer or smaller ones")
    return archive


def _bare_tree(sandbox: _Sandbox) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as file:
        for path, name in sandbox.folders.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if path == "/tmp" else 0o755
            entry.uid = entry.gid = owner_of_files()
            file.addfile(entry)
    return archive.getvalue()


def _content(file: int) -> bytes:
    with open(file, "rb", closefd=False) as opened:
        opened.seek(0)
        return opened.read()
