"""Inside prime-rl: through its own `compute_loss`, sequence by sequence, equal to one packed batch and to its loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.plugins.rows_and_batches import GROUP, ST_GRPO, clipped, host_tensors
from turnwise.algorithm import Algorithm, preset
from turnwise.plugins.padded import Padded, padded_loss

pytest.importorskip("prime_rl")
host = pytest.importorskip("prime_rl.trainer.rl.loss")
CustomLossConfig = pytest.importorskip("prime_rl.configs.trainer").CustomLossConfig
DefaultLossConfig = pytest.importorskip("prime_rl.configs.trainer").DefaultLossConfig
plugin = pytest.importorskip("turnwise.plugins.prime_rl")

AGAINST_SAMPLER = {"ratio": {"against": "mu"}, "weights": "token-mean", "scale": "none"}


def through_prime_rl(config: Any, tensors: dict[str, Tensor], **more: Any) -> tuple[float, Tensor]:
    """The loss of a micro-batch of packed sequences, and its gradient."""
    log_probs = tensors["log_probs"].detach().clone().requires_grad_()
    known = {"rl_weights": None, "ce_weights": None, "ref_kl_weights": None, "ref_logprobs": None, **more}
    loss, metrics = host.compute_loss(
        trainer_logprobs=list(log_probs),
        inference_logprobs=list(tensors["old"]),
        advantages=list(tensors["advantages"]),
        loss_mask=list(tensors["mask"]),
        rl_loss_fn=host.setup_rl_loss_fn(config),
        rl_scale=int(tensors["mask"].sum()),
        ce_scale=1,
        ref_kl_scale=1,
        **known,
    )
    loss.backward()
    assert all(value.dim() == 1 for value in metrics.values())
    assert log_probs.grad is not None
    return float(loss.detach()), log_probs.grad


def custom(row: Algorithm, folder: Any) -> Any:
    file = folder / "row.yaml"
    file.write_text(row.to_yaml())
    return CustomLossConfig(import_path="turnwise.plugins.prime_rl.loss", kwargs={"algorithm": str(file)})


@pytest.mark.parametrize("ratio", ["token", "turn", "sequence"])
def test_sequence_by_sequence_is_the_loss_of_the_whole(tmp_path, ratio: str):
    tensors, row = host_tensors(), clipped(ratio=ratio).override({"ratio": {"against": "mu"}})
    found, gradient = through_prime_rl(custom(row, tmp_path), tensors)
    log_probs = tensors["log_probs"].detach().clone().requires_grad_()
    padded = Padded(mask=tensors["mask"], sampler=tensors["old"], advantages=tensors["advantages"])
    loss, _ = padded_loss(row, padded, log_probs)
    loss.total.backward()
    assert found == pytest.approx(float(loss.total.detach()), rel=1e-5)
    torch.testing.assert_close(gradient, log_probs.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("weighted", [False, True])
def test_an_unclipped_ratio_is_prime_rls_own_loss(tmp_path, weighted: bool):
    tensors = host_tensors()
    row = clipped().override({**AGAINST_SAMPLER, "surrogate": {"kind": "ppo-clip", "low": 0.999, "high": 1e6}})
    noise = torch.Generator().manual_seed(2)
    weights = list(torch.rand(tensors["mask"].shape, generator=noise) + 0.5) if weighted else None
    ours = through_prime_rl(custom(row, tmp_path), tensors, rl_weights=weights)
    config = DefaultLossConfig(dppo_mask_low=10, dppo_mask_high=10, kl_tau=0, adv_tau=1)
    theirs = through_prime_rl(config, tensors, rl_weights=weights)
    assert ours[0] == pytest.approx(theirs[0], rel=1e-5)
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (preset("st-ppo"), "critic.level=token: prime-rl trains no critic"),
        (ST_GRPO, "scale=clip-bias changes optimiser steps, and prime-rl hides them"),
        (ST_GRPO.override({"scale": "none"}), "set ratio.against to mu"),
        (clipped(weights="sequence-mean").override({"ratio": {"against": "mu"}}), "set weights to token-mean"),
        (preset("poad").override({**GROUP, **AGAINST_SAMPLER}), "regularizers=entropy needs the entropy"),
    ],
)
def test_a_row_that_prime_rl_cannot_run_is_refused_at_the_first_sequence(tmp_path, row: Algorithm, reason: str):
    with pytest.raises(ValueError, match=reason):
        through_prime_rl(custom(row, tmp_path), host_tensors())


def test_st_ppos_loss_without_its_scale_is_not_refused():
    plugin.HOST.require(ST_GRPO.override(AGAINST_SAMPLER))
