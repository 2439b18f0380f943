"""Programs that try to get out of the sandbox, or to take the machine with them."""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sandboxes import needs_bubblewrap
from turnwise.tools import sandbox
from turnwise.tools.python import python_tool
from turnwise.tools.sandbox import Execution, SandboxLimits, check_sandbox, run_python, run_python_sync

pytestmark = needs_bubblewrap


def run(code: str, limits: SandboxLimits | None = None) -> Execution:
    return run_python_sync(textwrap.dedent(code), limits)


def host_commands() -> list[str]:
    """Command lines of all processes the host can see."""
    commands: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            commands.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return commands


def test_a_program_prints_and_ends_with_code_zero():
    expected = Execution(stdout="4\n", stderr="", exit_code=0, timed_out=False, output_full=False)
    assert run("print(2 + 2)") == expected


def test_programs_run_where_an_event_loop_runs():
    async def in_a_notebook() -> Execution:
        return run("print(3)")

    assert asyncio.run(in_a_notebook()).stdout == "3\n"


def test_a_failing_program_shows_its_traceback_and_exit_code():
    execution = run("1 / 0")
    assert (execution.exit_code, execution.ok) == (1, False)
    assert execution.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert run("import sys; sys.exit(7)").exit_code == 7


def test_the_interpreter_is_the_one_we_run():
    assert run("import sys; print(sys.version)").stdout == sys.version + "\n"


def test_the_sandbox_adds_little_to_the_start_of_an_interpreter():
    def seconds(start: Callable[[], object]) -> float:
        begin = time.perf_counter()
        start()
        return time.perf_counter() - begin

    bare, confined = math.inf, math.inf
    for _ in range(40):  # in turn, and until both have had a quiet moment: other work may fill the cores
        bare = min(bare, seconds(lambda: subprocess.run([sys.executable, "-I", "-S", "-c", "1"], capture_output=True)))
        confined = min(confined, seconds(lambda: run("print(1)")))
        if confined < 6 * bare:
            return
    pytest.fail(f"{confined:.3f} s in the sandbox, {bare:.3f} s outside")


def test_a_listener_on_the_host_cannot_be_reached():
    name = f"\0turnwise-{secrets.token_hex(8)}"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(name)
        unix.listen()
        tcp.settimeout(0.1)
        execution = run(f"""
            import socket
            pair = socket.socketpair(type=socket.SOCK_DGRAM)[0]
            attempts = [
                lambda: socket.create_connection({tcp.getsockname()!r}),
                lambda: socket.socket(socket.AF_UNIX).connect({name!r}),
                lambda: pair.connect({name!r}),
            ]
            for attempt in attempts:
                try:
                    attempt()
                    print("reached")
                except OSError as error:
                    print("stopped")
            print([line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line])
        """)
        with pytest.raises(TimeoutError):
            tcp.accept()
    assert execution.stdout == "stopped\nstopped\nstopped\n['lo']\n"


def test_nothing_outside_the_private_temp_folder_can_be_written(tmp_path: Path):
    places = ["/x", "/usr/x", "/etc/x", "/dev/x", "/dev/shm/x", "/code/x", "/python/x", "/proc/sys/kernel/hostname"]
    execution = run(f"""
        for place in {[*places, str(tmp_path / "x"), "/code/main.py"]!r}:
            try:
                open(place, "w").write("x")
                print("written", place)
            except OSError:
                pass
        open("/tmp/mine", "w").write("x")
        print(open("/tmp/mine").read())
    """)
    assert execution.stdout == "x\n"
    assert not (tmp_path / "x").exists()
    assert run("import os; print(os.listdir('/tmp'))").stdout == "[]\n"


def test_the_parents_environment_cannot_be_read(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TURNWISE_TEST_SECRET", "swordfish")
    execution = run("""
        import glob, os
        print(dict(os.environ))
        for path in glob.glob("/proc/*/environ"):
            print(open(path, "rb").read())
    """)
    assert execution.ok
    assert "swordfish" not in execution.stdout
    assert execution.stdout.count("\n") >= 3


def test_home_and_working_folder_cannot_be_read():
    with tempfile.NamedTemporaryFile(dir=Path.home(), suffix=".secret") as secret:
        paths = [
            secret.name,
            str(Path.home()),
            "/root",
            "/home",
            str(Path.cwd()),
            __file__,
            "/etc/passwd",
            "/etc/shadow",
        ]
        execution = run(f"""
            import os
            for path in {paths!r}:
                print(os.path.exists(path), os.path.exists("/proc/1/root" + path))
        """)
    assert execution.stdout == "False False\n" * len(paths)


def test_the_number_of_processes_is_bounded():
    execution = run("""
        import os, time
        count = 0
        try:
            while count < 200:
                if os.fork() == 0:
                    time.sleep(5)
                    os._exit(0)
                count += 1
        except BlockingIOError:
            print(count)
    """)
    # Two of the sixteen are the program itself and the namespace's first process.
    assert execution.stdout == "14\n"


def test_two_runs_at_once_do_not_share_the_process_limit():
    code = textwrap.dedent("""
        import os, time
        for _ in range(10):
            if os.fork() == 0:
                time.sleep(0.3)
                os._exit(0)
        print("ok")
    """)

    async def both() -> list[Execution]:
        return await asyncio.gather(*(run_python(code) for _ in range(4)))

    assert [execution.stdout for execution in asyncio.run(both())] == ["ok\n"] * 4


def test_a_fork_bomb_is_gone_after_its_deadline():
    # The namespace's first process shows its limits in its command line: a number of our own finds it again.
    limits = SandboxLimits(wall_seconds=0.7, file_bytes=10**6 + secrets.randbelow(10**6))
    begin = time.perf_counter()
    execution = run(
        """
        import os
        while True:
            try:
                os.fork()
            except OSError:
                pass
        """,
        limits,
    )
    assert execution.timed_out
    assert time.perf_counter() - begin < 20
    time.sleep(0.05)
    assert not any(f"--fsize={limits.file_bytes} " in command for command in host_commands())


@pytest.mark.parametrize("code", ["x = bytearray(10**9)", "x = []\nwhile True: x.append(bytearray(10**6))"])
def test_a_memory_bomb_gets_a_memory_error(code: str):
    execution = run(code)
    assert execution.exit_code == 1
    assert "MemoryError" in execution.stderr


def test_the_temp_folder_and_its_files_have_a_size_limit():
    full = run("for i in range(9): open(f'/tmp/{i}', 'wb').write(bytes(2**21))", SandboxLimits(temp_bytes=2**23))
    assert "No space left on device" in full.stderr
    large = run("open('/tmp/x', 'wb').write(bytes(2**21))", SandboxLimits(file_bytes=2**20))
    assert "File too large" in large.stderr


def test_endless_output_is_cut_and_the_program_ended():
    execution = run("while True: print('x' * 999)", SandboxLimits(output_bytes=5000))
    assert (len(execution.stdout), execution.output_full, execution.timed_out) == (5000, True, False)
    assert run("import sys\nwhile True: sys.stderr.write('x')", SandboxLimits(output_bytes=5000)).output_full


def test_output_of_exactly_the_limit_is_whole():
    execution = run("print('x' * 4999)", SandboxLimits(output_bytes=5000))
    assert (len(execution.stdout), execution.output_full, execution.exit_code) == (5000, False, 0)


def test_a_sleeper_is_ended_at_its_deadline_and_its_output_kept():
    begin = time.perf_counter()
    execution = run("import time\nprint('early', flush=True)\ntime.sleep(60)", SandboxLimits(wall_seconds=3.0))
    assert 3 <= time.perf_counter() - begin < 20
    assert (execution.stdout, execution.timed_out, execution.exit_code) == ("early\n", True, None)


def test_a_busy_loop_is_ended_by_its_processor_time():
    execution = run("while True: pass", SandboxLimits(cpu_seconds=1, wall_seconds=20))
    assert (execution.timed_out, execution.exit_code) == (False, 128 + 9)


@pytest.mark.parametrize("ending", ["", "time.sleep(60)"])
def test_no_process_is_left_behind(ending: str):
    number = str(10**6 + secrets.randbelow(10**9))
    execution = run(
        f"""
        import os, time
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                for descriptor in range(3):
                    os.close(descriptor)
                os.execv("/usr/bin/sleep", ["sleep", "{number}"])
            os._exit(0)
        os.wait()
        for _ in range(100):
            commands = [open(f"/proc/{{p}}/cmdline").read() for p in os.listdir("/proc") if p.isdigit()]
            if any("{number}" in command and command.startswith("sleep") for command in commands):
                print("started", flush=True)
                break
            time.sleep(0.01)
        {ending}
        """,
        SandboxLimits(wall_seconds=2.5),
    )
    assert execution.stdout == "started\n"
    time.sleep(0.05)
    assert not any(number in command for command in host_commands())


def test_cancelling_a_run_ends_its_processes():
    number = str(10**6 + secrets.randbelow(10**9))

    async def cancelled() -> None:
        task = asyncio.create_task(run_python(f"import os; os.execv('/usr/bin/sleep', ['sleep', '{number}'])"))
        while not any(command.startswith(f"sleep {number}") for command in host_commands()):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(cancelled(), timeout=10))
    time.sleep(0.05)
    assert not any(number in command for command in host_commands())


def test_our_own_code_cannot_be_seen_where_it_is_installed_for_everyone(monkeypatch: pytest.MonkeyPatch):
    find = "import os\nplace = os.path.join(os.path.dirname(os.__file__), 'wsgiref')\n"
    assert "handlers.py" in run(f"{find}print(os.listdir(place))").stdout
    monkeypatch.setattr(sandbox, "_OWN_CODE", Path(os.__file__).resolve().parent / "wsgiref")
    assert run(f"{find}print(os.listdir(place))").stdout == "[]\n"
    assert "Read-only file system" in run(f"{find}open(place + '/x', 'w')").stderr


def test_a_package_of_debians_own_python_is_hidden_in_both_places(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    package = "local/lib/python3.12/dist-packages/turnwise"
    assert sandbox._places_of(Path("/usr").resolve() / package) == [f"/usr/{package}", f"/python/{package}"]


def test_host_processes_can_be_neither_seen_nor_killed():
    with subprocess.Popen(["sleep", "60"]) as victim:
        execution = run(f"""
            import os
            for process in ({victim.pid}, {os.getpid()}):
                try:
                    os.kill(process, 9)
                    print("killed")
                except ProcessLookupError:
                    print("unseen")
            print(sum(name.isdigit() for name in os.listdir("/proc")))
            os.kill(-1, 9)
        """)
        assert victim.poll() is None
        victim.terminate()
    assert execution.stdout == "unseen\nunseen\n2\n"


def test_privileges_and_new_namespaces_are_out_of_reach():
    execution = run("""
        import ctypes, os
        status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines())
        print(os.getuid(), status["CapEff"], status["CapBnd"], status["NoNewPrivs"])
        print(ctypes.CDLL(None).unshare(0x10000000))
    """)
    assert execution.stdout == f"65534 {'0' * 16} {'0' * 16} 1\n-1\n"


def test_memory_that_no_limit_counts_cannot_be_had():
    execution = run("""
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        print(libc.shmget(0, 2**30, 0o1600), ctypes.get_errno(), libc.msgget(0, 0o1600))
        try:
            os.memfd_create("hidden")
        except PermissionError:
            print("stopped")
        print(libc.syscall(0x40000000 + 39), ctypes.get_errno())
    """)
    assert execution.stdout == "-1 1 -1\nstopped\n-1 1\n"


def test_files_cannot_carry_attributes_which_no_limit_counts():
    execution = run("""
        import errno, os
        open("/tmp/file", "w").close()
        folder = os.open("/tmp", os.O_RDONLY)
        access_list = b"\\2\\0\\0\\0"
        for place in ("/tmp/file", "/tmp", folder):
            for name, value in (("user.a", b"x" * 60_000), ("system.posix_acl_access", access_list)):
                try:
                    os.setxattr(place, name, value)
                    print("set")
                except OSError as error:
                    print("stopped" if error.errno in (errno.EPERM, errno.ENOTSUP) else error)
        try:
            os.setxattr("/tmp/file", "user.a", b"x", follow_symlinks=False)
        except OSError as error:
            print("stopped" if error.errno in (errno.EPERM, errno.ENOTSUP) else error)
    """)
    assert execution.stdout == "stopped\n" * 7


@pytest.mark.parametrize(
    "make",
    [
        "open(f'/tmp/{count:0200d}', 'w').close()",
        "os.mkdir(f'/tmp/{count:0200d}')",
        "os.symlink('x' * 100, f'/tmp/{count:0200d}')",
        "os.link('/tmp/first', f'/tmp/{count:0200d}')",
        "os.mkfifo(f'/tmp/{count:0200d}')",
    ],
    ids=["files", "folders", "symbolic links", "hard links", "named pipes"],
)
def test_whatever_a_program_makes_in_its_temp_folder_is_counted(make: str):
    execution = run(
        f"""
        import os
        open("/tmp/first", "w").close()
        count = 0
        try:
            while count < 1000:
                {make}
                count += 1
        except OSError as error:
            print(count, error.strerror)
        """,
        SandboxLimits(temp_files=100),
    )
    # One is the folder itself, another the first file.
    assert execution.stdout == "98 No space left on device\n"


def test_no_socket_can_be_made_but_a_pair_within_the_sandbox():
    execution = run("""
        import itertools, socket
        made = set()
        for make, family, kind, protocol in itertools.product(
            (socket.socket, socket.socketpair), range(64), (*range(1, 7), 10), (0, 1, 16)
        ):
            try:
                made.add((make.__name__, make(family, kind, protocol) and family))
            except OSError:
                pass
        print(made)
    """)
    assert execution.stdout == "{('socketpair', 1)}\n"


def test_what_the_kernel_would_keep_outside_every_limit_is_refused():
    execution = run("""
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        names = "inotify_init inotify_init1 fanotify_init splice tee vmsplice ptrace socket".split()
        landlock, setxattrat, io_uring, secret = 444, 463, 425, 447
        for name in names:
            print(name, getattr(libc, name)(-1, -1, -1, -1), ctypes.get_errno())
        for number in (landlock, setxattrat, io_uring, secret):
            print(number, libc.syscall(number, -1, -1, -1, -1), ctypes.get_errno())
        print("mq_open", libc.mq_open(b"/queue", 0o102, 0o600, None), ctypes.get_errno())
        timer, count = ctypes.c_void_p(), 0
        while count < 1000 and libc.timer_create(0, None, ctypes.byref(timer)) == 0:
            count += 1
        print(count)
    """)
    *refused, timers = execution.stdout.splitlines()
    answers = {name: answer for name, _, answer in (line.partition(" ") for line in refused)}
    assert answers.pop("463") == "-1 95"  # attributes: "not supported"
    assert [*answers.values()] == ["-1 1"] * 12
    assert int(timers) <= 64


def test_ordinary_programs_work_within_what_is_forbidden():
    execution = run("""
        import asyncio, os, shutil, sqlite3, subprocess, tempfile, threading

        async def wake():
            loop = asyncio.get_running_loop()
            print(await loop.run_in_executor(None, lambda: "thread"))
            process = await asyncio.create_subprocess_exec("/bin/echo", "child", stdout=subprocess.PIPE)
            print((await process.communicate())[0].decode().strip())

        asyncio.run(wake())
        with tempfile.TemporaryDirectory() as folder:
            open(f"{folder}/a", "w").write("copied")
            shutil.copy2(f"{folder}/a", f"{folder}/b")
            print(open(f"{folder}/b").read())
            database = sqlite3.connect(f"{folder}/data")
            with database:
                database.execute("create table numbers (n)")
                database.execute("insert into numbers values (7)")
            print(database.execute("select n from numbers").fetchone()[0])
        print(subprocess.run(["/bin/sh", "-c", "echo a | tr a b"], capture_output=True, text=True).stdout.strip())
    """)
    assert (execution.stdout, execution.stderr) == ("thread\nchild\ncopied\n7\nb\n", "")


def test_an_ordinary_user_gets_the_same_sandbox_as_root():
    if os.geteuid() != 0:
        pytest.skip("needs root, who alone can become another user; everybody else runs this whole file as one")
    program = (
        "from turnwise.tools.sandbox import SandboxLimits, run_python_sync\n"
        'code = \'import os; print(os.getuid(), os.statvfs("/tmp").f_files, os.listdir("/tmp"))\'\n'
        "print(run_python_sync(code, SandboxLimits(temp_files=300)))"
    )
    as_nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", sys.executable]
    if subprocess.run([*as_nobody, "-c", "import turnwise"], capture_output=True, cwd="/").returncode != 0:
        pytest.skip("nobody may not read this interpreter or this package")
    done = subprocess.run([*as_nobody, "-c", program], capture_output=True, text=True, cwd="/")
    assert "stdout='65534 300 []\\n', stderr='', exit_code=0" in done.stdout, done.stderr


def test_hostile_source_text_gives_a_result():
    for code in ("\0", "\ud800", "x" * 10**6, "(" * 10**5, "# -*- coding: none -*-"):
        assert not run(code).ok
    assert run("import os; os.write(1, b'\\xff\\xfe ok')").stdout == "\ufffd\ufffd ok"


def test_a_missing_bubblewrap_is_refused_with_the_way_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    check_sandbox.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    for refused in (python_tool, lambda: run("open('/tmp/turnwise-unprotected', 'w')")):
        with pytest.raises(ValueError, match="apt install bubblewrap"):
            refused()
    assert not Path("/tmp/turnwise-unprotected").exists()


def test_a_machine_that_forbids_namespaces_is_refused_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    check_sandbox.cache_clear()
    forbidding = tmp_path / "bwrap"
    forbidding.write_text("#!/bin/sh\necho 'No permissions to create new namespace' >&2\nexit 1\n")
    forbidding.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ValueError, match=r"No permissions .* allow unprivileged user namespaces"):
        python_tool()


def test_limits_must_be_positive():
    with pytest.raises(ValueError, match="wall_seconds must be above zero"):
        SandboxLimits(wall_seconds=0)
