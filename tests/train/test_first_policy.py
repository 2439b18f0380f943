"""The distance from the policy before the first step: exact, kept with its checkpoint, the same after resuming."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.small_runs import LostMachineError, Screen, Stopping, run, small_recipe, timeless
from turnwise.learn.distance import distances
from turnwise.learn.learner import Learner
from turnwise.ops.regularizers import full_vocabulary_kl
from turnwise.policy.text import Reference, TextPolicy
from turnwise.train.stages import resume
from turnwise.types import Group, StopReason, Trajectory, Turn

KL: dict[str, Any] = {
    "eval": {"every": 1, "episodes": 8, "measures": ["kl", "perplexity"]},
    "checkpoint": {"every": 1, "keep": 1},
    "guard": "off",
}


def episode(name: str, prompt: list[int], *answers: list[int], stop: StopReason = StopReason.DONE) -> Trajectory:
    turns = [Turn(prompt_ids=prompt, sampled_ids=answer, logprobs=[-1.0] * len(answer)) for answer in answers]
    return Trajectory(id=name, turns=turns, stop=stop)


def logits_of(policy: TextPolicy, ids: torch.Tensor) -> torch.Tensor:
    policy.model.set_attn_implementation("sdpa")
    return policy.model(ids).logits[0].detach()


@pytest.mark.parametrize("micro_tokens", [4, 4096])
def test_distances_are_sums_over_an_episodes_sampled_tokens(micro_tokens: int) -> None:
    policy, other = TextPolicy.load("pico-chat"), TextPolicy.load("pico-chat-1")
    learner = Learner(
        policy, small_recipe().algorithm, small_recipe().train.model_copy(update={"micro_tokens": micro_tokens})
    )
    groups = [
        Group(id="a", trajectories=[episode("a/0", [1, 5], [6, 7], [8, 3]), episode("a/1", [1, 5], [9])]),
        Group(id="b", trajectories=[episode("b/0", [1, 5], [6], stop=StopReason.TIMEOUT)]),
    ]
    found = distances(learner, groups, Reference.copy_of(other))
    assert list(found) == ["a/0", "a/1"]
    ids = torch.tensor([[1, 5, 6, 7, 1, 5, 8, 3]])
    mine, theirs = (logits_of(each, ids) for each in (policy, other))
    before = torch.tensor([1, 2, 5, 6])
    kl = full_vocabulary_kl(mine, theirs, direction="to-reference")[before].sum()
    ratio = (mine.log_softmax(-1) - theirs.log_softmax(-1))[before, ids[0, before + 1]].sum()
    assert found["a/0"] == pytest.approx((float(kl), float(ratio)), rel=1e-4)


def test_the_distance_is_zero_at_first_grows_and_is_the_same_after_resuming(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run(whole, KL)
    with pytest.raises(LostMachineError):
        run(cut, KL, console=Stopping(after=2))
    run(cut)
    rows = timeless(whole, "evals")
    assert rows == timeless(cut, "evals")
    assert abs(rows[0]["eval/kl"]) < 1e-5
    assert rows[-1]["eval/kl"] > 0.05
    assert all(row["eval/kl_low"] <= row["eval/kl"] <= row["eval/kl_high"] for row in rows[1:])
    assert (whole / "checkpoints" / "step_000000").is_dir()


def test_a_run_that_lost_its_first_checkpoint_says_so(tmp_path: Path) -> None:
    run(tmp_path / "run", {**KL, "eval": {"episodes": 8}})
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step_000000", ignore_errors=True)
    with pytest.raises(ValueError, match=r"need the checkpoint of step 0, .* leave them out, or start a new run"):
        resume(tmp_path / "run", overrides={"train": {"steps": 5}, "eval": {"measures": ["kl"]}}, console=Screen())
