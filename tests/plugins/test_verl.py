"""Inside verl: equal to its own losses and advantages where both have them, and loaded by its entry point."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.plugins.rows_and_batches import clipped, host_tensors
from turnwise.algorithm import Algorithm, preset
from turnwise.plugins.hosts import VARIABLE

verl = pytest.importorskip("verl")
core = pytest.importorskip("verl.trainer.ppo.core_algos")
plugin = pytest.importorskip("turnwise.plugins.verl")
ActorConfig = pytest.importorskip("verl.workers.config").ActorConfig
PolicyLossConfig = pytest.importorskip("verl.workers.config").PolicyLossConfig

ROOT = Path(__file__).parents[2]
AGGREGATION = {
    "token-mean": "token-mean",
    "sequence-mean": "seq-mean-token-mean",
    "sequence-sum": "seq-mean-token-sum",
}


def config(tensors: dict[str, Tensor], *, dp_size: int = 1, share: float = 1.0, mode: str = "vanilla") -> Any:
    """An actor's settings; `share`: these rows are only part of the step."""
    made = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio=0.2,
        clip_ratio_low=0.2,
        clip_ratio_high=0.28,
        clip_ratio_c=3.0,
        policy_loss=PolicyLossConfig(loss_mode=mode),
    )
    made.global_batch_info.update(
        dp_size=dp_size,
        batch_num_tokens=float(tensors["mask"].sum()) / share,
        global_batch_size=len(tensors["mask"]) / share,
        loss_scale_factor=None,
    )
    return made


def called(name: str, tensors: dict[str, Tensor], settings: Any, mode: str, **more: Tensor) -> tuple[float, Tensor]:
    """The loss by that name and its gradient, as verl's `ppo_loss` calls it."""
    log_prob = tensors["log_probs"].detach().clone().requires_grad_()
    loss, _ = core.get_policy_loss_fn(name)(
        old_log_prob=tensors["old"],
        log_prob=log_prob,
        advantages=tensors["advantages"],
        response_mask=tensors["mask"],
        loss_agg_mode=mode,
        config=settings,
        rollout_is_weights=more.get("weights"),
    )
    loss.backward()
    assert log_prob.grad is not None
    return float(loss.detach()), log_prob.grad


@pytest.fixture
def choose(monkeypatch, tmp_path):
    """Name a row as a user does: a YAML file in the environment."""

    def chosen(row: Algorithm) -> None:
        file = tmp_path / f"{abs(hash(row.to_yaml()))}.yaml"
        file.write_text(row.to_yaml())
        monkeypatch.setenv(VARIABLE, str(file))

    return chosen


@pytest.mark.parametrize("weights", AGGREGATION)
@pytest.mark.parametrize(("dp_size", "share"), [(1, 1.0), (4, 0.125)])
@pytest.mark.parametrize(("name", "ratio"), [("vanilla", "token"), ("gspo", "sequence")])
def test_the_loss_is_verls_own(choose, weights: str, dp_size: int, share: float, name: str, ratio: str):
    tensors, mode = host_tensors(), AGGREGATION[weights]
    row = clipped(weights=weights, ratio=ratio, dual=3.0 if name == "vanilla" else None)
    if name == "gspo":
        row = row.override({"ratio": {"gradient": "straight-through"}})
    choose(row)
    settings = config(tensors, dp_size=dp_size, share=share)
    ours, theirs = called("turnwise", tensors, settings, mode), called(name, tensors, settings, mode)
    assert ours[0] == pytest.approx(theirs[0], rel=1e-5)
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-5, atol=1e-7)


def test_the_weights_of_verls_rollout_correction_are_taken(choose):
    tensors = host_tensors()
    weights = torch.rand(tensors["mask"].shape, generator=torch.Generator().manual_seed(1)) + 0.5
    choose(clipped(dual=3.0))
    settings = config(tensors)
    ours = called("turnwise", tensors, settings, "token-mean", weights=weights)
    theirs = called("vanilla", tensors, settings, "token-mean", weights=weights)
    assert ours[0] == pytest.approx(theirs[0], rel=1e-5)
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("normalizer", "divided"), [("group-std", True), ("none", False)])
def test_the_advantages_are_verls_own(choose, normalizer: str, divided: bool):
    tensors = host_tensors()
    rewards = torch.zeros(tensors["mask"].shape)
    rewards[:, -1] = torch.tensor([1.0, 0.0, 0.25, 0.5])
    index = ["a", "b", "a", "b"]
    choose(clipped().override({"normalizer": normalizer}))
    known = {"token_level_rewards": rewards, "response_mask": tensors["mask"], "index": index}
    ours, returns = core.get_adv_estimator_fn("turnwise")(**known, config=None)
    theirs, _ = core.compute_grpo_outcome_advantage(**known, norm_adv_by_std_in_grpo=divided)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(returns, ours)


def test_st_ppo_takes_turn_ratios_and_scales_the_step(choose):
    choose(preset("st-ppo"))  # advantages from verl's own critic
    weight = torch.zeros((), requires_grad=True)
    optimizer, tensors = torch.optim.SGD([weight], lr=1.0), host_tensors()
    settings = config(tensors)
    loss, metrics = plugin.policy_loss(
        tensors["old"], tensors["log_probs"].detach() + weight, tensors["advantages"], tensors["mask"], config=settings
    )
    loss.backward()
    assert weight.grad is not None
    gradient = float(weight.grad)
    optimizer.step()
    factor = plugin._actor(os.environ[VARIABLE]).steps.last.value
    assert 0 < factor < 1
    assert float(weight.detach()) == pytest.approx(-gradient * factor, rel=1e-5)
    assert metrics["turnwise/clip_fraction"] > 0


def test_credit_that_needs_values_is_refused_with_verls_way(choose):
    choose(preset("st-ppo"))
    with pytest.raises(
        ValueError, match=r"advantage=gae needs a value for every token.*set algorithm.adv_estimator=gae"
    ):
        plugin.advantages(torch.zeros(1, 2), torch.ones(1, 2))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("grpo", "set regularizers to [] and actor.use_kl_loss in verl"),
        ("poad", "set regularizers to [] and actor.entropy_coeff in verl"),
        ("minirl", "ratio=token needs the log-probs of the sampler (mu_T), which verl does not give"),
        ("st-pp", "did you mean 'st-ppo'?"),
    ],
)
def test_a_row_that_verl_cannot_run_is_refused_at_start(monkeypatch, row: str, reason: str):
    monkeypatch.setenv(VARIABLE, row)
    with pytest.raises(SystemExit, match=re.escape(reason)):
        plugin._refuse_at_start()


def test_verl_loads_the_plug_in_by_its_entry_point_and_ends_if_the_row_cannot_run(tmp_path: Path):
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["verl.plugins"]
    installed = tmp_path / "turnwise_points-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: turnwise-points\nVersion: 1\n")
    lines = [f"{name} = {value}" for name, value in points.items()]
    (installed / "entry_points.txt").write_text("\n".join(["[verl.plugins]", *lines, ""]))
    code = (
        "import verl\n"
        "from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn\n"
        "print(get_policy_loss_fn('turnwise').__module__, get_adv_estimator_fn('turnwise').__module__)\n"
    )
    assert run(code, tmp_path, "st-ppo").stdout.split() == ["turnwise.plugins.verl"] * 2
    refused = run(code, tmp_path, "grpo")
    assert refused.returncode == 1
    assert "TURNWISE_ALGORITHM: algorithm 'grpo' cannot run in verl" in refused.stderr
    assert "Traceback" not in refused.stderr


def run(code: str, folder: Path, row: str) -> subprocess.CompletedProcess[str]:
    """A fresh process that finds the plug-in only by its entry point."""
    path = os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, VARIABLE: row}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=600)


def test_the_loss_runs_inside_verls_ppo_loss(choose):
    losses = pytest.importorskip("verl.workers.utils.losses")
    tools = pytest.importorskip("verl.utils.tensordict_utils")
    tensors, lengths = host_tensors(), [12, 8, 12, 10]  # response lengths without padding
    mask = tensors["mask"] & (torch.arange(12) < torch.tensor(lengths)[:, None])

    def nested(rows: Tensor) -> Tensor:
        return torch.nested.as_nested_tensor(
            [row[:length] for row, length in zip(rows, lengths, strict=True)], layout=torch.jagged
        )

    def called_by_verl(mode: str) -> float:
        settings = config({**tensors, "mask": mask}, mode=mode)
        streams = {"response_mask": mask.long(), "old_log_probs": tensors["old"], "advantages": tensors["advantages"]}
        ids = torch.ones(4, 12, dtype=torch.long)
        data = tools.get_tensordict(
            {
                "prompts": nested(ids),
                "responses": nested(ids),
                **{name: nested(rows) for name, rows in streams.items()},
            },
            non_tensor_dict={"dp_size": 2, "batch_num_tokens": int(mask.sum()) * 3, "global_batch_size": 12},
        )
        # verl's log-probs are those of prompt and response, shifted by one; the prompt's are never read.
        shifted = [
            torch.cat([torch.zeros(length - 1), row[:length], torch.zeros(1)])
            for row, length in zip(tensors["log_probs"].detach(), lengths, strict=True)
        ]
        output = {"log_probs": torch.nested.as_nested_tensor(shifted, layout=torch.jagged)}
        loss, metrics = losses.ppo_loss(settings, output, data)
        assert "actor/pg_loss" in metrics
        return float(loss)

    choose(clipped(dual=3.0))
    assert called_by_verl("turnwise") == pytest.approx(called_by_verl("vanilla"), rel=1e-5)
