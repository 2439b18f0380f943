"""The learner: what changes an update and what must not, who moves and who stands still."""

import math
from typing import Any

import pytest
import torch

from tests.learn.small_learners import (
    SETTINGS,
    drift,
    make_groups,
    make_learner,
    make_policy,
    moved,
    row,
    weights,
)
from turnwise.batch import TokenBatch
from turnwise.learn.encodings import join
from turnwise.learn.learner import Learner
from turnwise.learn.reporting import Report, explained_variance
from turnwise.policy.critics import Critic
from turnwise.policy.text import TextPolicy
from turnwise.recipe.schema import Train
from turnwise.types import Group, NonFiniteError, StopReason

ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "no critic": ("rebn", {}),
    "group and reference": ("grpo", {"minibatches": 2, "regularizers": [{"kind": "kl", "coef": 0.1}]}),
    "full reference": ("grpo", {"regularizers": [{"kind": "kl", "coef": 0.1, "estimator": "full"}]}),
    "token critic and scale": ("st-ppo", {"minibatches": 2}),
    "turn critic": ("turn-gae", {"minibatches": 2}),
    "histogram critic": ("ppo", {"critic": {"loss": "hl-gauss"}, "minibatches": 2}),
    "exact scale": ("s-ppo", {"scale": {"kind": "clip-bias", "estimator": "exact"}, "minibatches": 2}),
    "token kl": ("rloo", {}),
}


def prepared(learner: Learner, groups: list[Group]) -> TokenBatch:
    batch = learner.prepare(groups)
    assert batch is not None
    return batch


def learn(learner: Learner, *, steps: int = 1, groups: list[Group] | None = None) -> list[Report]:
    reports: list[Report] = []
    for step in range(1, steps + 1):
        batch = prepared(learner, make_groups(seed=step) if groups is None else groups)
        reports.append(learner.learn(batch, step))
    return reports


CUTS = [
    (name, critic)
    for name, (preset, changes) in ROWS.items()
    for critic in (("separate", "shared") if row(preset, changes).needs_critic else ("none",))
]


@pytest.mark.parametrize(("name", "critic"), CUTS)
def test_the_size_of_micro_batches_never_changes_the_update(name: str, critic: str) -> None:
    preset, changes = ROWS[name]
    groups = make_groups(tasks=2, size=3)
    outcomes: list[tuple[dict[str, torch.Tensor], Report]] = []
    # Adam divides a gradient by its own size, so where it is almost zero its rounding decides part of a step; a wrong
    # sum would move weights by whole steps.
    near = 0.2 * 1e-4
    for tokens in (1, 60, 16384):
        rates = {"learning_rate": 1e-4, "critic_learning_rate": 1e-4}
        train = SETTINGS.model_copy(
            update={"micro_tokens": tokens, "critic": critic.replace("none", "separate"), **rates}
        )
        learner = make_learner(preset, train=train, **changes)
        reports = learn(learner, steps=2, groups=groups)
        outcomes.append((weights(learner), reports[-1]))
    (whole, report), others = outcomes[-1], outcomes[:-1]
    for cut, other in others:
        for key, weight in whole.items():
            torch.testing.assert_close(cut[key], weight, atol=near, rtol=0, msg=lambda text, key=key: f"{key}: {text}")
        assert other.metrics == pytest.approx(report.metrics, rel=1e-3, abs=1e-5)
        assert other.turns == [pytest.approx(turn, rel=1e-3, abs=1e-3) for turn in report.turns]


@pytest.mark.parametrize(("epochs", "minibatches"), [(1, 1), (1, 3), (2, 2)])
def test_a_step_takes_epochs_times_minibatches_updates(epochs: int, minibatches: int) -> None:
    learner = make_learner("ppo", epochs=epochs, minibatches=minibatches)
    (report,) = learn(learner)
    assert report.metrics["train/updates"] == learner.updates == epochs * minibatches
    assert report.metrics["train/skipped"] == 0
    assert report.metrics["loss/tokens"] == epochs * sum(
        len(turn.sampled_ids) for group in make_groups(seed=1) for t in group.trajectories for turn in t.turns
    )


def test_equal_seeds_deal_minibatches_alike_and_others_do_not() -> None:
    ends = []
    for seed in (0, 0, 1):
        learner = Learner(make_policy(), row("ppo", {"minibatches": 3}), SETTINGS, seed=seed)
        learn(learner)
        ends.append(weights(learner))
    assert moved(ends[0], ends[1]) == set()
    assert moved(ends[0], ends[2])


@pytest.mark.parametrize("critic", ["separate", "shared"])
def test_during_the_critics_warm_up_the_actor_stands_still(critic: str) -> None:
    train = SETTINGS.model_copy(update={"critic": critic})
    learner = make_learner("ppo", train=train, critic={"level": "token", "warmup": 3}, minibatches=2)
    start = weights(learner)
    batch = prepared(learner, make_groups(seed=1))
    learner.learn(batch, 1)
    warm = weights(learner)
    heads = {"critic.head.weight", "critic.head.bias"}
    assert heads <= moved(start, warm)
    assert not {name for name in moved(start, warm) if not name.startswith("critic.")}
    learner.learn(batch, 2)  # its first update is the last of the warm-up
    assert {name for name in moved(warm, weights(learner)) if not name.startswith("critic.")} >= set(
        learner.policy.trainable()
    )


def test_a_shared_critic_pulls_at_the_trunk_by_its_coefficient() -> None:
    train = SETTINGS.model_copy(update={"critic": "shared", "grad_clip": 1e9})
    gradients: list[torch.Tensor] = []
    for coef in (1.0, 2.0, 3.0):
        learner = make_learner("ppo", train=train, critic={"coef": coef}, minibatches=1)
        assert isinstance(learner.critic, Critic)
        with torch.no_grad():
            learner.critic.head.weight.fill_(0.5)
        learn(learner)
        found = learner.policy.trainable()["model.layers.0.mlp.up_proj.weight"].grad
        assert found is not None
        gradients.append(found.clone())
    pull = gradients[1] - gradients[0]
    assert float(pull.abs().max()) > 1e-4
    torch.testing.assert_close(gradients[2] - gradients[1], pull, atol=1e-6, rtol=1e-3)


def first_displacement(apply: str, threshold: float) -> tuple[float, Report]:
    """How far the first update moves the weights when the sampler was another policy, so that much is clipped."""
    scale = {"kind": "clip-bias", "apply": apply, "threshold": threshold}
    learner = make_learner("s-ppo", scale=scale, minibatches=1, ratio={"against": "mu"})
    start = weights(learner)
    (report,) = learn(learner, groups=drift(make_groups(), by=1.5))
    end = weights(learner)
    names = learner.policy.trainable()
    return math.sqrt(sum(float((end[name] - start[name]).square().sum()) for name in names)), report


def test_a_scale_on_the_step_shrinks_the_step_and_one_on_the_gradient_the_gradient() -> None:
    whole, unscaled = first_displacement("step", threshold=1e6)
    assert unscaled.metrics["train/scale"] == 1.0
    norm = unscaled.metrics["train/clip_bias"]
    assert norm > 0
    shrunk, on_step = first_displacement("step", threshold=norm / 4)
    same, on_gradient = first_displacement("gradient", threshold=norm / 4)
    assert on_step.metrics["train/scale"] == on_gradient.metrics["train/scale"] == pytest.approx(0.25)
    assert shrunk / whole == pytest.approx(0.25, rel=1e-3)
    assert same / whole == pytest.approx(1.0, rel=2e-2)  # Adam divides the factor out again
    raw = unscaled.metrics["train/gradient_norm"]
    assert on_step.metrics["train/gradient_norm"] == pytest.approx(raw, rel=1e-5)
    assert on_gradient.metrics["train/gradient_norm"] == pytest.approx(raw / 4, rel=1e-5)


def test_the_rate_follows_schedule_and_guard_for_actor_and_critic_alike() -> None:
    train = Train(steps=4, learning_rate=1e-3, critic_learning_rate=2e-3, schedule="linear")
    moves: dict[float, tuple[float, float]] = {}
    for factor in (1.0, 0.5):
        learner = make_learner("ppo", train=train, minibatches=1)
        learner.rate_factor = factor
        start = weights(learner)
        report = learner.learn(prepared(learner, make_groups()), 2)
        assert report.metrics["train/learning_rate"] == pytest.approx(1e-3 * 0.7 * factor)
        change = {name: float((end - start[name]).abs().max()) for name, end in weights(learner).items()}
        moves[factor] = change["lm_head.weight"], change["critic.head.weight"]
    # Adam's first step moves a weight by the rate, whatever the gradient.
    assert moves[1.0] == pytest.approx((0.7e-3, 1.4e-3), rel=1e-2)
    assert moves[0.5] == pytest.approx((0.35e-3, 0.7e-3), rel=1e-2)


def test_half_precision_weights_learn_by_steps_too_small_for_them() -> None:
    policy = make_policy(dtype=torch.bfloat16)
    learner = Learner(policy, row("rebn", {"epochs": 1}), SETTINGS.model_copy(update={"learning_rate": 1e-6}), seed=0)
    start = weights(learner)
    learn(learner, steps=3)
    lacking = learner.optimizer.tensors()
    moved = {name: join(weight, lacking[f"residual.{name}"]) for name, weight in weights(learner).items()}
    assert moved.keys() == policy.trainable().keys()
    assert all(1e-7 < float((moved[name] - start[name].float()).abs().max()) < 4e-6 for name in start)
    same = sum(int((weights(learner)[name] == start[name]).sum()) for name in start)
    assert same / sum(weight.numel() for weight in start.values()) > 0.97  # the rounded weights mostly stay


def test_gradients_are_freed_between_steps() -> None:
    learner = make_learner("ppo")
    learn(learner)
    assert any(parameter.grad is not None for parameter in learner.policy.trainable().values())
    learner.free_gradients()
    assert learner.critic is not None
    both = (*learner.policy.trainable().values(), *learner.critic.trainable().values())
    assert all(parameter.grad is None for parameter in both)


def test_an_adapter_moves_its_own_weights_alone() -> None:
    pytest.importorskip("peft", reason="needs turnwise[lora]")
    learner = make_learner("ppo", lora=True)
    assert isinstance(learner.policy, TextPolicy)
    base = {name: w.detach().clone() for name, w in learner.policy.model.named_parameters() if "lora" not in name}
    start = weights(learner)
    learn(learner, steps=2)
    assert all(
        torch.equal(weight, dict(learner.policy.model.named_parameters())[name]) for name, weight in base.items()
    )
    changed = moved(start, weights(learner))
    assert {name for name in learner.policy.trainable() if "lora_B" in name} <= changed
    assert all("lora" in name for name in learner.policy.trainable())


@pytest.mark.parametrize("lora", [False, True], ids=["full", "adapter"])
def test_the_reference_is_the_first_policy_and_stays_it(lora: bool) -> None:
    if lora:
        pytest.importorskip("peft", reason="needs turnwise[lora]")
    kl = [{"kind": "kl", "coef": 0.1}]
    learner = make_learner("grpo", lora=lora, regularizers=kl)
    groups = make_groups()
    first = prepared(learner, groups)
    assert first.ref_T is not None
    torch.testing.assert_close(first.ref_T, make_policy().score(first).logprob_T, atol=1e-6, rtol=0)
    reports = [learner.learn(prepared(learner, groups), step) for step in (1, 2, 3)]
    assert reports[0].metrics["loss/kl_term"] == pytest.approx(0.0, abs=1e-9)
    assert reports[2].metrics["loss/kl_term"] > reports[1].metrics["loss/kl_term"] > 0
    assert reports[2].metrics["loss/reference_kl"] > 0
    later = prepared(learner, groups).ref_T
    assert later is not None
    torch.testing.assert_close(later, first.ref_T, atol=1e-6, rtol=0)


def test_rows_ask_the_model_for_what_they_read_and_nothing_else() -> None:
    groups = make_groups()
    plain = prepared(make_learner("reinforce"), groups)
    assert (plain.old_T, plain.ref_T, plain.value_T) == (None, None, None)
    several = prepared(make_learner("gspo"), groups)
    assert several.old_T is not None
    assert several.ref_T is None
    valued = prepared(make_learner("turn-gae"), groups)
    assert valued.value_T is not None
    assert valued.bootstrap_S is not None
    assert not bool(valued.bootstrap_S.isnan().any())


def test_episodes_that_failed_enter_no_batch() -> None:
    groups = make_groups()
    groups[0].trajectories[1].stop = StopReason.TIMEOUT
    groups[2].trajectories[0].stop = StopReason.ENV_ERROR
    batch = prepared(make_learner("ppo"), groups)
    trained = {batch.trajectory_names[number] for number in batch.trajectory_S.tolist()}
    assert len(trained) == 10
    assert not trained & {"task-0/1", "task-2/0"}
    for group in groups:
        for trajectory in group.trajectories:
            trajectory.stop = StopReason.TIMEOUT
    assert make_learner("ppo").prepare(groups) is None


def test_an_update_that_is_not_allowed_leaves_everything_as_it_was() -> None:
    learner = make_learner("st-ppo", minibatches=2)
    learn(learner)
    start, moments = weights(learner), {name: t.clone() for name, t in learner.optimizer.tensors().items()}
    asked: list[dict[str, float]] = []
    report = learner.learn(prepared(learner, make_groups()), 2, lambda **facts: asked.append(facts) or False)
    assert moved(start, weights(learner)) == set()
    assert all(torch.equal(tensor, moments[name]) for name, tensor in learner.optimizer.tensors().items())
    assert (learner.updates, report.metrics["train/skipped"]) == (2, 2)
    assert [(facts["step"], facts["update"]) for facts in asked] == [(2, 0), (2, 1)]
    assert all(math.isfinite(facts["gradient_norm"]) and math.isfinite(facts["loss"]) for facts in asked)


@pytest.mark.parametrize("who", ["actor", "critic"])
def test_a_gradient_that_is_not_finite_is_shown_to_the_guard_whoever_has_it(who: str) -> None:
    learner = make_learner("ppo", minibatches=1)
    assert learner.critic is not None
    owner = learner.policy.trainable() if who == "actor" else learner.critic.trainable()
    next(iter(owner.values())).register_hook(lambda gradient: gradient * math.nan)
    seen: list[float] = []
    report = learner.learn(
        prepared(learner, make_groups()), 1, lambda **facts: seen.append(facts["gradient_norm"]) or False
    )
    assert len(seen) == 1
    assert math.isnan(seen[0])
    assert report.metrics["train/skipped"] == 1


def test_weights_that_are_not_finite_are_an_error_that_names_the_place() -> None:
    learner = make_learner("grpo", minibatches=2)
    with torch.no_grad():
        next(iter(learner.policy.trainable().values())).fill_(math.nan)
    with pytest.raises(NonFiniteError, match=r"log-prob.* is nan at trajectory 'task-"):
        learner.learn(prepared(learner, make_groups()), 1)


def test_nothing_samples_while_weights_change() -> None:
    learner = make_learner("ppo", minibatches=2)
    entered: list[set[str]] = []

    class Hold:
        def __enter__(self) -> None:
            self.start = weights(learner)

        def __exit__(self, *_: object) -> None:
            entered.append(moved(self.start, weights(learner)))

    learner.hold = Hold
    start = weights(learner)
    learn(learner)
    assert [bool(names) for names in entered] == [True, True]
    assert moved(start, weights(learner)) == entered[0] | entered[1]


def test_a_turn_critic_is_judged_only_where_it_is_trained() -> None:
    """It learns the value before each turn; what its head says inside a turn means nothing."""
    learner = make_learner("turn-gae", minibatches=1)
    batch = prepared(learner, make_groups())
    assert batch.return_T is not None
    before_T = torch.cat([batch.turn_T.new_full((1,), -1), batch.turn_T[:-1]])
    first_T = batch.sampled_T & (batch.turn_T != before_T)
    assert int(first_T.sum()) < int(batch.sampled_T.sum())
    perfect = batch.with_(value_T=torch.where(first_T, batch.return_T, 40.0))
    report = learner.learn(perfect, 1)
    assert report.metrics["train/explained_variance"] == pytest.approx(1.0)


def test_explained_variance_is_one_for_a_perfect_critic_and_zero_for_the_mean() -> None:
    batch = prepared(make_learner("ppo"), make_groups())
    assert batch.return_T is not None
    assert explained_variance(batch.with_(value_T=batch.return_T)) == pytest.approx(1.0)
    assert explained_variance(batch.with_(value_T=torch.full_like(batch.return_T, 0.3))) == pytest.approx(0.0)
    assert explained_variance(batch.with_(value_T=-batch.return_T)) == pytest.approx(-3.0)
