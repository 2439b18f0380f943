"""Servers that a run starts: ready when it plays, gone when it ends, however it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.engine.local_servers import ROOT, eventually
from turnwise.engine.contract import EngineSetup, SamplingParams, ServerStart
from turnwise.engine.kinds import make_engines
from turnwise.keeper import keep
from turnwise.policy.text import TextPolicy

pytest.importorskip("uvicorn")
pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children(pid: int) -> list[int]:
    found = [int(child) for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()]
    return found + [grandchild for child in found for grandchild in children(child)]


def command(pid: int) -> list[str]:
    with suppress(OSError):  # it has just ended
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return []


def setup(folder: Path, notes: list[str], **start: Any) -> EngineSetup:
    policy = TextPolicy.load("pico", train=[])
    return EngineSetup(
        policy="policy",
        model_name="",
        model=policy.model,
        tokenizer=policy.tokenizer,
        capacity=64,
        memory_bytes=2**24,
        seed=0,
        folder=folder / "published",
        note=notes.append,
        start=ServerStart(**start),
    )


def test_what_the_keeper_started_dies_with_the_starter(tmp_path: Path) -> None:
    """A starter that is killed, and a command that ignores polite requests and has a child of its own."""
    stubborn = "trap '' TERM INT; sleep 1000 & echo started > $0; wait; wait"
    script = (
        "import sys, time; from turnwise.keeper import keep; "
        f"keep(['sh', '-c', {stubborn!r}, {str(tmp_path / 'started')!r}]); time.sleep(1000)"
    )
    code = f"import turnwise.keeper as k; k.GRACE = 0.2\n{script}"
    starter = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    eventually((tmp_path / "started").exists)
    below = children(starter.pid)
    assert len(below) >= 2
    starter.kill()
    starter.wait()
    eventually(lambda: not any(alive(pid) for pid in below))


def test_a_command_under_a_keeper_ends_with_its_own_code_or_by_a_signal() -> None:
    assert keep(["sh", "-c", "exit 3"]).wait(timeout=60) == 3
    process = keep(["sleep", "1000"])
    eventually(lambda: len(children(process.pid)) == 1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 128 + signal.SIGTERM


def test_servers_are_started_used_started_again_and_ended(tmp_path: Path) -> None:
    notes: list[str] = []
    engines = make_engines("turnwise", [setup(tmp_path, notes, env={"OMP_NUM_THREADS": "1"})], {})
    engine, params = engines["policy"], SamplingParams(max_tokens=4)
    try:
        below = children(os.getpid())
        (server,) = [
            pid for pid in below if (words := command(pid)) and "serve" in words and "turnwise.keeper" not in words
        ]
        engine.publish(None, 0)
        first = asyncio.run(engine.generate("one", [1, 2, 3], params))
        os.kill(server, signal.SIGKILL)
        eventually(lambda: not alive(server))
        engine.publish(None, 1)
        assert any("ended with code 137; it is started again (1 of 3)" in note for note in notes)
        engine.close("one")
        again = asyncio.run(engine.generate("one", [1, 2, 3], params))
        assert (list(again.ids), list(again.logprobs)) == (list(first.ids), list(first.logprobs))
        assert list(again.versions) == [1] * len(again.ids)
        below += children(os.getpid())
    finally:
        engine.shutdown()
    eventually(lambda: not any(alive(pid) for pid in below))


def test_a_server_that_does_not_start_is_said_with_the_end_of_its_log(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ended with code 2; the end of its log .*policy_0.log:\n(?s:.*)--nonsense"):
        make_engines("turnwise", [setup(tmp_path, [], arguments=("--nonsense",))], {})
