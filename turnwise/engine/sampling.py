"""From logits to tokens. Randomness is a function of (session, position), independent of the rest of the batch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from turnwise.engine.contract import SamplingParams


def session_seed(seed: int, session: str) -> int:
    """A signed 64-bit key for a session's random stream."""
    digest = hashlib.blake2b(f"{seed}:{session}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def counter_uniform(seed_B: Tensor, position_B: Tensor) -> Tensor:
    """Uniform numbers in [0, 1) from the keys and positions, by the splitmix64 mixer (int64 arithmetic wraps).

    It uses the top 24 bits, which a float32 holds exactly, so every device draws the same.
    """
    x = seed_B + position_B * -7046029254386353131
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    x = x ^ ((x >> 31) & 0x1FFFFFFFF)
    return ((x >> 40) & 0xFFFFFF).float() * 2.0**-24


def draw(logits_BV: Tensor, uniform_B: Tensor, temperature_B: Tensor) -> tuple[Tensor, Tensor]:
    """Sample each row by inverting its distribution at `uniform_B`; temperature 0 takes the most likely token.

    Returns ids and their log-probs under the distribution that was sampled (greedy: temperature 1).
    """
    greedy_B = temperature_B == 0
    scaled_BV = logits_BV.float() / torch.where(greedy_B, 1, temperature_B)[:, None]
    log_BV = scaled_BV.log_softmax(-1)
    mass_BV = log_BV.exp().cumsum(-1)
    reached_B = (uniform_B * mass_BV[:, -1]).to(mass_BV)
    id_B = torch.searchsorted(mass_BV, reached_B[:, None], right=True).squeeze(1)
    # A row whose tail has no mass must not be drawn past its last possible token.
    last_B = (log_BV > -torch.inf).long().cumsum(-1).argmax(-1)
    id_B = torch.where(greedy_B, scaled_BV.argmax(-1), torch.minimum(id_B, last_B))
    return id_B, log_BV.gather(1, id_B[:, None]).squeeze(1)


def restrict(logits_BV: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Set the logits of tokens that a row may not sample to −inf: bad tokens, then top-k, top-p and min-p."""
    rows = [_restrict_row(logits_V.float(), each) for logits_V, each in zip(logits_BV, params, strict=True)]
    return torch.stack(rows)


def needs_restriction(params: SamplingParams) -> bool:
    """Whether a request samples from anything but the model's own (tempered) distribution."""
    return bool(params.bad_ids or params.top_k or params.top_p < 1 or params.min_p > 0 or params.top_logprobs)


def _restrict_row(logits_V: Tensor, params: SamplingParams) -> Tensor:
    logits_V = logits_V.clone()
    if params.bad_ids:
        logits_V[list(params.bad_ids)] = -torch.inf
    if params.temperature == 0:
        return logits_V
    if 0 < params.top_k < logits_V.numel():
        logits_V[logits_V < logits_V.topk(params.top_k).values[-1]] = -torch.inf
    probability_V = (logits_V / params.temperature).softmax(-1)
    if params.top_p < 1:
        ordered, order = probability_V.sort(descending=True)
        # Keep the smallest set that reaches top_p: a token goes when the mass before it already does.
        logits_V[order[ordered.cumsum(0) - ordered >= params.top_p]] = -torch.inf
    if params.min_p > 0:
        logits_V[probability_V < params.min_p * probability_V.max()] = -torch.inf
    return logits_V


def most_likely(logits_V: Tensor, params: SamplingParams) -> list[tuple[int, float]]:
    """The `top_logprobs` most likely tokens of a row with their log-probs."""
    log_V = (logits_V.float() / (params.temperature or 1.0)).log_softmax(-1)
    values, ids = log_V.topk(min(params.top_logprobs, log_V.numel()))
    return list(zip(ids.tolist(), values.tolist(), strict=True))
