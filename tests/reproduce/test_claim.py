"""Claims as files: the shipped one says what it must, and mistakes are named."""

from itertools import pairwise

import pytest
from typer.testing import CliRunner

from tests.reproduce.tiny import CLAIM, write_claim
from turnwise.cli import app
from turnwise.envs.check import check_env
from turnwise.reproduce.adaptation import adapted, note_settings
from turnwise.reproduce.claim import load_claim, shipped_claims
from turnwise.reproduce.claim_study import Study
from turnwise.reproduce.plan import Cell, StudyRun, run_recipe, source_run, start_recipe, study_runs
from turnwise.reproduce.table_claim import load_table_claim
from turnwise.reproduce.verdict import judge

KINDS = ("lookup", "guess-number", "chat")


def test_the_shipped_claim_has_the_arms_controls_and_stress_that_it_promises():
    claim = load_claim("st-ppo")
    scale = claim.scale("cpu")
    cells = {run.cell for run in study_runs(scale)}
    assert {"ppo", "turn-ppo", "s-ppo", "st-ppo", "grpo", "so-grpo"} <= {cell.arm for cell in cells}
    assert {"ppo-matched", "turn-ppo-matched", "st-ppo-permuted"} <= set(claim.controls)
    assert {cell.updates for cell in cells if cell.arm == "st-ppo"} == {1, 4, 8, 16, 32}
    assert {cell.lag for cell in cells} == {0, 2, 4}
    rates = {cell.rate for cell in cells if (cell.arm, cell.updates, cell.lag) == ("st-ppo", 16, 0)}
    assert len(rates) >= 5
    assert scale.rate in rates
    assert scale.seeds == 10


@pytest.mark.parametrize("paper", [paper for paper in shipped_claims() if load_table_claim(paper) is None])
def test_every_run_of_every_shipped_scale_has_a_recipe(tmp_path, paper):
    claim = load_claim(paper)
    for scale in claim.scales.values():
        seen = set()
        for run in study_runs(scale):
            if (run.task, run.cell) not in seen and source_run(claim, run) is None:
                seen.add((run.task, run.cell))
                own, share = scale.on(run.task), claim.arms[run.cell.arm].rate_share
                recipe = run_recipe(claim, own, run, model="start", output=tmp_path)
                assert recipe.algorithm.updates_per_rollout <= run.cell.updates
                assert (recipe.train.learning_rate, recipe.seed) == (run.cell.rate * share, run.seed)


def test_the_shipped_environment_is_sound(tmp_path):
    claim = load_claim("st-ppo")
    recipe = start_recipe(claim, claim.scale("cpu"), 3, chats=tmp_path / "chats.jsonl")
    assert check_env(recipe.env.id, kwargs=recipe.env.kwargs, seeds=2).ok
    assert (recipe.model.name, recipe.eval.every) == ("pico-3", 0)
    assert recipe.sft is not None
    assert recipe.sft.chats == str(tmp_path / "chats.jsonl")


def test_the_shipped_claims_of_gem_differ_in_what_they_are_about(tmp_path):
    claim = load_claim("gem")
    scale = claim.scale("cpu")
    recipes = {
        run.cell.arm: run_recipe(claim, scale, run, model="start", output=tmp_path)
        for run in study_runs(scale)
        if run.seed == scale.first_seed
    }
    rows = {arm: recipe.algorithm for arm, recipe in recipes.items()}
    discounts = {arm: row.advantage.options["gamma"] for arm, row in rows.items()}
    assert {arm for arm, gamma in discounts.items() if gamma == 1} == {"rebn-undiscounted"}
    assert set(discounts.values()) == {0.9, 1.0}
    assert rows["rebn"].override({"advantage": {"gamma": 1.0}}) == rows["rebn-undiscounted"]
    assert rows["rebn-7-turns"].override({"normalizer": "none"}) == rows["unnormalised-7-turns"]
    assert rows["reinforce-7-turns"].surrogate.kind == "reinforce"
    assert {row.updates_per_rollout for row in rows.values()} == {2}
    turns = {arm: recipe.env.kwargs["max_turns"] for arm, recipe in recipes.items()}
    assert turns == {arm: 7 if arm.endswith("7-turns") else 16 for arm in turns}
    assert check_env(recipes["rebn"].env.id, kwargs=recipes["rebn"].env.kwargs, seeds=2).ok
    assert {scale.first_seed for name, scale in claim.scales.items() if name.endswith("calibration")} == {100}


def test_every_arm_of_gem_s_comparison_plays_every_game(tmp_path):
    claim = load_claim("gem")
    scale = claim.scale("table")
    runs = study_runs(scale)
    recipes = [run_recipe(claim, scale.on(run.task), run, model="start", output=tmp_path) for run in runs]
    played = {(run.task, run.cell.arm, recipe.env.id) for run, recipe in zip(runs, recipes, strict=True)}
    assert len({(task, env) for task, _, env in played}) == len(scale.tasks)
    assert len(played) == 4 * len(scale.tasks)
    assert len({run.folder(tmp_path) for run in runs}) == len(runs)
    for task in scale.tasks:
        start = start_recipe(claim, scale.on(task), 3, chats=tmp_path / "chats.jsonl")
        assert start.model.name == ("pico-guess-3" if task == "guess-number" else "pico-games-3")


@pytest.mark.parametrize(
    ("paper", "scale", "parts"),
    [
        ("st-ppo", "cpu", {""}),
        ("st-ppo", "drift-targets", {f"{part} {task}" for part in ("targets", "turns") for task in KINDS}),
        ("st-ppo", "drift-targets-quick", {f"targets {task}" for task in KINDS}),
        ("minirl", "cpu", {"A", "B", "C"}),
        ("minirl", "cpu-between", {"D"}),
        ("minirl", "cpu-gap", {"C"}),
    ],
)
def test_a_shipped_scale_has_runs_for_all_that_it_decides(paper, scale, parts):
    claim = load_claim(paper)
    findings = [finding for finding in judge(claim, claim.scale(scale), []) if finding.decides]
    assert {finding.part for finding in findings} == parts
    assert not [finding.name for finding in findings if finding.text == "this scale has no such runs"]


def test_equal_cells_of_two_blocks_are_one_run(tmp_path):
    claim = load_claim(str(write_claim(tmp_path, CLAIM.replace("updates: [1], seeds: 5", "updates: [4], seeds: 5"))))
    runs = study_runs(claim.scale("cpu"))
    assert len(runs) == len(set(runs)) == 5
    assert runs[-1] == StudyRun(cell=Cell(arm="ppo", rate=2e-2, updates=4), seed=0)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("controls: [matched", "controls: [lost, matched", "'lost' is not one of the arms"),
        ("matched: st-ppo", "matched: st-pp", "'st-pp' is not one of the arms"),
        ("updates: 4", "update: 4", r"scales\.cpu\.update"),
    ],
)
def test_mistakes_in_a_claim_are_named(tmp_path, before, after, message):
    with pytest.raises(ValueError, match=message):
        load_claim(str(write_claim(tmp_path, CLAIM.replace(before, after, 1))))


def test_without_a_paper_the_command_lists_them():
    answer = CliRunner().invoke(app, ["reproduce"])
    assert answer.exit_code == 0
    lines = answer.output.splitlines()
    papers = [(line, about) for line, about in pairwise(lines) if about.startswith(" ")]
    assert [line.split()[0] for line, _ in papers] == shipped_claims()
    indents = {len(about) - len(about.lstrip()) for _, about in papers}
    assert len(indents) == 1  # a long name moves no column
    (indent,) = indents
    assert all(len(line[indent:].split()) > 5 for line, _ in papers)  # each says what the paper claims
    assert "ST-PPO (arXiv 2511.20718); runs by scale: cpu 333, " in answer.output
    assert "Dhumbal (arXiv 2510.11736); runs by scale: cpu 54, " in answer.output


def test_unknown_papers_and_scales_are_named():
    with pytest.raises(ValueError, match=r"one of apo, .*gem, .*st-ppo, .*tdpo"):
        load_claim("no-such-paper")
    with pytest.raises(ValueError, match="it has cpu, cpu-default, cpu-large"):
        load_claim("st-ppo").scale("mars")


def test_updates_that_are_no_whole_passes_are_refused(tmp_path):
    claim = load_claim("st-ppo")
    run = StudyRun(cell=Cell(arm="ppo", rate=1e-3, updates=6), seed=0)
    with pytest.raises(ValueError, match="whole passes"):
        run_recipe(claim, claim.scale("cpu"), run, model="start", output=tmp_path)


def test_a_user_runs_the_study_on_a_task_of_their_own(tmp_path):
    env = {"id": "search/qa", "kwargs": {"questions": "q.jsonl", "top_k": 5}}
    claim, settings = load_claim("st-ppo"), {"env": env, "device": "cpu"}
    own = adapted(claim, claim.scale("gpu"), settings)
    recipe = run_recipe(claim, own, study_runs(own)[0], model="start", output=tmp_path)
    assert (recipe.env.id, recipe.device) == ("search/qa", "cpu")
    assert recipe.env.kwargs == env["kwargs"]


@pytest.mark.parametrize(
    ("paper", "settings", "message"),
    [
        (
            "st-ppo",
            {"train": {"learning_rate": 1e-4}},
            "train.learning_rate cannot be set: it is what",
        ),
        ("st-ppo", {"train": {"grad_clip": 1.0}}, "train.grad_clip cannot be set: the arm ppo-tight-clip has its own"),
        ("st-ppo", {"algorithm": "grpo"}, "algorithm.preset cannot be set: it is what the study varies"),
        ("st-ppo", {"seed": 3}, "seed cannot be set"),
        ("st-ppo", {"model": "nano"}, r"from seeds \(pico-\{seed\}\); --scale gpu or .* allows it"),
        (
            "st-ppo",
            {"env": "search/geo-1hop"},
            "env.id cannot be set: this scale's expert slips in the words",
        ),
        ("st-ppo", {"sft": {"chats": "mine.jsonl"}}, "sft.chats cannot be set"),
        ("gem", {"env": {"kwargs": {"high": 20}}}, "env.kwargs cannot be set: the arm rebn-7-turns has its own"),
    ],
)
def test_what_the_study_sets_itself_is_not_for_the_user_to_set(paper, settings, message):
    claim = load_claim(paper)
    with pytest.raises(ValueError, match=message):
        adapted(claim, claim.scale("cpu"), settings)


def test_a_folder_holds_one_study(tmp_path):
    claim = load_claim("st-ppo")
    own = {"train": {"steps": 60}}
    Study(claim, "cpu", tmp_path, {"trian": {"steps": 60}})  # what never ran leaves nothing behind
    assert not list(tmp_path.iterdir())
    note_settings(tmp_path, own)
    Study(claim, "cpu", tmp_path, own)
    for other in ({}, {"train": {"steps": 30}}):
        with pytest.raises(ValueError, match="holds a study with other settings"):
            Study(claim, "cpu", tmp_path, other)


def test_a_control_without_the_run_that_it_needs_is_refused(tmp_path):
    claim = load_claim(
        str(write_claim(tmp_path, CLAIM.replace("[matched, permuted, st-ppo, half]", "[matched, half]")))
    )
    with pytest.raises(ValueError, match=r"takes over the scales of st-ppo .* which is in no block of cpu"):
        Study(claim, "cpu", tmp_path / "output")
