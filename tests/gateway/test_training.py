"""An unmodified agent is trained: the run, its ledger, and what the other commands make of them."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from turnwise.cli import app
from turnwise.runs import read_journal
from turnwise.runs.ledger import read_groups
from turnwise.trust import SIGNATURE, require_trust

pytest.importorskip("openai", reason="the example uses the openai client")
pytest.importorskip("uvicorn", reason="needs a server: pip install 'turnwise[serve]'")
pytest.importorskip("tantivy", reason="the example searches: pip install 'turnwise[search]'")

ROOT = Path(__file__).parents[2]
AGENT = f"{ROOT}/examples/agents/search_agent.py:run"
RECIPE = str(ROOT / "turnwise" / "recipes" / "search-nano.yaml")
SMALL = [
    *("rollout.episodes=8", "eval.episodes=4", "rollout.max_tokens=24", "engine.memory_gib=0.05", "algorithm=grpo"),
    *("rollout.context=512", "checkpoint.every=1"),
]


def turnwise(*arguments):
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two steps, the second of them after a resume."""
    folder = tmp_path_factory.mktemp("gateway") / "run"
    first = turnwise("train", RECIPE, f"env={AGENT}", *SMALL, "train.steps=1", "--output", str(folder), "--quiet")
    assert first.exit_code == 0, first.output
    resumed = turnwise("resume", str(folder), "train.steps=2", "--quiet")
    assert resumed.exit_code == 0, resumed.output
    return folder


def test_the_calls_of_an_agent_are_the_turns_of_its_trajectory(trained):
    rows = read_journal(trained / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["rollout/faults"] == 0 for row in rows if "rollout/faults" in row)
    trajectories = [
        one for group in read_groups(trained / "rollouts/step_000002.jsonl.zst") for one in group.trajectories
    ]
    assert len(trajectories) == 8
    for trajectory in trajectories:
        assert [turn.call["number"] for turn in trajectory.turns if turn.call] == list(range(len(trajectory.turns)))
        assert not any(turn.restarts for turn in trajectory.turns)  # an append-only agent is one sequence
        assert trajectory.turns[0].observation.startswith("<search> or <answer> : ")


def test_verify_replay_and_eval_work_on_the_run(trained):
    verified = turnwise("verify", str(trained))
    assert (verified.exit_code, "2 steps checked: no defect" in verified.stdout) == (0, True), verified.output
    replayed = turnwise("replay", str(trained), "--step", "2")
    assert (replayed.exit_code, "equal to the last bit" in replayed.stdout) == (0, True), replayed.output
    assert not [event for event in read_journal(trained / "events.jsonl") if event["kind"] == "ignored"]
    evaluated = turnwise("eval", str(trained), "--episodes", "4")
    assert (evaluated.exit_code, "success" in evaluated.stdout) == (0, True), evaluated.output


def test_a_run_from_elsewhere_runs_no_agent_without_trust(trained, tmp_path):
    run = shutil.copytree(trained, tmp_path / "run")
    (run / SIGNATURE).unlink()
    refused = turnwise("resume", str(run), "train.steps=3")
    assert refused.exit_code == 2, refused.output
    assert "names code outside turnwise" in refused.stderr


@pytest.mark.parametrize("place", [AGENT, "agents/mine.py:run", "mine:run"])
def test_every_way_to_name_a_program_needs_trust(place, tmp_path):
    config = tmp_path / "config.yaml"
    (tmp_path / "meta.json").write_text("{}")
    command = {"id": "agent-run", "kwargs": {"command": ["python", "agent.py"]}}
    for env in (place, {"id": place}, {"id": "agent-run", "kwargs": {"program": place}}, command):
        for choices in ({"env": env}, {"eval": {"env": env}}):
            with pytest.raises(ValueError, match="names code outside turnwise"):
                require_trust(config, [choices])
    for kwargs in ({"program": place}, {"command": "python agent.py"}):
        tasks = {"kind": "curriculum", "stages": [{"kwargs": kwargs}]}
        with pytest.raises(ValueError, match="names code outside turnwise"):
            require_trust(config, [{"env": "agent-run", "source": {"tasks": tasks}}])
    require_trust(config, [{"env": {"id": "openenv/127.0.0.1:8000"}}])  # an address is no code


def test_a_mistake_in_the_name_of_an_agent_is_answered_with_the_fix():
    assert "did you mean" in turnwise("train", RECIPE, f"env={AGENT}s").stderr
    assert "there is no file" in turnwise("train", RECIPE, "env=examples/no_such_agent.py:run").stderr


FICKLE = """
import json
from tests.gateway.raw_client import post

def run(task, base_url, api_key):
    asked = {"model": "any", "messages": [{"role": "user", "content": "say a word"}]}
    post(base_url, api_key, json.dumps({**asked, "temperature": 0.2, "seed": task["seed"]}).encode())
    return 1.0
"""


def test_what_calls_ask_for_in_vain_is_said_once_in_a_run_and_in_an_evaluation(tmp_path, monkeypatch):
    (tmp_path / "fickle.py").write_text(FICKLE)
    (tmp_path / "tasks.jsonl").write_text("".join(f'{{"seed": {number}}}\n' for number in range(12)))
    monkeypatch.chdir(tmp_path)
    env = [
        "env=fickle.py:run",
        "env.kwargs.tasks=tasks.jsonl",
        *SMALL,
        "model=pico",
        "rollout.max_tokens=4",
        "rollout.context=64",
    ]
    trained = turnwise("train", *env, "train.steps=2", "--output", "run", "--plain")
    assert trained.exit_code == 0, trained.output
    said = "the program's calls ask for temperature=0.2, seed="
    assert trained.output.count(said) == 1
    (event,) = [event for event in read_journal(tmp_path / "run/events.jsonl") if event["kind"] == "ignored"]
    assert event["text"].startswith(said)
    saved = turnwise("eval", "run", "--episodes", "9", "--save", "a.json", "--show", "1")
    assert saved.exit_code == 0, saved.output
    assert said in saved.stderr
    assert "eval.episodes is 9, but the environment has 1 held-out task; each was played once" in saved.stderr
    assert "saved to a.json" in saved.stderr
    shown = saved.stdout[: saved.stdout.index("held-out  ")]
    assert shown.count("reward 1") == 2  # of the turn and of the episode, and no third time as an observation
    repeated = turnwise("compare-evals", "a.json", "./a.json")
    assert (repeated.exit_code, "a.json is named twice" in repeated.stderr) == (2, True)
    assert turnwise("report", "run").exit_code == 0
    assert (tmp_path / "run/report.html").is_file()
    assert not (tmp_path / "report.html").exists()
