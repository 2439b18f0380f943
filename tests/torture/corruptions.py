"""Damaged run folders under every command that reads one: rejected by name, skipped with a warning, or as before.

One small run is made and cut in its last step. Each attempt copies it, damages one file, and runs one command on it.
What comes out is held against what the same command made of the undamaged run.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import tempfile
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from tests.report.page_data import data_of
from tests.torture.damages import DAMAGES, Victim, choose_file
from tests.torture.tally import Tally
from tests.train.kills import last_tensors, timeless
from tests.train.small_runs import LostMachineError, Stopping, small_recipe
from turnwise.cli import app
from turnwise.envs.alarm import alarm
from turnwise.envs.faults import EpisodeError
from turnwise.train.stages import train

COUNT = 465
COMMANDS: dict[str, tuple[str, ...]] = {
    "resume": ("--quiet",),
    "verify": ("--json",),
    "replay": ("--step", "3"),
    "eval": ("--json",),
    "report": (),
}
_RECIPE: dict[str, Any] = {
    "env": {"id": "lookup/2hop", "check": False},
    "algorithm": "ppo",
    "sft": {"demonstrations": 4, "epochs": 1, "batch": 4, "warmup": 0},
    "rollout": {"episodes": 8, "max_turns": 3, "max_tokens": 4},
    "engine": {"memory_gib": 0.05},
    "train": {"steps": 4},
    "eval": {"episodes": 8, "every": 2},
    "checkpoint": {"every": 1},
    "log": {"rollouts": 1},
}
_CUT_AFTER = 3
_PREFIX = "turnwise-corruptions-"
"""Begins the name of the folder in which everything lies, so that any path in a message shows."""
_PATIENCE = 300.0
"""Seconds for one command on the busiest of machines; an idle one needs two."""
_UNTOLD = ("meta", "problems", "name")
"""What the page says of a run that is none of its numbers."""


@dataclass(kw_only=True)
class Outcome:
    """What a command made of a folder."""

    code: int | None = None
    """None: it raised, or hung."""
    message: str = ""
    """What it wrote to stderr; where it raised, the end of the traceback."""
    warned: str = ""
    result: Any = None
    """The numbers that it leaves or prints, without what the clock says."""
    problems: list[str] = field(default_factory=list[str])
    """What a report says that it could not read."""


Invoke = Callable[[str, Path], Outcome]


def invoke(command: str, run: Path) -> Outcome:
    """Run a command in this process as the shell would."""
    page = run.parent / "report.html"
    options = ("--output", str(page)) if command == "report" else COMMANDS[command]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            with alarm(_PATIENCE):
                done = CliRunner().invoke(app, [command, str(run), *options])
        except EpisodeError as error:
            return Outcome(message=f"hung: {error}")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return Outcome(message="".join(traceback.format_exception(done.exception)[-3:]))
    outcome = Outcome(code=done.exit_code, message=done.stderr, warned="\n".join(str(each.message) for each in warned))
    if done.exit_code in (0, 1):
        outcome.result, outcome.problems = _result(command, run, page, done.stdout)
    return outcome


def _result(command: str, run: Path, page: Path, printed: str) -> tuple[Any, list[str]]:
    if command == "resume":
        journals = {name: timeless(run / f"{name}.jsonl") for name in ("metrics", "turns", "evals")}
        return {**journals, "tensors": last_tensors(run)}, []
    if command == "report":
        (shown,) = data_of(page)["runs"]
        return {key: value for key, value in shown.items() if key not in _UNTOLD}, shown["problems"]
    if command == "replay":  # without the last line, which says from which checkpoint
        return printed.splitlines()[:-1], []
    rows = json.loads(printed)
    return ({name: rows[name] for name in rows if not name.startswith("time")} if command == "eval" else rows), []


def campaign(*, count: int = COUNT, seed: int = 0, invoke: Invoke = invoke, run: Path | None = None) -> Tally:
    """Damage `count` copies of one run, one file in each, and run the commands on them in turn."""
    rng, tally, clean = random.Random(seed), Tally(), dict[str, Outcome]()
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name:
        attempt = Path(name) / "attempt"
        original = run or make_run(Path(name) / "original")
        for number in range(count):
            command, harm = list(COMMANDS)[number % len(COMMANDS)], rng.choice(DAMAGES)
            if command not in clean:
                clean[command], _ = _on_copy(original, attempt, command, invoke)
                assert clean[command].code == 0, clean[command]
                assert clean[command].result
            outcome, place = _on_copy(original, attempt, command, invoke, harm=harm, rng=rng)
            kind = judge(command, outcome, clean[command])
            if kind.startswith("!"):
                tally.fail(f"seed {seed}, attempt {number}: {command} after {harm.__name__} of {place}: {kind[1:]}")
            else:
                tally.note(kind)
    return tally


def make_run(folder: Path) -> Path:
    """A run with an imitation stage that was lost in its last step but one."""
    try:
        train(small_recipe(_RECIPE), folder, console=Stopping(after=_CUT_AFTER))
    except LostMachineError:
        return folder
    raise AssertionError("the run was not cut")


def _on_copy(
    original: Path,
    attempt: Path,
    command: str,
    invoke: Invoke,
    *,
    harm: Callable[[Victim], None] | None = None,
    rng: random.Random | None = None,
) -> tuple[Outcome, str]:
    """What a command makes of a copy of the run, and which file of it was damaged."""
    run, outside, name = attempt / "run", attempt / "outside", ""
    shutil.copytree(original, run)
    outside.mkdir()
    (outside / "precious").write_text("not yours")
    if harm is not None and rng is not None:
        victim = Victim(run=run, path=choose_file(run, rng), outside=outside, rng=rng)
        name = victim.name
        harm(victim)
    before = _digest(outside)
    outcome = invoke(command, run)
    left = {path.name for path in attempt.iterdir()} - {"run", "outside", "report.html"}
    if _digest(outside) != before or left:
        outcome = Outcome(message=f"wrote or deleted outside of its folder {sorted(left)}")
    shutil.rmtree(attempt)
    return outcome, name


def _digest(folder: Path) -> str:
    """Of every name and byte in a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        digest.update(str(path).encode())
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()


def judge(command: str, outcome: Outcome, clean: Outcome) -> str:
    """How a command came out; with an exclamation mark where it must not."""
    if outcome.code is None:
        return f"!{outcome.message}"
    if outcome.code == 2:
        return _judge_refusal(outcome)
    if outcome.result == clean.result:
        return "equal, older checkpoint" if "is skipped" in outcome.warned else "equal"
    if command == "report" and outcome.problems:
        return "told on the page"
    if command in ("verify", "replay") and outcome.code == 1:
        return "found"
    if command == "verify" and "the weights that sampled are not kept" in json.dumps(outcome.result):
        return "told in the findings"
    if command == "eval" and "is skipped" in outcome.warned:
        return "older checkpoint, told"
    return (
        f"!another result without a word: exit code {outcome.code}, {_first_difference(outcome.result, clean.result)}"
    )


def _judge_refusal(outcome: Outcome) -> str:
    """A refusal is one line that leads to the file."""
    message = outcome.message.strip()
    if not message.startswith("turnwise: ") or "\n" in message:
        return f"!not one message: {message}"
    return "refused" if _PREFIX in message else f"!refused without the name of a file: {message}"


def _first_difference(result: Any, clean: Any) -> str:
    if isinstance(result, dict) and isinstance(clean, dict):
        return ", ".join(name for name in clean if result.get(name) != clean[name]) or "more keys"
    return f"{str(result)[:300]} instead of {str(clean)[:300]}"
