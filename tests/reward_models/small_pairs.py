"""Small files of preferences with a rule that a tiny model can learn."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from turnwise.envs.chat.reviews import NEGATIVE, POSITIVE, SUBJECTS
from turnwise.reward_models import RewardTraining
from turnwise.types import Message

TINY: dict[str, Any] = {
    "model": "pico-chat",
    "epochs": 2,
    "batch": 8,
    "held_out": 0.25,
    "train": {"learning_rate": 5e-3},
}


def write_pairs(path: Path, *, lines: int = 48, **fields: Any) -> Path:
    """Praise is preferred to blame."""
    rng = random.Random(0)
    rows: list[dict[str, Any]] = []
    for subject in rng.sample(SUBJECTS, lines):
        good, bad = (f"the {subject.topic} is {rng.choice(words)} ." for words in (POSITIVE, NEGATIVE))
        rows.append({"prompt": subject.prompt, "chosen": good, "rejected": bad, **fields})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def tiny(**changes: Any) -> RewardTraining:
    """Settings of a training of a second."""
    return RewardTraining.of({**TINY, **changes})


def chat(*texts: str) -> list[Message]:
    """What user and assistant say in turn."""
    return [Message(role=("user", "assistant")[place % 2], content=text) for place, text in enumerate(texts)]
