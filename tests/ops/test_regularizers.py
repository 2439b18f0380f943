"""Distance from a reference, entropy, and the probability that two draws agree."""

import math
from typing import Literal

import pytest
import torch
from hypothesis import given

from tests.ops import reference_loss
from tests.ops.batches import Case, EpisodeShape, TurnShape, cases, close, known, make_case, ragged
from turnwise.batch import Scores
from turnwise.ops.regularizers import collision, entropy, full_vocabulary_kl, kl, kl_estimate, ptx, token_entropy

LOGITS = torch.log(torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64))
OTHER = torch.log(torch.tensor([[0.25, 0.5, 0.25]], dtype=torch.float64))
Estimator = Literal["k1", "k2", "k3"]
ESTIMATORS: list[Estimator] = ["k1", "k2", "k3"]


def test_kl_estimators_by_hand():
    now, reference = torch.tensor([-1.0], dtype=torch.float64), torch.tensor([-1.5], dtype=torch.float64)
    # x = −0.5
    close(kl_estimate(now, reference, "k1"), [0.5])
    close(kl_estimate(now, reference, "k2"), [0.125])
    close(kl_estimate(now, reference, "k3"), [math.exp(-0.5) - 0.5])


def test_ptx_is_the_log_likelihood_of_a_text_by_its_coefficient():
    batch = make_case([[EpisodeShape(turns=[TurnShape(sampled=2)])]]).batch
    close(ptx(batch, Scores(logprob_T=torch.tensor([0.0, -1.0, -3.0], dtype=torch.float64)), coef=0.5), [0.0, 0.5, 1.5])


def test_full_kl_entropy_and_collision_by_hand():
    # ½ ln 2 − ¼ ln 2 + 0
    close(full_vocabulary_kl(LOGITS, OTHER, direction="to-reference"), [0.25 * math.log(2)])
    close(token_entropy(LOGITS), [1.5 * math.log(2)])  # ½ ln 2 + 2 · ¼ ln 4
    close(collision(LOGITS), [0.375])  # ¼ + 1/16 + 1/16


@pytest.mark.parametrize("direction", ["to-reference", "from-reference"])
def test_full_kl_agrees_with_loops(direction: Literal["to-reference", "from-reference"]):
    noise = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, 6, 5, generator=noise, dtype=torch.float64)
    pairs = zip(first.tolist(), second.tolist(), strict=True)
    expected = [reference_loss.full_kl(*((p, q) if direction == "to-reference" else (q, p))) for p, q in pairs]
    close(full_vocabulary_kl(first, second, direction=direction), expected)
    close(token_entropy(first), [reference_loss.entropy(row) for row in first.tolist()])
    close(collision(first), [sum(p * p for p in reference_loss.softmax(row)) for row in first.tolist()])


@pytest.mark.parametrize("estimator", ESTIMATORS)
@ragged
@given(cases)
def test_kl_penalty_agrees_with_loops(estimator: Estimator, case: Case):
    batch = case.batch
    pairs = zip(case.logprob_T.tolist(), known(batch.ref_T).tolist(), strict=True)
    expected = [0.1 * reference_loss.kl_estimate(now, then, estimator) for now, then in pairs]
    close(kl(batch, case.scores(), coef=0.1, estimator=estimator), expected, where=batch.sampled_T)


def test_k1_and_k3_have_the_kl_as_their_mean_and_k2_its_gradient():
    logits = torch.randn(1, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64).requires_grad_()
    reference = torch.randn(1, 5, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    log_p, log_q = logits.log_softmax(-1)[0], reference.log_softmax(-1)[0]
    exact = full_vocabulary_kl(logits, reference, direction="to-reference")
    chance = log_p.exp().detach()  # enumerate all tokens instead of sampling them
    for estimator in ("k1", "k3"):
        close((chance * kl_estimate(log_p, log_q, estimator)).sum()[None], exact)
    (wanted,) = torch.autograd.grad(exact, logits, retain_graph=True)
    (gradient,) = torch.autograd.grad((chance * kl_estimate(log_p, log_q, "k2")).sum(), logits)
    close(gradient, wanted)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_kl_gradients_by_finite_differences(estimator: Estimator):
    now = torch.tensor([-1.0, -0.2, -3.0], dtype=torch.float64, requires_grad=True)
    then = torch.tensor([-1.5, -0.3, -1.0], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: kl_estimate(x, then, estimator), (now,))


def test_vocabulary_gradients_by_finite_differences():
    logits = torch.randn(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    other = torch.randn(3, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    assert torch.autograd.gradcheck(token_entropy, (logits,))
    assert torch.autograd.gradcheck(collision, (logits,))
    assert torch.autograd.gradcheck(lambda x: full_vocabulary_kl(x, other, direction="to-reference"), (logits,))
    assert torch.autograd.gradcheck(lambda x: full_vocabulary_kl(x, other, direction="from-reference"), (logits,))


def test_penalties_read_what_the_learner_computed():
    case = _tiny()
    scores = Scores(logprob_T=case.logprob_T, entropy_T=torch.tensor([2.0]), reference_kl_T=torch.tensor([3.0]))
    assert entropy(case.batch, scores, coef=0.1).tolist() == pytest.approx([-0.2])
    assert kl(case.batch, scores, coef=0.1, estimator="full").tolist() == pytest.approx([0.3])


def test_missing_streams_are_named():
    case = _tiny()
    bare = Scores(logprob_T=case.logprob_T)
    with pytest.raises(ValueError, match=r"needs Scores\.entropy_T"):
        entropy(case.batch, bare)
    with pytest.raises(ValueError, match=r"estimator 'full' needs a full KL; let the learner compute it"):
        kl(case.batch, bare, estimator="full")
    with pytest.raises(ValueError, match="ref_T is not assigned"):
        kl(case.batch.with_(ref_T=None), bare)


def _tiny() -> Case:
    return make_case([[EpisodeShape(turns=[TurnShape(prompt=0, sampled=1)])]])
