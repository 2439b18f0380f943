"""What a browser is sent: exactly what it lacks, whatever happens to the folders in between."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.report.runs import write_evaluation, write_long_run, write_run
from tests.watch.browsers import Memory, fresh
from turnwise.evaluate.saved_chapter import evaluations_chapter, read_evaluations
from turnwise.report import Sample
from turnwise.report.build import collect
from turnwise.report.columns import Columns
from turnwise.watch import LiveView, live_run, live_view


@pytest.fixture(autouse=True)
def scans_at_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_view, "SCAN_SECONDS", 0.0)
    monkeypatch.setattr(live_run, "_SHARE", 1e9)  # what is computed again from all steps is so at every look


def append(file: Path, *rows: dict[str, Any]) -> None:
    with file.open("a") as opened:
        opened.write("".join(json.dumps(row) + "\n" for row in rows))


def test_the_page_has_what_a_report_of_the_run_has(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "geo",
        algorithm="ppo",
        steps=60,
        falls_at=30,
        guarded=True,
        recorded=(1, 60),
        parts=("exact", "style"),
    )
    write_run(run / "sft", steps=20)
    files = [write_evaluation(run / f"evals/{name}.json", name, solved=solved) for name, solved in (("a", 2), ("b", 7))]
    evaluations = evaluations_chapter(read_evaluations(files))
    collected = json.loads(
        json.dumps(collect([run], comparison=None, evaluations=evaluations, sample=Sample()), allow_nan=False)
    )
    (report,), page = collected["runs"], fresh([tmp_path])
    assert page["shared"]["panels"] == collected["panels"]
    assert sum(panel["chapter"] == "Parts of the reward" for panel in page["shared"]["panels"]) == 2
    assert page["shared"]["evaluations"] == collected["evaluations"]
    ((_, parts),) = page["runs"].items()
    shown = {name: value for part in parts.values() for name, value in part.items()}
    assert parts["curves"] == {"step": report["curves"]["step"], "columns": parts["curves"]["columns"]}
    assert parts["curves"]["columns"] == report["curves"]["columns"]
    assert parts["heat"] == report["heat"]
    for name in ("name", "algorithm", "meta", "summary", "onset", "evaluations", "measures", "imitation", "league"):
        assert shown[name] == report[name], name
    assert shown["events"] == report["events"]
    assert {name: shown[name] for name in ("group", "legend", "config")} == {
        name: report[name] for name in ("group", "legend", "config")
    }
    assert shown["recorded"] == {"step": [[1, 60, 59]], "eval": [], "tokens": [[1, 60, 59]]}
    assert (shown["status"], shown["pace"]) == ("finished", pytest.approx(19, abs=1))


def test_a_run_on_files_says_nothing_of_play_here_either(tmp_path: Path) -> None:
    run = write_run(tmp_path / "pairs", steps=12)
    with (run / "config.yaml").open("a") as config:
        config.write("\nstage: preference\n")
    (report,) = json.loads(json.dumps(collect([run], comparison=None, sample=Sample())["runs"]))
    ((_, parts),) = fresh([tmp_path])["runs"].items()
    assert not any(name.startswith("rollout/") for name in parts["curves"]["columns"])
    assert parts["curves"]["columns"] == report["curves"]["columns"]
    assert parts["state"]["summary"] == report["summary"]


def test_what_visitors_with_old_tags_were_sent_is_not_kept_for_ever(tmp_path: Path) -> None:
    write_run(tmp_path / "a", steps=3)
    view = LiveView([tmp_path])
    view.look()
    answers = {view.changes(f"old:curves={number}") for number in range(1000)}
    assert len({tags for tags, _ in filter(None, answers)}) == 1
    assert len(view._latest) <= 16


def test_columns_are_the_same_in_whatever_pieces_they_come() -> None:
    draw = Random(1)
    rows = [(step, [("a", draw.gauss(0, 1)), ("b_max", draw.random())][: draw.randrange(3)]) for step in range(1, 701)]
    columns = Columns[str](most=64, largest=lambda name: name.endswith("_max"))
    for step, values in rows:
        columns.add(step, values)
    assert (columns.width, columns.count, len(columns.steps)) == (16, 700, 44)
    for name, join in (("a", lambda found: sum(found) / len(found)), ("b_max", max)):
        buckets = [rows[start : start + 16] for start in range(0, 700, 16)]
        values = [[value for _, row in bucket for key, value in row if key == name] for bucket in buckets]
        assert columns.column(name) == [pytest.approx(join(found), rel=1e-4) for found in values]
        assert columns.column(name, 40) == columns.column(name)[40:]
    assert not columns.add(3, [("a", 1.0)])


def test_a_browser_that_comes_back_gets_exactly_what_it_lacks(tmp_path: Path) -> None:
    draw, runs = Random(5), tmp_path / "runs"
    write_run(runs / "a", steps=3, recorded=(1,))
    view, memory, left = LiveView([runs]), Memory(), Memory()
    for turn in range(40):
        draw.choice(MISHAPS)(runs, draw, turn)
        if draw.random() < 0.2:
            view = LiveView([runs])  # the server is started again
        view.look()
        memory.take(view.changes(memory.tags))
        if draw.random() < 0.3:  # another was away for a while
            left.take(view.changes(left.tags))
        assert view.changes(memory.tags) is None
        if turn % 5 == 0:
            assert memory.content == fresh([runs])
    left.take(view.changes(left.tags))
    assert left.content == memory.content == fresh([runs])


def train_on(runs: Path, draw: Random, turn: int) -> None:
    for run in list(runs.iterdir())[:2]:
        if not (run / "metrics.jsonl").exists():
            continue
        last = sum(1 for _ in (run / "metrics.jsonl").open("rb"))
        new = range(last + 1, last + 1 + draw.randrange(300))
        name = f"x/{turn % 7}"
        append(run / "metrics.jsonl", *({"step": step, "rollout/success": draw.random(), name: step} for step in new))
        append(run / "turns.jsonl", *({"step": step, "turn": step % 3, "turn/entropy": draw.random()} for step in new))
        append(run / "evals.jsonl", {"step": last, "eval/success": draw.random()})


def rewind(runs: Path, draw: Random, turn: int) -> None:
    for run in runs.iterdir():
        for name in ("metrics", "turns", "events"):
            if (run / f"{name}.jsonl").exists():
                os.truncate(run / f"{name}.jsonl", draw.randrange((run / f"{name}.jsonl").stat().st_size + 1))
    train_on(runs, draw, turn)


def incident(runs: Path, draw: Random, turn: int) -> None:
    for run in runs.iterdir():
        append(run / "events.jsonl", {"step": turn, "kind": "guard", "signal": "kl", "text": "far"})


def remove(runs: Path, draw: Random, turn: int) -> None:
    for run in list(runs.iterdir())[: draw.randrange(2)]:
        shutil.rmtree(run)


def lose_a_file(runs: Path, draw: Random, turn: int) -> None:
    for run in runs.iterdir():
        (run / draw.choice(["metrics.jsonl", "turns.jsonl", "config.yaml"])).unlink(missing_ok=True)


def another(runs: Path, draw: Random, turn: int) -> None:
    write_run(runs / f"run-{turn}", algorithm=draw.choice(["ppo", "st-ppo"]), seed=turn, steps=2)


def hostile(runs: Path, draw: Random, turn: int) -> None:
    for run in runs.iterdir():
        digits = "9" * 400
        with (run / "metrics.jsonl").open("a") as file:
            file.write(f'{{"step": 10000000, "a": {digits}, "b": NaN, "__proto__": 1}}\nno row\n')
        append(run / "turns.jsonl", {"step": 1, "turn": 10**9, "turn/entropy": 1}, {"step": 2, "turn": "x"})
        append(run / "events.jsonl", {"step": -1, "kind": ["</script>"], "time": 7, "table": 3})
        append(run / "evals.jsonl", {"step": 1, "eval/success": "much"})
        (run / "config.yaml").write_text("- no\n- mapping\n")


MISHAPS: list[Callable[[Path, Random, int], None]] = [
    *[train_on] * 6,
    *[rewind] * 2,
    *[incident] * 2,
    remove,
    lose_a_file,
    another,
    another,
    hostile,
]


def test_a_step_of_a_long_run_is_a_short_message(tmp_path: Path) -> None:
    run = write_long_run(tmp_path / "long", steps=1300)
    view, memory = LiveView([run]), Memory()
    view.look()
    memory.take(view.changes(""))
    row = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    append(run / "metrics.jsonl", {**row, "step": 1301, "rollout/success": 0.5})
    append(run / "turns.jsonl", {"step": 1301, "turn": 0, "turn/entropy": 0.4})
    view.look()
    memory.take(view.changes(memory.tags))
    first, second = memory.sizes
    assert second < first / 20
    assert memory.content == fresh([run])
    assert len(next(iter(memory.runs.values()))["curves"]["step"]) == 326  # buckets of four steps


def test_policies_that_learn_together_are_shown_apart(tmp_path: Path) -> None:
    run = write_run(tmp_path / "two", steps=4)
    own = {"algorithm": {"name": "ppo"}, "frozen": False}
    (run / "config.yaml").write_text(json.dumps({"name": "two", "policies": {"asker": own, "answerer": own}}))
    append(
        run / "metrics.jsonl", {"step": 5, "asker/loss/entropy": 1.5, "answerer/loss/entropy": 2.5, "time/step": 3.0}
    )
    rows = [{"step": 5, "turn": 0, "policy": each, "turn/entropy": 7.0} for each in ("asker", "answerer", "asker")]
    append(run / "turns.jsonl", *rows)
    first, second = fresh([run])["runs"].values()
    assert [first["about"]["name"], second["about"]["name"]] == ["two · asker", "two · answerer"]
    ends = [each["curves"]["columns"]["loss/entropy"][-1] for each in (first, second)]
    assert ends == [1.5, 2.5]
    assert [each["heat"]["maps"]["turn/entropy"][0][-1] for each in (first, second)] == [7.0, 7.0]


def test_many_runs_are_shown_in_few_points_and_the_newest_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(12):
        parts = ("exact",) if seed == 7 else ()
        write_run(tmp_path / "study" / f"ppo/seed-{seed}", algorithm="ppo", seed=seed, steps=2, parts=parts)
        os.utime(tmp_path / f"study/ppo/seed-{seed}/metrics.jsonl", (seed, seed))
        os.utime(tmp_path / f"study/ppo/seed-{seed}/meta.json", (seed, seed))
    monkeypatch.setattr(live_view, "MOST_RUNS", 10)
    (tmp_path / "study/comparison.json").write_text(json.dumps({"sentences": ["ppo is ppo"], "arms": []}))
    content = fresh([tmp_path / "study"])
    assert sorted(run["about"]["name"] for run in content["runs"].values()) == sorted(
        f"ppo/seed-{seed}" for seed in range(2, 12)
    )
    assert content["shared"]["left_out"] == 2
    (study,) = content["shared"]["studies"]
    assert (study["name"], study["title"]) == ("study", "Comparison")
    assert study["chapter"]["sentences"] == ["ppo is ppo"]
    assert study["runs"] == content["shared"]["order"]
    assert {run["about"]["group"] for run in content["runs"].values()} == {"ppo"}
    sent = {run["about"]["name"]: set(run["curves"]["columns"]) for run in content["runs"].values()}
    assert sent["ppo/seed-7"] - sent["ppo/seed-8"] == {"rollout/reward_exact"}  # parts are sent of many runs too
    assert "loss/ratio_ess" not in sent["ppo/seed-7"]
    assert "rollout/reward_exact" in {panel["metric"] for panel in content["shared"]["panels"]}


def test_studies_are_found_wherever_they_conclude(tmp_path: Path) -> None:
    write_run(tmp_path / "runs/old", steps=2)
    for seed in range(2):
        write_run(tmp_path / f"runs/studies/first/ppo/seed-{seed}", algorithm="ppo", seed=seed, steps=2)
    paper = tmp_path / "runs/paper"
    (paper / "runs/table/seed-0").mkdir(parents=True)  # a study without episodes has no run folder
    view, memory = LiveView([tmp_path / "runs"]), Memory()
    view.look()
    memory.take(view.changes(memory.tags))
    assert memory.shared["studies"] == []
    (tmp_path / "runs/studies/first/comparison.json").write_text(json.dumps({"sentences": ["equal"]}))
    (paper / "verdict.md").write_text(VERDICT)
    cell = {"arm": "ppo", "rate": 1e-4, "task": ""}
    rows = [{**cell, "seed": seed, "final": seed / 4} for seed in range(3)] + [{**cell, "rate": 2e-4, "final": 1.0}]
    (paper / "results.json").write_text(json.dumps(rows))
    (tmp_path / "runs/studies/comparison.json").write_text(json.dumps({"intervals": [3], "sentences": [{}]}))
    view.look()
    memory.take(view.changes(memory.tags))
    assert memory.content == fresh([tmp_path / "runs"])
    found = {study["name"]: study for study in memory.shared["studies"]}
    assert set(found) == {"studies/first", "paper"}  # what is no comparison is left out
    inside = [memory.runs[key]["about"]["name"] for key in found["studies/first"]["runs"]]
    assert inside == ["studies/first/ppo/seed-0", "studies/first/ppo/seed-1"]
    verdict = found["paper"]["chapter"]
    assert (found["paper"]["title"], found["paper"]["runs"]) == ("Verdict", [])
    assert verdict["sentences"][:2] == ["Paper (2025): A pass", "The new method wins everywhere."]
    criteria, block = verdict["tables"]
    assert criteria["columns"] == ["criterion", "verdict", "numbers"]
    assert criteria["rows"][1] == ["*gap*", "not decided", "0.1 (-0.1 to 0.3)"]
    assert (block["title"], block["rows"]) == ("main", [["ppo", "0.50"]])
    (finals,) = verdict["intervals"]
    assert [(row["name"], row["value"], row["points"]) for row in finals["rows"]] == [
        ("ppo, 0.0001", 0.25, [0.0, 0.25, 0.5]),
        ("ppo, 0.0002", 1.0, [1.0]),
    ]
    (paper / "verdict.md").unlink()
    view.look()
    memory.take(view.changes(memory.tags))
    assert [study["name"] for study in memory.shared["studies"]] == ["studies/first"]


VERDICT = """# Paper (2025): A pass

The new method
wins everywhere.

2 of 2 runs are complete; 1 seeds from 0.

| criterion | verdict | numbers |
|---|---|---|
| wins | pass | 0.9 |
| *gap* | not decided | 0.1 (-0.1 to 0.3) |

## main

| arm | final (95%) |
|---|---|
| ppo | 0.50 |

"""


def test_saved_evaluations_come_and_go_and_a_broken_one_is_told(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs/geo", steps=2)
    before = write_evaluation(tmp_path / "before.json", "before", solved=2)
    view, memory = LiveView([tmp_path / "runs"], evals=[before]), Memory()

    def told() -> tuple[list[str], list[str]]:
        view.look()
        memory.take(view.changes(memory.tags))
        chapter = memory.shared["evaluations"]
        named = [row["name"] for interval in chapter["intervals"] for row in interval["rows"]]
        return named, [sentence for sentence in chapter["sentences"] if sentence.startswith("Note: ")]

    assert told() == (["before"], [])
    after = write_evaluation(run / "evals/after.json", "after", solved=6)
    assert told() == (["before", "after"], [])
    (run / "evals/broken.json").write_text('{"kind": "saved evaluation"')
    named, (note,) = told()
    assert named == ["before", "after"]
    assert "broken.json is not a saved evaluation" in note
    (run / "evals/broken.json").unlink()
    sound = json.loads(after.read_text())
    for wrong in ({"env": "x"}, {"label": ["after"]}, {"tasks": [{**sound["tasks"][0], "faults": None}]}):
        (run / "evals/wrong.json").write_text(json.dumps({**sound, **wrong}))
        named, (note,) = told()
        assert named == ["before", "after"]
        assert "wrong.json is not a saved evaluation" in note
    (run / "evals/wrong.json").unlink()
    os.mkfifo(run / "evals/pipe.json")  # whoever opens it would wait for ever
    named, (note,) = told()
    assert named == ["before", "after"]
    assert "pipe.json is not a plain file" in note
    (run / "evals/pipe.json").unlink()
    after.unlink()
    assert told() == (["before"], [])
    write_evaluation(before, "changed", solved=8)
    assert told() == (["changed"], [])


def test_links_that_lead_in_circles_are_not_followed(tmp_path: Path) -> None:
    write_run(tmp_path / "a", steps=1)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "around").symlink_to(tmp_path)
    assert len(fresh([tmp_path])["runs"]) == 1


def test_a_long_run_is_read_once_and_then_only_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", steps=200)
    view = LiveView([run])
    view.look()
    lines: list[bytes] = []
    from turnwise.runs import tail

    parse = tail.parse_line
    monkeypatch.setattr(tail, "parse_line", lambda each: lines.append(each) or parse(each))
    append(run / "metrics.jsonl", {"step": 201, "rollout/success": 1.0})
    assert view.look()
    assert len(lines) == 1
    assert not view.look()
