"""A learner that extrapolates: from the right weights, after all updates, in any precision."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.learn.small_learners import SETTINGS, make_groups, make_learner, make_policy, moved, row, weights
from tests.train.small_runs import LostMachineError, Stopping, last_tensors, run, small_recipe, timeless
from turnwise.engine.contract import Mixed, SamplingParams
from turnwise.engine.torch_engine import TorchEngine
from turnwise.learn.learner import Learner
from turnwise.ops.extrapolations import logits
from turnwise.policy.mixed_policy import MixedPolicy
from turnwise.rollout.packing import pack
from turnwise.types import Group, StopReason, Trajectory, Turn

ALPHA = 0.5
EXTRAPOLATE: dict[str, Any] = {"kind": "parameters", "alpha": ALPHA}


def learn(learner: Learner, step: int) -> dict[str, float]:
    batch = learner.prepare(make_groups(seed=step))
    assert batch is not None
    return learner.learn(batch, step).metrics


def test_the_change_is_added_to_what_the_updates_gave_and_starts_from_the_unextrapolated_weights() -> None:
    learner, plain = make_learner("rebn", extrapolate=EXTRAPOLATE), make_learner("rebn")
    first = weights(learner)
    learn(learner, 1)
    learn(plain, 1)
    updated = weights(plain)
    for name, weight in weights(learner).items():
        torch.testing.assert_close(weight, updated[name] + ALPHA * (updated[name] - first[name]))
    # The same updates from the extrapolated weights: step 2 begins there, and remembers what step 1 had learnt.
    with torch.no_grad():
        for name, parameter in plain.policy.trainable().items():
            parameter.copy_(learner.policy.trainable()[name])
    metrics = learn(learner, 2)
    learn(plain, 2)
    again, norm = weights(plain), 0.0
    for name, weight in weights(learner).items():
        change = ALPHA * (again[name] - updated[name])
        torch.testing.assert_close(weight, again[name] + change)
        norm += float(change.square().sum())
    assert metrics["train/extrapolated"] == pytest.approx(norm**0.5, rel=1e-4)


def test_nothing_is_added_where_the_guard_refused_every_update() -> None:
    learner = make_learner("rebn", extrapolate=EXTRAPOLATE)
    learn(learner, 1)
    before, batch = weights(learner), learner.prepare(make_groups(seed=2))
    assert batch is not None
    assert "train/extrapolated" not in learner.learn(batch, 2, lambda **_: False).metrics
    assert moved(before, weights(learner)) == set()


def test_an_alpha_of_zero_is_no_extrapolation() -> None:
    still, plain = make_learner("rebn", extrapolate={"kind": "parameters", "alpha": 0.0}), make_learner("rebn")
    assert [learn(still, step) for step in (1, 2)] == [learn(plain, step) for step in (1, 2)]
    assert moved(weights(still), weights(plain)) == set()


@pytest.mark.parametrize("masters", ["residual", "fp32", "stochastic"])
def test_half_precision_weights_move_as_single_precision_ones_do(masters: Any) -> None:
    train = SETTINGS.model_copy(update={"masters": masters})
    changes = {"extrapolate": EXTRAPOLATE}
    half = Learner(make_policy(dtype=torch.bfloat16), row("rebn", changes), train)
    start = dict(half.optimizer.wide_weights())
    for step in (1, 2):
        learn(half, step)
    assert half.extrapolation is not None
    now = dict(half.optimizer.wide_weights())
    for name, before in half.extrapolation.before.items():
        assert not torch.equal(before, start[name])
        assert not torch.equal(before, now[name])
        torch.testing.assert_close(half.policy.trainable()[name].float(), now[name], rtol=0.01, atol=1e-6)


CHANGES: dict[str, Any] = {
    "algorithm": {"preset": "rebn", "extrapolate": EXTRAPOLATE},
    "train": {"steps": 4},
    "checkpoint": {"every": 1},
}


def test_a_run_that_was_cut_off_ends_with_the_same_bits(tmp_path: Path) -> None:
    run(tmp_path / "whole", CHANGES)
    with pytest.raises(LostMachineError):
        run(tmp_path / "cut", CHANGES, console=Stopping(after=2))
    run(tmp_path / "cut")
    assert timeless(tmp_path / "cut") == timeless(tmp_path / "whole")
    found = last_tensors(tmp_path / "whole")
    assert "resume/extrapolation.safetensors" in found
    assert last_tensors(tmp_path / "cut") == found


def test_a_run_samples_from_the_extrapolated_weights(tmp_path: Path) -> None:
    run(tmp_path / "run", {**CHANGES, "algorithm": {**CHANGES["algorithm"], "epochs": 1}})
    rows = timeless(tmp_path / "run")
    assert all(row["train/extrapolated"] > 0.01 for row in rows)
    assert all(row["loss/sampler_kl"] < 1e-8 for row in rows)  # with one update, the learner's policy is the sampler


# Logits.

LOGITS: dict[str, Any] = {"kind": "logits", "alpha": ALPHA}
MIXED: dict[str, Any] = {**CHANGES, "algorithm": {"preset": "rebn", "epochs": 1, "extrapolate": LOGITS}}


def test_a_mixture_scores_what_its_mixed_logits_say() -> None:
    policy, earlier = make_policy(seed=0), make_policy(seed=1)
    mixture = MixedPolicy(policy, partial(logits, alpha=ALPHA))
    batch = pack(make_groups())
    torch.testing.assert_close(mixture.score(batch).logprob_T, policy.score(batch).logprob_T)  # both are the same yet
    earlier.refresh(mixture.before)
    token_M = batch.sampled_T.nonzero().squeeze(1)
    now, before = (each.states(batch, token_M - 1)[0] @ each.head.weight_Vd.T for each in (policy, earlier))
    expected = ((1 + ALPHA) * now - ALPHA * before).div(0.7).log_softmax(-1)
    found = mixture.score(batch, temperature=0.7).logprob_T[token_M]
    torch.testing.assert_close(found, expected.gather(1, batch.ids_T[token_M, None]).squeeze(1), atol=1e-5, rtol=0)


@pytest.mark.parametrize("lora", [False, True], ids=["full", "adapter"])
def test_the_engine_samples_with_the_log_probs_of_the_mixture(lora: bool) -> None:
    if lora:
        pytest.importorskip("peft", reason="needs turnwise[lora]")
    policy = make_policy(lora=lora)
    mixture = MixedPolicy(policy, partial(logits, alpha=ALPHA))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.trainable().values():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    mixed = Mixed(model=mixture.before.model, mix=mixture.mix)
    engine = TorchEngine(policy.model, capacity=64, memory_bytes=2**22, mixed=mixed)
    params = SamplingParams(max_tokens=12, temperature=0.8)
    turns = list[Turn]()
    for new in ([1, 5, 6, 7], [8, 9]):  # the second turn reads what both models have kept of the first
        (done,) = engine.run([("a", new, params)])
        turns.append(Turn(prompt_ids=new, sampled_ids=done.ids, logprobs=done.logprobs))
    batch = pack([Group(id="a", trajectories=[Trajectory(id="a", turns=turns, stop=StopReason.DONE)])])
    assert batch.mu_T is not None
    found, plain = (each.score(batch, temperature=0.8).logprob_T for each in (mixture, policy))
    torch.testing.assert_close(found[batch.sampled_T], batch.mu_T[batch.sampled_T], atol=1e-4, rtol=0)
    assert (plain - found)[batch.sampled_T].abs().max() > 0.01


def test_the_old_policy_is_the_mixture_and_the_next_one_starts_from_the_step_before() -> None:
    learner = make_learner("rebn", extrapolate=LOGITS, epochs=1)
    assert learner.extrapolation is not None
    first = weights(learner)
    learn(learner, 1)
    assert moved(first, learner.extrapolation.before) == set()
    second = weights(learner)
    batch = learner.prepare(make_groups(seed=2))
    assert batch is not None
    assert batch.old_T is not None
    assert learner.sampler is not None
    torch.testing.assert_close(batch.old_T, learner.sampler.score(batch).logprob_T)
    assert not torch.allclose(batch.old_T, learner.policy.score(batch).logprob_T)
    learner.learn(batch, 2, lambda **_: False)
    assert moved(first, learner.extrapolation.before) == set()  # nothing was learnt: the mixture stays
    learner.learn(batch, 2)
    assert moved(second, learner.extrapolation.before) == set()


def test_a_run_with_mixed_logits_that_was_cut_off_ends_with_the_same_bits(tmp_path: Path) -> None:
    run(tmp_path / "whole", MIXED)
    with pytest.raises(LostMachineError):
        run(tmp_path / "cut", MIXED, console=Stopping(after=2))
    run(tmp_path / "cut")
    assert timeless(tmp_path / "cut") == timeless(tmp_path / "whole")
    assert last_tensors(tmp_path / "cut") == last_tensors(tmp_path / "whole")


def test_logits_with_an_alpha_of_zero_change_no_bit(tmp_path: Path) -> None:
    still = {"preset": "rebn", "epochs": 1, "extrapolate": {"kind": "logits", "alpha": 0.0}}
    run(tmp_path / "still", {**MIXED, "algorithm": still})
    run(tmp_path / "plain", {**MIXED, "algorithm": {"preset": "rebn", "epochs": 1}})
    assert timeless(tmp_path / "still") == timeless(tmp_path / "plain")


def test_mixed_logits_are_refused_where_they_cannot_be_sampled() -> None:
    with pytest.raises(ValueError, match=r"extrapolate=logits samples from two policies at once.*engine\.kind=torch"):
        small_recipe({**MIXED, "engine": {"kind": "vllm", "urls": ["http://127.0.0.1:1"]}})
    with pytest.raises(ValueError, match="set max_lag to 0"):
        small_recipe({**MIXED, "algorithm": {**MIXED["algorithm"], "max_lag": 1}})
