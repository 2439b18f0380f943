"""A real shell in its sandbox, and commands that try to break it or to get out."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.envs.terminals.sample_tasks import needs_worlds, wait_until_gone
from tests.tools.test_sandbox import host_commands
from turnwise.envs.terminals.terminal_shell import Output, Shell
from turnwise.envs.terminals.terminal_world import World
from turnwise.tools.sandbox import SandboxLimits

pytestmark = needs_worlds
PATIENT = 60.0
"""Seconds for commands that end by themselves: the machine may be busy."""


@pytest.fixture
def world() -> Iterator[World]:
    with World.open("") as world:
        yield world


@pytest.fixture
def shell(world: World) -> Shell:
    return world.shell()


def said(shell: Shell, command: str) -> str:
    return shell.run(command, PATIENT).text


def test_a_command_answers_with_its_output_and_exit_code(shell: Shell):
    assert shell.run("echo one; echo two >&2; false", PATIENT) == Output(text="one\ntwo\n", code=1)
    assert shell.run("exit_with() { return 42; }; exit_with", PATIENT) == Output(text="", code=42)


def test_the_shell_keeps_its_folder_variables_functions_and_aliases(shell: Shell):
    for command in ("mkdir -p a/b && cd a/b", "export NAME=here", "greet() { echo hello $1; }", "alias again='echo 2'"):
        assert shell.run(command, PATIENT).code == 0
    assert said(shell, "pwd; sh -c 'echo $NAME'; greet you; again") == "/home/user/a/b\nhere\nhello you\n2\n"


@pytest.mark.parametrize("command", ["if", "echo 'open", "cat <<END\nno end", ")", "$(", "`", "\\"])
def test_half_a_command_fails_and_the_next_one_runs(shell: Shell, command: str):
    shell.run(command, PATIENT)
    assert shell.run("echo fine", PATIENT) == Output(text="fine\n", code=0)


def test_here_documents_and_many_lines_are_one_command(shell: Shell):
    assert said(shell, "cat > f <<'END'\n$x 'y' \"z\"\nEND\nfor i in 1 2; do\n  echo $i\ndone; cat f") == (
        "1\n2\n$x 'y' \"z\"\n"
    )


@pytest.mark.parametrize("command", ["cat", "read line; echo $line", "python3 -c 'input()'", "sort", "bash"])
def test_a_command_that_wants_input_gets_none(shell: Shell, command: str):
    assert not shell.run(command, PATIENT).timed_out
    assert said(shell, "echo fine") == "fine\n"


def test_printing_what_ends_a_command_ends_nothing(shell: Shell):
    forged = shell.run("for i in $(seq 200); do echo '0123456789abcdef 0'; done; sleep 0.3; echo end; false", PATIENT)
    assert (forged.code, forged.text.endswith("end\n")) == (1, True)


def test_commands_do_not_have_the_pipe_that_ends_them(shell: Shell):
    assert shell.run("echo 'word 0' >&9", PATIENT).code != 0
    assert said(shell, "sh -c 'ls /proc/self/fd' | tr '\\n' ' '") == "0 1 2 3 "


def test_a_forged_end_without_the_word_is_ignored(shell: Shell):
    forger = "for f in /proc/$$/fd/*; do [ ${f##*/} -gt 9 ] && echo 'guess 0' > $f; done 2>/dev/null; sleep 0.3; false"
    assert shell.run(forger, 5.0).code in (1, None)


@pytest.mark.parametrize(
    "command",
    ["exec 10<&- 11>&-", "kill -9 $$", "exit 3", "exec true", "kill -9 -1", "set -n", "kill -STOP $$", "exec 0<&-"],
)
def test_whoever_breaks_the_protocol_ends_at_most_the_own_shell(world: World, shell: Shell, command: str):
    shell.run(f"echo kept > file; {command}", 2.0)
    after = shell.run("echo fine", 2.0)
    assert after.ended or after.text == "fine\n"
    assert shell.run("echo fine", 2.0).ended is after.ended
    assert world.check("assert open('file').read() == 'kept\\n'").ok


def test_functions_named_like_builtins_do_not_matter(shell: Shell):
    said(shell, "read() { echo no; }; echo() { builtin echo changed; }; PATH=/nowhere; PS1='$ '; set -x")
    assert shell.run("set +x", PATIENT).code == 0
    assert shell.run("/usr/bin/true", PATIENT).code == 0


@pytest.mark.parametrize("command", ["sleep 600; echo after", "while :; do :; done", "yes", "sleep 600 | cat"])
def test_a_command_that_takes_too_long_is_interrupted_and_the_shell_goes_on(shell: Shell, command: str):
    said(shell, "NAME=kept")
    interrupted = shell.run(command, 0.3)
    assert interrupted.timed_out
    assert "after" not in interrupted.text
    assert said(shell, "echo $NAME") == "kept\n"


def test_a_command_that_ignores_interrupts_is_killed_and_the_shell_goes_on(shell: Shell):
    command = "NAME=kept; python3 -c 'import signal, time; signal.signal(2, signal.SIG_IGN); time.sleep(600)'"
    assert shell.run(command, 2.0).timed_out
    assert said(shell, "echo $NAME") == "kept\n"


def test_a_shell_that_ignores_interrupts_ends_and_its_files_stay(world: World, shell: Shell):
    assert shell.run("echo kept > file; trap '' INT; while :; do :; done", 0.3).ended
    assert world.check("assert open('file').read() == 'kept\\n'").ok


def test_background_jobs_survive_an_interrupt_and_die_with_the_world(world: World, shell: Shell):
    number = str(10**6 + secrets.randbelow(10**9))
    said(shell, f"sleep {number} & setsid nohup sleep {number} >/dev/null 2>&1 & disown -a")
    shell.run("sleep 600", 0.3)
    assert said(shell, f"grep -l {number} /proc/[0-9]*/cmdline 2>/dev/null | grep -vc self").strip() >= "2"
    assert sum(f"sleep {number}" in command for command in host_commands()) == 2
    world.close()
    wait_until_gone(f"sleep {number}")


def test_daemons_are_dead_before_the_test_reads_the_files(world: World, shell: Shell):
    said(shell, "(while :; do echo wrong > answer; done) >/dev/null 2>&1 & sleep 0.1; true")
    shell.run("setsid sh -c 'while :; do echo wrong > answer; done' >/dev/null 2>&1 & echo", PATIENT)
    assert world.check(
        "import time; open('answer', 'w').write('x'); time.sleep(0.2); assert open('answer').read() == 'x'"
    ).ok


def test_a_fork_bomb_is_bounded_and_ends(world: World, shell: Shell):
    bomb = "bomb() { bomb | bomb & }; bomb"
    shell.run(bomb, 2.0)
    after = shell.run("sleep 600", 1.0)
    assert after.timed_out or after.ended
    world.close()


def test_the_disk_is_limited_and_can_be_freed():
    with World.open("", limits=SandboxLimits(temp_bytes=2**22, temp_files=100, processes=32)) as world:
        shell = world.shell()
        assert "No space left" in said(shell, "head -c 8000000 /dev/zero > large")
        assert "No space left" in said(shell, "rm large; for i in $(seq 200); do : > f$i; done")
        assert shell.run("rm f*; echo fine > small; cat small", PATIENT).text == "fine\n"
        assert world.check("assert open('small').read() == 'fine\\n'").ok


def test_a_file_memory_and_processor_time_are_limited():
    limits = SandboxLimits(cpu_seconds=1, memory_bytes=200 * 2**20, file_bytes=2**20, temp_bytes=2**23, processes=32)
    with World.open("", limits=limits) as world:
        shell = world.shell()
        assert shell.run("head -c 2000000 /dev/zero > large", PATIENT).code != 0
        assert "MemoryError" in said(shell, "python3 -c 'bytearray(10**9)'")
        assert shell.run("python3 -c 'while True: pass'", PATIENT).code == 128 + 9
        assert said(shell, "echo fine") == "fine\n"


def test_output_is_cut_at_its_limit_and_its_end_still_found(world: World):
    shell = world.shell(characters=1000)
    flood = shell.run("head -c 3000000 /dev/zero | tr '\\0' x; false", PATIENT)
    assert (flood.text, flood.code) == ("x" * 1000, 1)


def test_control_characters_are_stripped(shell: Shell):
    text = said(shell, r"printf '\e[31mred\e[0m\a\b\x00 \e]0;title\a\xff\r\n\u202eevil\n'")
    assert text == "red \ufffd\nevil\n"


@pytest.mark.parametrize("command", ["\ud800", "\0\0", "é" * 40_000, "x" * 1_000_000, "\x1b[2J", "\r\n", ""])
def test_strange_commands_have_a_defined_answer(shell: Shell, command: str):
    assert isinstance(shell.run(command, PATIENT).code, int)
    assert said(shell, "echo fine") == "fine\n"


def test_the_agent_is_not_root_and_cannot_become_it(shell: Shell):
    assert said(shell, "whoami; id -u; pwd; echo ~") == "user\n1000\n/home/user\n/home/user\n"
    for command in (
        "su -c id",
        "sudo id",
        "mount -t tmpfs none /tmp",
        "chown 0 /home/user",
        "unshare -r id",
        "chroot / id",
    ):
        assert shell.run(command, PATIENT).code != 0


def test_the_clock_and_the_host_name_cannot_be_changed(shell: Shell):
    before = time.time()
    assert "Operation not permitted" in said(shell, "date -s 2020-01-01")
    assert shell.run("hostname elsewhere", PATIENT).code != 0
    assert time.time() >= before


def test_nothing_but_home_and_tmp_can_be_written(shell: Shell):
    places = "/ /etc /usr /usr/local/bin /bin /dev /dev/shm /proc /code /python /python/bin /home"
    answer = said(
        shell, f"for d in {places}; do touch $d/x 2>/dev/null && echo $d; done; touch /tmp/x ~/x && echo fine"
    )
    assert answer == "fine\n"


def test_the_hosts_files_environment_and_network_cannot_be_reached(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TURNWISE_TEST_SECRET", "swordfish")
    (tmp_path / "secret").write_text("swordfish")
    places = f"{tmp_path}/secret /root /etc/shadow {Path(__file__)} {Path.cwd()}"
    assert said(shell, f"ls -d {places} 2>/dev/null; cat /proc/*/environ | tr '\\0' '\\n' | grep -c swordfish") == "0\n"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert shell.run(f"exec 3<>/dev/tcp/127.0.0.1/{port}", PATIENT).code != 0


def test_sixty_four_shells_at_once_do_not_disturb_each_other():
    answers: dict[int, list[str]] = {}

    def play(number: int) -> None:
        with World.open("echo start > file") as world:
            shell = world.shell()
            said(shell, f"echo {number} >> file; sleep 0.1")
            answers[number] = said(shell, "cat file").split()

    threads = [threading.Thread(target=play, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: ["start", str(number)] for number in range(64)}


def test_install_and_cp_keep_modes_although_attributes_are_refused(shell: Shell):
    command = "echo hello > a && install -m 640 a b && cp -a b c && stat -c %a b c"
    assert shell.run(command, PATIENT) == Output(text="640\n640\n", code=0)


def test_a_dead_shell_ends_alone(shell: Shell):
    with World.open("") as other:
        second = other.shell()
        assert second.run("kill -9 $$", PATIENT).ended
        assert said(shell, "echo fine") == "fine\n"
