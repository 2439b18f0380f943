"""Inside verl: equal to its own losses and advantages where both have them, and loaded by its entry point."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.plugins.rows_and_batches import ST_GRPO, clipped, host_tensors
from turnwise.algorithm import Algorithm, preset
from turnwise.plugins.hosts import VARIABLE

verl = pytest.importorskip("verl")
core = pytest.importorskip("verl.trainer.ppo.core_algos")
plugin = pytest.importorskip("turnwise.plugins.verl")
ActorConfig = pytest.importorskip("verl.workers.config").ActorConfig

AGGREGATION = {
    "token-mean": "token-mean",
    "sequence-mean": "seq-mean-token-mean",
    "sequence-sum": "seq-mean-token-sum",
}


def config(tensors: dict[str, Tensor], *, dp_size: int = 1, share: float = 1.0) -> Any:
    """An actor's settings; `share`: these rows are only part of the step."""
    made = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio=0.2,
        clip_ratio_low=0.2,
        clip_ratio_high=0.28,
        clip_ratio_c=3.0,
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
    factor = plugin._actor(__import__("os").environ[VARIABLE]).steps.last.value
    assert 0 < factor < 1
    assert float(weight.detach()) == pytest.approx(-gradient * factor, rel=1e-5)
    assert metrics["turnwise/clip_fraction"] > 0


def test_credit_that_needs_values_is_refused_with_verls_way(choose):
    choose(preset("st-ppo"))
    with pytest.raises(ValueError, match=r"advantage=gae needs a value for every token.*set algorithm.adv_estimator=gae"):
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
def test_a_row_that_verl_cannot_run_ends_the_process_at_start(row: str, reason: str):
    code = "import verl, turnwise.plugins.verl"
    result = started(code, row)
    assert result.returncode == 1
    assert reason in result.stderr
    assert "Traceback" not in result.stderr


def test_verl_finds_the_plug_in_by_its_entry_point():
    code = (
        "import importlib.metadata as metadata\n"
        "found = metadata.entry_points\n"
        "point = metadata.EntryPoint('turnwise', 'turnwise.plugins.verl', 'verl.plugins')\n"
        "metadata.entry_points = lambda **k: [point] if k.get('group') == 'verl.plugins' else found(**k)\n"
        "import verl\n"
        "from verl.trainer.ppo.core_algos import get_policy_loss_fn, get_adv_estimator_fn\n"
        "print(get_policy_loss_fn('turnwise').__module__, get_adv_estimator_fn('turnwise').__module__)\n"
    )
    result = started(code, "so-grpo-none", check=False, variable=False)
    assert result.stdout.split() == ["turnwise.plugins.verl"] * 2, result.stderr


def started(code: str, row: str, *, check: bool = True, variable: bool = True) -> subprocess.CompletedProcess[str]:
    import os

    environment = {**os.environ, **({VARIABLE: row} if variable else {})}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=600)


def test_st_grpo_is_not_refused():
    plugin.HOST.require_loss(ST_GRPO)
    plugin.HOST.require_credit(ST_GRPO)
