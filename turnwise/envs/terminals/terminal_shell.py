"""A bash that lives as long as an episode, and answers one command at a time.

Bash reads its commands from a pipe. Behind each command comes a line with a fresh random word, which bash prints, with
the command's exit code, to a second pipe that the command does not have. The word is still in the first pipe while the
command runs, so that nothing it prints ends it early. A command that takes both pipes from bash by force fools nobody
but its own episode: what it did is judged elsewhere.

A helper beside bash interrupts commands that take too long: first like Ctrl-C, then by force.
"""

from __future__ import annotations

import os
import re
import secrets
import select
import shlex
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from turnwise.tools.sandbox import kill_sandbox

MOST_CHARACTERS = 50_000
"""Characters of output that are kept."""
_LONGEST_COMMAND = 50_000
_STATUS = 9
_START_SECONDS, _GRACE_SECONDS, _END_SECONDS = 60.0, 1.0, 30.0
_FORCE_TIMES = 3
_MOST_SAID, _READS_AFTER_THE_END = 4096, 64
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
_NO_TERMINAL = re.compile(r"^bash: \[\d+: \d+ \(\d+\)\] tcsetattr: .*\n", re.MULTILINE)
"""What an interactive bash without a terminal says when a signal kills a command."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
HELPER_AND_BASH = r"""
help() {
  while read -r word; do
    case $word in
      interrupt) kill -INT -1 ;;
      force)
        kill -STOP -1
        for each in /proc/[0-9]*; do
          case ${each#/proc/} in 1 | $$ | $BASHPID) ;; *) kill -KILL "${each#/proc/}" ;; esac
        done
        kill -INT $$
        kill -CONT $$
        ;;
      end) kill -KILL -1 ;;
    esac
  done
}
commands=$1 status=$2 words=$3
shift 3; for each; do eval "exec $each>&-"; done
eval "help <&$words $words<&- $commands<&- $status>&- >/dev/null 2>&1 &"
eval "exec $words<&- <&$commands $commands<&-"
[ "$status" = 9 ] || eval "exec 9>&$status $status>&-"
exec /bin/bash --norc --noprofile --noediting -i
"""
"""A bash script. Its arguments are open files: commands, status, words for the helper, and others to close."""
_FIRST_LINE = b"set +o history +H; unset HISTFILE; PS1= PS2=\n"


@dataclass(frozen=True, kw_only=True)
class Output:
    """What a command printed, its exit code (None if time ran out or the shell ended), and whether the shell ended."""

    text: str
    code: int | None
    ended: bool = False

    @property
    def timed_out(self) -> bool:
        """Whether the command was interrupted; the shell goes on."""
        return self.code is None and not self.ended


Start = Callable[[Sequence[str], Sequence[int], int], "subprocess.Popen[bytes]"]
"""Starts `HELPER_AND_BASH` in the sandbox: its arguments, the open files that they name, and where it prints."""


class Shell:
    """One bash in a sandbox: `shell.run("cd /tmp && ls", seconds=10).text`."""

    def __init__(self, start: Start, *, characters: int = MOST_CHARACTERS) -> None:
        self._characters = characters
        commands, status, words, output = (os.pipe() for _ in range(4))
        inside = (commands[0], status[1], words[0])
        self._pipes = _Pipes(commands=commands[1], status=status[0], words=words[1], output=output[0])
        try:
            self._process = start([*map(str, inside)], inside, output[1])
        except BaseException:
            self._pipes.close()
            raise
        finally:
            _close(*inside, output[1])
        self._starting: _Answer | None = self._ask(":")

    def run(self, command: str, seconds: float) -> Output:
        """Run a command and wait for its end; after `seconds` it is interrupted. A shell that ended stays so."""
        self._wait_for_start()
        if self._pipes.closed:
            return Output(text="", code=None, ended=True)
        if len(command) > _LONGEST_COMMAND:
            return Output(text=f"bash: a command has at most {_LONGEST_COMMAND} characters\n", code=126)
        answer = self._ask(command)
        heard = self._pipes.listen(answer, seconds)
        timed_out = heard is None
        if timed_out:
            heard = self._interrupt(answer)
        if heard is None:
            self.end()
        elif not heard:
            self._pipes.close()
        text = _plain(answer.printed)[: self._characters]
        return Output(text=text, code=None if timed_out else answer.code, ended=self._pipes.closed)

    def _wait_for_start(self) -> None:
        """Bash starts while the agent thinks about its first command."""
        if self._starting is not None:
            if not self._pipes.listen(self._starting, _START_SECONDS):
                self.kill()
                raise OSError(f"no shell started in the sandbox: {_plain(self._starting.printed).strip()[-500:]}")
            self._starting = None

    def _ask(self, command: str) -> _Answer:
        answer = _Answer(word=secrets.token_hex(16), room=4 * self._characters)
        self._pipes.pending += _lines(command, answer.word)
        return answer

    def _interrupt(self, answer: _Answer) -> bool | None:
        """Like Ctrl-C; if that is not enough, kill whatever runs beside bash, until it answers."""
        self._pipes.tell("interrupt")
        heard = self._pipes.listen(answer, _GRACE_SECONDS)
        for _ in range(_FORCE_TIMES):
            if heard is not None:
                break
            self._pipes.tell("force")
            heard = self._pipes.listen(answer, _GRACE_SECONDS)
        return heard

    def end(self) -> None:
        """Kill all that runs in the shell, and wait until its files have been kept."""
        self._pipes.tell("end")
        self._pipes.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kill the whole sandbox, with its files; safe to call twice."""
        self._pipes.close()
        if self._process.poll() is None:
            kill_sandbox(self._process.pid)
        self._process.wait()


@dataclass(kw_only=True)
class _Answer:
    """What was heard of a command so far."""

    word: str
    room: int
    printed: bytearray = field(default_factory=bytearray)
    said: bytes = b""
    """The newest bytes of the second pipe."""

    @property
    def code(self) -> int | None:
        """The exit code, once bash has said it."""
        found = re.search(rf"{self.word} (\d{{1,3}})\n".encode(), self.said)
        return None if found is None else int(found[1])


class _Pipes:
    """Our ends of a shell's pipes. Nothing here blocks, whatever runs at the other ends."""

    def __init__(self, *, commands: int, status: int, words: int, output: int) -> None:
        self._all = (commands, status, words, output)
        self._commands, self._status, self._words, self._output = self._all
        self.pending = _FIRST_LINE
        """What bash is still to read."""
        self.closed = False
        for descriptor in self._all:
            os.set_blocking(descriptor, False)

    def tell(self, word: str) -> None:
        """Ask the helper for something."""
        if not self.closed:
            with suppress(OSError):  # the command has killed the helper
                os.write(self._words, f"{word}\n".encode())

    def listen(self, answer: _Answer, seconds: float) -> bool | None:
        """Hand over what is pending and listen: True if bash has answered, False if it is gone, None if time is up."""
        until = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self._output, select.POLLIN)
        poll.register(self._status, select.POLLIN)
        while (left := until - time.monotonic()) > 0:
            if self.pending:
                poll.register(self._commands, select.POLLOUT)
            for descriptor, _ in poll.poll(1000 * left):
                if descriptor == self._commands:
                    self._hand_over()
                    poll.unregister(self._commands)
                elif descriptor == self._output:
                    if not self._hear(answer):
                        poll.unregister(self._output)
                else:
                    said = _read(self._status)
                    answer.said = (answer.said + (said or b""))[-_MOST_SAID:]
                    if said == b"" or answer.code is not None:
                        self._hear_the_rest(answer)
                        return said != b""
        return None

    def close(self) -> None:
        """Close all pipes; safe to call twice."""
        if not self.closed:
            self.closed = True
            _close(*self._all)

    def _hand_over(self) -> None:
        try:
            self.pending = self.pending[os.write(self._commands, self.pending) :]
        except BlockingIOError:
            pass
        except OSError:  # bash is gone; its other pipe says so too
            self.pending = b""

    def _hear(self, answer: _Answer) -> bool:
        """Read some output; False if there is none now."""
        printed = _read(self._output)
        answer.printed += (printed or b"")[: answer.room - len(answer.printed)]
        return bool(printed)

    def _hear_the_rest(self, answer: _Answer) -> None:
        """What the command printed is in the pipe already; something in the background may print for ever."""
        for _ in range(_READS_AFTER_THE_END):
            if not self._hear(answer):
                return


def _read(descriptor: int) -> bytes | None:
    """What is there now: empty at the end of the pipe, None if there is nothing yet."""
    try:
        return os.read(descriptor, 2**16)
    except BlockingIOError:
        return None


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _lines(command: str, word: str) -> bytes:
    """The command without the shell's own pipes, and the line that ends it."""
    quoted = shlex.quote(command.replace("\0", ""))
    lines = f"eval {quoted} </dev/null {_STATUS}>&-\nprintf '%s %s\\n' {word} $? >&{_STATUS}\n"
    return lines.encode(errors="replace")


def _plain(printed: bytes | bytearray) -> str:
    """Text without colours, cursor movements and other control characters."""
    text = printed.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    return _NO_TERMINAL.sub("", _CONTROLS.sub("", _ESCAPES.sub("", text)))
