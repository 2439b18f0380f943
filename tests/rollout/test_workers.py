"""Where environments run: threads that are never waited for, processes that import nothing but the environment."""

import asyncio
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from operator import attrgetter, methodcaller
from pathlib import Path
from typing import Any

import pytest

from tests.envs.broken import Sound
from tests.rollout.faulty import AsyncWalk, Bad, ProcessWalk, ThreadBad, ThreadWalk, Walk
from turnwise.envs import process, register, registry, specs
from turnwise.envs.alarm import alarm
from turnwise.envs.faults import EpisodeError, read_reset, read_step
from turnwise.envs.process import EnvSource, WorkerProcess
from turnwise.envs.workers import Lane, Workers
from turnwise.envs.wrappers import TurnLimit

SECONDS = 10.0


def imported_modules(_env):
    return sorted(sys.modules)


def thread_and_process(_env):
    return threading.current_thread().name, os.getpid()


def ask(env, job, *, kwargs=None, **options):
    """`job(env)` on a host of its own."""

    async def run():
        workers = Workers(**options)
        host = await workers.open(EnvSource(env=env, kwargs=kwargs or {}), deadline=SECONDS)
        try:
            return await host.call(job, deadline=SECONDS)
        finally:
            await host.close(deadline=SECONDS)
            workers.close()

    return asyncio.run(run())


def test_worker_processes_do_not_import_torch():
    modules = ask(Sound, imported_modules, execution="process")
    assert "tests.envs.broken" in modules
    assert "torch" not in modules


def test_environments_run_where_they_ask_to():
    main = threading.main_thread().name
    assert ask(Walk, thread_and_process) == (main, os.getpid())
    assert ask(ThreadWalk, thread_and_process) == ("turnwise-env", os.getpid())
    thread, process = ask(ProcessWalk, thread_and_process)
    assert thread == main
    assert process != os.getpid()


def test_a_factory_is_asked_by_building_one():
    assert ask(wrapped_thread_walk, thread_and_process)[0] == "turnwise-env"
    assert ask(wrapped_process_walk, thread_and_process)[1] != os.getpid()


def wrapped_thread_walk():
    return TurnLimit(ThreadWalk(), max_turns=2)


def wrapped_process_walk():
    return TurnLimit(ProcessWalk(), max_turns=2)


def test_asynchronous_environments_work_in_processes_too():
    assert ask(AsyncWalk, methodcaller("reset", seed=1), execution="process") == Walk().reset(seed=1)


def test_ids_registered_by_the_program_itself_are_known_in_the_worker(monkeypatch):
    specs()
    monkeypatch.setattr(registry, "_SPECS", dict(registry._SPECS))  # forgotten after the test
    register("test/process-walk", ProcessWalk, kwargs={"length": 5})
    assert ask("test/process-walk", attrgetter("length")) == 5


def test_a_worker_takes_every_registration_that_it_knows_already():
    for spec in specs():
        assert isinstance(process._build(spec, EnvSource(env=Sound)), Sound)


def test_a_worker_serves_one_episode_after_the_other_with_new_instances():
    worker = WorkerProcess()
    try:
        for _ in range(2):
            worker.build(EnvSource(env=Sound))
            assert worker.run(methodcaller("reset", seed=4)) == Sound().reset(seed=4)
            worker.run(methodcaller("step", "x"))
            assert worker.run(attrgetter("turn")) == 1
    finally:
        worker.stop()
    assert not worker.alive


def test_a_worker_killed_from_outside_is_reported_and_its_waiting_caller_released():
    worker = WorkerProcess()
    worker.build(EnvSource(env=Sound))
    threading.Timer(0.2, os.kill, (worker.pid, signal.SIGKILL)).start()
    with pytest.raises(EpisodeError, match=r"process died \(exit status -9\)"):
        worker.run(sleep_long)
    assert not worker.alive


def sleep_long(_env):
    time.sleep(30)


def test_killing_a_worker_takes_along_what_it_started():
    worker = WorkerProcess()
    worker.build(EnvSource(env=Sound))
    child = worker.run(start_sleeper)
    worker.kill()
    deadline = time.perf_counter() + 5
    while is_running(child):
        assert time.perf_counter() < deadline
        time.sleep(0.01)


def start_sleeper(_env):
    return subprocess.Popen(["sleep", "60"]).pid


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def test_workers_end_when_their_parent_is_killed():
    program = (
        "import time; from turnwise.envs.process import WorkerProcess; "
        "worker = WorkerProcess(); print(worker.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    deadline = time.perf_counter() + 10
    while is_running(pid):
        assert time.perf_counter() < deadline
        time.sleep(0.01)


def test_what_cannot_be_sent_to_a_process_is_explained():
    local = 3
    with pytest.raises(EpisodeError, match=r"cannot send this to a worker process .* use execution='thread'"):
        ask(lambda: Walk(length=local), attrgetter("length"), execution="process")


def test_what_a_worker_sends_is_never_unpickled(tmp_path):
    trap = tmp_path / "sprung"
    observation, _, _, _, info = ask(Trapped, methodcaller("step", str(trap)), execution="process")
    assert (observation, info) == ("safe", {"trap": "<Trap that unpickles to a file>", "scores": [0.5, 1.5]})
    assert not trap.exists()


class Trap:
    """Unpickling it writes a file."""

    def __init__(self, path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (Path(self.path),)

    def __repr__(self) -> str:
        return "<Trap that unpickles to a file>"


class Scores:
    """Numbers in an array of some library."""

    def tolist(self) -> list[float]:
        return [0.5, 1.5]


class Trapped(Sound):
    def step(self, action) -> Any:
        return "safe", 0.0, True, False, {"trap": Trap(action), "scores": Scores()}


def test_a_worker_that_sends_something_else_is_a_fault_of_the_environment(monkeypatch, tmp_path):
    trap = tmp_path / "sprung"
    worker = WorkerProcess()
    worker.build(EnvSource(env=Sound))
    monkeypatch.setattr(worker._connection, "recv_bytes", lambda _: pickle.dumps((Trap(trap), "", "")))
    try:
        with pytest.raises(EpisodeError, match="process sent something that is not an answer"):
            worker.run(attrgetter("turn"))
    finally:
        worker.stop()
    assert not trap.exists()


def test_an_answer_beyond_all_bounds_is_a_fault_and_the_worker_serves_on():
    worker = WorkerProcess()
    worker.build(EnvSource(env=Sound))
    try:
        with pytest.raises(EpisodeError, match=r"the answer takes 20,000,\d+ bytes, and a worker process may send 16,"):
            worker.run(twenty_megabytes)
        assert worker.run(attrgetter("seats")) == ("agent",)
    finally:
        worker.stop()


def twenty_megabytes(_env):
    return "x" * 20_000_000


@pytest.mark.parametrize("execution", ["inline", "thread", "process"])
def test_a_fault_keeps_the_stack_trace_of_the_environment(execution):
    with pytest.raises(EpisodeError, match="the tool fell over") as caught:
        ask(Bad, take_two_steps, kwargs={"how": "raise"}, execution=execution)
    assert "RuntimeError: the tool fell over" in caught.value.trace
    assert "in go_wrong" in caught.value.trace
    assert "faulty.py" in caught.value.trace


def take_two_steps(env):
    env.reset(seed=0)
    env.step("x")
    env.step("x")


def test_a_long_stack_trace_keeps_its_end():
    with pytest.raises(EpisodeError) as caught:
        ask(Sound, raise_at_length, execution="thread")
    assert len(caught.value.trace) < 10_000
    assert caught.value.trace.endswith("y" * 100 + "\n")
    assert len(str(caught.value)) < 2_000


def raise_at_length(_env):
    raise RuntimeError("y" * 1_000_000)


def test_no_process_is_left_after_closing():
    before = set(child_processes())
    ask(ProcessWalk, thread_and_process)
    assert set(child_processes()) - before == set()


def child_processes():
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def test_releasing_a_worker_never_waits_for_its_end(monkeypatch):
    def wait(*_):
        raise AssertionError("waited in the event loop")

    async def run():
        workers = Workers(execution="process")
        host = await workers.open(EnvSource(env=Sound), deadline=SECONDS)
        with pytest.raises(EpisodeError, match="no answer within"):
            await host.call(sleep_long, deadline=0.1)
        with monkeypatch.context() as patch:
            patch.setattr(subprocess.Popen, "wait", wait)
            host._release(False)
        workers.close()
        return workers.killed_processes

    before = set(child_processes())
    assert asyncio.run(run()) == 1
    assert set(child_processes()) - before == set()


def test_a_process_that_cannot_start_keeps_no_slot(monkeypatch):
    async def run():
        workers = Workers(processes=1, execution="process")
        with monkeypatch.context() as patch:
            patch.setattr("turnwise.envs.workers.WorkerProcess", no_process)
            with pytest.raises(EpisodeError, match="cannot start a worker process: OSError: no more processes"):
                await workers.open(EnvSource(env=Sound), deadline=SECONDS)
        host = await asyncio.wait_for(workers.open(EnvSource(env=Sound), deadline=SECONDS), SECONDS)
        await host.close(deadline=SECONDS)
        workers.close()

    asyncio.run(run())


def no_process():
    raise OSError("no more processes")


def test_shared_data_is_loaded_once_however_many_open_at_once():
    async def run():
        Loading.loads, Loading.loaded = 0, False
        workers = Workers()
        opening = [workers.open(EnvSource(env=Loading), deadline=SECONDS) for _ in range(20)]
        for host in await asyncio.gather(*opening):
            await host.close(deadline=SECONDS)

    asyncio.run(run())
    assert Loading.loads == 1


class Loading(ThreadWalk):
    """Loads something for all instances, without a lock of its own."""

    loads, loaded = 0, False

    def __init__(self) -> None:
        super().__init__()
        if not Loading.loaded:
            Loading.loads += 1
            time.sleep(0.05)
            Loading.loaded = True


def test_a_hung_thread_holds_up_neither_the_next_episode_nor_the_end_of_the_program():
    program = """
import asyncio
from tests.rollout.faulty import ThreadBad
from turnwise.envs.process import EnvSource
from turnwise.envs.workers import Workers

async def run():
    host = await Workers().open(EnvSource(env=ThreadBad, kwargs={"how": "hang"}), deadline=5)
    await host.reset(0, None, deadline=5)
    await host.step("x", deadline=5)
    try:
        await host.step("x", deadline=0.2)
    finally:
        await host.close(deadline=5)

asyncio.run(run())
"""
    root = Path(__file__).parents[2]
    started = time.perf_counter()
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=root)
    assert time.perf_counter() - started < 25  # it hangs for 30
    assert result.stderr.splitlines()[-1].endswith("EpisodeError: no answer within 0.2 s")


def test_as_many_event_loops_run_at_once_as_files_may_be_open():
    program = """
import asyncio, resource
from operator import methodcaller
from tests.rollout.faulty import AsyncWalk
from turnwise.envs.process import EnvSource
from turnwise.envs.workers import Workers

_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))

async def run():
    workers = Workers()
    hosts = [await workers.open(EnvSource(env=AsyncWalk), deadline=30) for _ in range(100)]
    resets = await asyncio.gather(*(host.reset(0, None, deadline=30) for host in hosts))
    for host in hosts:
        await host.close(deadline=30)
    print(len(resets))

asyncio.run(run())
"""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=root)
    assert (done.stdout, done.stderr) == ("100\n", "")


def test_control_c_during_a_step_is_the_users_and_ends_the_program():
    program = """
import asyncio, signal, time
from tests.rollout.faulty import Walk
from turnwise.envs.process import EnvSource
from turnwise.envs.workers import Workers

class Busy(Walk):
    def step(self, action):
        print("ready", flush=True)
        time.sleep(30)

async def run():
    host = await Workers(execution="inline").open(EnvSource(env=Busy), deadline=30)
    await host.step("x", deadline=30)

signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored here, as in a background job
asyncio.run(run())
"""
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)  # asks the event loop to end
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)  # does not wait for the step
    _, errors = process.communicate(timeout=20)
    assert errors.splitlines()[-1] == "KeyboardInterrupt"


def test_random_actions_come_from_the_given_generator_and_leave_the_environment_alone():
    async def run(execution):
        workers = Workers(execution=execution)
        host = await workers.open(EnvSource(env=Walk), deadline=SECONDS)
        generator = random.Random(5)
        await host.reset(1, None, deadline=SECONDS)
        actions = [await host.random_action(generator, deadline=SECONDS) for _ in range(3)]
        observation = (await host.step("go", deadline=SECONDS))[0]
        await host.close(deadline=SECONDS)
        workers.close()
        return actions, observation

    generator, env = random.Random(5), Walk()
    expected = [f"go {generator.randrange(1000)}" for _ in range(3)]
    env.reset(seed=1)
    observation = env.step("go")[0]
    for execution in ("inline", "thread", "process"):
        assert asyncio.run(run(execution)) == (expected, observation)


def test_a_lane_runs_calls_in_order_and_ends_when_told():
    lane = Lane()
    futures = [lane.submit(lambda number=number: number * 2) for number in range(5)]
    assert [future.result(SECONDS) for future in futures] == [0, 2, 4, 6, 8]
    name = lane.submit(threading.current_thread).result(SECONDS)
    lane.stop()
    name.join(SECONDS)
    assert not name.is_alive()


def test_a_hung_host_is_counted_as_an_abandoned_thread():
    async def run():
        workers = Workers()
        host = await workers.open(EnvSource(env=ThreadBad, kwargs={"how": "hang"}), deadline=SECONDS)
        await host.reset(0, None, deadline=SECONDS)
        await host.step("x", deadline=SECONDS)
        with pytest.raises(EpisodeError) as caught:
            await host.step("x", deadline=0.1)
        await host.close(deadline=SECONDS)
        return caught.value.timed_out, workers.abandoned_threads

    assert asyncio.run(run()) == (True, 1)


def endless_work():
    while True:
        with suppress(Exception):
            sum(range(1000))


@pytest.mark.parametrize("work", [endless_work, lambda: time.sleep(30), lambda: threading.Event().wait(30)])
def test_an_alarm_interrupts_work_and_waiting(work):
    started = time.perf_counter()
    with pytest.raises(EpisodeError, match=r"no answer within 0.1 s") as caught, alarm(0.1):
        work()
    assert caught.value.timed_out
    assert time.perf_counter() - started < 20


def test_an_alarm_leaves_quick_work_and_the_alarms_of_others_alone():
    rung = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append("outer"))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with alarm(5):
            time.sleep(0.01)
        assert rung == []
        time.sleep(0.3)
        assert rung == ["outer"]
    finally:
        signal.signal(signal.SIGALRM, before)


def test_outside_the_main_thread_an_inline_environment_gets_a_thread_of_its_own():
    answers = []
    thread = threading.Thread(target=lambda: answers.append(ask(Walk, thread_and_process)))
    thread.start()
    thread.join()
    assert answers == [("turnwise-env", os.getpid())]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("text", "reset must return (observation, info), got str 'text'"),
        ((1, {}), "reset must return observation as a string, got int 1"),
        (("text", None), "reset must return info as a dict, got NoneType None"),
        (("text", {"seat": 3}), "reset must return info['seat'] as a string, got int 3"),
    ],
)
def test_a_malformed_reset_is_named(answer, message):
    with pytest.raises(EpisodeError) as caught:
        read_reset(answer)
    assert str(caught.value) == message


def test_numbers_and_flags_of_numpy_are_accepted_and_made_plain():
    numpy = pytest.importorskip("numpy")
    step = read_step(("text", numpy.float32(0.5), numpy.bool_(True), numpy.bool_(False), {}))
    assert step == ("text", 0.5, True, False, {})
    assert [type(part) for part in step] == [str, float, bool, bool, dict]
