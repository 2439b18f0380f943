"""A real, very small language model over packed batches: each token is predicted from the one before it."""

import torch
from torch import Tensor, nn

from tests.ops.batches import Case, known
from turnwise.batch import TokenBatch

VOCABULARY = 100


class TinyPolicy(nn.Module):
    """Embedding, tanh, projection; float64, so that identities can be checked to rounding."""

    def __init__(self, *, seed: int = 0, width: int = 5) -> None:
        super().__init__()
        noise = torch.Generator().manual_seed(seed)
        self.embed = nn.Parameter(torch.randn(VOCABULARY, width, generator=noise, dtype=torch.float64))
        self.project = nn.Parameter(torch.randn(width, VOCABULARY, generator=noise, dtype=torch.float64))

    def forward(self, batch: TokenBatch) -> Tensor:
        """Logits of every token's own distribution; a sequence starts after token 0."""
        before_T = torch.where(batch.position_T == 0, 0, batch.ids_T.roll(1))
        return torch.tanh(self.embed[before_T]) @ self.project

    def logprobs(self, batch: TokenBatch) -> Tensor:
        """Log-probs of the batch's own tokens."""
        return own_logprobs(self(batch), batch)

    def gradient(self, number: Tensor) -> Tensor:
        """The gradient of a number with respect to all parameters, as one vector; the graph stays."""
        parts = torch.autograd.grad(number, [*self.parameters()], retain_graph=True)
        return torch.cat([part.flatten() for part in parts])


def own_logprobs(logits_TV: Tensor, batch: TokenBatch) -> Tensor:
    """log π of each token under its own row of logits."""
    return logits_TV.log_softmax(-1).gather(1, batch.ids_T[:, None]).squeeze(1)


def stale(case: Case, policy: TinyPolicy, *, seed: int = 0) -> TokenBatch:
    """The case's batch, sampled by a policy that has since moved: ratios on both sides of the clip."""
    noise = torch.Generator().manual_seed(seed)
    drift_T = 0.4 * torch.randn(case.batch.tokens, generator=noise, dtype=torch.float64)
    return case.batch.with_(
        old_T=policy.logprobs(case.batch).detach() - drift_T,
        advantage_T=torch.nan_to_num(known(case.batch.advantage_T)),
    )
