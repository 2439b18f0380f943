"""Inside AgileRL: equal to its own losses at every level and to its own update, and what it cannot give is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.plugins.rows_and_batches import GROUP, ST_GRPO, clipped, host_tensors
from turnwise.algorithm import Algorithm, preset
from turnwise.policy.models import resolve_model

pytest.importorskip("agilerl")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
GRPO = pytest.importorskip("agilerl.algorithms.grpo").GRPO
plugin = pytest.importorskip("turnwise.plugins.agilerl")

SAME_STD = {"normalizer": {"kind": "group-std", "eps": 1e-8}}
PLAIN = {"use_bias_correction_kl": False, "off_policy_token_mask_bounds": None}
"""AgileRL's own extras, which a row does not have."""


def agent(row: Algorithm | None = None, **settings: Any) -> Any:
    """AgileRL's own agent, or ours with a row, on the shipped model with small adapters."""
    kind = GRPO if row is None else type("Agent", (plugin.TurnwiseGRPO,), {"algorithm": row})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_pretrained(resolve_model("nano"), dtype=torch.float32)
    model._agilerl_liger_patched = True  # its fused kernels need a GPU
    return kind(
        pad_token_id=0,
        pad_token="<|pad|>",
        actor_network=model,
        lora_config=peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
        **{
            "batch_size": 4,
            "group_size": 2,
            "lr": 1e-3,
            "beta": 0.0,
            "device": "cpu",
            "use_liger_loss": False,
            "gradient_checkpointing": False,
            "max_grad_norm": 10.0,
            "max_output_tokens": 8,
            "clip_coef": (0.8, 1.28),
            "adv_norm": "mean_std",
            "off_policy_sequence_mask_threshold": None,
            **PLAIN,
            **settings,
        },
    )


def experiences(seed: int = 0) -> tuple[Any, Tensor]:
    """What `learn` takes: ids, masks and rewards of four episodes in two groups, and the turn of every token."""
    noise = torch.Generator().manual_seed(seed)
    ids = [torch.randint(5, 200, (1, 10), generator=noise) for _ in range(4)]
    masks = [torch.tensor([[1, 1, 0, 1, 1, 1, 0, 0, 1]], dtype=torch.bool) for _ in range(4)]
    turn_ids = torch.tensor([[0, 0, -1, 1, 1, 1, -1, -1, 2]] * 4)
    return (ids, masks, torch.tensor([1.0, 0.0, 0.25, 0.5])), turn_ids


def adapters(tuner: Any) -> list[Tensor]:
    return [weight.detach().clone() for weight in tuner.actor.parameters() if weight.requires_grad]


def called(tuner: Any, tensors: dict[str, Tensor], turn_ids: Tensor | None) -> tuple[Tensor, Tensor]:
    """The loss of a micro-batch that is the whole step, as `learn` calls it, and its gradient."""
    mask = tensors["mask"]
    tuner._learnt_turn_ids = turn_ids
    tuner._record_global_window_action_tokens(mask, np.arange(len(mask)))
    log_probs = tensors["log_probs"].detach().clone().requires_grad_()
    known = (mask, log_probs, tensors["old"], tensors["reference"], tensors["advantages"], turn_ids)
    loss, _, _ = tuner._loss_fn(*known)
    loss.backward()
    assert log_probs.grad is not None
    return loss.detach(), log_probs.grad


@pytest.mark.parametrize(
    ("ratio", "level"), [("token", "token"), ("turn", "turn"), ("sequence", "trajectory")], ids=lambda each: each
)
@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_the_loss_is_agilerls_own_at_every_level(ratio: str, level: str, beta: float):
    kl = {"regularizers": [{"kind": "kl", "coef": beta}]} if beta else {}
    theirs = agent(importance_sampling_level=level, beta=beta, kl_clamp=None)
    ours = agent(clipped(ratio=ratio).override(kl), beta=beta)
    tensors = host_tensors()
    runs = tensors["mask"] & ~torch.cat([torch.zeros(4, 1, dtype=torch.bool), tensors["mask"][:, :-1]], 1)
    turn_ids = torch.where(tensors["mask"], runs.cumsum(1) - 1, -1)
    found, expected = called(ours, tensors, turn_ids), called(theirs, tensors, turn_ids)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=1e-6)


def test_an_update_is_agilerls_own():
    theirs, ours = agent(importance_sampling_level="turn"), agent(clipped(ratio="turn").override(SAME_STD))
    for before, other in zip(adapters(theirs), adapters(ours), strict=True):
        torch.testing.assert_close(before, other)
    rollout, turn_ids = experiences()
    results = [tuner.learn(rollout, turn_ids=turn_ids) for tuner in (theirs, ours)]
    for name in ("loss", "clipfrac", "grad_norm_pre"):
        assert results[1][name] == pytest.approx(results[0][name], rel=1e-4, abs=1e-6)


def test_st_ppos_loss_learns_and_shrinks_steps_that_clip():
    narrow = {"surrogate": {"kind": "ppo-clip", "low": 1e-4, "high": 1e-4}}
    tuner = agent(ST_GRPO.override(narrow), update_epochs=3)
    before = adapters(tuner)
    rollout, turn_ids = experiences()
    tuner.learn(rollout, turn_ids=turn_ids)
    assert any(not torch.equal(old, new) for old, new in zip(before, adapters(tuner), strict=True))
    assert tuner._scaled_steps().last.value < 1
    assert tuner.optimizer.optimizer.param_groups[0]["lr"] == pytest.approx(1e-3)


def test_rewards_of_turns_reach_the_turns_that_earned_them():
    row = Algorithm.of({"advantage": "return-to-go", "weights": "token-mean"})
    tuner = agent(row)
    (_, masks, _), turn_ids = experiences()
    rewards = torch.tensor([[1.0, 2.0, 4.0], [0.0, 0.0, 8.0], [0.0, 0.0, 0.0], [3.0, 0.0, 0.0]])
    advantages, kept = tuner._calculate_advantages(rewards, torch.zeros(4, 10), torch.cat(masks), turn_ids)
    assert advantages[:2].tolist() == [[7, 7, 0, 6, 6, 6, 0, 0, 4], [8, 8, 0, 8, 8, 8, 0, 0, 8]]
    assert kept.tolist() == [0, 1, 2, 3]


def test_a_clone_runs_the_same_row():
    tuner = agent(ST_GRPO)
    copy = tuner.clone()
    assert copy.row == ST_GRPO
    assert copy._loss_fn.__self__ is copy


@pytest.mark.parametrize(
    ("row", "settings", "reason"),
    [
        (preset("st-ppo"), {}, "critic.level=token: AgileRL trains no critic"),
        (preset("grpo"), {}, "set beta to any number but 0"),
        (preset("minirl"), {}, "use vLLM with old_logprobs_source='trainer'"),
        (preset("poad").override(GROUP), {}, "regularizers=entropy needs the entropy"),
        (clipped(), {"loss_norm": "episode"}, "loss_norm=episode would weigh tokens a second time"),
        (clipped(), {"beta": 0.1}, "beta=0.1 has no effect"),
    ],
)
def test_a_row_that_agilerl_cannot_run_is_refused_at_start(row: Algorithm, settings: Any, reason: str):
    with pytest.raises(ValueError, match=reason):
        agent(row, **settings)
