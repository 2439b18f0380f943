"""The work of sharded ranks in `test_sharded_ranks.py`: `python -m tests.train.sharded_work FOLDER` is one launch."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.learn.small_learners import drift, make_groups, make_policy, row, weights
from tests.real_ranks import finish, start
from turnwise.algorithm import Algorithm, preset
from turnwise.learn.learner import Learner
from turnwise.policy.critics import Critic
from turnwise.policy.pico import build_model, build_tokenizer
from turnwise.policy.sharding import local
from turnwise.policy.text import Reference, TextPolicy
from turnwise.ranks import Ranks
from turnwise.recipe.schema import Train
from turnwise.runs.checkpoints import Checkpoints
from turnwise.runs.disk import RunFolderError
from turnwise.torch_ranks import join
from turnwise.train.exchange import swap_learners
from turnwise.train.state import load_learner, write_state
from turnwise.types import Group, NonFiniteError

SIZES = (2, 3, 1)
SETTINGS = Train(learning_rate=1e-4, critic_learning_rate=1e-4, micro_tokens=100, ranks="sharded")
FULL_KL: dict[str, Any] = {"regularizers": [{"kind": "kl", "estimator": "full-reverse"}]}


@cache
def groups() -> list[Group]:
    """Episodes to learn from. Made after the fork: torch's threads do not survive one."""
    return drift(make_groups(tasks=4, size=3), by=0.3)


def tied_policy() -> TextPolicy:
    """A pico policy whose head is its embedding."""
    model = build_model(0)
    model.lm_head.weight = model.model.embed_tokens.weight
    model.config.tie_word_embeddings = True
    model.tie_weights()
    return TextPolicy(model, build_tokenizer())


def checkpointed_policy() -> TextPolicy:
    return TextPolicy(build_model(0), build_tokenizer(), checkpointing=True)


def half_policy() -> TextPolicy:
    return make_policy(dtype=torch.bfloat16)


Case = tuple[Callable[[], TextPolicy], Algorithm, dict[str, Any]]
CASES: dict[str, Case] = {
    "LoRA and the base under it as reference": (partial(make_policy, lora=True), row("grpo", FULL_KL), {}),
    "LoRA and a critic": (partial(make_policy, lora=True), preset("st-ppo"), {}),
    "a critic on the policy's trunk": (make_policy, preset("st-ppo"), {"critic": "shared"}),
    "a copied reference": (make_policy, row("grpo", FULL_KL), {}),
    "a tied head": (tied_policy, preset("ppo"), {}),
    "layers that are recomputed": (checkpointed_policy, preset("ppo"), {}),
    "half precision": (half_policy, preset("grpo"), {}),
    "extrapolation": (make_policy, row("grpo", {"epochs": 2, "extrapolate": "parameters"}), {}),
    "half precision rounded by chance": (half_policy, preset("grpo"), {"masters": "stochastic", "moments": "bf16"}),
}


RESUMED = ("LoRA and a critic", "half precision", "a tied head", "extrapolation")


def make_learner(case: Case, ranks: Ranks) -> Learner:
    make, algorithm, changes = case
    return Learner(make(), algorithm, SETTINGS.model_copy(update=changes), seed=0, ranks=ranks)


def take_steps(learner: Learner, steps: Iterable[int]) -> list[dict[str, float]]:
    rows: list[dict[str, float]] = []
    for step in steps:
        batch = learner.prepare(groups())
        assert batch is not None
        rows.append(learner.learn(batch, step).metrics)
    return rows


def cases(folder: Path, ranks: Ranks) -> tuple[dict[str, Any], dict[str, bool]]:
    """The numbers of two steps of every case; and for some, whether a checkpoint between them leaves every bit."""
    rows: dict[str, Any] = {}
    same: dict[str, bool] = {}
    for name, case in CASES.items():
        learner = make_learner(case, ranks)
        rows[name] = take_steps(learner, (1,))
        saved = save(folder / f"{name} from {ranks.size}", learner, ranks) if name in RESUMED else None
        rows[name] += take_steps(learner, (2,))
        if saved is not None:
            resumed = make_learner(case, ranks)
            load_learner(saved, resumed)
            take_steps(resumed, (2,))
            last, again = weights(learner), weights(resumed)
            same[name] = all(torch.equal(last[key], again[key]) for key in last)
    return rows, same


def goes_on(folder: Path, ranks: Ranks) -> dict[str, Any]:
    """The numbers of a second step after a first one on other numbers of ranks."""
    found: dict[str, Any] = {}
    for name in RESUMED:
        for size in {*SIZES} - {ranks.size}:
            learner = make_learner(CASES[name], ranks)
            if (folder / f"{name} from {size}").is_dir():
                load_learner(Checkpoints(folder / f"{name} from {size}").at(1), learner)
                found[f"{name} from {size}"] = take_steps(learner, (2,))[0]
    return found


def kept_bytes(ranks: Ranks) -> dict[str, int]:
    """Bytes of weights, gradients and moments that this rank holds."""
    learner = make_learner((make_policy, preset("ppo"), {}), ranks)
    take_steps(learner, (1,))
    assert isinstance(learner.policy, TextPolicy)
    assert isinstance(learner.critic, Critic)
    assert learner.critic_optimizer is not None
    parameters = [*learner.policy.model.parameters(), *learner.critic.parameters()]
    moments = {**learner.optimizer.tensors(), **learner.critic_optimizer.tensors()}.values()
    return {
        "weights": _bytes(parameters),
        "gradients": _bytes([each.grad for each in parameters if each.grad is not None]),
        "moments": _bytes([each for each in moments if each.ndim]),
    }


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(local(tensor).nbytes for tensor in tensors)


def save(folder: Path, learner: Learner, ranks: Ranks, step: int = 1) -> Path:
    checkpoints = Checkpoints(folder)
    return checkpoints.write(step, lambda path: write_state(path, [learner], {}, ranks=ranks), ranks=ranks)


def renews_reference(folder: Path, ranks: Ranks) -> list[float]:
    """The KL to a reference that has just been renewed from a checkpoint: first zero, then not."""
    learner = make_learner(CASES["a copied reference"], ranks)
    take_steps(learner, (1,))
    saved = save(folder / f"reference {ranks.size}", learner, ranks)
    assert isinstance(learner.policy, TextPolicy)
    learner.renew_reference(Reference.of_folder(saved, like=learner.policy))
    return [metrics["loss/reference_kl"] for metrics in take_steps(learner, (2, 3))]


def fills_up(folder: Path, ranks: Ranks) -> dict[str, Any]:
    """What is said and left if the last rank's disk is full while it writes the second checkpoint."""
    learner = make_learner((make_policy, preset("grpo"), {}), ranks)
    saved = save(folder / f"full {ranks.size}", learner, ranks, step=1)
    if ranks.rank == ranks.size - 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
    text = ""
    try:
        save(folder / f"full {ranks.size}", learner, ranks, step=2)
    except RunFolderError as error:
        text = str(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    ranks.gather(None)  # until rank 0 has cleaned up
    checkpoints = Checkpoints(folder / f"full {ranks.size}")
    return {"text": text, "left": sorted(path.name for path in checkpoints.folder.iterdir()), "whole": saved.name}


def breaks(ranks: Ranks) -> list[str]:
    """What each rank says if the numbers of one are not finite: all of them the same, and none waits."""
    learner = make_learner((make_policy, preset("grpo"), {}), ranks)
    batch = learner.prepare(groups())
    assert batch is not None
    assert batch.ref_T is not None
    if ranks.rank == 1:
        batch.ref_T[batch.sampled_T] = torch.nan
    try:
        learner.learn(batch, 1)
    except NonFiniteError as error:
        return [str(error)]
    return []


def exchanges(ranks: Ranks) -> dict[str, list[bool]]:
    """For whole replicas and for parts: whether this rank's tensors all moved, and whether a second swap undoes it."""
    found: dict[str, list[bool]] = {}
    for kind in ("replicas", "sharded"):
        first, second = (make_learner((make_policy, preset("ppo"), {"ranks": kind}), ranks) for _ in range(2))
        take_steps(first, (1,))
        take_steps(second, (1, 2))
        before = held(first), held(second)
        swap_learners(first, second)
        moved = equal(held(first), before[1]) and equal(held(second), before[0]) and not equal(*before)
        take_steps(first, (3,))
        learned = not equal(held(first), before[1])
        swap_learners(first, second)
        found[kind] = [moved, learned, equal(held(first), before[0])]
    return found


def held(learner: Learner) -> dict[str, Tensor]:
    """What this rank holds of weights, critic and moments."""
    assert learner.critic is not None
    assert learner.critic_optimizer is not None
    whole = {**learner.policy.trainable(), **learner.optimizer.tensors()}
    critic = {**learner.critic.trainable(), **learner.critic_optimizer.tensors()}
    tensors = {**whole, **{f"critic {name}": each for name, each in critic.items()}}
    return {name: local(each.detach()).clone() for name, each in tensors.items()}


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def refusals(ranks: Ranks) -> list[str]:
    """What cannot be sharded, in words."""
    said: list[str] = []
    exact = row("st-ppo", {"scale": {"estimator": "exact"}})
    compiled = partial(TextPolicy, build_model(0), compile_layers=True)
    refused: list[Case] = [
        (make_policy, exact, {}),
        (make_policy, preset("grpo"), {"moments": "int8"}),
        (compiled, preset("grpo"), {}),
    ]
    for case in refused:
        try:
            make_learner(case, ranks)
        except ValueError as error:
            said.append(str(error))
    return said


def work(folder: Path) -> None:
    """Everything, in this order on every rank."""
    ranks = join()
    rows, same = cases(folder, ranks)
    found: dict[str, Any] = {
        "cases": rows,
        "same bits": same,
        "goes on": goes_on(folder, ranks),
        "bytes": kept_bytes(ranks),
    }
    if ranks.size == SIZES[0]:
        found["full"] = fills_up(folder, ranks)
        found["breaks"] = breaks(ranks)
        found["exchanges"] = exchanges(ranks)
        found["refusals"] = refusals(ranks)
        found["reference"] = renews_reference(folder, ranks)
    (folder / f"{ranks.size}-{ranks.rank}.json").write_text(json.dumps(found))


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    print(json.dumps([finish(start(size, partial(work, folder))) for size in SIZES]))


if __name__ == "__main__":
    main()
