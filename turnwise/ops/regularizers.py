"""Per-token penalties added to the loss: distance from a reference, lack of entropy, and unlikely text."""

from typing import Literal

import torch
from torch import Tensor

from turnwise.batch import Scores, TokenBatch
from turnwise.ops.facts import Need, Options, declares, formula
from turnwise.ops.parameters import NonNegative
from turnwise.ops.ratios import LOG_CLAMP

Estimator = Literal["k1", "k2", "k3"]


def kl_estimate(logprob_T: Tensor, reference_T: Tensor, estimator: Estimator) -> Tensor:
    """Per-token estimate of KL(π ‖ π_ref) from a token that π sampled.

        x = log π_ref − log π;    k1 = −x,   k2 = x²/2,   k3 = exp(x) − x − 1

    k1 and k3 have the KL as their mean; k2 has the right gradient when differentiated (Schulman's note on estimators).
    """
    x_T = (reference_T - logprob_T).clamp(-LOG_CLAMP, LOG_CLAMP)
    if estimator == "k1":
        return -x_T
    return x_T**2 / 2 if estimator == "k2" else x_T.exp() - x_T - 1


def full_vocabulary_kl(
    logits_TV: Tensor, reference_logits_TV: Tensor, *, direction: Literal["to-reference", "from-reference"]
) -> Tensor:
    """Exact KL between the two next-token distributions.

        to-reference: Σ_v π_v (log π_v − log π_ref,v);    from-reference: Σ_v π_ref,v (log π_ref,v − log π_v)

    For `Scores.reference_kl_T` when all logits are in memory; policies with a large vocabulary work in chunks.
    """
    log_p, log_q = logits_TV.log_softmax(-1), reference_logits_TV.log_softmax(-1)
    if direction == "from-reference":
        log_p, log_q = log_q, log_p
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def _kl_written(options: Options) -> str:
    return f"coef · KL_t({'π_ref ‖ π' if options['estimator'] == 'full-reverse' else 'π ‖ π_ref'})"


@formula(_kl_written)
@declares(Need.REFERENCE)
@declares(Need.KL_TO_REFERENCE, estimator="full")
@declares(Need.KL_FROM_REFERENCE, estimator="full-reverse")
def kl(
    batch: TokenBatch,
    scores: Scores,
    *,
    coef: NonNegative = 0.001,
    estimator: Literal["k1", "k2", "k3", "full", "full-reverse"] = "k3",
) -> Tensor:
    """Stay near the reference policy.

        coef · KL_t(π ‖ π_ref)

    `full` uses the exact KL over the vocabulary, `full-reverse` the exact KL_t(π_ref ‖ π).
    """
    if estimator in ("full", "full-reverse"):
        exact_T = scores.reference_kl_T if estimator == "full" else scores.reverse_kl_T
        if exact_T is None:
            raise ValueError(f"regularizers.kl: estimator {estimator!r} needs a full KL; let the learner compute it")
        return coef * exact_T
    if batch.ref_T is None:
        raise ValueError("regularizers.kl needs the reference's log-probs (ref_T is not assigned)")
    batch.require_finite("log-prob 'ref'", batch.ref_T)
    return coef * kl_estimate(scores.logprob_T, batch.ref_T, estimator)


@declares(Need.ENTROPY)
def entropy(batch: TokenBatch, scores: Scores, *, coef: NonNegative = 0.001) -> Tensor:
    """Reward entropy of the next-token distribution.

    − coef · H_t(π)
    """
    if scores.entropy_T is None:
        raise ValueError("regularizers.entropy needs Scores.entropy_T; let the learner compute it")
    return -coef * scores.entropy_T


@declares(Need.TEXTS)
def ptx(batch: TokenBatch, scores: Scores, *, coef: NonNegative = 1.0) -> Tensor:
    """Keep other text likely: a language-model loss on what the policy did not play.

        − coef · log π(x_t)        (mean over the tokens of the step's text, apart from what was played)

    The batch is that text: groups of `source.mix` other than `played`, which get no credit. InstructGPT (2203.02155),
    PPO-max (2307.04964).
    """
    return -coef * scores.logprob_T


@formula(lambda options: f"coef · −log π(x_t) over {_LM_TEXTS[options['of']]}")
@declares(Need.OTHERS_WORDS, of="others")
@declares(Need.SUCCESSES, of="successes")
def lm(
    batch: TokenBatch, scores: Scores, *, coef: NonNegative = 1.0, of: Literal["others", "successes"] = "others"
) -> Tensor:
    """Learn from what was said, whatever it earned: a language-model loss beside the policy's own.

        − coef · log π(x_t)        (mean over the tokens of the step's text)

    The batch is what other agents said in the step's episodes, such as a teacher; or what the policy itself said in
    those that succeeded. What the environment wrote is in neither. LTC (2310.01444); its weight is not known [M].
    """
    return -coef * scores.logprob_T


_LM_TEXTS = {"others": "what other agents said", "successes": "its own words in episodes that succeeded"}


def token_entropy(logits_TV: Tensor) -> Tensor:
    """H = − Σ_v π_v log π_v, for `Scores.entropy_T` when all logits are in memory."""
    log_p = logits_TV.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1)


def collision(logits_TV: Tensor) -> Tensor:
    """Σ_v π_v², the probability that two draws agree, for `Scores.collision_T` when all logits are in memory."""
    return torch.softmax(logits_TV, -1).square().sum(-1)


REGULARIZERS = {"kl": kl, "entropy": entropy, "ptx": ptx, "lm": lm}
