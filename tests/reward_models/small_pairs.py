"""Small files of preferences with a rule that a tiny model can learn."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from turnwise.reward_models import RewardTraining

TINY: dict[str, Any] = {"model": "nano", "epochs": 2, "batch": 8, "held_out": 0.25}
_WORDS = ("river", "stone", "bread", "light", "music", "garden", "window", "paper")


def write_pairs(path: Path, *, lines: int = 48, **fields: Any) -> Path:
    """Answers that say yes are preferred to those that say no, whatever else is said."""
    rng = random.Random(0)
    rows: list[dict[str, Any]] = []
    for number in range(lines):
        tail = " ".join(rng.choice(_WORDS) for _ in range(rng.randint(1, 4)))
        prompt = f"Question {number}: {rng.choice(_WORDS)}?"
        rows.append({"prompt": prompt, "chosen": f"yes {tail}", "rejected": f"no {tail}", **fields})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def tiny(**changes: Any) -> RewardTraining:
    """Settings of a training of a few seconds."""
    return RewardTraining.of({**TINY, **changes})
