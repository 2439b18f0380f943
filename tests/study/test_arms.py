from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from turnwise.cli.comparing import compare
from turnwise.evaluate.comparison import compare_folders
from turnwise.recipe.loading import load_recipe
from turnwise.runs.folder import RunFolder
from turnwise.runs.journal import read_journal
from turnwise.runs.reading import is_complete
from turnwise.sources.imitation import sft_recipe
from turnwise.study.arms import Arm, plan_arms, run_arms
from turnwise.study.jobs import require_same_start

TINY = {
    "env": {"id": "game/guess-number-easy"},
    "rollout": {"episodes": 4, "max_turns": 2, "max_tokens": 8},
    "train": {"steps": 1},
    "eval": {"episodes": 4},
}


def arm(algorithm: str, *, label: str = "", **changes: object) -> Arm:
    row = {"preset": algorithm, "minibatches": 1} | ({"sampling": {"size": 4}} if algorithm == "grpo" else {})
    return Arm(label=label or algorithm, overrides={**TINY, "algorithm": row, **changes})


def test_seeds_are_paired_and_no_arm_runs_ahead(tmp_path: Path):
    planned = plan_arms(None, [arm("ppo"), arm("grpo")], seeds=2, output=tmp_path)
    assert [(run.label, run.recipe.seed) for run in planned] == [("ppo", 0), ("grpo", 0), ("ppo", 1), ("grpo", 1)]
    assert [run.folder.relative_to(tmp_path).as_posix() for run in planned[:2]] == ["ppo/seed-0", "grpo/seed-0"]
    assert all(run.recipe.env.id == "game/guess-number-easy" for run in planned)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "changes",
    [{"rollout": {**TINY["rollout"], "episodes": 8}}, {"train": {"steps": 2}}, {"model": "other"}, {"sft": {}}],
)
def test_arms_with_unequal_data_or_starts_are_refused(tmp_path: Path, changes: dict[str, object]):
    with pytest.raises(ValueError, match=r"ppo and other differ in .*; a comparison needs equal starts"):
        plan_arms(None, [arm("ppo"), arm("st-ppo", label="other", **changes)], seeds=1, output=tmp_path)


def test_arms_may_differ_in_what_is_compared(tmp_path: Path):
    train = {"steps": 1, "learning_rate": 1e-3, "grad_clip": 0.1}
    arms = [arm("ppo"), arm("ppo", label="ppo: fast / careless", train=train)]
    planned = plan_arms(None, arms, seeds=1, output=tmp_path)
    assert planned[1].folder == tmp_path / "ppo-fast-careless" / "seed-0"


def test_two_arms_of_one_name_are_refused(tmp_path: Path):
    for labels in (("a", "a"), ("a b", "a/b"), ("a", "start"), ("a", "..")):
        with pytest.raises(ValueError, match="a unique name"):
            plan_arms(None, [arm("ppo", label=label) for label in labels], seeds=1, output=tmp_path)


def test_a_failed_run_loses_no_other_and_is_made_up_for_when_called_again(tmp_path: Path):
    small = {"model": "pico", "env": {"id": "tests.train.small_envs:Say", "check": False}}
    planned = plan_arms(None, [arm("ppo", **small), arm("grpo", **small)], seeds=1, output=tmp_path)
    in_the_way = planned[1].folder / "notes.txt"
    in_the_way.parent.mkdir(parents=True)
    in_the_way.touch()
    said: list[str] = []
    outcome = run_arms(planned, output=tmp_path, jobs=1, report=said.append)
    assert outcome.folders == {"ppo": [planned[0].folder], "grpo": []}
    assert "is not empty" in outcome.failed["grpo, seed 0"]
    in_the_way.unlink()
    outcome = run_arms(planned, output=tmp_path, jobs=1, report=said.append)
    assert "1 of 2 runs are complete already" in said
    assert not outcome.failed
    folders = outcome.folders
    starts = [read_journal(folders[label][0] / "evals.jsonl")[0]["eval/success"] for label in ("ppo", "grpo")]
    assert starts[0] == starts[1]  # the same model on the same tasks with the same draws
    assert [arm.runs[0].episodes for arm in compare_folders(folders).arms] == [4, 4]


def test_runs_with_other_settings_are_never_mixed_in(tmp_path: Path):
    before = plan_arms(None, [arm("ppo")], seeds=1, output=tmp_path)[0]
    RunFolder.create(before.folder, before.recipe.model_dump(mode="json"), {})
    planned = plan_arms(None, [arm("ppo", train={"steps": 7})], seeds=1, output=tmp_path)
    with pytest.raises(ValueError, match=r"other settings \(train\.steps: 1 → 7\); choose another --output"):
        run_arms(planned, output=tmp_path, jobs=1, report=lambda _: None)


@pytest.mark.parametrize("ends", [[], [{"step": 1, "kind": "finished"}]])
def test_a_start_with_other_settings_is_never_used(tmp_path: Path, ends: list[dict[str, object]]):
    before = plan_arms(None, [arm("ppo", sft={"epochs": 1})], seeds=1, output=tmp_path)[0].recipe
    stage = sft_recipe(before, steps=16)
    start = RunFolder.create(tmp_path / "start" / "seed-0", stage.model_dump(mode="json"), {})
    for event in ends:
        start.events.append(event)
    same = plan_arms(None, [arm("grpo", sft={"epochs": 1})], seeds=1, output=tmp_path)[0].recipe
    require_same_start(start.path, same)  # the algorithm is no part of it
    planned = plan_arms(None, [arm("ppo", sft={"epochs": 3})], seeds=1, output=tmp_path)
    with pytest.raises(
        ValueError, match=r"a start with other settings \(sft\.epochs: 1 → 3\); choose another --output"
    ):
        run_arms(planned, output=tmp_path, jobs=1, report=lambda _: None)


def test_a_run_is_complete_when_it_or_the_guard_ended_it(tmp_path: Path):
    run = RunFolder.create(tmp_path / "run", load_recipe(None).model_dump(mode="json"), {})
    for kind, complete in (("faults", False), ("interrupted", False), ("finished", True), ("stopped", True)):
        run.events.append({"step": 1, "kind": kind})
        assert is_complete(run.path) == complete
    assert not is_complete(tmp_path / "never-begun")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ppo", "pppo"], "unknown algorithm 'pppo'"),
        (["train.steps=3"], "name the algorithms to compare"),
        (["ppo", "st-ppo:train.steps=3"], "differ in train.steps"),
        (["ppo", "ppo"], "a unique name"),
        (["ppo", "--env", "game/nothing"], "unknown environment"),
    ],
)
def test_mistakes_on_the_command_line_end_with_one_message(tmp_path: Path, words: list[str], message: str):
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(compare)
    result = CliRunner().invoke(app, [*words, "--output", str(tmp_path / "study")])
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "study").exists()
