"""Run folders as training writes them: through the library's own writers, with numbers that look like a run."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import tokenizers
import zstandard

import turnwise.policy
from turnwise.algorithm import preset
from turnwise.evaluate.saved import SavedEvaluation, save_evaluation
from turnwise.runs import RunFolder, write_groups
from turnwise.types import Group, StopReason, Trajectory, Turn

NANO = Path(turnwise.policy.__path__[0]) / "weights" / "nano"
META = {"schema": 1, "turnwise": "0.1.0", "python": "3.11.7", "torch": "2.13.0", "threads": 1, "device": "cpu"}
OBSERVATION = "Question: In which country lies the town of Mahis? You may search before you answer."
RESULT = "Mahis is a town in the north of Belarus, on the river Drut; it had 11,400 inhabitants in 2009."


def write_run(
    path: Path,
    *,
    algorithm: str = "st-ppo",
    seed: int = 0,
    steps: int = 40,
    falls_at: int | None = None,
    guarded: bool = False,
    recorded: tuple[int, ...] = (),
    episodes: int = 12,
    words: Mapping[str, str] | None = None,
    settings: Mapping[str, Any] | None = None,
    parts: Sequence[str] = (),
) -> Path:
    """A run of `steps` steps. From `falls_at` on the ratio's tail grows; success dies ten steps later.

    `parts` are the names of the parts of its reward.
    """
    draw = Random(f"{algorithm} {seed}")
    folder = RunFolder.create(path, _config(path.name, algorithm, seed, steps, settings or {}), {**META, **_started()})
    for step in range(1, steps + 1):
        trouble = 0.0 if falls_at is None else min(max(0.0, step - falls_at + 1), 30.0)
        added = {f"rollout/reward_{part}": draw.random() for part in parts}
        folder.metrics.append(_metrics(step, trouble, draw) | added)
        for turn in range(6):
            folder.turns.append({"step": step, "turn": turn, **_reading(turn, step, trouble, draw)})
        if step % 10 == 0:
            measured = {f"eval/reward_{part}": draw.random() for part in parts}
            folder.evals.append(_evaluation(step, trouble, draw) | measured)
    if guarded and falls_at is not None:
        folder.events.append(_incident(falls_at + 3))
    folder.events.append({"step": steps, "time": "2026-02-03T11:15:09+00:00", "kind": "finished"})
    for step in recorded:
        record(path, step, draw, episodes=episodes, words=words or {})
    if recorded:
        _copy_tokenizer(path, recorded[-1])
    return path


def write_evaluation(path: Path, label: str, *, solved: int) -> Path:
    """A saved evaluation on eight tasks."""
    lists = [{"success": [float(seed < solved)], "reward": [0.0], "turns": [1]} for seed in range(8)]
    tasks = [{"task": f"seed {seed}", "seat": "agent", "faults": 0, **each} for seed, each in enumerate(lists)]
    metrics = {"eval/success": solved / 8}
    parts = {"command": [], "time": "", "turnwise": "", "env": {"id": "e"}, "settings": {}, "metrics": metrics}
    save_evaluation(path, SavedEvaluation(label=label, tasks=tasks, **parts))
    return path


def record(
    path: Path, step: int, draw: Random, *, episodes: int, words: Mapping[str, str], details: bool = True
) -> None:
    """The ledger of a step, and the learner's numbers of its tokens."""
    tokenizer = tokenizers.Tokenizer.from_file(str(NANO / "tokenizer.json"))
    played = [_trajectory(f"geo-{step}/{index}", index, tokenizer, draw, words) for index in range(episodes)]
    groups = [
        Group(id=f"geo-{step}-{start}", trajectories=played[start : start + 4]) for start in range(0, episodes, 4)
    ]
    file = path / "rollouts" / f"step_{step:06d}.jsonl.zst"
    file.parent.mkdir(exist_ok=True)
    write_groups(file, groups)
    if details:
        lines = "".join(json.dumps(_token_details(trajectory, draw)) + "\n" for trajectory in played)
        compressed = zstandard.ZstdCompressor().compress(lines.encode())
        (path / "rollouts" / f"tokens_{step:06d}.jsonl.zst").write_bytes(compressed)


def _started() -> dict[str, Any]:
    return {"started": "2026-02-03T10:11:12+00:00", "command": ["turnwise", "train"]}


def _config(name: str, algorithm: str, seed: int, steps: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "seed": seed,
        "device": "cpu",
        "model": {"name": "nano", "dtype": "fp32"},
        "env": {"id": "search/geo-2hop", "kwargs": {}, "held_out": {"split": "validation"}},
        "algorithm": preset(algorithm).model_dump(mode="json"),
        "train": {"steps": steps, "learning_rate": 1e-5, "grad_clip": 1.0, **settings},
    }


def _metrics(step: int, trouble: float, draw: Random) -> dict[str, float]:
    skill = 0.2 + 0.65 * (1 - math.exp(-step / 30))
    success = skill * math.exp(-max(0.0, trouble - 10) / 4)
    blow = math.exp(min(trouble, 20) / 4)
    noise = draw.gauss
    return {
        "step": step,
        "rollout/episodes": 128,
        "rollout/success": min(max(success + noise(0, 0.03), 0.0), 1.0),
        "rollout/reward": success - 0.05 + noise(0, 0.03),
        "rollout/turns": 3.2 + noise(0, 0.1) + 0.1 * max(0.0, trouble - 10),
        "rollout/tokens": 80 + noise(0, 3),
        "rollout/valid": min(1.0, 0.97 - 0.02 * max(0.0, trouble - 12) + noise(0, 0.005)),
        "rollout/repetition": 0.01 + abs(noise(0, 0.002)),
        "rollout/zero_variance": 0.3 + noise(0, 0.03),
        "loss/policy": noise(0, 0.02),
        "loss/ratio_mean": 1 + noise(0, 0.003),
        "loss/ratio_max": 1 + (1.2 + abs(noise(0, 0.2))) * blow,
        "loss/ratio_ess": 0.97 / (1 + 0.02 * trouble) + noise(0, 0.002),
        "loss/clip_fraction": 0.08 + 0.01 * max(0.0, trouble - 3) + abs(noise(0, 0.008)),
        "loss/sampler_kl": 0.004 * math.exp(max(0.0, trouble - 4) / 7) * math.exp(noise(0, 0.1)),
        "loss/entropy": 0.9 * math.exp(-step / 150) + noise(0, 0.02),
        "loss/value_error": 0.3 * math.exp(-step / 90) + 0.01 * max(0.0, trouble - 6) + abs(noise(0, 0.01)),
        "train/gradient_norm": 0.4 * math.exp(max(0.0, trouble - 5) / 7) * math.exp(noise(0, 0.12)),
        "train/gradient_norm_max": 0.9 * math.exp(max(0.0, trouble - 5) / 5) * math.exp(noise(0, 0.2)),
        "train/learning_rate": 1e-5,
        "train/explained_variance": 0.7 * (1 - math.exp(-step / 25)) - 0.04 * max(0.0, trouble - 8) + noise(0, 0.02),
        "train/clip_bias": 0.5 * math.exp(min(max(0.0, trouble - 4), 15) / 6) * math.exp(noise(0, 0.15)),
        "train/scale": 1 / (1 + 0.8 * math.exp(noise(0, 0.2) + min(max(0.0, trouble - 4), 15) / 6)),
        "time/step": 19.0 + noise(0, 0.5),
        "time/tokens_per_second": 4100 + noise(0, 90),
    }


def _reading(turn: int, step: int, trouble: float, draw: Random) -> dict[str, float]:
    late = 1 + 0.5 * turn
    blow = math.exp(min(max(0.0, trouble - (5 - turn)), 20) / 4)
    noise = draw.gauss
    return {
        "turn/tokens": 4000 / late,
        "turn/ratio_mean": 1 + 0.01 * (turn - 2) * min(blow, 20) / 4 + noise(0, 0.004),
        "turn/ratio_max": 1 + (0.4 * late + abs(noise(0, 0.15))) * blow,
        "turn/clip_fraction": min(0.6, 0.04 * late + 0.004 * blow + abs(noise(0, 0.008))),
        "turn/sampler_kl": 0.002 * late * blow * math.exp(noise(0, 0.15)),
        "turn/entropy": 0.9 * math.exp(-step / 150) / late + 0.05 + abs(noise(0, 0.02)),
        "turn/advantage_std": 0.8 + 0.08 * turn + noise(0, 0.03),
        "turn/value_error": 0.35 * math.exp(-step / 90) / late + abs(noise(0, 0.015)),
        "turn/clip_bias": 0.2 * late * math.exp(noise(0, 0.2)) * min(blow, 30) ** 0.5,
    }


def _evaluation(step: int, trouble: float, draw: Random) -> dict[str, float]:
    success = max(0.0, (0.18 + 0.62 * (1 - math.exp(-step / 30))) * math.exp(-max(0.0, trouble - 10) / 4))
    shown = min(1.0, max(0.0, success + draw.gauss(0, 0.015)))
    return {
        "step": step,
        "eval/episodes": 256,
        "eval/success": shown,
        "eval/success_low": max(0.0, shown - 0.06),
        "eval/success_high": min(1.0, shown + 0.06),
        "eval/turns": 3.1,
    }


def _incident(step: int) -> dict[str, Any]:
    return {
        "step": step,
        "time": "2026-02-03T10:41:30+00:00",
        "kind": "guard",
        "signal": "ratio-tail",
        "mode": "act",
        "action": "restore",
        "evidence": {"loss/ratio_max": 41.5, "median": 2.31},
        "text": "the largest ratio is 18 times its median of the last 20 steps",
        "change": "learning rate × 0.2",
    }


def _trajectory(
    name: str, index: int, tokenizer: tokenizers.Tokenizer, draw: Random, words: Mapping[str, str]
) -> Trajectory:
    won = index % 3 != 0
    observation, query = words.get("observation", OBSERVATION), words.get("action", "search: town Mahis country")
    texts = [
        (observation, query),
        (RESULT, "search: Belarus capital"),
        (RESULT, f"answer: {'Minsk' if won else 'Riga'}"),
    ]
    turns = [_turn(*pair, tokenizer, draw, reward=float(won and place == 2)) for place, pair in enumerate(texts)]
    task = {"question": words.get("task", OBSERVATION)}
    error = {"error": words["error"]} if "error" in words else {}
    return Trajectory(
        id=words.get("id", name) + ("" if "id" not in words else str(index)),
        turns=turns,
        stop=StopReason.DONE,
        terminated=True,
        task=task,
        seed=index,
        info={"success": won, **error},
    )


def _turn(observation: str, action: str, tokenizer: tokenizers.Tokenizer, draw: Random, *, reward: float) -> Turn:
    sampled = tokenizer.encode(action).ids
    return Turn(
        prompt_ids=tokenizer.encode(observation).ids,
        sampled_ids=sampled,
        logprobs=[-abs(draw.gauss(0, 0.6)) for _ in sampled],
        policy_version=7,
        reward=reward,
        observation=observation,
        action=action,
    )


def _token_details(trajectory: Trajectory, draw: Random) -> dict[str, Any]:
    sampler = [value for turn in trajectory.turns for value in turn.logprobs or ()]
    old = [value + draw.gauss(0, 0.004) for value in sampler]
    new = [value + draw.gauss(0, 0.12) for value in old]
    clipped = [int(abs(math.exp(after - before) - 1) > 0.2) for before, after in zip(old, new, strict=True)]
    return {
        "id": trajectory.id,
        "old": old,
        "new": new,
        "advantage": [draw.gauss(0, 1) for _ in old],
        "clipped": clipped,
    }


def _copy_tokenizer(path: Path, step: int) -> None:
    checkpoint = path / "checkpoints" / f"step_{step:06d}"
    checkpoint.mkdir(parents=True, exist_ok=True)
    shutil.copy(NANO / "tokenizer.json", checkpoint / "tokenizer.json")


def write_long_run(path: Path, *, steps: int, algorithm: str = "st-ppo") -> Path:
    """A run of very many steps, written at once: its rows repeat after some hundred steps."""
    folder = RunFolder.create(path, _config(path.name, algorithm, 0, steps, {}), {**META, **_started()})
    draw, period = Random(algorithm), min(steps, 300)
    extra = {f"rollout/score_{place}": place / 40 for place in range(35)}  # as many metrics as a real run has
    metrics = [json.dumps({**_metrics(step, 0.0, draw), **extra, "step": 0})[:-1] for step in range(1, period + 1)]
    readings = [json.dumps(_reading(turn, 5, 0.0, draw))[1:] for turn in range(8) for _ in range(20)]
    metrics_rows = [f'{metrics[step % period]}, "step": {step}}}\n' for step in range(1, steps + 1)]
    turns_rows = [
        f'{{"step": {step}, "turn": {turn}, {readings[(step + turn) % len(readings)]}\n'
        for step in range(1, steps + 1)
        for turn in range(8)
    ]
    folder.metrics.path.write_text("".join(metrics_rows))
    folder.turns.path.write_text("".join(turns_rows))
    evaluations = [_evaluation(step, 0.0, draw) for step in range(10, steps + 1, 10)]
    folder.evals.path.write_text("".join(json.dumps(row) + "\n" for row in evaluations))
    return path
