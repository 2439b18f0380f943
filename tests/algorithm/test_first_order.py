"""MiniRL's argument by enumeration: a sum over tokens of weighted terms has the sequence's gradient to first order.

All 127 answers of at most six words, of which the third ends one; a word depends on the one before. The sampler's
logits differ by noise of a given size, and rewards are uniform in [0, 1]. Expectations are sums over all answers,
weighed by the sampler's probability, so a draw of logits, noise and rewards has no sampling error. `PUBLISHED` are
figures of one draw. Ours are means of 24: about half of those errors with the weight, a third more without it, and a
range of draws that contains every published figure.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from math import sqrt
from statistics import fmean, stdev
from typing import Any

import pytest
import torch
from torch import Tensor

from turnwise.algorithm import Algorithm, compute_loss, preset
from turnwise.batch import Scores, TokenBatch
from turnwise.rollout.packing import pack
from turnwise.types import Group, StopReason, Trajectory, Turn

WORDS, END, LONGEST, DRAWS = 3, 2, 6, 24
UNBOUNDED = {"low": 1.0, "high": 1e9, "cap": 1e9}
"""The mask and the cap serve stability; the argument is about what is left."""
CHANGES: dict[str, dict[str, Any]] = {
    "": {},
    "without weight": {"ratio": {"against": "old"}},
    "length mean": {"weights": "trajectory-mean"},
}


PUBLISHED = {
    ("", 0.01): (0.011, None),
    ("", 0.05): (0.054, None),
    ("", 0.1): (0.110, None),
    ("", 0.2): (0.224, 0.985),
    ("without weight", 0.2): (0.70, 0.72),
    ("without weight", 0.5): (None, -0.11),
    ("length mean", 0.0): (None, 0.64),
}
"""Relative errors and cosines by change and gap."""
OURS = {
    ("", 0.01): (0.0059, 1.0000),
    ("", 0.05): (0.030, 0.9994),
    ("", 0.1): (0.060, 0.998),
    ("", 0.2): (0.121, 0.991),
    ("without weight", 0.01): (0.044, 0.9989),
    ("without weight", 0.05): (0.220, 0.974),
    ("without weight", 0.1): (0.445, 0.916),
    ("without weight", 0.2): (0.91, 0.78),
    ("without weight", 0.5): (2.38, 0.52),
    ("length mean", 0.0): (1.11, 0.51),
}
"""The same as means over draws."""


@cache
def answers() -> list[tuple[int, ...]]:
    open_ended = [(*words,) for length in range(LONGEST) for words in product(range(END), repeat=length)]
    return [(*words, END) for words in open_ended] + [(*words,) for words in product(range(END), repeat=LONGEST)]


@cache
def packed() -> tuple[TokenBatch, Tensor]:
    """All answers as one group, and the word before each of their tokens, numbered."""
    trajectories = [
        Trajectory(
            id=str(number),
            turns=[Turn(prompt_ids=[0], sampled_ids=list(words), logprobs=[-1.0] * len(words))],
            stop=StopReason.DONE,
            terminated=True,
        )
        for number, words in enumerate(answers())
    ]
    batch = pack([Group(id="all", trajectories=trajectories)], dtype=torch.float64)
    # The first word follows none (END); the prompt's own entry is never read.
    before = [word for words in answers() for word in (END, END, *words[:-1])]
    return batch, torch.tensor(before)


def gradients(row: Algorithm, gap: float, seed: int) -> tuple[Tensor, Tensor]:
    """Of the row's objective under the sampler, and of the expected reward."""
    batch, before_T = packed()
    noise = torch.Generator().manual_seed(seed)
    logits = torch.randn(WORDS, WORDS, generator=noise, dtype=torch.float64).requires_grad_()
    sampler = logits.detach() + gap * torch.randn(WORDS, WORDS, generator=noise, dtype=torch.float64)
    reward_S = torch.rand(batch.sequences, generator=noise, dtype=torch.float64)

    def of_tokens(table: Tensor) -> Tensor:
        logprob_T = table.log_softmax(-1)[before_T].gather(1, batch.ids_T[:, None]).squeeze(1)
        return torch.where(batch.sampled_T, logprob_T, 0)

    def of_answers(logprob_T: Tensor) -> Tensor:
        return logprob_T.new_zeros(batch.sequences).index_add(0, batch.sequence_T, logprob_T).exp()

    logprob_T, mu_T = of_tokens(logits), of_tokens(sampler)
    assert float(of_answers(mu_T).sum()) == pytest.approx(1)
    (exact,) = torch.autograd.grad((of_answers(logprob_T) * reward_S).sum(), logits, retain_graph=True)
    weighed_S = reward_S * of_answers(mu_T) * batch.sequences  # a mean over answers becomes the sampler's
    known = batch.with_(mu_T=mu_T, old_T=logprob_T.detach(), advantage_T=weighed_S[batch.sequence_T], credited=True)
    (found,) = torch.autograd.grad(-compute_loss(row, known, Scores(logprob_T=logprob_T)).total, logits)
    return found, exact


@cache
def figures(gap: float, change: str = "") -> tuple[list[float], list[float]]:
    """Relative errors and cosines of MiniRL, or of a change to it, for every draw."""
    row = preset("minirl").override({"surrogate": UNBOUNDED, **CHANGES[change]})
    pairs = [gradients(row, gap, seed) for seed in range(DRAWS)]
    errors = [float((found - exact).norm() / exact.norm()) for found, exact in pairs]
    cosines = [float(torch.cosine_similarity(found.flatten(), exact.flatten(), dim=0)) for found, exact in pairs]
    return errors, cosines


@pytest.mark.parametrize(("change", "gap"), OURS)
def test_errors_and_cosines_are_ours_within_two_standard_errors(change: str, gap: float) -> None:
    for found, expected in zip(figures(gap, change), OURS[change, gap], strict=True):
        assert abs(fmean(found) - expected) < 2 * stdev(found) / sqrt(DRAWS) + 1e-4  # to as many digits as stated


@pytest.mark.parametrize(("change", "gap"), PUBLISHED)
def test_what_was_published_of_one_draw_is_in_the_range_of_ours(change: str, gap: float) -> None:
    for found, published in zip(figures(gap, change), PUBLISHED[change, gap], strict=True):
        assert published is None or min(found) < published < max(found)


def test_the_error_vanishes_with_the_gap_and_grows_about_linearly() -> None:
    assert max(figures(0.0)[0]) < 1e-12
    slopes = [fmean(figures(gap)[0]) / gap for gap in (0.01, 0.05, 0.1, 0.2)]
    assert max(slopes) < 1.15 * min(slopes)


@pytest.mark.parametrize("gap", [0.01, 0.05, 0.1, 0.2])
def test_without_the_weight_the_error_is_at_least_three_times_as_large(gap: float) -> None:
    assert fmean(figures(gap, "without weight")[0]) > 3 * fmean(figures(gap)[0])
