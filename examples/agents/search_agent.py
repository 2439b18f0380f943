"""An ordinary agent: it answers questions with a search engine and talks to its model through the `openai` client.

    turnwise train recipes/search-nano.yaml env=examples/agents/search_agent.py:run

It knows nothing about training. The same function runs against any OpenAI-compatible server:

    print(run({"seed": 0, "split": "test"}, "http://127.0.0.1:8000/v1", "any key"))
"""

from __future__ import annotations

from typing import Any

from openai import OpenAI

from turnwise.envs.search.geo import geo
from turnwise.envs.search.protocol import INVALID, LAST_TURN, ask, exact_match, parse, show

SEARCHES = 3


def run(task: dict[str, Any], base_url: str, api_key: str) -> float:
    """Answer the question of a seed; 1.0 if the answer is right."""
    world = geo(hops=2, split=task["split"])
    world.reset(seed=task["seed"])
    assert world.task is not None
    client = OpenAI(base_url=base_url, api_key=api_key)
    messages: list[Any] = [{"role": "user", "content": ask(world.task.question, style="terse", searches=SEARCHES)}]
    for left in range(SEARCHES, -1, -1):
        said = client.chat.completions.create(model="policy", messages=messages).choices[0].message.content or ""
        action = parse(said)
        if action is not None and action.kind == "answer":
            return exact_match(action.text, world.task.answers)
        found = INVALID if action is None else show(world.retriever.search(action.text, 1), characters=1_000)
        reply = f"{found}\n{LAST_TURN}" if left == 1 else found
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": reply}]
    return 0.0
