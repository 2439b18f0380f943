"""Imitation from a file alone: it needs no environment, its held-out loss falls, and only the assistant is learned."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.train.small_runs import LostMachineError, Screen, Stopping, small_recipe
from turnwise.audit.verify import verify_run
from turnwise.evaluate.text_losses import read_losses
from turnwise.recipe.schema import Recipe
from turnwise.runs.reading import read_whole_run
from turnwise.train.stages import imitate, resume


def recipe_of(folder: Path) -> Recipe:
    rows = [{"prompt": f"say {number % 9}", "completion": "yes"} for number in range(40)]
    rows += [{"conversations": [{"from": "human", "value": "say " * 90}, {"from": "gpt", "value": "no"}]}]
    (folder / "chats.jsonl").write_text("\n".join(map(json.dumps, rows)))
    sft: dict[str, Any] = {
        "chats": str(folder / "chats.jsonl"),
        "held_out": 0.3,
        "too_long": "drop",
        "context": 48,
        "batch": 8,
    }
    sft |= {"warmup": 0, "learning_rate": 5e-3}
    return small_recipe({"sft": sft, "eval": {"episodes": 0, "every": 3}})


def test_the_held_out_loss_falls_and_a_resumed_run_measures_the_same(tmp_path: Path) -> None:
    screen = Screen()
    imitate(recipe_of(tmp_path), tmp_path / "run", console=screen)
    assert "1 of 41 rows" in screen.text
    assert "1 left out (sft.too_long=drop)" in screen.text
    assert "imitation on chats.jsonl" in screen.text
    rows = read_whole_run(tmp_path / "run").evals
    assert [row["step"] for row in rows][:3] == [0, 3, 6]
    assert rows[-1]["eval/nll"] < rows[0]["eval/nll"] - 0.5
    assert rows[-1]["eval/nll_low"] <= rows[-1]["eval/nll"] <= rows[-1]["eval/nll_high"]
    assert rows[-1]["eval/text_perplexity"] == pytest.approx(math.exp(rows[-1]["eval/nll"]))
    assert "eval/success" not in rows[-1]

    with pytest.raises(LostMachineError):
        imitate(recipe_of(tmp_path), tmp_path / "again", console=Stopping(after=5))
    resume(tmp_path / "again", console=Screen())
    again = read_whole_run(tmp_path / "again").evals
    assert [row["eval/nll"] for row in again] == [row["eval/nll"] for row in rows]

    checks = list(verify_run(tmp_path / "run"))
    assert all(check.ok for check in checks)
    assert checks[0].tokens == 2 * 8  # "yes" and the end of the turn, of each of a batch
    assert checks[0].tokens + checks[0].context == read_whole_run(tmp_path / "run").metrics[0]["train/tokens"]


def test_the_interval_is_that_of_a_ratio() -> None:
    metrics = read_losses([(2.0, 2), (6.0, 4), (4.0, 2)])
    assert metrics["eval/nll"] == 1.5
    # Residuals l − r n are −1, 0 and 1, each over the mean of 8/3 tokens: s = 0.375, t(0.975, 2) = 4.3027.
    half = 4.302652729911275 * 0.375 / math.sqrt(3)
    assert metrics["eval/nll_high"] - 1.5 == pytest.approx(half, abs=1e-9)
    assert read_losses([(1.0, 1)]).keys() == {"eval/nll", "eval/text_perplexity", "eval/nll_tokens"}
    assert read_losses([(0.0, 0)]) == {}
