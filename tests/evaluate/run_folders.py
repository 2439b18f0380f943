"""Small run folders for tests, written the way a run writes them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnwise.runs.folder import RunFolder


def write_run(
    path: Path,
    success: Mapping[int, float],
    *,
    seed: int = 0,
    steps: int = 40,
    valid: float = 1.0,
    episodes: int = 8,
    events: list[dict[str, Any]] | None = None,
) -> Path:
    """A run with these successes by step; every step takes half a second and clips a tenth of its tokens."""
    folder = RunFolder.create(path, {"seed": seed, "train": {"steps": steps}}, {"turnwise": "0"})
    for step in range(1, steps + 1):
        norms = {"train/gradient_norm": 2.0, "train/gradient_norm_max": 2.0 + (step == steps) * 6}
        common = {"rollout/episodes": episodes, "loss/clip_fraction": 0.1, "time/step": 0.5}
        folder.metrics.append({"step": step, **common, **norms})
    for step, value in success.items():
        folder.evals.append({"step": step, "eval/success": value, "eval/valid": valid, "time/evaluate": 2.0})
    for event in events or []:
        folder.events.append(event)
    return path
