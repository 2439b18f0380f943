"""Two policies as one: the logits of the present weights mixed with those of earlier ones."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from turnwise.batch import Scores, TokenBatch
from turnwise.policy.logprobs import mixed_logprobs
from turnwise.policy.packed_rows import rows_before
from turnwise.policy.text import TextPolicy

Mix = Callable[[Tensor, Tensor], Tensor]
"""From the present and the earlier logits to those of the mixture."""


class MixedPolicy:
    """Scores batches by mixed logits; the earlier weights start as the present ones."""

    def __init__(self, policy: TextPolicy, mix: Mix) -> None:
        self.policy, self.before, self.mix = policy, policy.twin(), mix

    def earlier(self) -> dict[str, Tensor]:
        """The earlier values of what trains, by name."""
        parameters = dict(self.before.model.named_parameters())
        return {name: parameters[name].detach() for name in self.policy.trainable()}

    def renew(self) -> None:
        """The present weights become the earlier ones."""
        self.policy.refresh(self.before)

    @torch.no_grad()
    def score(self, batch: TokenBatch, *, temperature: float = 1.0) -> Scores:
        """Log-probs of the sampled tokens under the mixture; zero elsewhere."""
        token_M = batch.sampled_T.nonzero().squeeze(1)
        row_M = rows_before(batch, token_M)
        now, before = (each.states(batch, row_M) for each in (self.policy, self.before))
        logprob_M = mixed_logprobs(now, before, batch.ids_T[token_M], mix=self.mix, temperature=temperature)
        return Scores(logprob_T=logprob_M.new_zeros(batch.tokens).index_copy(0, token_M, logprob_M))
