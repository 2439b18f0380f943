"""Runs that learn from files of preferences: no environment, no engine, held-out pairs, equal bits when resumed."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.train.small_runs import LostMachineError, Screen, Stopping, last_tensors, rows, run, small_recipe, timeless
from turnwise.cli import app
from turnwise.recipe.loading import load_recipe
from turnwise.report.build import Sample, collect
from turnwise.train.estimate import estimate
from turnwise.train.stages import evaluate_model

MISSING = {"id": "nowhere:Env", "check": True}
"""Nobody builds it, so nobody misses it."""


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Answers that end in 1 are preferred."""
    rng, path = random.Random(0), tmp_path_factory.mktemp("files") / "pairs.jsonl"
    lines: list[str] = []
    for number in range(80):
        first, second = rng.sample("abcdefgh", 2)
        prompt = f"from {rng.choice('efgh')} {number % 40}"
        lines.append(json.dumps({"prompt": prompt, "chosen": f"{first} 1", "rejected": f"{second} 4"}))
    path.write_text("\n".join(lines))
    return path


def changes(pairs: Path, **others: Any) -> dict[str, Any]:
    mix = [{"kind": "preferences", "path": str(pairs), "held_out": 0.25}]
    return {"env": MISSING, "algorithm": "dpo", "source": {"mix": mix}, **others}


def test_preferences_are_learned_and_measured_on_held_out_pairs(tmp_path: Path, pairs: Path) -> None:
    screen = Screen()
    assert run(tmp_path / "run", changes(pairs), console=screen)["status"] == "finished"
    assert rows(tmp_path / "run")[-1]["pairs/accuracy"] > 0.9
    evals = rows(tmp_path / "run", "evals")
    assert [row["step"] for row in evals] == [0, 4]
    assert "eval/success" not in evals[-1]
    assert evals[0]["eval/pairs_margin"] == pytest.approx(0, abs=1e-6)
    assert evals[-1]["eval/pairs_accuracy"] > 0.9
    assert "dpo on pairs.jsonl · model pico · 4 steps of 16 answers" in screen.text
    assert "pairs accuracy" in screen.text
    assert "success" not in screen.text


def test_the_report_speaks_of_pairs_and_not_of_episodes(tmp_path: Path, pairs: Path) -> None:
    run(tmp_path / "run", changes(pairs))
    (shown,) = collect([tmp_path / "run"], comparison=None, sample=Sample())["runs"]
    assert re.fullmatch(r"Accuracy [\d.]+, margin [\d.]+ on held-out pairs at step 4\.", shown["summary"]["verdict"])
    assert "pairs/accuracy" in shown["curves"]["columns"]
    assert not any(name.startswith("rollout/") for name in shown["curves"]["columns"])


def test_eval_asks_where_to_play_a_run_that_learned_from_pairs(tmp_path: Path, pairs: Path) -> None:
    run(tmp_path / "run", changes(pairs))
    result = CliRunner().invoke(app, ["eval", str(tmp_path / "run")])
    assert result.exit_code == 2
    assert "learned from pairs and was trained in no environment" in " ".join(result.output.split())


def test_a_preference_run_that_is_cut_and_resumed_ends_with_the_same_bits(tmp_path: Path, pairs: Path) -> None:
    chosen = changes(pairs, eval={"episodes": 0, "every": 1})
    run(tmp_path / "whole", chosen)
    with pytest.raises(LostMachineError):
        run(tmp_path / "cut", chosen, console=Stopping(after=3))
    run(tmp_path / "cut")
    assert last_tensors(tmp_path / "cut") == last_tensors(tmp_path / "whole")
    for journal in ("metrics", "evals"):
        assert timeless(tmp_path / "cut", journal) == timeless(tmp_path / "whole", journal)


def test_the_source_decides_the_stage_and_nothing_is_played_unless_asked_for(pairs: Path) -> None:
    mix: list[Any] = [{"kind": "preferences", "path": str(pairs)}]
    recipe = load_recipe(None, {"algorithm": "dpo", "source": {"mix": mix}})
    assert (recipe.stage, recipe.eval.episodes) == ("preference", 0)
    with_env = load_recipe(None, {"algorithm": "dpo", "source": {"mix": mix}, "env": "game/guess-number-easy"})
    assert with_env.eval.episodes == 256
    assert load_recipe(None, {"source": {"mix": ["played"]}}).stage == "reinforcement"
    with pytest.raises(ValueError, match=r"stage is preference, but source.mix has more than preferences"):
        load_recipe(None, {"stage": "preference"})


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"kind": "chats", "path": "a", "held_out": 0.1}, "held_out is a part of preferences"),
        ({"kind": "preferences", "path": "a", "held_out": 1.5}, "held_out is 1.5; write a share between 0 and 1"),
    ],
)
def test_what_cannot_be_held_out_is_refused(part: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_recipe(None, {"algorithm": "dpo", "source": {"mix": [part]}})


def test_a_share_that_leaves_nothing_is_refused(tmp_path: Path, pairs: Path) -> None:
    mix = [{"kind": "preferences", "path": str(pairs), "held_out": 0.0001}]
    with pytest.raises(ValueError, match=r"held_out=0.0001 .* leaves 80 groups to learn from and 0 to measure"):
        run(tmp_path / "run", changes(pairs) | {"source": {"mix": mix}})
    assert not (tmp_path / "run").exists()


def test_another_file_may_be_held_out(tmp_path: Path, pairs: Path) -> None:
    mix = [{"kind": "preferences", "path": str(pairs), "held_out": str(pairs)}]
    run(tmp_path / "run", changes(pairs) | {"source": {"mix": mix}, "train": {"steps": 1}})
    assert "eval/pairs_accuracy" in rows(tmp_path / "run", "evals")[-1]


def test_the_estimate_counts_answers_of_the_file_and_no_engine(pairs: Path) -> None:
    found = estimate(small_recipe(changes(pairs)))
    assert "engine" not in found.memory
    assert "as in the files" in "\n".join(found.lines())
    assert found.expert is not None
    assert found.expert.episode_tokens < 16


def test_evaluating_a_run_that_plays_nothing_says_what_to_name(tmp_path: Path, pairs: Path) -> None:
    with pytest.raises(ValueError, match=r"eval.episodes is 0, so nothing would be played; name an environment"):
        evaluate_model(small_recipe(changes(pairs)), "pico")
