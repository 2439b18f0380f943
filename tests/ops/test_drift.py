"""The drift scale: what it measures, where it begins to shrink, micro-batches and ranks."""

from functools import partial

import pytest
import torch

from tests.ops.batches import random_case
from tests.ops.ranks import Reduce, on_ranks
from tests.ops.tiny_policy import TinyPolicy, own_logprobs, stale
from turnwise.algorithm import compute_loss, preset, resolve
from turnwise.batch import Scores, TokenBatch
from turnwise.ops.diagnostics import TurnTable
from turnwise.ops.drift import DriftScale, Measure, Over
from turnwise.ops.weights import Counts

ROW = preset("turn-ppo")


def prepared(seed: int) -> tuple[TinyPolicy, TokenBatch]:
    """A tiny policy and a batch that an older one has sampled."""
    policy = TinyPolicy(seed=seed)
    batch = stale(random_case(seed), policy, seed=seed)
    value_T = torch.zeros(batch.tokens, dtype=torch.float64)
    return policy, batch.with_(value_T=value_T, return_T=value_T, mu_T=batch.old_T)


def observe(scale: DriftScale, policy: TinyPolicy, part: TokenBatch, counts: Counts) -> None:
    scores = Scores(logprob_T=own_logprobs(policy(part), part), value_T=part.value_T)
    loss = compute_loss(ROW, part, scores, counts=counts)
    scale.observe(loss, scores)


def kl_by_definition(policy: TinyPolicy, batch: TokenBatch) -> float:
    """k3 of the sampler against the policy now, over the sampled tokens."""
    assert batch.mu_T is not None
    log_ratio_T = (own_logprobs(policy(batch), batch).detach() - batch.mu_T)[batch.sampled_T]
    return float((log_ratio_T.exp() - 1 - log_ratio_T).mean())


@pytest.mark.parametrize("power", [1.0, 2.0])
def test_steps_shrink_by_the_kl_from_the_sampler_once_it_is_beyond_the_target(power: float) -> None:
    policy, batch = prepared(0)
    kl = kl_by_definition(policy, batch)
    for target, value in [(2 * kl, 1.0), (kl / 4, 0.25**power)]:
        for size in (1, batch.sequences):
            scale = DriftScale(target=target, power=power)
            rows = list(range(batch.sequences))
            for start in range(0, batch.sequences, size):
                observe(scale, policy, batch.select(rows[start : start + size]), Counts.of(batch))
            result = scale.finish()
            assert result.measured == pytest.approx(kl, rel=1e-6)
            assert result.value == pytest.approx(value, rel=1e-6)


def test_over_turns_the_turn_index_that_drifted_furthest_counts() -> None:
    policy, batch = prepared(0)
    assert batch.mu_T is not None
    index_T = batch.index_T
    log_ratio_T = own_logprobs(policy(batch), batch).detach() - batch.mu_T
    kl_T = log_ratio_T.exp() - 1 - log_ratio_T
    by_turn = [kl_T[batch.sampled_T & (index_T == index)].mean() for index in index_T[batch.sampled_T].unique()]
    assert len(by_turn) > 1
    scale = DriftScale(over="turns", target=1e-9)
    observe(scale, policy, batch, Counts.of(batch))
    assert scale.finish().measured == pytest.approx(float(max(by_turn)), rel=1e-6)


def test_more_turns_than_are_told_apart_count_as_the_last() -> None:
    table = TurnTable(sums_IC=torch.ones(80, 12), ratio_max_I=torch.ones(80), known=frozenset())
    assert table.columns(["tokens", "clipped"], rows=64).tolist() == [[1.0, 1.0]] * 63 + [[17.0, 17.0]]


def test_a_dropped_step_is_taken_whole_or_not_at_all() -> None:
    policy, batch = prepared(0)
    kl = kl_by_definition(policy, batch)
    for target, value in [(2 * kl, 1.0), (kl / 2, 0.0)]:
        scale = DriftScale(target=target, drop=True)
        observe(scale, policy, batch, Counts.of(batch))
        assert scale.finish().value == value


def test_clips_count_the_tokens_that_were_clipped() -> None:
    policy, batch = prepared(0)
    scale = DriftScale(measure="clips", target=0.01)
    observe(scale, policy, batch, Counts.of(batch))
    result = scale.finish()
    clipped = result.measured * int(batch.sampled_T.sum())
    assert clipped == pytest.approx(round(clipped), abs=1e-4)
    assert 0 < result.measured <= 1
    assert result.value == pytest.approx(0.01 / result.measured)


@pytest.mark.parametrize("over", ["tokens", "turns"])
@pytest.mark.parametrize("measure", ["kl", "clips"])
def test_ranks_agree_on_one_scale(measure: Measure, over: Over) -> None:
    policy, batch = prepared(1)
    counts, middle = Counts.of(batch), batch.sequences // 2

    def measured(part: TokenBatch, reduce: Reduce) -> float:
        scale = DriftScale(measure=measure, over=over)
        observe(scale, policy, part, counts)
        return scale.finish(reduce).measured

    alone = DriftScale(measure=measure, over=over)
    observe(alone, policy, batch, counts)
    shards = [batch.select(range(middle)), batch.select(range(middle, batch.sequences))]
    wanted = alone.finish().measured
    assert on_ranks([partial(measured, shard) for shard in shards]) == pytest.approx([wanted] * 2, rel=1e-6)


def test_each_step_starts_afresh_and_an_empty_one_is_taken_whole() -> None:
    policy, batch = prepared(0)
    scale = DriftScale(target=1e-6)
    observe(scale, policy, batch, Counts.of(batch))
    assert scale.finish().value < 1
    assert scale.finish().value == 1.0


def test_without_the_samplers_log_probs_the_kl_is_refused_with_the_way_out() -> None:
    policy, batch = prepared(0)
    with pytest.raises(ValueError, match=r"scale.drift: measure 'kl' needs the sampler's log-probs; use 'clips'"):
        observe(DriftScale(), policy, batch.with_(mu_T=None), Counts.of(batch))


def test_a_row_may_name_it_and_is_told_where_it_does_nothing() -> None:
    row = preset("turn-ppo").model_copy(update={"epochs": 1, "minibatches": 1})
    row = type(row).model_validate({**row.model_dump(), "scale": {"kind": "drift", "target": 0.05}})
    assert any("scale=drift does nothing" in warning for warning in resolve(row))
