"""An agent that looks things up in a table. It talks to its model through the `openai` client; lesson 3 trains it."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

from openai import OpenAI

KEYS = [" ".join(pair) for pair in product("abcdefgh", repeat=2)]
TURNS = 5


def run(task: dict[str, Any], base_url: str, api_key: str) -> float:
    """Follow two hops through a table that only the agent can see; 1.0 if the model's answer is right."""
    chance = random.Random(f"{task['split']} {task['seed']}")
    table = dict(zip(KEYS, chance.sample(KEYS, len(KEYS)), strict=True))
    start = chance.choice(KEYS)
    client = OpenAI(base_url=base_url, api_key=api_key)
    messages: list[Any] = [{"role": "user", "content": f"2 hops from {start}"}]
    for _ in range(TURNS):
        said = client.chat.completions.create(model="policy", messages=messages).choices[0].message.content or ""
        word, _, key = said.strip().partition(" ")
        if word == "answer":
            return float(key == table[table[start]])
        found = table[key] if word == "get" and key in table else "error"
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": found}]
    return 0.0
