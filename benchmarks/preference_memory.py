"""What the exact KLs of TDPO cost beside DPO: `python benchmarks/preference_memory.py`

Two optimiser steps of the learner on random pairs, each row in a fresh process. On CUDA: a random model of
SmolLM2-135M's shape in bf16, 32 pairs of 512 + 512 tokens; on CPU a small shape with the same vocabulary. Peaks include
weights, reference and optimiser: allocated memory on CUDA, on CPU resident memory of the process, whose allocator
keeps nothing back. The aim, stated before the first run: TDPO2 needs at most 1.3 times the memory of DPO.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import time

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from turnwise.algorithm import preset
from turnwise.learn.learner import Learner
from turnwise.policy.text import TextPolicy
from turnwise.recipe.schema import Train
from turnwise.types import Group, StopReason, Trajectory, Turn

ROWS = ("dpo", "tdpo1", "tdpo2")
AIM = 1.3
VOCABULARY = 49_152
NOTHING_KEPT = {"MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_MMAP_THRESHOLD_": "1048576"}
"""For glibc; what others keep is in their peaks."""


def make_policy(device: str) -> TextPolicy:
    big = device == "cuda"
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=576 if big else 128, intermediate_size=1536 if big else 384,
        num_hidden_layers=30 if big else 2, num_attention_heads=9 if big else 4, num_key_value_heads=3 if big else 2,
        max_position_embeddings=2048, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16 if big else torch.float32)
    return TextPolicy(model.to(device))


def make_pairs(count: int, length: int) -> list[Group]:
    """Prompts of a quarter of the length, and two answers that fill the rest."""
    rng = random.Random(0)

    def answer(name: str, reward: float) -> Trajectory:
        ids = [rng.randrange(VOCABULARY) for _ in range(length)]
        turn = Turn(prompt_ids=ids[: length // 4], sampled_ids=ids[length // 4 :], reward=reward)
        return Trajectory(id=name, turns=[turn], stop=StopReason.DONE, terminated=True)

    return [Group(id=f"{n}", trajectories=[answer(f"{n}/{r}", r) for r in (1.0, 0.0)]) for n in range(count)]


def measure(name: str, device: str, pairs: int, length: int) -> dict[str, float]:
    """Peak in MiB and seconds of the second step."""
    settings = Train(learning_rate=1e-6, micro_tokens=16_384 if device == "cuda" else 4096)
    learner, groups = Learner(make_policy(device), preset(name), settings), make_pairs(pairs, length)
    seconds = 0.0
    for step in (1, 2):
        started = time.perf_counter()
        batch = learner.prepare(groups)
        assert batch is not None
        learner.learn(batch, step)
        seconds = time.perf_counter() - started
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    peak = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else resident
    return {"peak": peak, "seconds": seconds}


def main() -> None:
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--pairs", type=int, default=32 if cuda else 4)
    parser.add_argument("--length", type=int, default=512 if cuda else 128)
    parser.add_argument("--row", help="measure this one and print JSON")
    chosen = parser.parse_args()
    if chosen.row:
        print(json.dumps(measure(chosen.row, chosen.device, chosen.pairs, chosen.length)))
        return
    found: dict[str, dict[str, float]] = {}
    for name in ROWS:
        command = [sys.executable, __file__, *sys.argv[1:], "--row", name]
        done = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **NOTHING_KEPT}
        )
        found[name] = json.loads(done.stdout.splitlines()[-1])
        ratio = found[name]["peak"] / found["dpo"]["peak"]
        print(f"{name:6} peak {found[name]['peak']:8.0f} MiB  {ratio:5.2f} x dpo  step {found[name]['seconds']:6.2f} s")
    kept = found["tdpo2"]["peak"] <= AIM * found["dpo"]["peak"]
    print(f"tdpo2 within {AIM} of dpo: {'yes' if kept else 'NO'}")
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
