"""Training where an event loop already runs, as in a notebook, and after a start that failed."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.train.small_runs import Screen, last_tensors, small_recipe
from turnwise.audit.replay import replay_step
from turnwise.audit.replay_episode import replay_episode
from turnwise.audit.verify import verify_run
from turnwise.engine import kinds
from turnwise.envs.play import play_in_terminal
from turnwise.train.stages import evaluate_model, imitate, resume, train
from turnwise.waiting import LoopRunner, finish

_SHORT: dict[str, Any] = {"train": {"steps": 1}, "eval": {"episodes": 4}}


def in_notebook(work: Callable[[], Any]) -> Any:
    """What a cell does: plain code in a thread whose event loop runs."""

    async def cell() -> Any:
        return work()

    return asyncio.run(cell())


def test_a_notebook_can_train_resume_evaluate_verify_and_replay(tmp_path: Path) -> None:
    recipe, folder = small_recipe(_SHORT), tmp_path / "run"
    in_notebook(lambda: train(recipe, folder, console=Screen()))
    summary = in_notebook(lambda: resume(folder, console=Screen(), overrides={"train": {"steps": 2}}))
    assert summary["status"] == "finished"
    weights = folder / "checkpoints" / "step_000002"
    assert in_notebook(lambda: evaluate_model(recipe, weights))["eval/episodes"] == 4
    assert all(check.ok for check in in_notebook(lambda: list(verify_run(folder))))
    assert in_notebook(lambda: replay_step(folder, 1)).same
    assert in_notebook(lambda: replay_episode(folder, 1, "step-1/task-0/0")).same


def test_a_notebook_ends_with_the_bits_of_a_script(tmp_path: Path) -> None:
    recipe = small_recipe({"train": {"steps": 2}})
    train(recipe, tmp_path / "script", console=Screen())
    in_notebook(lambda: train(recipe, tmp_path / "notebook", console=Screen()))
    assert last_tensors(tmp_path / "script") == last_tensors(tmp_path / "notebook")


def test_a_notebook_can_imitate_and_play_ahead(tmp_path: Path) -> None:
    sft = {"demonstrations": 8, "epochs": 1, "batch": 8}
    recipe = small_recipe({**_SHORT, "sft": sft})
    assert in_notebook(lambda: imitate(recipe, tmp_path / "sft", console=Screen()))["status"] == "finished"
    ahead = small_recipe({"algorithm": {"preset": "rebn", "max_lag": 1, "mismatch": "truncated"}})
    assert in_notebook(lambda: train(ahead, tmp_path / "ahead", console=Screen()))["status"] == "finished"


def test_a_notebook_can_play_a_game() -> None:
    said: list[str] = []
    in_notebook(lambda: play_in_terminal("game/hanoi-easy", {}, seed=0, read=lambda _: r"\boxed{0}", write=said.append))
    assert said[-1].startswith(("Won", "Over"))


def test_a_start_that_fails_leaves_nothing_that_blocks_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, recipe = tmp_path / "run", small_recipe({**_SHORT, "sft": {"demonstrations": 8, "epochs": 1, "batch": 8}})
    with monkeypatch.context() as patch:
        patch.setattr(kinds, "TorchEngine", _without_memory)
        for start in (train, imitate):
            with pytest.raises(MemoryError):
                start(recipe, folder, console=Screen())
            assert not folder.exists()
    assert train(small_recipe({"train": {"steps": 1}}), folder, console=Screen())["status"] == "finished"


def test_a_start_that_fails_leaves_the_users_own_files_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for start in (train, imitate):
        with pytest.raises(ValueError, match="not empty"):
            start(small_recipe({"sft": {"demonstrations": 8}}), tmp_path, console=Screen())
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_runner_keeps_one_loop_and_one_thread_for_all_coroutines() -> None:
    async def where() -> tuple[int, str]:
        return id(asyncio.get_running_loop()), threading.current_thread().name

    def twice() -> list[tuple[int, str]]:
        with LoopRunner() as runner:
            return [runner.run(where()), runner.run(where())]

    first, second = in_notebook(twice)
    assert first == second
    assert first[1].startswith("turnwise-loop")
    assert twice()[0][1] == threading.current_thread().name  # elsewhere no thread is needed


def test_control_c_in_a_notebook_cancels_what_it_waits_for() -> None:
    ended = threading.Event()

    async def long() -> None:
        try:
            await asyncio.sleep(0.5)  # a signal just before the other thread begins to wait would be seen too late
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            await asyncio.sleep(60)
        finally:
            ended.set()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def cell() -> None:
        before = signal.signal(signal.SIGUSR1, interrupt)  # SIGINT itself belongs to the test runner
        try:
            finish(long())
        finally:
            signal.signal(signal.SIGUSR1, before)

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        in_notebook(cell)
    assert ended.is_set()
    assert time.monotonic() - started < 30


def _without_memory(*_: object, **__: object) -> None:
    raise MemoryError("no memory for the engine")
