"""Programs that are given by name run in a process of their own, and nothing they do there harms the run."""

import os
import threading
from pathlib import Path

import pytest

from tests.gateway.killed_trainer import assert_ends_with_its_starter
from tests.gateway.served_agent import Sayer, play, play_with
from turnwise.envs.faults import EpisodeError
from turnwise.gateway.program_host import HostedProgram
from turnwise.gateway.programs import Address
from turnwise.types import StopReason

pytest.importorskip("uvicorn", reason="needs a server: pip install 'turnwise[serve]'")

ROOT = Path(__file__).parents[2]
AGENT = """
import asyncio, os, signal, socket, ssl, stat, sys
from pathlib import Path
sys.path.append({root!r})
from tests.gateway.raw_client import chat

HERE = Path(__file__).parent

def tell_where(task, base_url, api_key):
    chat(base_url, api_key, f"process {{os.getpid()}}")
    return {{"reward": 0.5, "success": True, "parts": {{"a": 0.5}}, "scores": {{"b": 2.0}}}}

def fail(task, base_url, api_key):
    chat(base_url, api_key, "hello")
    raise ArithmeticError("out of paper")

def die(task, base_url, api_key):
    chat(base_url, api_key, "hello")
    if task["seed"] == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return 1.0

def babble(task, base_url, api_key):
    chat(base_url, api_key, "hello")
    for descriptor in range(3, 64):
        if os.path.exists(f"/dev/fd/{{descriptor}}") and stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            socket.socket(fileno=os.dup(descriptor)).sendall((2).to_bytes(4, "big") + b"no")
    return 1.0

async def hang(task, base_url, api_key):
    await asyncio.to_thread(chat, base_url, api_key, "hello")
    try:
        await asyncio.sleep(600)
    finally:
        (HERE / "cancelled").write_text("yes")

def too_much(task, base_url, api_key):
    chat(base_url, api_key, "hello")
    return {{"reward": 1.0, "scores": "x" * 2**25}}

def make_client(task, base_url, api_key):
    chat(base_url, api_key, "hello")
    (HERE / "certificates").write_text("none")
    ssl.create_default_context(cafile=HERE / "certificates")  # what clients do; raises where it reads them
    return 1.0

def hold(task, base_url, api_key):
    end = os.open(HERE / "held", os.O_WRONLY)
    print("started")  # seen at once, though this goes to a pipe
    os.read(os.pipe()[0], 1)
"""
NOWHERE = Address(origin="http://127.0.0.1:1", api_key="none")


@pytest.fixture
def agent(tmp_path):
    file = tmp_path / "my_agent.py"
    file.write_text(AGENT.format(root=str(ROOT)))
    return file


def test_it_runs_in_another_process_which_all_programs_share(agent):
    first, second = play_with(Sayer(["yes"]), f"{agent}:tell_where", seeds=range(2))
    assert first.turns[0].observation == second.turns[0].observation != f"process {os.getpid()}"
    assert (first.reward, first.success, first.stop) == (0.5, True, StopReason.DONE)
    assert first.info["reward_parts"] == {"a": 0.5}
    assert first.info["scores"] == {"b": 2.0}


def test_a_file_is_found_from_the_folder_of_the_trainer(agent, monkeypatch):
    play(f"{agent}:tell_where")  # the process is there, in another folder
    monkeypatch.chdir(agent.parent)
    assert play("my_agent.py:tell_where").reward == 0.5


def test_what_it_raises_is_told_with_its_place(agent):
    failed = play(f"{agent}:fail")
    assert failed.stop is StopReason.ENV_ERROR
    assert failed.info["error"].startswith("the program raised ArithmeticError: out of paper (my_agent.py:")
    assert play(f"{agent}:fail", crash_reward=-1.0).reward == -1.0


def test_its_death_ends_only_the_episodes_that_it_plays(agent):
    (dead,) = play_with(Sayer(["yes"]), f"{agent}:die", seeds=[1])
    assert dead.stop is StopReason.ENV_ERROR
    assert "the process in which all programs run has ended (exit status -9)" in dead.info["error"]
    assert play(f"{agent}:die").reward == 1.0  # in a new process


def test_a_program_that_writes_in_its_place_ends_its_episodes_and_no_run(agent):
    assert "the process in which all programs run has ended" in play(f"{agent}:babble").info["error"]
    assert play(f"{agent}:tell_where").reward == 0.5


def test_a_coroutine_is_cancelled_at_the_end_of_its_episode(agent):
    pipe = agent.parent / "cancelled"
    os.mkfifo(pipe)
    heard = list[str]()
    reader = threading.Thread(target=lambda: heard.append(pipe.read_text()), daemon=True)
    reader.start()
    assert play(f"{agent}:hang", patience=1.0).stop is StopReason.TIMEOUT
    reader.join(60)
    assert heard == ["yes"]


def test_what_is_too_long_to_send_is_said(agent):
    assert "what the program returned cannot be sent" in play(f"{agent}:too_much").info["error"]


def test_a_task_that_cannot_be_sent_is_refused(agent):
    with pytest.raises(EpisodeError, match="cannot send this task"):
        HostedProgram(f"{agent}:fail", {"lock": threading.Lock()}, NOWHERE, print)


def test_making_a_client_there_reads_no_certificates(agent):
    assert play(f"{agent}:make_client").reward == 1.0


STARTER = """
import sys, time
from turnwise.gateway.program_host import HostedProgram
from turnwise.gateway.programs import Address
HostedProgram(sys.argv[1] + ":hold", {}, Address(origin="http://127.0.0.1:1", api_key="none"), print)
time.sleep(600)
"""


def test_it_ends_with_a_trainer_that_is_killed(agent):
    assert_ends_with_its_starter(STARTER, str(agent), held=agent.parent / "held")
