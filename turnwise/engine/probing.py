"""The probe after every publish: does a server give the log-probs of the learner's own module?

A server may report the new version and still sample from old weights, or from new ones with an old head. The probe
compares a fixed sequence and a few sampled tokens. The tolerance is that of the arithmetic, so what passes is either
right or wrong by no more than rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from turnwise.model_attention import as_transformers_runs_it

PROMPT, SAMPLED = 48, 16
"""Tokens of the fixed sequence, and tokens that are sampled after it."""
_TOLERANCE = {"fp32": (1e-4, 1e-4), "bf16": (5e-1, 1.2e-1)}
"""The largest and the mean gap that rounding explains, by the coarser precision of the two. Two kernels differ by
1e-5 in fp32. Half a unit in the last place of a logit between 16 and 32 is 0.06 in bf16, and every layer adds its own:
the shipped model in bf16 and in fp32 differs by 0.12 and 0.04 with one processor's kernels, by 0.26 and 0.05 with
another's."""


def probe_ids(vocabulary: int, capacity: int) -> list[int]:
    """A fixed sequence from all over the vocabulary, so that every part of the embedding and the head counts."""
    length = max(1, min(PROMPT, capacity - SAMPLED - 1))
    return [(place * 2654435761 + 12345) % vocabulary for place in range(1, length + 1)]


@torch.no_grad()
def logprobs_of(model: PreTrainedModel, ids: Sequence[int], *, temperature: float = 1.0, start: int = 1) -> list[float]:
    """The log-probs of `ids[start:]`, each given the tokens before it, by a plain call of the model."""
    with as_transformers_runs_it(model):
        logits = model(input_ids=torch.tensor([list(ids)], device=model.device), use_cache=False).logits[0]
    log_TV = (logits[start - 1 : -1].float() / temperature).log_softmax(-1)
    target_T = torch.tensor(list(ids[start:]), device=log_TV.device)
    return log_TV.gather(1, target_T[:, None]).squeeze(1).tolist()


@dataclass(frozen=True, kw_only=True)
class ProbeGap:
    """How far a server's log-probs are from the learner's."""

    largest: float
    mean: float

    @classmethod
    def between(cls, server: Sequence[float], learner: Sequence[float]) -> ProbeGap:
        """NaN counts as infinitely far."""
        gaps = [abs(one - other) for one, other in zip(server, learner, strict=True)]
        gaps = [gap if math.isfinite(gap) else math.inf for gap in gaps]
        return cls(largest=max(gaps), mean=sum(gaps) / len(gaps))

    def fault(self, dtype: str) -> str:
        """What is wrong, or nothing if rounding in this precision explains it."""
        largest, mean = _TOLERANCE[dtype]
        if self.largest <= largest and self.mean <= mean:
            return ""
        return (
            f"its log-probs differ from the learner's by up to {self.largest:.2g} and {self.mean:.2g} on average; "
            f"rounding explains {largest:g} and {mean:g}"
        )
