"""Commands on several real ranks: killed, interrupted, failing, resumed on other numbers of ranks.

    python -m tests.train.ranked_commands FOLDER SCENARIO...

Prints how the ranks of each command ended; what they wrote is in FOLDER/SCENARIO.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from transformers.utils.logging import disable_progress_bar

from tests.real_ranks import finish, start
from turnwise.cli import run
from turnwise.train import stages

SMALL = (
    *("model=pico", "env=tests.train.small_envs:Say", "env.check=false", "engine.memory_gib=0.05"),
    *("rollout.episodes=16", "rollout.max_turns=4", "rollout.max_tokens=4", "eval.episodes=4", "checkpoint.every=1"),
    *("train.learning_rate=5e-3", "train.critic_learning_rate=5e-3"),
)
_PATIENCE = 300.0
Codes = dict[str, list[int]]


def begin(size: int, folder: Path, *arguments: str, before: Callable[[], None] | None = None) -> list[int]:
    """Start a command on so many ranks; `folder` names its log."""

    def work() -> None:
        if before is not None:
            before()
        sys.argv = ["turnwise", *arguments]
        run()

    return start(size, work, log=folder.with_suffix(".log"))


def train(size: int, folder: Path, *changes: str, before: Callable[[], None] | None = None) -> list[int]:
    return begin(size, folder, "train", *SMALL, *changes, "--plain", "--output", str(folder), before=before)


def resume(size: int, folder: Path, *changes: str) -> list[int]:
    return begin(size, folder, "resume", str(folder), *changes, "--plain")


def wait_for(folder: Path, step: int) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not (folder / f"checkpoints/step_{step:06d}/manifest.json").is_file():
        if time.monotonic() > deadline:
            raise AssertionError(f"no checkpoint of step {step} in {folder}")
        time.sleep(0.01)


def killed(folder: Path) -> Codes:
    """Each of two ranks is killed once; the run ends like one that nobody killed, and also on other sizes."""
    recipe = ("algorithm=st-ppo", "train.steps=5", f"train.ranks={folder.name.partition('-')[2]}")
    codes = {"twin": finish(train(2, folder / "twin", *recipe))}
    processes = train(2, folder / "run", *recipe)
    for step, victim in ((1, 1), (3, 0)):
        wait_for(folder / "run", step)
        os.kill(processes[victim], signal.SIGKILL)
        codes[f"killed {victim}"] = finish(processes)
        if victim == 1:
            for size in (1, 3):
                shutil.copytree(folder / "run", folder / f"on-{size}")
        processes = resume(2, folder / "run")
    codes["run"] = finish(processes)
    codes |= {f"on {size}": finish(resume(size, folder / f"on-{size}")) for size in (1, 3)}
    return codes


def interrupted(folder: Path) -> Codes:
    """All ranks are told to end, as a launcher tells them."""
    processes = train(2, folder / "run", "algorithm=grpo", "train.steps=500")
    wait_for(folder / "run", 2)
    for process in processes:
        os.kill(process, signal.SIGTERM)
    return {"run": finish(processes)}


def failing(folder: Path) -> Codes:
    """Mistakes and errors, on all ranks or on one."""
    return {
        "recipe": finish(train(2, folder / "recipe", "algorithm=nonsense")),
        "usage": finish(begin(2, folder / "usage", "train", "--nonsense")),
        "mistake": finish(
            train(2, folder / "mistake", before=partial(_break, ValueError("this machine has no model")))
        ),
        "error": finish(train(2, folder / "error", before=partial(_break, RuntimeError("out of memory")))),
        "numbers": finish(train(2, folder / "numbers", "train.learning_rate=1e30", "guard=off", "train.steps=9")),
    }


def simple(folder: Path) -> Codes:
    """Commands that start nothing."""
    return {
        "dry": finish(begin(2, folder / "dry", "train", *SMALL, "--dry-run")),
        "help": finish(begin(2, folder / "help", "train", "--help")),
        "list": finish(begin(2, folder / "list", "algorithms")),
    }


def _break(error: Exception) -> None:
    """Let the second rank fail where it loads the model."""

    def fail(*_: object) -> None:
        raise error

    if os.environ["RANK"] == "1":
        stages.load_policies = fail  # pyright: ignore[reportAttributeAccessIssue]


def evaluated(folder: Path) -> Codes:
    """One evaluation on one rank and on two."""
    arguments = ("eval", "pico", "--env", "tests.train.small_envs:Say", "--episodes", "8", "--json")
    return {str(size): finish(begin(size, folder / str(size), *arguments)) for size in (1, 2)}


def sharded(folder: Path) -> Codes:
    """Adapters, references and the guard with a part of every weight on each rank; and what reads such a run."""
    lora = ("algorithm=grpo", "model.lora.rank=4", "train.reference_every=1", "log.rollouts=1", "train.steps=2")
    wild = ("algorithm=st-ppo", "train.learning_rate=50", "guard=act", "train.steps=4", "train.critic=shared")
    codes = {
        "lora": finish(train(2, folder / "lora", "train.ranks=sharded", *lora)),
        "restored": finish(train(2, folder / "restored", "train.ranks=sharded", *wild)),
    }
    for command, *options in (("verify",), ("eval",), ("replay", "--step", "2")):
        codes[command] = finish(begin(1, folder / command, command, str(folder / "lora"), *options))
    shutil.copytree(folder / "lora", folder / "replicas")
    codes["replicas"] = finish(resume(2, folder / "replicas", "train.ranks=replicas", "train.steps=3"))
    codes["back"] = finish(resume(2, folder / "replicas", "train.ranks=sharded", "train.steps=4"))
    return codes


SCENARIOS: dict[str, Callable[[Path], Codes]] = {
    **{each.__name__: each for each in (interrupted, failing, simple, evaluated, sharded)},
    "killed-replicas": killed,
    "killed-sharded": killed,
}


def main() -> None:
    torch.set_num_threads(1)
    disable_progress_bar()
    codes: dict[str, Codes] = {}
    for name in sys.argv[2:]:
        folder = Path(sys.argv[1]) / name
        folder.mkdir()
        codes[name] = SCENARIOS[name](folder)
    print(json.dumps(codes))


if __name__ == "__main__":
    main()
