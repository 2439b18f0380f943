"""How long a file of preferences takes to load: `python benchmarks/preferences.py [MODEL] [PAIRS] [FILE.jsonl ...]`.

Without files it writes pairs of about 200 words. Repeated lines are made different, so that nothing is read twice.
"""

import json
import random
import sys
import tempfile
import time
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from turnwise.policy.models import resolve_model
from turnwise.policy.rendering import Renderer
from turnwise.sources.preferences import preference_groups


def written_pairs(count: int) -> list[dict[str, Any]]:
    """Pairs of random words."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnoprstu", k=rng.randint(2, 8))) for _ in range(2000)]

    def text(length: int) -> str:
        return " ".join(rng.choices(words, k=length))

    return [{"prompt": text(40), "chosen": text(80), "rejected": text(80)} for _ in range(count)]


def main(model: str = "nano", count: str = "10000", *files: str) -> None:
    """Load the pairs once and print the time."""
    lines = [json.loads(line) for file in files for line in Path(file).read_text().split("\n") if line.strip()]
    rows = list(islice(cycle(lines), int(count))) if lines else written_pairs(int(count))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pairs.jsonl"
        unique = ({**row, "prompt": f"{number} {row['prompt']}"} for number, row in enumerate(rows))
        path.write_text("\n".join(map(json.dumps, unique)))
        renderer = Renderer(AutoTokenizer.from_pretrained(resolve_model(model)))
        started, busy = time.perf_counter(), time.process_time()
        groups = preference_groups(path, renderer)
        seconds, cpu = time.perf_counter() - started, time.process_time() - busy
    turns = [turn for group in groups for each in group.trajectories for turn in each.turns]
    tokens = sum(len(turn.prompt_ids) + len(turn.sampled_ids) for turn in turns)
    print(f"{model}: {len(groups):,} pairs, {tokens:,} tokens: {seconds:.1f} s, {cpu:.1f} s of CPU")


if __name__ == "__main__":
    main(*sys.argv[1:])
