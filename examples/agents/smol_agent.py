"""An agent of the framework smolagents (pip install 'smolagents[openai]'), trained as it is.

    turnwise train model=Qwen/Qwen3-0.6B env=examples/agents/smol_agent.py:run algorithm=grpo rollout.max_turns=8

The framework writes the prompt, calls the tools and keeps the memory. It tells the model about its own earlier calls in
other words than the model's, so each of its calls is a sequence of its own, all of them in one trajectory.
"""

from __future__ import annotations

from typing import Any

from smolagents import LogLevel, OpenAIServerModel, Tool, ToolCallingAgent

from turnwise.envs.search.geo import geo
from turnwise.envs.search.protocol import exact_match, show


class Search(Tool):
    """A search engine as a tool of the framework."""

    name = "search"
    description = "Finds a document about a country or a city."
    inputs = {"query": {"type": "string", "description": "What to look for."}}  # noqa: RUF012 (the framework's form)
    output_type = "string"

    def __init__(self, retriever: Any) -> None:
        super().__init__()
        self.retriever = retriever

    def forward(self, query: str) -> str:
        """The best document."""
        return show(self.retriever.search(query, 1), characters=1_000)


def run(task: dict[str, Any], base_url: str, api_key: str) -> float:
    """Answer the question of a seed; 1.0 if the answer is right."""
    world = geo(hops=2, split=task["split"])
    world.reset(seed=task["seed"])
    assert world.task is not None
    model = OpenAIServerModel(model_id="policy", api_base=base_url, api_key=api_key)
    agent = ToolCallingAgent(tools=[Search(world.retriever)], model=model, max_steps=4, verbosity_level=LogLevel.OFF)
    return exact_match(str(agent.run(world.task.question)), world.task.answers)
