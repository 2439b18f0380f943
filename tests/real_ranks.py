"""Real ranks for tests: processes that are told what torchrun tells them, forked from one that has imported torch.

    python -m tests.real_ranks FOLDER 10            every preset on 1, 2 and 3 ranks, ten steps
    python -m tests.real_ranks FOLDER 1 --few       enough presets for every kind of part, on the runs in `FEW_RUNS`

Only importing is shared: the ranks meet over sockets, as torchrun's do.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from tests.learn.small_learners import drift, judged, make_groups, policy_for, weights
from turnwise.algorithm import PRESETS, Algorithm, preset
from turnwise.learn.learner import Learner
from turnwise.recipe.schema import Train
from turnwise.torch_ranks import join

RUNS = ("1-replicas", "2-replicas", "3-replicas", "2-sharded", "3-sharded")
FEW_RUNS = ("1-replicas", "2-replicas", "3-sharded")
"""Both ways to share the work, and an even and an uneven number of ranks."""
SETTINGS = Train(learning_rate=1e-4, critic_learning_rate=1e-4, micro_tokens=150)
LONGER = {"st-ppo": 10, "grpo": 10}
"""Steps of the presets whose weights are compared; the others take as many as the command says."""


def few_presets() -> list[str]:
    """So many that each kind of part is in one of them, chosen greedily."""
    kinds = {name: _kinds(preset(name)) for name in PRESETS}
    chosen = list(LONGER)
    while missing := set().union(*kinds.values()).difference(*(kinds[name] for name in chosen)):
        chosen.append(max(kinds, key=lambda name: len(kinds[name] & missing)))
    return chosen


def _kinds(row: Algorithm) -> set[str]:
    """Such as "ratio: turn" and "critic: token"."""
    columns = row.model_dump().items()
    return {f"{key}: {kind}" for key, value in columns for kind in re.findall(r"'(?:kind|level)': '(.+?)'", str(value))}


def start(size: int, work: Callable[[], object], log: Path | None = None) -> list[int]:
    """Fork `size` ranks that do the work and exit; returns their process ids. They write to the log if there is one."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    _STORES.append(store)  # it ends with this process, as a launcher's does
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": str(size)}
    told["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    return [_fork({**told, "RANK": str(rank), "LOCAL_RANK": str(rank)}, work, log) for rank in range(size)]


_STORES: list[TCPStore] = []


def _fork(told: Mapping[str, str], work: Callable[[], object], log: Path | None) -> int:
    child = os.fork()
    if child:
        return child
    os.environ.update(told)
    os.setpgid(0, 0)
    if log is not None:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
    code: object = 0
    try:
        work()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
        code = 1
    sys.stdout.flush()
    os._exit(code if isinstance(code, int) else 0)


def finish(processes: list[int]) -> list[int]:
    """Wait for all, whoever ends first; returns how each ended (negative: the signal that killed it)."""
    codes: dict[int, int] = {}
    while len(codes) < len(processes):
        for process in processes:
            if process not in codes and (ended := os.waitpid(process, os.WNOHANG))[0]:
                codes[process] = os.waitstatus_to_exitcode(ended[1])
        time.sleep(0.05)
    return [codes[process] for process in processes]


def learn(folder: Path, steps: int, presets: Iterable[str], run: str) -> None:
    """Presets learn from groups of uneven lengths; rank 0 writes the numbers of every step and the last weights."""
    settings = SETTINGS.model_copy(update={"ranks": run.partition("-")[2]})
    ranks, groups = join(), judged(drift(make_groups(tasks=5, size=3), by=0.3))
    rows: dict[str, list[dict[str, float]]] = {}
    for name in presets:
        learner = Learner(policy_for(preset(name)), preset(name), settings, seed=0, ranks=ranks)
        rows[name] = []
        for step in range(1, max(steps, LONGER.get(name, 0)) + 1):
            batch = learner.prepare(groups)
            assert batch is not None
            rows[name].append(learner.learn(batch, step).metrics)
        last = weights(learner)
        if ranks.rank == 0:
            save_file(last, folder / f"{name}-{run}.safetensors")
    if ranks.rank == 0:
        (folder / f"{run}.json").write_text(json.dumps(rows))


def main() -> None:
    torch.set_num_threads(1)
    folder, steps = Path(sys.argv[1]), int(sys.argv[2])
    runs, presets = (FEW_RUNS, few_presets()) if "--few" in sys.argv else (RUNS, list(PRESETS))
    codes = [finish(start(int(run[0]), partial(learn, folder, steps, presets, run))) for run in runs]
    print(json.dumps(codes))


if __name__ == "__main__":
    main()
