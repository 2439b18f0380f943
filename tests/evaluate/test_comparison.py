import json
import math
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

pytest.importorskip("scipy", reason="needs turnwise[dev]")

from scipy import stats

from tests.evaluate.run_folders import write_run
from turnwise.evaluate.comparison import Comparison, compare_folders, compare_results
from turnwise.evaluate.results import RunResult, read_result
from turnwise.evaluate.tables import comparison_tables

PPO = [0.20, 0.52, 0.31, 0.64, 0.05]
ST_PPO = [0.81, 0.79, 0.90, 0.72, 0.85]
GRPO = [0.5, 0.1, 0.45, 0.6, 0.2]


@pytest.fixture(name="run", scope="module")
def _run(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    curve = {0: 0.25, 10: 0.75, 40: 0.75}
    return read_result(write_run(tmp_path_factory.mktemp("runs") / "one", curve, seed=3))


def compare(run: RunResult, **finals: list[float]) -> Comparison:
    return compare_results(
        {
            label: [replace(run, seed=seed, final=final) for seed, final in enumerate(values)]
            for label, values in finals.items()
        }
    )


def test_one_run_in_numbers(run: RunResult):
    assert (run.seed, run.steps, run.episodes) == (3, 40, 320)
    assert (run.start, run.best, run.final) == (0.25, 0.75, 0.75)
    assert run.area == pytest.approx((10 * 0.5 + 30 * 0.75) / 40)
    assert run.collapse is None
    assert run.clip_fraction == pytest.approx(0.1)
    assert run.gradient_tail == pytest.approx(np.quantile([2.0] * 39 + [8.0], 0.99) / 2)
    assert run.explained_variance is None
    assert run.seconds == pytest.approx(40 * 0.5 + 3 * 2.0)


def test_a_run_that_was_stopped_keeps_its_last_value_to_the_planned_end(tmp_path: Path):
    stop = {"kind": "guard", "step": 20, "action": "stop", "text": "loss is NaN"}
    run = read_result(write_run(tmp_path / "run", {0: 0.2, 20: 0.0}, steps=100, events=[stop]))
    assert run.area == pytest.approx((20 * 0.1 + 80 * 0.0) / 100)
    assert run.final == 0.0
    assert run.collapse is not None


def test_a_run_cut_off_in_the_middle_of_a_line_still_counts(tmp_path: Path):
    path = write_run(tmp_path / "run", {0: 0.2, 40: 0.6})
    with (path / "evals.jsonl").open("a") as file:
        file.write('{"step": 50, "eval/succ')
    assert read_result(path).final == 0.6


def test_a_run_without_evaluations_is_refused(tmp_path: Path):
    path = write_run(tmp_path / "run", {})
    with pytest.raises(ValueError, match=r"no evaluation to compare; set eval\.episodes"):
        read_result(path)


def test_final_success_of_an_algorithm(run: RunResult):
    arm = compare(run, ppo=PPO).arms[0]
    assert arm.final.mean.value == pytest.approx(np.mean(PPO))
    expected = stats.t.interval(0.95, 4, np.mean(PPO), stats.sem(PPO))
    assert (arm.final.mean.low, arm.final.mean.high) == pytest.approx(expected)
    assert arm.final.iqm.value == pytest.approx((0.75 * 0.20 + 0.31 + 0.75 * 0.52) / 2.5)
    assert arm.final.iqm.low is not None
    assert arm.final.iqm.high is not None
    assert 0.05 <= arm.final.iqm.low < arm.final.iqm.value < arm.final.iqm.high <= 0.64


def test_everyone_is_held_against_the_first_with_correction_for_their_number(run: RunResult):
    comparison = compare(run, ppo=PPO, st=ST_PPO, grpo=GRPO)
    first, st, grpo = comparison.arms
    assert comparison.baseline == "ppo"
    assert first.versus is None
    assert st.versus is not None
    assert grpo.versus is not None
    assert st.versus.p == pytest.approx(float(np.asarray(stats.ttest_ind(ST_PPO, PPO, equal_var=False))[1]), abs=1e-12)
    assert st.versus.p_adjusted == pytest.approx(2 * st.versus.p)
    assert grpo.versus.p_adjusted == pytest.approx(min(1.0, 2 * grpo.versus.p))
    assert st.versus.d > 2
    assert st.versus.improvement.value == 1.0
    pairs = stats.ttest_rel(ST_PPO, PPO).confidence_interval()
    assert (st.versus.difference.low, st.versus.difference.high) == pytest.approx(tuple(pairs))


def test_differences_are_over_the_seeds_in_common(run: RunResult):
    runs = {
        "ppo": [replace(run, seed=seed, final=0.1 * seed) for seed in (0, 1, 2)],
        "st-ppo": [replace(run, seed=seed, final=0.1 * seed + 0.05) for seed in (1, 2, 9)],
    }
    comparison = compare_results(runs)
    versus = comparison.arms[1].versus
    assert versus is not None
    assert versus.difference.value == pytest.approx(0.05)
    assert any("same seeds" in note for note in comparison.notes)


def test_single_runs_get_no_interval_and_no_test(run: RunResult):
    comparison = compare(run, ppo=[0.3], st=[0.8])
    assert comparison.arms[1].versus is None
    assert comparison.arms[1].final.iqm.low is None
    assert any("too narrow" in note for note in comparison.notes)


def test_unequal_data_budgets_are_said(run: RunResult):
    comparison = compare_results({"ppo": [run], "grpo": [replace(run, episodes=640)]})
    assert "The data budgets differ (episodes: ppo 320, grpo 640): the comparison is not at equal cost." in (
        comparison.notes
    )


def test_folders_in_json_out(tmp_path: Path):
    folders = {
        label: [write_run(tmp_path / label / f"seed-{seed}", curve, seed=seed) for seed in range(2)]
        for label, curve in {"ppo": {0: 0.3, 40: 0.0}, "st-ppo": {0: 0.3, 40: 0.9}}.items()
    }
    compare_folders(folders).save(tmp_path / "comparison.json")
    content = json.loads((tmp_path / "comparison.json").read_text())
    ppo, st_ppo = content["arms"]
    assert (content["schema"], content["baseline"]) == (1, "ppo")
    assert (ppo["collapsed"], st_ppo["collapsed"]) == (2, 0)
    assert ppo["runs"][0]["collapse"] == {"step": 40, "reason": "success 0.00 after a best of 0.30"}
    assert st_ppo["final"]["iqm"]["value"] == pytest.approx(0.9)
    assert st_ppo["versus"]["d"] is None  # infinite: neither algorithm's runs differ
    assert math.isfinite(st_ppo["versus"]["p"])


def test_equal_runs_give_an_equal_comparison(run: RunResult):
    assert compare(run, ppo=PPO, st=ST_PPO) == compare(run, ppo=PPO, st=ST_PPO)


def test_no_runs_are_refused(run: RunResult):
    with pytest.raises(ValueError, match="no run of grpo"):
        compare_results({"ppo": [run], "grpo": []})
    with pytest.raises(ValueError, match="no run of any algorithm"):
        compare_results({})


def test_tables_show_labels_as_they_are(run: RunResult):
    output = StringIO()
    runs = [replace(run, seed=seed, final=final) for seed, final in enumerate(PPO)]
    better = [replace(run, seed=seed, final=final) for seed, final in enumerate(ST_PPO)]
    Console(width=160, file=output).print(comparison_tables(compare_results({"ppo": runs, "st[bold]": better})))
    text = output.getvalue()
    assert "st[bold]" in text
    assert "0 of 5" in text
    assert "against ppo" in text
    assert "collapsed when its held-out success" in text


def test_comparison_needs_no_torch():
    program = "import sys, turnwise.evaluate.tables; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
