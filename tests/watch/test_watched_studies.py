"""Studies beside which a page is open: it is sent what they conclude with before it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.report.runs import write_run
from tests.reproduce.test_table_claims import write_claim
from tests.watch.browsers import Memory, Stream

PATIENT = "from turnwise.cli import app, watching; watching._START_SECONDS = 600; app()"
"""The command on a machine that may be busy: it waits for its page."""


def follow(*words: str, folder: Path) -> tuple[Memory, str]:
    """Run a command with `--watch`; what a browser knows when its page ends, and what the command printed."""
    command = [sys.executable, "-c", PATIENT, *words, "--watch"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        said = ""
        while " at http://" not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
        memory = Memory()
        take_all(memory, Stream(said.split()[-1]))
        said += process.stdout.read()
    assert process.returncode == 0, said
    return memory, said


def take_all(memory: Memory, stream: Stream) -> None:
    """Follow a page's stream until it ends."""
    with suppress(EOFError, OSError):
        while True:
            memory.take(stream.next())
    stream.close()


def test_the_page_of_a_comparison_gets_its_table(tmp_path: Path) -> None:
    settings = [
        *("env=game/guess-number-easy", "env.check=false", "model=pico", "rollout.episodes=4", "rollout.max_turns=2"),
        *("rollout.max_tokens=6", "train.steps=1", "eval.episodes=2", "algorithm.minibatches=1"),
    ]
    memory, said = follow("compare", "ppo", "reinforce", "--seeds", "1", "--jobs", "1", *settings, folder=tmp_path)
    assert "comparison.json" in said
    (study,) = memory.shared["studies"]
    assert (study["name"], study["title"], study["runs"]) == ("compare", "Comparison", memory.shared["order"])
    table = study["chapter"]["tables"][0]
    assert [row[0] for row in table["rows"]] == ["ppo", "reinforce"]
    assert [run["state"]["status"] for run in memory.runs.values()] == ["finished", "finished"]


def test_the_page_of_a_reproduction_gets_its_verdict(tmp_path: Path) -> None:
    claim = write_claim(tmp_path / "claim")
    memory, _ = follow("reproduce", claim, "--output", "study", "--jobs", "1", folder=tmp_path)
    (study,) = memory.shared["studies"]
    assert (study["name"], study["title"]) == ("study", "Verdict")
    assert study["chapter"]["sentences"][0] == "A tiny paper (arXiv 0000.00000): A pass, B fail"
    assert study["chapter"]["tables"][0]["rows"][0][:2] == ["A: win_rate/bold of duel at least 0.6", "pass"]


def test_what_is_written_last_is_sent_before_the_page_ends(tmp_path: Path) -> None:
    write_run(tmp_path / "runs/a", steps=2)
    command = [sys.executable, "-m", "turnwise", "watch", str(tmp_path / "runs"), "--port", "0", "--no-open"]
    process = subprocess.Popen([*command, "--attached"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    stream, memory = Stream(process.stdout.readline().split()[-1]), Memory()
    memory.take(stream.next())
    (tmp_path / "runs/comparison.json").write_text(json.dumps({"sentences": ["ppo is ppo"]}))
    process.communicate(timeout=120)  # whoever started it has ended
    take_all(memory, stream)
    (study,) = memory.shared["studies"]
    assert study["chapter"]["sentences"] == ["ppo is ppo"]
