"""An agent of a popular framework runs through the gateway as it is."""

import json
from pathlib import Path

import pytest

from tests.gateway.served_agent import Sayer, play_with
from turnwise.envs.search.geo import geo
from turnwise.types import StopReason

pytest.importorskip("smolagents", reason="needs the framework: pip install 'smolagents[openai]'")
pytest.importorskip("openai", reason="the framework uses the openai client")
pytest.importorskip("uvicorn", reason="needs a server: pip install 'turnwise[serve]'")

AGENT = f"{Path(__file__).parents[2]}/examples/agents/smol_agent.py:run"


def calling(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_an_agent_of_smolagents_searches_and_answers():
    world = geo(hops=2, split="train")
    world.reset(seed=3)
    assert world.task is not None
    answer = sorted(world.task.answers)[0]
    engine = Sayer([calling("search", query="benin"), calling("final_answer", answer=answer)])
    [trajectory] = play_with(engine, AGENT, seeds=[3])
    assert (trajectory.stop, trajectory.reward, trajectory.success) == (StopReason.DONE, 1.0, True)
    assert len(trajectory.turns) == 2
    assert world.task.question in trajectory.turns[0].observation
    assert trajectory.turns[1].restarts  # the framework retells the first call in its own words
    assert trajectory.turns[0].call is not None
    assert {tool["function"]["name"] for tool in trajectory.turns[0].call["tools"]} == {"search", "final_answer"}
    assert trajectory.info["ignored"] == {"tool_choice": "required"}
