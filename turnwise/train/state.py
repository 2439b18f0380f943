"""What a checkpoint holds besides the model: everything needed to resume bit for bit.

    step_000120/            a model that `from_pretrained` loads, and its tokenizer; a folder each where several learn
      journals.json         where the run's journals were
      resume/state.json     counters, and for every policy: scale, guard, which checkpoints are good
      resume/*.safetensors  optimiser moments, critic, adapter
      resume/ahead/         groups of later steps that were already played

Generators need no state: every draw is a function of (seed, step) or of (seed, episode).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from turnwise.learn.learner import Learner
from turnwise.policy.text_loading import read_weights
from turnwise.runs.checkpoints import policy_folder
from turnwise.runs.ledger import read_groups, write_groups
from turnwise.train.fault_count import FaultCount
from turnwise.types import Group

_RESUME = "resume"


@dataclass(kw_only=True)
class Progress:
    """A run's progress: its checkpointed state besides its policies."""

    step: int = 0
    best: int = 0
    """The checkpoint with the best held-out success, of the first policy that learns."""
    best_success: float = -1.0
    pools: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """The checkpoints that are in each pool, by seat."""
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
) -> None:
    """Fill a checkpoint's folder."""
    resume = folder / _RESUME
    resume.mkdir()
    for learner in learners:
        _write_learner(folder if len(learners) == 1 else folder / learner.name, learner)
    state = {**state, "learners": {learner.name: learner.state_dict() for learner in learners}}
    (resume / "state.json").write_text(json.dumps(state, indent=1))
    for step, groups in (ahead or {}).items():
        (resume / "ahead").mkdir(exist_ok=True)
        write_groups(resume / "ahead" / f"step_{step:06d}.jsonl.zst", groups)


def _write_learner(folder: Path, learner: Learner) -> None:
    resume = folder / _RESUME
    resume.mkdir(parents=True, exist_ok=True)
    learner.policy.save(folder)
    if learner.policy.has_adapter:  # the model above has it merged in
        _save(resume / "adapter.safetensors", learner.policy.trainable())
    _save(resume / "optimizer.safetensors", learner.optimizer.tensors())
    if learner.critic is not None and learner.critic_optimizer is not None:
        _save(resume / "critic.safetensors", learner.critic.trainable())
        _save(resume / "critic_optimizer.safetensors", learner.critic_optimizer.tensors())


def read_state(folder: Path) -> dict[str, Any]:
    """The part of a checkpoint's state that is not tensors."""
    return json.loads((folder / _RESUME / "state.json").read_text())


def read_ahead(folder: Path) -> dict[int, list[Group]]:
    """Groups of later steps that were already played."""
    files = (folder / _RESUME / "ahead").glob("step_*.jsonl.zst")
    return {int(file.name[5:].split(".")[0]): read_groups(file) for file in sorted(files)}


def load_learner(folder: Path, learner: Learner) -> None:
    """Restore weights, critic and optimisers in place, so that an engine that shares the weights sees them."""
    resume = policy_folder(folder, learner.name) / _RESUME
    load_weights(folder, learner.name, learner.policy.trainable())
    learner.optimizer.load_tensors(load_file(resume / "optimizer.safetensors"))
    if learner.critic is not None and learner.critic_optimizer is not None:
        _copy(load_file(resume / "critic.safetensors"), learner.critic.trainable())
        learner.critic_optimizer.load_tensors(load_file(resume / "critic_optimizer.safetensors"))
    learner.load_state_dict(read_state(folder)["learners"][learner.name])


def load_weights(checkpoint: Path, policy: str, parameters: Mapping[str, nn.Parameter]) -> None:
    """Load a policy's weights from a checkpoint into parameters of the same names, in place."""
    folder = policy_folder(checkpoint, policy)
    adapter = folder / _RESUME / "adapter.safetensors"
    if adapter.is_file():
        weights = load_file(adapter)
    else:
        weights = {name: tensor for file in _model_files(folder) for name, tensor in load_file(file).items()}
    if not weights.keys() >= parameters.keys():
        weights = read_weights(folder)
    _copy(weights, parameters)


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
        _copy(learner.critic.trainable(), successor.critic.trainable())
        successor.critic_optimizer.load_tensors(learner.critic_optimizer.tensors())
    successor.load_state_dict(learner.state_dict())
    successor.rate_factor = learner.rate_factor


def _model_files(folder: Path) -> list[Path]:
    """The model's files: those of its index if it is sharded."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return [folder / "model.safetensors"]
    return [folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]


def _save(file: Path, tensors: Mapping[str, Tensor]) -> None:
    save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, file)


@torch.no_grad()
def _copy(kept: Mapping[str, Tensor], parameters: Mapping[str, nn.Parameter]) -> None:
    for name, parameter in parameters.items():
        parameter.copy_(kept[name])
