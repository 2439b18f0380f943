"""The scale of a step: its three forms, three estimators, calibration, micro-batches, ranks and checkpoints."""

import json
from functools import partial

import pytest
import torch

from tests.ops.batches import known, loss_of, random_case
from tests.ops.ranks import Reduce, on_ranks
from tests.ops.tiny_policy import TinyPolicy, own_logprobs, stale
from turnwise.algorithm import compute_loss, preset
from turnwise.batch import Scores, TokenBatch
from turnwise.ops.clip_bias import ClipBiasScale, Estimator, Form, logit_norm_squared, scale_factor
from turnwise.ops.regularizers import collision
from turnwise.ops.step_scale import Apply
from turnwise.ops.weights import Counts

ROW = preset("turn-ppo")


def step(scale: ClipBiasScale, policy: TinyPolicy, parts: list[TokenBatch], counts: Counts) -> None:
    """Observe these micro-batches of one optimiser step."""
    for part in parts:
        logits_TV = policy(part)
        logprob_T = own_logprobs(logits_TV, part)
        scores = Scores(logprob_T=logprob_T, value_T=part.value_T, collision_T=collision(logits_TV))
        scale.observe(compute_loss(ROW, part, scores, counts=counts), scores, [*policy.parameters()])


def prepared(seed: int) -> tuple[TinyPolicy, TokenBatch]:
    """A tiny policy and a stale batch of it, ready for a loss."""
    policy = TinyPolicy(seed=seed)
    batch = stale(random_case(seed), policy, seed=seed)
    value_T = torch.zeros(batch.tokens, dtype=torch.float64)
    return policy, batch.with_(value_T=value_T, return_T=value_T)


def expected_norm(batch: TokenBatch, policy: TinyPolicy, estimator: Estimator) -> float:
    """The norm by its definition: of the parameters' gradient, of the logits' gradient, of the coefficients."""
    logits_TV = policy(batch)
    logprob_T = own_logprobs(logits_TV, batch)
    loss = compute_loss(ROW, batch, Scores(logprob_T=logprob_T, value_T=batch.value_T))
    bias = known(loss.bias)
    if estimator == "exact":
        return float(policy.gradient(bias).norm())
    if estimator == "logit":
        return float(torch.autograd.grad(bias, logits_TV)[0].norm())
    return float(known(loss.bias_T).norm())


def observed(norm: float, scale: ClipBiasScale) -> None:
    """Let the `loss` estimator see one token whose bias has this norm."""
    coefficient_T = torch.tensor([norm], dtype=torch.float64)
    bias = coefficient_T.sum() if norm else None
    loss = loss_of(bias=bias, bias_T=coefficient_T if norm else None)
    scale.observe(loss, Scores(logprob_T=coefficient_T))


@pytest.mark.parametrize(
    ("form", "factor"),
    [("safe", [1.0, 1.0, 1.0, 0.5]), ("soft", [1.0, 2 / 3, 0.5, 1 / 3]), ("paper", [1, 1, 0.5, 0.25])],
)
def test_scale_forms_by_hand(form: Form, factor: list[float]):
    # c0 = 2, norms 0, 1, 2, 4: 1/max(1, n/2); 1/(1 + n/2); 1/n, and 1 when nothing was clipped
    assert [scale_factor(norm, form=form, threshold=2.0) for norm in (0.0, 1.0, 2.0, 4.0)] == pytest.approx(factor)


def test_paper_form_amplifies_below_one():
    assert scale_factor(0.01, form="paper", threshold=1.0) == pytest.approx(100.0)
    assert scale_factor(0.01, form="safe", threshold=1.0) == 1.0


@pytest.mark.parametrize("estimator", ["exact", "logit", "loss"])
@pytest.mark.parametrize("seed", range(3))
def test_norms_are_those_of_their_spaces_and_add_up_over_micro_batches(seed: int, estimator: Estimator):
    policy, batch = prepared(seed)
    wanted = expected_norm(batch, policy, estimator)
    assert wanted > 0
    for size in (1, 2, batch.sequences):
        rows = list(range(batch.sequences))
        parts = [batch.select(rows[start : start + size]) for start in range(0, batch.sequences, size)]
        scale = ClipBiasScale(estimator=estimator, threshold=1e-3)
        step(scale, policy, parts, Counts.of(batch))
        result = scale.finish()
        assert result.measured == pytest.approx(wanted, rel=1e-9)
        assert result.value == pytest.approx(1e-3 / wanted, rel=1e-9)


@pytest.mark.parametrize("estimator", ["exact", "logit", "loss"])
def test_ranks_agree_on_one_scale_also_where_one_clipped_nothing(estimator: Estimator):
    policy, batch = prepared(0)
    wanted, counts = expected_norm(batch, policy, estimator), Counts.of(batch)
    middle = batch.sequences // 2
    idle = batch.with_(advantage_T=torch.zeros_like(batch.reward_T))  # without advantage nothing is clipped

    def rank(part: TokenBatch, reduce: Reduce) -> float:
        scale = ClipBiasScale(estimator=estimator, threshold=1.0)
        step(scale, policy, [part], counts)
        return scale.finish(reduce).measured

    shards = [batch.select(range(middle)), batch.select(range(middle, batch.sequences)), idle]
    assert on_ranks([partial(rank, shard) for shard in shards]) == pytest.approx([wanted] * 3, rel=1e-9)


def test_logit_norm_by_hand():
    # π = (½, ¼, ¼), the first token sampled, c = 2: 2² · (¼ + 1/16 + 1/16) = 1.5
    squared = logit_norm_squared(
        torch.tensor([2.0, 0.0]), torch.log(torch.tensor([0.5, 0.1])), torch.tensor([0.375, torch.nan])
    )
    assert float(squared) == pytest.approx(1.5)


def test_nothing_clipped_means_scale_one_for_every_form_and_leaves_the_calibration_alone():
    for form in ("safe", "soft", "paper"):
        scale = ClipBiasScale(form=form)
        observed(0.0, scale)
        result = scale.finish()
        assert (result.value, result.measured) == (1.0, 0.0)
        assert scale.state_dict() == {"norms": []}


def test_threshold_is_calibrated_from_the_first_norms():
    scale = ClipBiasScale(target=1 / 3, calibration=3)
    results = []
    for norm in (6.0, 0.0, 1.0, 2.0, 10.0):
        observed(norm, scale)
        results.append(scale.finish())
    # medians of (6), (6), (6, 1), (6, 1, 2), then closed: 6, 6, 3.5, 2, 2, each times 1/3
    assert [result.threshold for result in results] == pytest.approx([2.0, 2.0, 7 / 6, 2 / 3, 2 / 3])
    assert [result.value for result in results] == pytest.approx([1 / 3, 1.0, 1.0, 1 / 3, 1 / 15])


@pytest.mark.parametrize("estimator", ["exact", "logit", "loss"])
def test_each_step_starts_afresh(estimator: Estimator):
    policy, batch = prepared(0)
    scale = ClipBiasScale(estimator=estimator, threshold=1.0)
    for _ in range(2):
        step(scale, policy, [batch], Counts.of(batch))
        assert scale.finish().measured == pytest.approx(expected_norm(batch, policy, estimator))
    assert scale.finish().measured == 0.0


def test_norms_of_micro_batches_add_in_squares():
    scale = ClipBiasScale(threshold=1.0)
    observed(3.0, scale)
    observed(4.0, scale)
    assert scale.finish().measured == pytest.approx(5.0)


def test_calibration_survives_a_checkpoint():
    scale, resumed = ClipBiasScale(calibration=4), ClipBiasScale(calibration=4)
    for norm in (3.0, 1.0):
        observed(norm, scale)
        scale.finish()
    resumed.load_state_dict(json.loads(json.dumps(scale.state_dict())))
    for norm in (7.0, 5.0, 11.0):
        observed(norm, scale)
        observed(norm, resumed)
        assert resumed.finish() == scale.finish()


@pytest.mark.parametrize("apply", ["step", "gradient"])
def test_scale_says_where_it_goes(apply: Apply):
    assert ClipBiasScale(apply=apply).finish().apply == apply


def test_estimators_name_what_they_miss():
    one = torch.ones(1)
    with pytest.raises(ValueError, match="'exact' needs the trained parameters"):
        ClipBiasScale(estimator="exact").observe(loss_of(bias=one.sum(), bias_T=one), Scores(logprob_T=one))
    with pytest.raises(ValueError, match=r"'logit' needs Scores\.collision_T"):
        ClipBiasScale(estimator="logit").observe(loss_of(bias=one.sum(), bias_T=one), Scores(logprob_T=one))
