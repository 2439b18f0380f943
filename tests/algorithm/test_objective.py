"""compute_credit and compute_loss: order of the parts, denominators, diagnostics, helpful errors."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from tests.ops.batches import EpisodeShape, TurnShape, make_case, make_groups, random_case
from turnwise.algorithm import apply_filters, compute_credit, compute_loss, make_scale, preset
from turnwise.batch import Scores
from turnwise.ops.diagnostics import TURN_METRICS
from turnwise.ops.weights import Counts
from turnwise.types import StopReason

TWO_TURNS = EpisodeShape(turns=[TurnShape(sampled=2), TurnShape(sampled=1, reward=1.0)])


def test_rejected_tokens_leave_the_denominator() -> None:
    case = make_case([[TWO_TURNS, TWO_TURNS]])
    batch = case.batch
    assert batch.old_T is not None
    # The second trajectory's sampler was off by a factor of e on its last token: masked per sequence.
    off_T = torch.zeros_like(batch.old_T)
    off_T[batch.sampled_T.nonzero()[-1]] = 1.0
    batch = batch.with_(mu_T=batch.old_T + off_T)
    row = preset("reinforce").override({"mismatch": {"kind": "masked", "level": "sequence"}, "weights": "token-mean"})
    credited = compute_credit(row, batch)
    assert Counts.of(credited) == Counts(tokens=3, turns=2, sequences=1, trajectories=1, units=1)
    assert batch.old_T is not None
    logprob_T = torch.nan_to_num(batch.old_T).requires_grad_()
    compute_loss(row, credited, Scores(logprob_T=logprob_T)).total.backward()
    assert logprob_T.grad is not None
    expected = [-1 / 3] * 3 + [0.0] * 3  # return-to-go 1 on every token, three tokens in the mean
    torch.testing.assert_close(logprob_T.grad[batch.sampled_T], torch.tensor(expected, dtype=torch.float64))


def test_token_kl_enters_the_reward_before_credit() -> None:
    case = make_case([[TWO_TURNS]])
    batch = case.batch
    assert batch.old_T is not None
    gap_T = torch.full_like(batch.old_T, 0.1)
    row = preset("reinforce").override({"reward": [{"kind": "token-kl", "coef": 2.0}]})
    credited = compute_credit(row, batch.with_(ref_T=batch.old_T - gap_T))
    assert credited.advantage_T is not None
    # 1 − 2·0.1 on each of three tokens: turn returns 1 − 0.6 and 1 − 0.2.
    values = credited.advantage_T[credited.sampled_T]
    torch.testing.assert_close(values, torch.tensor([0.4, 0.4, 0.8], dtype=torch.float64))


def test_filters_run_before_anything_is_counted() -> None:
    groups = make_groups([[TWO_TURNS, TWO_TURNS], [TWO_TURNS, EpisodeShape()], [TWO_TURNS, TWO_TURNS]])
    groups[2].trajectories[0] = replace(groups[2].trajectories[0], stop=StopReason.TIMEOUT)
    kept = apply_filters(preset("dapo"), groups)
    assert [(group.id, len(group.trajectories)) for group in kept] == [("task-1", 2)]
    kept = apply_filters(preset("grpo"), groups)
    assert [(group.id, len(group.trajectories)) for group in kept] == [("task-0", 2), ("task-1", 2), ("task-2", 1)]


def test_diagnostics_by_turn_index_are_right() -> None:
    case = make_case([[TWO_TURNS, EpisodeShape(turns=[TurnShape(sampled=1)])]])
    batch = case.batch
    assert batch.old_T is not None
    shift = torch.tensor([0.5, -0.5, 0.1, 0.0], dtype=torch.float64)
    logprob_T = torch.nan_to_num(batch.old_T)
    logprob_T[batch.sampled_T] += shift
    advantage_T = torch.zeros_like(logprob_T)
    advantage_T[batch.sampled_T] = torch.tensor([1.0, 2.0, -1.0, 4.0], dtype=torch.float64)
    credited = batch.with_(advantage_T=advantage_T, return_T=batch.value_T)
    scores = Scores(logprob_T=logprob_T.requires_grad_(), value_T=batch.value_T, entropy_T=advantage_T.abs())
    loss = compute_loss(preset("ppo").override({"weights": "token-mean"}), credited, scores)
    first, second = loss.table.rows()
    ratio = shift.exp()
    # Turn 0 holds tokens 0, 1 and 3; token 0 is clipped (ratio 1.65, A > 0), token 1 is not (ratio 0.61, A > 0).
    assert (first["turn"], first["turn/tokens"], second["turn/tokens"]) == (0, 3, 1)
    assert first["turn/ratio_mean"] == pytest.approx(float(ratio[[0, 1, 3]].mean()))
    assert first["turn/ratio_max"] == pytest.approx(float(ratio[0]))
    squares = float((ratio[[0, 1, 3]] ** 2).mean())
    assert first["turn/ratio_ess"] == pytest.approx(float(ratio[[0, 1, 3]].mean()) ** 2 / squares)
    assert (first["turn/clip_fraction"], second["turn/clip_fraction"]) == (pytest.approx(1 / 3), 0)
    assert first["turn/advantage_mean"] == pytest.approx(7 / 3)
    assert first["turn/advantage_std"] == pytest.approx(torch.tensor([1.0, 2.0, 4.0]).std(correction=0).item())
    assert first["turn/entropy"] == pytest.approx(7 / 3)
    assert first["turn/value_error"] == pytest.approx(0)
    assert first["turn/clip_bias"] == pytest.approx(float(ratio[0]) * 1.0 / 4)
    assert second["turn/clip_bias"] == 0
    totals = loss.table.totals()
    assert totals["loss/tokens"] == 4
    assert totals["loss/clip_fraction"] == pytest.approx(1 / 4)
    assert set(TURN_METRICS) == {name for name in first if name != "turn"}


@pytest.mark.parametrize("name", ["ppo", "grpo", "gspo", "gigpo", "rloo", "dr-grpo"])
def test_presets_weigh_a_rewritten_trajectory_like_its_neighbour(name: str) -> None:
    rewritten = EpisodeShape(turns=[TurnShape(reward=1.0), TurnShape(restarts=True), TurnShape(restarts=True)])
    case = make_case([[rewritten, EpisodeShape(turns=[TurnShape(), TurnShape(), TurnShape()])]])
    row = preset(name).override(
        {"critic": {"level": "none"}, "regularizers": [], "reward": [], "surrogate": "reinforce"}
    )
    sampled_T = case.batch.sampled_T
    advantage_T = torch.where(case.batch.trajectory_S[case.batch.sequence_T] == 0, 0.7, -0.7).double()
    logprob_T = torch.where(sampled_T, case.logprob_T, 0.0).requires_grad_()
    loss = compute_loss(row, case.batch.with_(advantage_T=advantage_T), Scores(logprob_T=logprob_T))
    (gradient_T,) = torch.autograd.grad(loss.total, logprob_T)
    pushes = [float(gradient_T[case.batch.trajectory_S[case.batch.sequence_T] == each].sum()) for each in (0, 1)]
    assert pushes[0] < 0
    assert pushes[0] == pytest.approx(-pushes[1])


@pytest.mark.parametrize("surrogate", ["reinforce", "nll"])
@pytest.mark.parametrize("ratio", ["token", "turn", {"kind": "token", "against": "mu"}])
def test_rows_that_read_no_ratio_need_no_old_log_probs(surrogate: str, ratio: str | dict[str, str]) -> None:
    case = random_case(2)
    row = preset("reinforce").override({"surrogate": surrogate, "ratio": ratio})
    with_old = compute_loss(row, compute_credit(row, case.batch), case.scores())
    without = compute_loss(row, compute_credit(row, case.batch.with_(old_T=None, mu_T=None)), case.scores())
    assert torch.equal(without.total, with_old.total)
    assert without.table.totals()["loss/ratio_mean"] == 1.0
    clipping = row.override({"surrogate": "ppo-clip", "ratio": "token"})
    credited = compute_credit(clipping, case.batch.with_(old_T=None))
    with pytest.raises(ValueError, match="score the batch with the trainer first"):
        compute_loss(clipping, credited, case.scores())


def test_the_value_loss_has_a_coefficient() -> None:
    case = random_case(2)
    plain, half = (preset("ppo").override({"critic": {"coef": coef}}) for coef in (1.0, 0.5))
    credited = compute_credit(plain, case.batch)
    whole, halved = (compute_loss(row, credited, case.scores()) for row in (plain, half))
    assert torch.equal(whole.total, compute_loss(preset("ppo"), credited, case.scores()).total)
    assert whole.value is not None
    assert halved.value == pytest.approx(float(whole.value) / 2)
    assert float(halved.total) == pytest.approx(float(whole.policy + whole.value / 2))
    with pytest.raises(ValueError, match=r"critic\.coef: .*greater than 0"):
        preset("ppo").override({"critic": {"coef": 0.0}})


def test_credit_is_refused_a_second_time() -> None:
    case = random_case(0)
    credited = compute_credit(preset("rloo"), case.batch)
    with pytest.raises(ValueError, match=r"already has credit.* pass the packed and scored batch"):
        compute_credit(preset("rloo"), credited)
    with pytest.raises(ValueError, match="already has credit"):
        compute_credit(preset("grpo"), credited.select([0]).with_(advantage_T=None))


@pytest.mark.parametrize("name", ["grpo", "ppo"])
@pytest.mark.parametrize("rows", [[0, 2], [1, 2], [0, 0, 1, 2], [1, 0, 2]])
def test_credit_on_a_part_of_a_trajectory_is_refused(name: str, rows: list[int]) -> None:
    rewritten = EpisodeShape(turns=[TurnShape(), TurnShape(restarts=True, reward=1.0)])
    batch = make_case([[rewritten, EpisodeShape()]]).batch
    with pytest.raises(ValueError, match=r"only part of trajectory 'task-0/0', or some of it twice.* before select"):
        compute_credit(preset(name), batch.select(rows))
    whole = compute_credit(preset(name), batch.select([2, 0, 1]))
    assert whole.credited


@pytest.mark.parametrize("level", ["token", "turn"])
def test_the_value_error_is_read_where_the_critic_is_trained(level: str) -> None:
    case = make_case([[TWO_TURNS, EpisodeShape(turns=[TurnShape(sampled=3)])]])
    batch, row = case.batch, preset("turn-gae").override({"critic": {"level": level}})
    first_M = [True, False, True, True, False, False]  # turns of two, one and three tokens
    error_T = torch.zeros(batch.tokens, dtype=torch.float64)
    error_T[batch.sampled_T] = torch.tensor([0.3 if first else 9.0 for first in first_M], dtype=torch.float64)
    return_T = torch.zeros_like(error_T)
    credited = batch.with_(advantage_T=return_T, return_T=return_T)
    scores = Scores(logprob_T=case.logprob_T.clone().requires_grad_(), value_T=error_T)
    table = compute_loss(row, credited, scores).table
    whole = (sum(0.09 if first else 81.0 for first in first_M) / 6) ** 0.5
    assert table.totals()["loss/value_error"] == pytest.approx(0.3 if level == "turn" else whole)
    assert table.rows()[1]["turn/value_error"] == pytest.approx(0.3)
    # A turn that the mismatch weight rejects is not trained, so it is not read either.
    second_T = batch.index_T == 1
    rejected = credited.with_(mismatch_T=torch.where(second_T, 0.0, 1.0).double(), old_T=case.logprob_T)
    assert "turn/value_error" not in compute_loss(row, rejected, scores).table.rows()[1]


def test_tables_of_micro_batches_add_up() -> None:
    case = random_case(4)
    row = preset("st-ppo")
    credited = compute_credit(row, case.batch)
    counts = Counts.of(credited)
    whole = compute_loss(row, credited, case.scores()).table
    parts = []
    for sequence in range(credited.sequences):
        part = credited.select([sequence])
        rows = (credited.sequence_T == sequence).nonzero().squeeze(1)
        scores = case.scores()
        assert scores.value_T is not None
        assert scores.entropy_T is not None
        part_scores = Scores(
            logprob_T=scores.logprob_T[rows], value_T=scores.value_T[rows], entropy_T=scores.entropy_T[rows]
        )
        parts.append(compute_loss(row, part, part_scores, counts=counts).table)
    total = parts[0]
    for table in parts[1:]:
        total = total + table
    assert len(total.rows()) == len(whole.rows())
    for mine, expected in zip(total.rows(), whole.rows(), strict=True):
        assert mine == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert total.totals() == pytest.approx(whole.totals(), rel=1e-9, abs=1e-12)
    norms = [reading["turn/clip_bias"] for reading in whole.rows()]  # norms, not shares: their squares add up
    assert math.hypot(*norms) == pytest.approx(whole.totals()["loss/clip_bias"])
    assert max(norms) > 0


def test_the_clip_bias_of_micro_batches_adds_up_under_every_estimator() -> None:
    torch.manual_seed(0)
    case = random_case(6)
    table = torch.nn.Parameter(torch.randn(100, dtype=torch.float64))
    rows_T = case.batch.ids_T

    def score(batch_rows: torch.Tensor) -> torch.Tensor:
        return torch.nan_to_num(case.logprob_T)[batch_rows] + 0.2 * torch.tanh(table[rows_T[batch_rows]])

    for estimator in ("exact", "logit", "loss"):
        row = preset("st-ppo").override({"scale": {"estimator": estimator, "threshold": 0.01}})
        credited = compute_credit(row, case.batch)
        counts = Counts.of(credited)
        norms: list[float] = []
        for chunks in ([list(range(credited.sequences))], [[s] for s in range(credited.sequences)]):
            scale = make_scale(row)
            assert scale is not None
            for chunk in chunks:
                part = credited.select(chunk)
                keep = torch.cat([(credited.sequence_T == s).nonzero().squeeze(1) for s in chunk])
                logprob_T = score(keep)
                scores = Scores(logprob_T=logprob_T, value_T=part.value_T, collision_T=(2 * logprob_T).detach().exp())
                loss = compute_loss(row, part, scores, counts=counts)
                scale.observe(loss, scores, [table])
            norms.append(scale.finish().measured)
        assert norms[0] > 0
        assert norms[0] == pytest.approx(norms[1], rel=1e-9), estimator


def test_credit_must_come_before_the_loss() -> None:
    case = random_case(0)
    with pytest.raises(ValueError, match="run compute_credit first"):
        compute_loss(preset("ppo"), case.batch.with_(advantage_T=None), case.scores())


def test_log_probs_of_the_wrong_length_are_refused() -> None:
    case = random_case(0)
    credited = compute_credit(preset("ppo"), case.batch)
    with pytest.raises(ValueError, match="entry t must belong to token t itself"):
        compute_loss(preset("ppo"), credited, Scores(logprob_T=case.logprob_T[:-1]))


@pytest.mark.parametrize(
    ("name", "missing", "message"),
    [
        ("ppo", "value_T", "needs the critic's values"),
        ("grpo", "old_T", "score the batch with the trainer first"),
        ("minirl", "mu_T", "the sampler must return log-probs"),
        ("grpo", "ref_T", "reference"),
        ("reinforce++", "ref_T", "ref_T is not assigned"),
        ("ppo", "bootstrap_S", "has no bootstrap value"),
    ],
)
def test_a_missing_stream_is_named(name: str, missing: str, message: str) -> None:
    case = make_case([[replace(TWO_TURNS, bootstrap=0.5), TWO_TURNS]])
    batch = case.batch.with_(**{missing: None})
    with pytest.raises(ValueError, match=message):
        compute_loss(preset(name), compute_credit(preset(name), batch), case.scores())
