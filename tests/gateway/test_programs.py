"""Programs of any kind and any behaviour: whatever happens ends only their own episode."""

import asyncio
import contextlib
import gc
import json
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.gateway.killed_trainer import assert_ends_with_its_starter
from tests.gateway.raw_client import chat
from tests.gateway.served_agent import Sayer, play, play_with
from turnwise.envs import make
from turnwise.envs.faults import EpisodeError
from turnwise.gateway.programs import ProgramOutcome
from turnwise.types import StopReason

pytest.importorskip("uvicorn", reason="needs a server: pip install 'turnwise[serve]'")

SCRIPT = """
import json, os, subprocess, sys
sys.path.insert(0, {root!r})
from tests.gateway.raw_client import chat
task = json.loads(os.environ["TURNWISE_TASK"])
said = chat(os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"], "task " + str(task["seed"]))
print("some words before")
{then}
"""

AFTER_THE_LIMIT = """
try:
    chat(os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"], "one call too many")
finally:
    child.wait()
"""


def command(tmp_path: Path, then: str) -> list[str]:
    file = tmp_path / "agent.py"
    file.write_text(SCRIPT.format(root=str(Path(__file__).parents[2]), then=then))
    return [sys.executable, str(file)]


def failure(program, *, stop=StopReason.ENV_ERROR, **settings):
    trajectory = play(program, **settings)
    assert (trajectory.stop, trajectory.reward) == (stop, 0.0)
    return trajectory.info["error"]


def gone(pid: int) -> bool:
    """Whether a process has ended, within a generous time; one that only waits to be reaped has."""
    for _ in range(600):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state in "ZX":
            return True
        time.sleep(0.1)
    return False


def test_an_async_function_is_a_program():
    async def run(task, base_url, api_key):
        said = await asyncio.gather(*(asyncio.to_thread(chat, base_url, api_key, f"{n}") for n in range(3)))
        return float(said == ["yes"] * 3)

    trajectory = play(run)
    assert (len(trajectory.turns), trajectory.reward) == (3, 1.0)


def test_a_program_that_raises_fails_with_its_words_or_earns_the_reward_of_a_crash():
    def run(task, base_url, api_key):
        chat(base_url, api_key, "hello")
        raise ArithmeticError("out of paper")

    assert "the program raised ArithmeticError: out of paper" in failure(run)
    trajectory = play(run, crash_reward=-1.0)
    assert (trajectory.stop, trajectory.reward, trajectory.success) == (StopReason.DONE, -1.0, False)
    assert "out of paper" in trajectory.info["crash"]


def test_a_program_that_exits_does_not_take_the_run_with_it():
    def run(task, base_url, api_key):
        chat(base_url, api_key, "hello")
        sys.exit(3)

    assert "SystemExit" in failure(run)


def test_a_program_that_hangs_has_used_up_its_patience_and_others_go_on():
    let_go = threading.Event()

    def run(task, base_url, api_key):
        chat(base_url, api_key, "hello")
        if task["seed"] == 1:
            let_go.wait(60)
        return 1.0

    try:
        trajectories = play_with(Sayer(["yes"]), run, seeds=range(3), patience=1.5)
    finally:
        let_go.set()
    stops = [trajectory.stop for trajectory in trajectories]
    assert stops == [StopReason.DONE, StopReason.TIMEOUT, StopReason.DONE]
    assert "neither called the model nor ended within 1.5 s" in trajectories[1].info["error"]


def test_a_coroutine_that_hangs_is_cancelled():
    cancelled = threading.Event()

    async def run(task, base_url, api_key):
        await asyncio.to_thread(chat, base_url, api_key, "hello")
        try:
            await asyncio.sleep(600)
        finally:
            cancelled.set()

    failure(run, stop=StopReason.TIMEOUT, patience=1.0)
    assert cancelled.wait(60)


def test_a_program_that_never_calls_is_told_what_to_look_at():
    assert "is its client's base_url the given one?" in failure(lambda task, base_url, api_key: 1.0)


def test_parts_add_up_to_the_reward():
    said = {"reward": 1.0, "parts": {"right": 0.6667, "format": 0.3333}}
    assert ProgramOutcome.of(said).parts == said["parts"]
    with pytest.raises(EpisodeError, match="parts add up to 2, and its reward is 1; return parts that add up"):
        ProgramOutcome.of({"reward": 1, "parts": {"right": 1, "format": 1}})


@pytest.mark.parametrize("value", [None, "high", {"reward": "1"}, {"parts": {}}, {"reward": 1, "parts": [1]}])
def test_an_outcome_that_is_no_reward_is_refused_with_the_fix(value):
    def run(task, base_url, api_key):
        chat(base_url, api_key, "hello")
        return value

    assert "return the reward as a number" in failure(run)


def test_nothing_that_is_not_finite_is_a_reward():
    def run(task, base_url, api_key):
        chat(base_url, api_key, "hello")
        return float("nan")

    assert "reward" in failure(run)


def test_a_program_that_leaves_calls_behind_ends_with_its_own_word():
    def run(task, base_url, api_key):
        chat(base_url, api_key, "hello")
        threading.Thread(target=_quietly, args=(base_url, api_key), daemon=True).start()
        time.sleep(0.2)
        return 0.75

    assert play(run).reward == 0.75


def _quietly(base_url, api_key):
    with contextlib.suppress(RuntimeError, OSError):
        chat(base_url, api_key, "anybody there ?")


def test_a_command_line_is_a_program_and_its_last_line_is_the_reward(tmp_path):
    words = command(tmp_path, 'print(json.dumps({"reward": 0.5, "success": said == "yes"}))')
    trajectory = play("", command=words)
    assert (trajectory.stop, trajectory.reward, trajectory.success) == (StopReason.DONE, 0.5, True)
    assert trajectory.turns[0].observation == "task 0"


def test_a_command_that_fails_shows_its_last_words(tmp_path):
    error = failure("", command=command(tmp_path, 'sys.exit("no paper left")'))
    assert "ended with status 1: no paper left" in error
    assert "cannot start" in failure("", command="no-such-program-anywhere --now")
    assert "return the reward as a number" in failure("", command=command(tmp_path, ""))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to see whether a process has ended")
@pytest.mark.parametrize("ends", [True, False], ids=["ends", "hangs"])
def test_a_command_is_killed_with_its_children_at_the_end(tmp_path, ends):
    place = tmp_path / "pids"
    then = (
        'child = subprocess.Popen(["sleep", "600"])\n'
        f"open({str(place)!r}, 'w').write(json.dumps([os.getpid(), child.pid]))\n"
        + ("print(1.0, flush=True)" if ends else AFTER_THE_LIMIT)
    )
    trajectory = play("", command=command(tmp_path, then), turns=1)
    assert trajectory.stop is (StopReason.DONE if ends else StopReason.MAX_TURNS)
    own, child = json.loads(place.read_text())
    assert gone(own)
    assert gone(child)


def test_tasks_are_the_rows_of_a_file(tmp_path):
    rows = tmp_path / "tasks.jsonl"
    rows.write_text("".join(json.dumps({"question": f"number {n} ?"}) + "\n" for n in range(20)))
    seen = list[str]()

    def run(task, base_url, api_key):
        seen.append(task["question"])
        chat(base_url, api_key, task["question"])
        return 1.0

    env = make("agent-run", program=run, tasks=str(rows))
    listed = env.list_tasks()
    assert listed is not None
    assert len(listed) == 18
    trajectories = play_with(Sayer(["yes"]), run, seeds=range(4), tasks=str(rows))
    assert {turn.observation for trajectory in trajectories for turn in trajectory.turns} == set(seen)
    assert set(seen) <= {row["question"] for row in listed}


def test_one_of_program_and_command_is_needed():
    for settings in ({}, {"program": chat, "command": "ls"}):
        with pytest.raises(ValueError, match="and not both"):
            make("agent-run", **settings)


def test_the_variables_of_a_command_keep_those_of_the_user(tmp_path, monkeypatch):
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("no_proxy", "example.org")
    monkeypatch.setenv("MINE", "kept")
    then = (
        'direct = {os.environ["NO_PROXY"], os.environ["no_proxy"]}\n'
        'print(float(os.environ["MINE"] == "kept" and direct == {"127.0.0.1,example.org"}))'
    )
    assert play("", command=command(tmp_path, then)).reward == 1.0
    assert "TURNWISE_TASK" not in os.environ


STARTER = """
import sys, time
from turnwise.gateway.programs import Address, RunningCommand
address = Address(origin="http://127.0.0.1:1", api_key="none")
for number in range(2):
    RunningCommand(["sh", "-c", "exec 3> " + sys.argv[1] + "; sleep 600 & sleep 600"], {}, address, print)
RunningCommand("true", {}, address, lambda ended: print("started", flush=True))
time.sleep(600)
"""


def test_a_command_ends_with_a_trainer_that_is_killed(tmp_path):
    held = tmp_path / "held"
    assert_ends_with_its_starter(STARTER, str(held), held=held)


def test_clients_that_async_programs_leave_open_fill_no_screen(caplog):
    async def close_in_vain():
        raise RuntimeError("Event loop is closed")

    async def fail_in_the_background():
        raise ArithmeticError("of the program's own")

    async def run(task, base_url, api_key):
        await asyncio.to_thread(chat, base_url, api_key, "hello")
        for left in (close_in_vain(), fail_in_the_background()):
            abandoned = asyncio.ensure_future(left)
            await asyncio.wait([abandoned])
        return 1.0

    assert play(run).reward == 1.0
    gc.collect()
    told = [str(record.exc_info[1]) for record in caplog.records if record.name == "asyncio" and record.exc_info]
    assert told == ["of the program's own"]
