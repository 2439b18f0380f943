"""An agent of a popular framework runs through the gateway as it is, and is trained."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.gateway.macro_model import save_macro_model
from tests.gateway.served_agent import Sayer, play_with
from turnwise.cli import app
from turnwise.envs.search.geo import geo
from turnwise.recipe.loading import load_recipe
from turnwise.runs import read_journal
from turnwise.runs.ledger import read_groups
from turnwise.sources.seeds import training_seed
from turnwise.train.stages import train
from turnwise.types import StopReason

pytest.importorskip("smolagents", reason="needs the framework: pip install 'smolagents[openai]'")
pytest.importorskip("openai", reason="the framework uses the openai client")
pytest.importorskip("uvicorn", reason="needs a server: pip install 'turnwise[serve]'")

AGENT = f"{Path(__file__).parents[2]}/examples/agents/smol_agent.py:run"


def calling(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def answer_to(seed):
    world = geo(hops=2, split="train")
    world.reset(seed=seed)
    assert world.task is not None
    return world.task.question, sorted(world.task.answers)[0]


def test_an_agent_of_smolagents_searches_and_answers():
    question, answer = answer_to(3)
    engine = Sayer([calling("search", query="benin"), calling("final_answer", answer=answer)])
    [trajectory] = play_with(engine, AGENT, seeds=[3])
    assert (trajectory.stop, trajectory.reward, trajectory.success) == (StopReason.DONE, 1.0, True)
    assert len(trajectory.turns) == 2
    assert question in trajectory.turns[0].observation
    assert trajectory.turns[1].restarts  # the framework retells the first call in its own words
    assert trajectory.turns[0].call is not None
    assert {tool["function"]["name"] for tool in trajectory.turns[0].call["tools"]} == {"search", "final_answer"}
    assert trajectory.info["ignored"] == {"tool_choice": "required"}


def test_an_agent_of_smolagents_is_trained(tmp_path):
    """One step on one question, with a model that searches, answers rightly or answers wrongly."""
    question, answer = answer_to(training_seed(0, 0))
    said = [
        calling("search", query="benin"),
        calling("final_answer", answer=answer),
        calling("final_answer", answer="no"),
    ]
    save_macro_model(tmp_path / "model", said, context=16_384)
    recipe = {
        "model": str(tmp_path / "model"),
        "seed": 0,
        "env": AGENT,
        "algorithm": "grpo",
        "rollout": {"episodes": 8, "max_turns": 8, "max_tokens": 8, "context": 16_384},
        "engine": {"memory_gib": 0.3},
        "train": {"steps": 1},
        "eval": {"episodes": 0},
        "checkpoint": {"every": 1},
    }
    train(load_recipe(None, recipe), tmp_path / "run")
    [row] = read_journal(tmp_path / "run/metrics.jsonl")
    assert row["rollout/faults"] == 0
    assert 0.0 < row["rollout/reward"] < 1.0
    assert row["train/gradient_norm"] > 0.0
    [group] = read_groups(tmp_path / "run/rollouts/step_000001.jsonl.zst")
    turns = [turn for trajectory in group.trajectories for turn in trajectory.turns]
    assert {turn.action for turn in turns} == set(said)
    assert len(turns) > len(group.trajectories)  # those that searched went on
    assert all(question in trajectory.turns[0].observation for trajectory in group.trajectories)
    verified = CliRunner().invoke(app, ["verify", str(tmp_path / "run")])
    assert (verified.exit_code, "1 step checked: no defect" in verified.stdout) == (0, True), verified.output
