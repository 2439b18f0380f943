"""Inside TRL: equal to its own losses on the same tensors, and to whole training runs where both implement the same."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.plugins.rows_and_batches import GROUP, ST_GRPO, clipped
from turnwise.algorithm import Algorithm, preset
from turnwise.policy.models import resolve_model

trl = pytest.importorskip("trl")
datasets = pytest.importorskip("datasets")
transformers = pytest.importorskip("transformers")
plugin = pytest.importorskip("turnwise.plugins.trl")

CLIP = {"epsilon": 0.2, "epsilon_high": 0.28}
SAME_STD = {"normalizer": {"kind": "group-std", "eps": 1e-4}}
KL = {"regularizers": [{"kind": "kl", "coef": 0.05}]}


def parity(completions: list[str], **_: Any) -> list[float]:
    """A reward that differs between completions of the same task."""
    return [sum(map(ord, completion)) % 7 / 7 for completion in completions]


def trainer(folder: Path, row: Algorithm | None = None, **settings: Any) -> Any:
    """TRL's own trainer, or ours with a row, on the shipped model."""
    name = resolve_model("nano")
    torch.manual_seed(0)
    args = trl.GRPOConfig(
        output_dir=str(folder),
        **{
            "per_device_train_batch_size": 4,
            "num_generations": 2,
            "max_completion_length": 6,
            "temperature": 1.0,
            "max_steps": 2,
            "learning_rate": 1e-3,
            "lr_scheduler_type": "constant",
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "save_strategy": "no",
            "logging_steps": 1,
            "report_to": [],
            "disable_tqdm": True,
            **settings,
        },
    )
    known = {
        "model": transformers.AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32),
        "reward_funcs": parity,
        "args": args,
        "train_dataset": datasets.Dataset.from_dict({"prompt": ["Name a city", "Count to", "Why", "The key is"] * 2}),
        "processing_class": transformers.AutoTokenizer.from_pretrained(name),
    }
    return trl.GRPOTrainer(**known) if row is None else plugin.TurnwiseTrainer(**known, algorithm=row)


def inputs_of(seed: int = 0) -> dict[str, Tensor]:
    """A micro-batch of a multi-turn rollout, as `_compute_loss` gets it."""
    noise = torch.Generator().manual_seed(seed)
    completion_mask, tool_mask = torch.ones(4, 9, dtype=torch.long), torch.ones(4, 9, dtype=torch.long)
    completion_mask[1, 6:], tool_mask[0, 3:5], tool_mask[2, 2:4], tool_mask[2, 6] = 0, 0, 0, 0
    return {
        "prompt_ids": torch.randint(5, 200, (4, 3), generator=noise),
        "prompt_mask": torch.ones(4, 3, dtype=torch.long),
        "completion_ids": torch.randint(5, 200, (4, 9), generator=noise),
        "completion_mask": completion_mask,
        "tool_mask": tool_mask,
        "advantages": torch.tensor([1.0, -1.0, 0.5, -0.25]),
        "num_items_in_batch": (completion_mask * tool_mask).sum().float(),
        "turns_in_batch": torch.tensor(7.0),
    }


def with_scores(tuner: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Old and reference log-probs around those of the model, past the clip on both sides."""
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
    with torch.no_grad():
        now, _, _ = tuner._get_per_token_logps_and_entropies(tuner.model, ids, mask, 9)
    noise = torch.Generator().manual_seed(1)
    old = now + torch.randn(now.shape, generator=noise) * 0.3
    return {**inputs, "old_per_token_logps": old, "ref_per_token_logps": now + torch.randn(now.shape, generator=noise)}


def loss_and_gradients(tuner: Any, inputs: dict[str, Tensor]) -> tuple[float, list[Tensor]]:
    tuner.model.train()
    tuner.model.zero_grad()
    tuner.current_gradient_accumulation_steps = tuner.args.gradient_accumulation_steps
    loss = tuner._compute_loss(tuner.model, inputs)
    loss.backward()
    return float(loss.detach()), [weight.grad for weight in tuner.model.parameters() if weight.grad is not None]


@pytest.mark.parametrize(
    ("row", "settings"),
    [
        (clipped(weights="token-mean"), {"loss_type": "dapo"}),
        (clipped(weights="sequence-mean"), {"loss_type": "grpo"}),
        (
            clipped(weights="sequence-mean", ratio="sequence"),
            {"importance_sampling_level": "sequence", "loss_type": "grpo"},
        ),
        (clipped().override({"weights": {"kind": "constant", "length": 6}}), {"loss_type": "dr_grpo"}),
        (clipped().override(KL), {"loss_type": "dapo", "beta": 0.05, "use_bias_correction_kl": False}),
    ],
    ids=["dapo", "grpo", "gspo", "dr_grpo", "dapo with KL"],
)
def test_the_loss_is_trls_own(tmp_path: Path, row: Algorithm, settings: Mapping[str, Any]):
    theirs = trainer(tmp_path, gradient_accumulation_steps=2, **CLIP, **settings)
    ours = trainer(tmp_path, row, gradient_accumulation_steps=2, **CLIP, **settings)
    inputs = with_scores(ours, inputs_of())
    found, gradients = loss_and_gradients(ours, inputs)
    expected, expected_gradients = loss_and_gradients(theirs, inputs)
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-7)
    for gradient, wanted in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-6)


def test_a_training_run_is_trls_own(tmp_path: Path):
    settings = {"num_iterations": 2, "gradient_accumulation_steps": 2, "max_steps": 3, "loss_type": "dapo", **CLIP}
    settings |= {"optim": "sgd", "learning_rate": 0.02}  # Adam's first steps are signs, and follow rounding
    theirs, ours = trainer(tmp_path, **settings), trainer(tmp_path, clipped().override(SAME_STD), **settings)
    for tuner in (theirs, ours):
        torch.manual_seed(0)  # the same completions
        tuner.train()
    moved = 0.0
    fresh = transformers.AutoModelForCausalLM.from_pretrained(resolve_model("nano"), dtype=torch.float32)
    for mine, other, before in zip(ours.model.parameters(), theirs.model.parameters(), fresh.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-6)
        moved = max(moved, float((mine - before).detach().abs().max()))
    assert moved > 1e-4


def test_st_ppos_loss_trains_and_shrinks_steps_that_clip(tmp_path: Path):
    narrow = {"surrogate": {"kind": "ppo-clip", "low": 1e-3, "high": 1e-3}}
    tuner = trainer(tmp_path, ST_GRPO.override(narrow), num_iterations=3, max_steps=4)
    tuner.train()
    scales = [log["turnwise/scale"] for log in tuner.state.log_history if "turnwise/scale" in log]
    assert min(scales) < 1
    assert tuner.optimizer.param_groups[0]["lr"] == pytest.approx(1e-3)


def test_turns_of_a_rollout_are_the_runs_of_its_environment_mask(tmp_path: Path):
    def rollout(prompts: list[Any], tuner: Any) -> dict[str, Any]:
        repeats = len(prompts)
        return {
            "prompt_ids": [[5, 6, 7]] * repeats,
            "completion_ids": [[8, 9, 10 + row, 11, 12] for row in range(repeats)],
            "logprobs": [[-1.0] * 5] * repeats,
            "env_mask": [[1, 1, 0, 1, 1]] * repeats,
        }

    tuner = trainer(tmp_path, clipped(weights="turn-mean", ratio="turn"), max_steps=1)
    tuner.rollout_func = rollout
    tuner.train()
    assert float(tuner._buffered_inputs[0]["turns_in_batch"]) == 8
    assert tuner._buffered_inputs[0]["advantages"][:, 2].tolist() == [0.0] * 4
    assert tuner.state.log_history[0]["turnwise/tokens"] == 16


@pytest.mark.parametrize(
    ("row", "settings", "reason"),
    [
        (preset("st-ppo"), {}, "critic.level=token: TRL trains no critic"),
        (preset("grpo"), {}, "set GRPOConfig's beta to any number but 0"),
        (preset("minirl"), {}, "TRL records the sampler's log-probs only then"),
        (clipped(), {"beta": 0.1}, "beta=0.1 has no effect: 'custom' has no KL"),
        (preset("rloo").override(GROUP), {"beta": 0.1}, "reward=token-kl needs"),
    ],
)
def test_a_row_that_trl_cannot_run_is_refused_at_start(tmp_path: Path, row: Algorithm, settings: Any, reason: str):
    with pytest.raises(ValueError, match=reason):
        trainer(tmp_path, row, **settings)


def test_entropy_reaches_the_loss_with_its_gradient(tmp_path: Path):
    row = clipped().override({"regularizers": [{"kind": "entropy", "coef": 0.5}]})
    tuner = trainer(tmp_path, row)
    inputs = {**inputs_of(), "advantages": torch.zeros(4)}
    _, gradients = loss_and_gradients(tuner, inputs)
    assert max(float(gradient.abs().max()) for gradient in gradients) > 0


def test_two_processes_train_as_trl_does_also_where_a_group_spans_them(tmp_path: Path):
    root, script = Path(__file__).parents[2], Path(__file__).with_name("trl_processes.py")
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    found = re.search(r"columns \[6, 7\]; processes 2 apart (\S+)", result.stdout)
    assert found, result.stderr[-2000:]
    assert float(found[1]) < 1e-6
