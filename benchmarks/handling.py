"""What an episode costs besides the model, for the plan in docs/scaling.md: `python benchmarks/handling.py`.

Episodes of 8,192 tokens in eight turns, half of them sampled: packed for other ranks, written to the ledger and read
back, and sent to a remote engine as JSON; and weights written to a folder as for publishing.
"""

from __future__ import annotations

import json
import pickle
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file

from turnwise.runs.ledger import read_groups, write_groups
from turnwise.types import Group, StopReason, Trajectory, Turn

TURNS, TOKENS, EPISODES = 8, 8192, 64


def episode(number: int) -> Trajectory:
    rng, half = random.Random(number), TOKENS // TURNS // 2
    turns = [
        Turn(
            prompt_ids=[rng.randrange(150_000) for _ in range(half)],
            sampled_ids=[rng.randrange(150_000) for _ in range(half)],
            logprobs=[-rng.expovariate(2.0) for _ in range(half)],
            observation="word " * half,
            action="word " * half,
        )
        for _ in range(TURNS)
    ]
    return Trajectory(id=f"task/{number}", turns=turns, stop=StopReason.DONE, terminated=True)


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def show(name: str, taken: float, size: int, count: int = EPISODES) -> None:
    print(f"{name:42} {1e3 * taken / count:8.2f} ms {size / count / 1e3:9.1f} kB", flush=True)


def main() -> None:
    groups = [Group(id="task", trajectories=[episode(number) for number in range(EPISODES)])]
    packed = pickle.dumps(groups)
    print(f"of an episode of {TOKENS:,} tokens in {TURNS} turns")
    show("packed for other ranks", seconds(lambda: pickle.dumps(groups)), len(packed))
    show("unpacked", seconds(lambda: pickle.loads(packed)), len(packed))
    ids = [token for turn in groups[0].trajectories[0].turns for token in (*turn.prompt_ids, *turn.sampled_ids)]
    body = json.dumps({"token_ids": ids}, separators=(",", ":"))
    show("last turn's request as JSON", seconds(lambda: json.dumps({"token_ids": ids})), len(body), 1)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "step.jsonl.zst"
        show("written to the ledger", seconds(lambda: write_groups(file, groups)), file.stat().st_size)
        show("read back", seconds(lambda: read_groups(file)), file.stat().st_size)
        weights = {f"layer.{number}": torch.randn(2**24).bfloat16() for number in range(16)}
        size = sum(tensor.nbytes for tensor in weights.values())
        taken = seconds(lambda: save_file(weights, Path(folder) / "model.safetensors"))
        print(f"weights written: {size / taken / 1e9:.2f} GB/s")


if __name__ == "__main__":
    main()
