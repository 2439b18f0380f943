"""What the page says in numbers: curves, heat maps, settings, verdicts, comparisons."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tests.report.page_data import data_of
from tests.report.runs import write_evaluation, write_run
from turnwise.cli import app
from turnwise.cli.report import report
from turnwise.evaluate.comparison import compare_folders
from turnwise.report import find_onset, write_report
from turnwise.report.comparison_chapter import comparison_chapter
from turnwise.report.differences import differing, flatten, group_labels, short_labels
from turnwise.report.panels import HEATS, MOST_POINTS, PANELS, curves, heat_maps
from turnwise.report.run_parts import plays, without_play
from turnwise.report.summary import summarize_run
from turnwise.runs.reading import read_run


def test_curves_hold_every_step_of_a_short_run() -> None:
    rows = [{"step": step, "a": step / 3, "b": None} for step in range(1, 4)]
    assert curves(rows, ["a", "b", "c"]) == {"step": [1, 2, 3], "columns": {"a": [0.33333, 0.66667, 1.0]}}


def test_long_runs_are_shown_in_buckets_of_means() -> None:
    rows = [{"step": step, "a": float(step)} for step in range(1, 2 * MOST_POINTS + 1)]
    shown = curves(rows, ["a"])
    assert len(shown["step"]) == MOST_POINTS
    assert (shown["step"][0], shown["columns"]["a"][0]) == (2, 1.5)


def test_heat_maps_are_turn_by_step_with_gaps_where_nothing_was_measured() -> None:
    rows = [
        {"step": 1, "turn": 0.0, "turn/entropy": 0.5},
        {"step": 1, "turn": 2.0, "turn/entropy": 0.7},
        {"step": 4, "turn": 0.0, "turn/entropy": None},
        {"step": 4, "turn": 1.0, "turn/entropy": 0.9},
    ]
    shown = heat_maps(rows)
    assert (shown["step"], shown["turns"]) == ([1, 4], 3)
    assert shown["maps"] == {"turn/entropy": [[0.5, None], [None, 0.9], [0.7, None]]}


def test_a_bucket_of_steps_does_not_hide_a_peak() -> None:
    count = 2 * MOST_POINTS
    rows = [{"step": step, "turn": 0, "turn/ratio_max": 99.0 if step == 8 else 1.0} for step in range(1, count + 1)]
    (line,) = heat_maps(rows)["maps"]["turn/ratio_max"]
    assert len(line) == MOST_POINTS
    assert max(line) == 99.0


def test_held_out_measures_are_those_without_a_panel_and_their_intervals_come_along(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=10)
    row = {"step": 10, "eval/reward": 0.5, "eval/episodes": 8, "eval/pass@1": 1, "eval/meteor": 0.4}
    line = json.dumps({**row, "eval/kl": 1.25, "eval/kl_low": 1.0, "eval/kl_high": 1.5, "eval/score_true": 0.5})
    (run / "evals.jsonl").write_text(line + "\n")
    (shown,) = data_of(write_report([run], tmp_path / "report.html"))["runs"]
    assert shown["measures"] == ["eval/kl", "eval/meteor", "eval/score_true"]
    assert shown["evaluations"][0]["eval/kl_low"] == 1.0


def test_panels_and_heat_maps_name_metrics_that_runs_write(tmp_path: Path) -> None:
    from turnwise.ops.diagnostics import TURN_METRICS

    assert {heat.metric for heat in HEATS} <= TURN_METRICS.keys()
    totals = {name.replace("turn/", "loss/") for name in TURN_METRICS}
    assert {panel.metric for panel in PANELS if panel.metric.startswith("loss/")} <= totals


def test_every_part_of_the_reward_has_a_panel_with_its_evaluations(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, steps=10, parts=parts) for name, parts in (("a", ("style", "exact")), ("b", ()))]
    shown = data_of(write_report(runs, tmp_path / "report.html"))
    parts = [panel for panel in shown["panels"] if panel["chapter"] == "Parts of the reward"]
    assert [(each["metric"], each["title"], each["evaluation"]) for each in parts] == [
        ("rollout/reward_exact", "exact", "eval/reward_exact"),
        ("rollout/reward_style", "style", "eval/reward_style"),
    ]
    chapters = list(dict.fromkeys(panel["chapter"] for panel in shown["panels"]))
    assert chapters[:3] == ["Outcome", "Parts of the reward", "Policy update"]
    with_parts, without = shown["runs"]
    assert len(with_parts["curves"]["columns"]["rollout/reward_exact"]) == 10
    assert "rollout/reward_exact" not in with_parts["others"]
    assert "rollout/reward_exact" not in without["curves"]["columns"]
    assert "eval/reward_exact" in with_parts["evaluations"][0]


def test_configs_are_compared_by_dotted_keys() -> None:
    first = flatten({"train": {"steps": 5, "betas": [0.9, 0.95]}, "filters": [{"kind": "a"}], "sft": None, "x": {}})
    assert first == {
        "train.steps": "5", "train.betas": "[0.9, 0.95]", "filters.0.kind": "a", "sft": "null", "x": "{}",
    }  # fmt: skip
    second = flatten({"train": {"steps": 6, "betas": [0.9, 0.95]}, "filters": [{"kind": "a"}], "x": {}})
    assert differing([first, second]) == ["train.steps", "sft"]


def test_runs_are_grouped_by_algorithm_and_by_what_else_sets_them_apart(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / "a", algorithm="ppo", seed=0, steps=3),
        write_run(tmp_path / "b", algorithm="ppo", seed=1, steps=3),
        write_run(tmp_path / "c", algorithm="ppo", seed=0, steps=3, settings={"grad_clip": 0.1}),
        write_run(tmp_path / "d", algorithm="grpo", seed=0, steps=3),
    ]
    labels = ["ppo · train.grad_clip=1.0", "ppo · train.grad_clip=1.0", "ppo · train.grad_clip=0.1", "grpo"]
    assert group_labels([read_run(run) for run in runs]) == labels


@pytest.mark.parametrize(
    ("falls_at", "guarded", "tone", "words"),
    [
        (None, False, "good", "No guard incident, and training success did not fall to half of its best."),
        (60, False, "bad", "The run went wrong: loss/ratio_max moved first, at step 6"),
        (60, True, "bad", "1 guard incident, the first at step 63: ratio-tail."),
    ],
)
def test_the_verdict_says_how_a_run_ended(
    tmp_path: Path, falls_at: int | None, guarded: bool, tone: str, words: str
) -> None:
    run = read_run(write_run(tmp_path / "run", algorithm="ppo", steps=100, falls_at=falls_at, guarded=guarded))
    summary = summarize_run(run, find_onset(run.metrics, run.events))
    last = [row["rollout/success"] for row in run.metrics[-10:]]
    assert summary["tone"] == tone
    assert summary["training"] == pytest.approx(sum(last) / 10, rel=1e-4)
    assert words in summary["verdict"]


def test_final_success_is_that_of_the_last_evaluation_as_in_a_comparison(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / f"run-{seed}", seed=seed, steps=20) for seed in range(3)]
    shown = data_of(write_report(runs, tmp_path / "report.html"))["runs"]
    finals = [run["summary"]["final"]["value"] for run in shown]
    (arm,) = compare_folders({"st-ppo": runs}).arms
    assert finals == pytest.approx([run.final for run in arm.runs], rel=1e-4)
    assert all(run["summary"]["final"]["step"] == 20 for run in shown)
    assert shown[0]["summary"]["verdict"].startswith("Final success ")


def test_the_headline_rounds_as_the_table_does(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=3)
    rows = [{"step": step, "eval/success": value} for step, value in ((0, 0.625), (3, 0.3125))]
    (run / "evals.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = summarize_run(read_run(run), None)
    assert "Final success 0.313 on held-out tasks at step 3, 0.625 before training." in summary["verdict"]
    assert summary["tone"] == "watch"  # it was better before
    (run / "evals.jsonl").write_text("")
    assert summarize_run(read_run(run), None)["verdict"].startswith("No held-out task was played. Training success ")


def test_a_legend_names_no_more_than_tells_groups_apart() -> None:
    start = "model.name=/home/me/runs/start/checkpoints/step_000100"
    rates = [f"ppo · train.learning_rate={rate} · {start}" for rate in (0.001, 0.002)]
    assert short_labels([*rates, "grpo"]) == ["ppo · learning_rate=0.001", "ppo · learning_rate=0.002", "grpo"]
    both = [f"ppo · train.epochs={epochs} · {start}{end}" for epochs, end in ((1, "0"), (1, "1"), (2, "1"))]
    assert short_labels(both)[0] == "ppo · epochs=1 · name=…ts/step_0001000"
    same_end = [f"ppo · model.name={place}/checkpoints/step_000100" for place in ("a", "b")]
    assert short_labels(same_end) == same_end


def test_the_seed_in_a_path_sets_no_group_apart(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / f"run-{seed}", seed=seed, steps=3, settings={"start": f"start/seed-{seed}/checkpoints"})
        for seed in range(2)
    ]
    assert group_labels([read_run(run) for run in runs]) == ["st-ppo", "st-ppo"]


def test_the_imitation_stage_of_a_run_is_shown(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=12)
    write_run(run / "sft", steps=30)
    (shown,) = data_of(write_report([run], tmp_path / "report.html"))["runs"]
    assert shown["imitation"]["steps"] == 30
    assert shown["imitation"]["final"]["step"] == 30
    assert "loss/policy" in shown["imitation"]["curves"]["columns"]


def test_a_comparison_of_runs_becomes_tables_and_intervals(tmp_path: Path) -> None:
    folders = {
        name: [
            write_run(tmp_path / f"{name}-{seed}", algorithm=name, seed=seed, steps=20, falls_at=falls_at)
            for seed in range(3)
        ]
        for name, falls_at in (("ppo", 1), ("st-ppo", None))
    }
    compare_folders(folders).save(tmp_path / "comparison.json")
    chapter = comparison_chapter(json.loads((tmp_path / "comparison.json").read_text()))
    reached, against = chapter["tables"]
    assert [row[0] for row in reached["rows"]] == ["ppo", "st-ppo"]
    assert len(reached["columns"]) == len(reached["rows"][0])
    assert reached["rows"][1][-1] == "0 of 3"
    assert (against["title"], len(against["rows"])) == ("Against ppo", 1)
    assert [len(row["points"]) for row in chapter["intervals"][0]["rows"]] == [3, 3]


def test_the_command_writes_the_report_and_says_where(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(report)
    run = write_run(tmp_path / "run", steps=12)
    result = CliRunner().invoke(app, [str(run), "--output", str(tmp_path / "new" / "page.html")])
    assert result.exit_code == 0
    assert "open it in a browser" in result.output
    assert data_of(tmp_path / "new" / "page.html")["runs"][0]["name"] == "run"


def test_saved_evaluations_join_the_report_and_are_compared_with_the_first(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=12)
    write_evaluation(run / "evals/after.json", "after", solved=6)
    write_evaluation(tmp_path / "before.json", "before", solved=2)
    app = typer.Typer()
    app.command()(report)
    page = tmp_path / "page.html"
    result = CliRunner().invoke(app, [str(run), "--eval", str(tmp_path / "before.json"), "--output", str(page)])
    assert result.exit_code == 0, result.output
    shown = data_of(page)["evaluations"]
    assert [row["name"] for row in shown["intervals"][0]["rows"]] == ["before", "after"]
    (differs,) = shown["tables"][1]["rows"]
    assert differs[0] == "after"
    assert differs[1].startswith("+0.500 [")
    assert differs[3:] == [4, 0, 8]


def test_a_run_that_imitates_a_file_is_told_by_its_held_out_loss(tmp_path: Path) -> None:
    data = read_run(write_run(tmp_path / "run", steps=12))
    rows = [{"step": 0, "eval/nll": 2.5}, {"step": 12, "eval/nll": 0.75}]
    run = replace(data, config={**data.config, "stage": "imitation", "sft": {"chats": "a.jsonl"}}, evals=rows)
    verdict = summarize_run(run, None)["verdict"]
    assert verdict.startswith("Loss 0.75 per token on held-out demonstrations at step 12, 2.5 before.")
    assert plays(data)
    assert not plays(run)
    assert not any(name.startswith("rollout/") for row in run.metrics for name in without_play(row))


@pytest.mark.parametrize(
    "arguments", [["nowhere"], ["run", "--comparison", "nowhere.json"], ["run", "--eval", "no.json"]]
)
def test_the_command_answers_a_mistake_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    write_run(tmp_path / "run", steps=3)
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    app.command()(report)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert result.output.startswith("turnwise: ")
    assert result.output.count("\n") == 1


def test_the_same_folder_named_twice_is_shown_once(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=3)
    assert len(data_of(write_report([run, run], tmp_path / "report.html"))["runs"]) == 1


@pytest.mark.parametrize("content", [[], {"sentences": [{}]}, {"arms": [{}]}])
def test_another_file_than_a_comparison_is_one_message_with_the_file_to_name(content: Any, tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text(json.dumps(content))
    result = CliRunner().invoke(app, ["report", str(tmp_path), "--comparison", str(file)])
    assert result.exit_code == 2
    assert "other.json does not contain a comparison" in "".join(result.stderr.splitlines())
    assert "name the comparison.json of `turnwise compare`" in " ".join(result.stderr.split())
