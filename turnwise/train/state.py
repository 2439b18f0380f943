"""What a checkpoint holds besides the model: everything needed to resume bit for bit.

    step_000120/            a model that `from_pretrained` loads, and its tokenizer; a folder each where several learn
      journals.json         where the run's journals were
      adapter/              the same as an adapter in peft's layout, where a LoRA learns
      resume/state.json     counters, and for every policy: scale, guard, which checkpoints are good
      resume/*.safetensors  optimiser moments, critic, adapter, weights before extrapolation; several ranks write
                            a file each, like the model's
      resume/ahead/         groups of later steps that were already played

Generators need no state: every draw is a function of (seed, step) or of (seed, episode).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from turnwise.adapter_folders import adapter_of, write_adapter
from turnwise.learn.extrapolation import Extrapolation
from turnwise.learn.learner import Learner
from turnwise.learn.optimizer import Optimizer
from turnwise.policy.learnable import Policy
from turnwise.policy.sharding import local, rows_of, whole
from turnwise.policy.text import TextPolicy
from turnwise.policy.text_loading import read_weights
from turnwise.ranks import ALONE, Ranks
from turnwise.runs.checkpoints import ADAPTER, policy_folder
from turnwise.runs.ledger import read_groups, write_groups
from turnwise.train.fault_count import FaultCount
from turnwise.train.tensor_files import TensorFiles, dealt, file_of, write_tensors
from turnwise.types import Group

_RESUME, _MODEL = "resume", "model"


@dataclass(kw_only=True)
class Progress:
    """A run's progress: its checkpointed state besides its policies."""

    step: int = 0
    best: int = 0
    """The checkpoint with the best held-out success, of the first policy that learns."""
    best_success: float = -1.0
    pools: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """The checkpoints that are in each pool, by seat."""
    league: dict[str, dict[str, dict[str, list[int]]]] = field(
        default_factory=dict[str, dict[str, dict[str, list[int]]]]
    )
    """Games won, drawn and lost: by the pool's seat, the learner and its opponent."""
    faults: FaultCount = field(default_factory=FaultCount)

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Progress:
        """From plain JSON."""
        return cls(**{**state, "faults": FaultCount(**state["faults"])})


def write_state(
    folder: Path,
    learners: Sequence[Learner],
    state: Mapping[str, Any],
    ahead: Mapping[int, list[Group]] | None = None,
    *,
    ranks: Ranks = ALONE,
) -> None:
    """Fill a checkpoint's folder. Every rank writes its share of the tensors, and rank 0 the rest."""
    # Collect everything before writing anything: a rank whose disk is full must not leave the others waiting.
    shares = [_share_of(learner, ranks) for learner in learners]
    for learner, share in zip(learners, shares, strict=True):
        _write_learner(folder if len(learners) == 1 else folder / learner.name, learner.policy, share, ranks)
    if ranks.rank > 0:
        return
    resume = folder / _RESUME
    resume.mkdir(exist_ok=True)
    state = {**state, "learners": {learner.name: learner.state_dict() for learner in learners}}
    (resume / "state.json").write_text(json.dumps(state, indent=1))
    for step, groups in (ahead or {}).items():
        (resume / "ahead").mkdir(exist_ok=True)
        write_groups(resume / "ahead" / f"step_{step:06d}.jsonl.zst", groups)


@dataclass(frozen=True, kw_only=True)
class _Share:
    """What one rank writes of a learner."""

    resume: dict[str, dict[str, Tensor]]
    """Tensors by the name of their file."""
    adapter: dict[str, Tensor]
    """The whole adapter, if there is one, on rank 0."""
    model: dict[str, Tensor]
    index: dict[str, Any]
    """Of the files that several ranks write of the model."""


def _share_of(learner: Learner, ranks: Ranks) -> _Share:
    named = {"optimizer": _whole_state(learner.optimizer)}
    if learner.policy.has_adapter:  # the model has it merged in
        named["adapter"] = _whole_weights(learner.policy.trainable())
    if learner.critic is not None and learner.critic_optimizer is not None:
        named["critic"] = _whole_weights(learner.critic.trainable())
        named["critic_optimizer"] = _whole_state(learner.critic_optimizer)
    if learner.extrapolation is not None:
        parameters, before = learner.optimizer.parameters, learner.extrapolation.before
        named["extrapolation"] = ((name, whole(tensor, like=parameters[name])) for name, tensor in before.items())
    resume = {name: dealt(tensors, ranks) for name, tensors in named.items()}
    adapter = dict[str, Tensor]()
    if isinstance(learner.policy, TextPolicy) and learner.policy.has_adapter:
        for name, tensor in adapter_of(learner.policy.model):
            adapter |= {name: tensor.detach().cpu()} if ranks.rank == 0 else {}
    if ranks.size == 1:
        return _Share(resume=resume, adapter=adapter, model={}, index={})
    assert isinstance(learner.policy, TextPolicy)
    model = learner.policy.as_saved(dealt(learner.policy.named_weights(), ranks))
    sizes = ranks.gather({name: tensor.nbytes for name, tensor in model.items()})
    places = {name: file_of(Path(_MODEL), rank, ranks.size).name for rank, held in enumerate(sizes) for name in held}
    total = sum(size for held in sizes for size in held.values())
    return _Share(
        resume=resume, adapter=adapter, model=model, index={"metadata": {"total_size": total}, "weight_map": places}
    )


def _write_learner(folder: Path, policy: Policy, share: _Share, ranks: Ranks) -> None:
    resume = folder / _RESUME
    resume.mkdir(parents=True, exist_ok=True)
    if ranks.size == 1:
        policy.save(folder)
    else:
        write_tensors(folder / _MODEL, share.model, ranks, format="pt")
        if ranks.rank == 0:
            assert isinstance(policy, TextPolicy)
            policy.save_settings(folder)
            (folder / f"{_MODEL}.safetensors.index.json").write_text(json.dumps(share.index, indent=2))
    if share.adapter:
        assert isinstance(policy, TextPolicy)
        (folder / ADAPTER).mkdir()
        write_adapter(folder / ADAPTER, policy.model, share.adapter)
    for name, tensors in share.resume.items():
        write_tensors(resume / name, tensors, ranks)


def _whole_weights(parameters: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    return ((name, whole(parameter)) for name, parameter in parameters.items())


def _whole_state(optimizer: Optimizer) -> Iterator[tuple[str, Tensor]]:
    for key, tensor in optimizer.tensors().items():
        yield key, whole(tensor, like=optimizer.parameters[_weight_of(key)]) if tensor.ndim else tensor


def _weight_of(key: str) -> str:
    """The weight that a tensor of the optimiser belongs to: `exp_avg.NAME`."""
    return key.partition(".")[2]


def read_state(folder: Path) -> dict[str, Any]:
    """The part of a checkpoint's state that is not tensors."""
    return json.loads((folder / _RESUME / "state.json").read_text())


def read_ahead(folder: Path) -> dict[int, list[Group]]:
    """Groups of later steps that were already played."""
    files = (folder / _RESUME / "ahead").glob("step_*.jsonl.zst")
    return {int(file.name[5:].split(".")[0]): read_groups(file) for file in sorted(files)}


def load_learner(folder: Path, learner: Learner) -> None:
    """Restore weights, critic and optimisers in place, so that an engine that shares the weights sees them.

    However many ranks wrote them, each reads what it holds.
    """
    resume = policy_folder(folder, learner.name) / _RESUME
    load_weights(folder, learner.name, learner.policy.trainable())
    _load_optimizer(resume / "optimizer", learner.optimizer)
    if learner.critic is not None and learner.critic_optimizer is not None:
        _copy(TensorFiles(resume / "critic").read, learner.critic.trainable())
        _load_optimizer(resume / "critic_optimizer", learner.critic_optimizer)
    if learner.extrapolation is not None:
        _load_extrapolation(resume / "extrapolation", learner.extrapolation, learner.optimizer)
    learner.load_state_dict(read_state(folder)["learners"][learner.name])


def load_weights(checkpoint: Path, policy: str, parameters: Mapping[str, nn.Parameter]) -> None:
    """Load a policy's weights from a checkpoint into parameters of the same names, in place."""
    folder = policy_folder(checkpoint, policy)
    adapter = TensorFiles(folder / _RESUME / "adapter")
    files = adapter if adapter.names else TensorFiles(folder / _MODEL)
    if files.names >= parameters.keys():
        _copy(files.read, parameters)
    else:
        weights = read_weights(folder)
        _copy(lambda name, rows: weights[name][rows], parameters)


def _load_optimizer(stem: Path, optimizer: Optimizer) -> None:
    files, parameters = TensorFiles(stem), optimizer.parameters
    known = [key for key in files.names if _weight_of(key) in parameters]
    rows = {key: slice(None) if key.startswith("step.") else rows_of(parameters[_weight_of(key)]) for key in known}
    optimizer.load_tensors({key: files.read(key, rows[key]) for key in known})


def _load_extrapolation(stem: Path, extrapolation: Extrapolation, optimizer: Optimizer) -> None:
    extrapolation.restart()  # with what was just loaded, if the checkpoint's row does not extrapolate
    files = TensorFiles(stem)
    for name in files.names & extrapolation.before.keys():
        extrapolation.before[name].copy_(files.read(name, rows_of(optimizer.parameters[name])))


def steps_needed(state: Mapping[str, Any]) -> set[int]:
    """The checkpoints that a run resumed from this state needs."""
    progress, policies = state["progress"], state["policies"].values()
    standings = [policy["standing"] for policy in policies]
    needed = {progress["best"], *(step for steps in progress["pools"].values() for step in steps)}
    needed |= {step for standing in standings for step in (standing["good"], *standing["saved"])}
    return needed | {standing["reference"] for standing in standings if standing["reference"] is not None}


def hand_over(learner: Learner, successor: Learner) -> None:
    """Let a learner of the same policy continue from this one's state, with its own settings."""
    successor.optimizer.load_tensors(learner.optimizer.tensors())
    if learner.critic is not None and successor.critic is not None:
        assert learner.critic_optimizer is not None
        assert successor.critic_optimizer is not None
        kept = learner.critic.trainable()
        _copy(lambda name, _: local(kept[name]), successor.critic.trainable())
        successor.critic_optimizer.load_tensors(learner.critic_optimizer.tensors())
    if learner.extrapolation is not None and successor.extrapolation is not None:
        for name, weight in learner.extrapolation.before.items():
            successor.extrapolation.before[name].copy_(weight)
    successor.load_state_dict(learner.state_dict())
    successor.rate_factor = learner.rate_factor


@torch.no_grad()
def _copy(read: Callable[[str, slice], Tensor], parameters: Mapping[str, nn.Parameter]) -> None:
    for name, parameter in parameters.items():
        local(parameter).copy_(read(name, rows_of(parameter)))
