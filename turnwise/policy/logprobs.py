"""Log-prob, entropy and more of given tokens, directly from hidden states, without ever building the full logits.

The last layer of a language model takes the most memory: 16k tokens over 152k words are 10 GB of logits, several times
over in a plain backward pass. Here the forward pass goes over tokens and keeps a few numbers for each; the backward
pass recomputes logits block by block over the *vocabulary*, so that each row of the weight's gradient is written once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

LOGITS_AT_ONCE = {"cuda": 2**27, "cpu": 2**20}
"""How many logits may exist at a time, by kind of device: enough for large matrix products, or what fits in caches."""


@dataclass(frozen=True, kw_only=True)
class Head:
    """The last layer of a language model: logits = hidden · weightᵀ + bias, bounded to ± softcap if set."""

    weight_Vd: Tensor
    bias_V: Tensor | None = None
    softcap: float | None = None


@dataclass(frozen=True, kw_only=True)
class TokenStatistics:
    """The requested statistics, one entry per token, differentiable in hidden states and head; None: not requested."""

    logprob_M: Tensor
    entropy_M: Tensor | None = None
    collision_M: Tensor | None = None
    """Σ_v p_v²."""
    kl_M: Tensor | None = None
    """Σ_v p_v (log p_v − log q_v), q the reference's distribution."""
    reverse_kl_M: Tensor | None = None
    """Σ_v q_v (log q_v − log p_v)."""
    uniform_M: Tensor | None = None
    """(1/V) Σ_v log p_v, without a gradient."""


@dataclass(frozen=True, kw_only=True)
class _Task:
    """What is the same for all blocks."""

    temperature: float
    softcap: float | None
    reference_softcap: float | None
    spread: bool
    """Whether entropy or collision is requested besides the log-prob."""
    reverse: bool
    """Whether the KL from the reference is requested."""
    uniform: bool
    """Whether the mean over the vocabulary is requested."""
    at_once: int


@dataclass(frozen=True, kw_only=True)
class _Side:
    """Hidden states and their head: the policy's, or the reference's."""

    hidden_Md: Tensor
    weight_Vd: Tensor
    bias_V: Tensor | None
    softcap: float | None
    temperature: float

    def logits(self, *, rows: slice = slice(None), words: slice = slice(None)) -> Tensor:
        """A block of the logits, divided by the temperature."""
        logits = _product(self.hidden_Md[rows], self.weight_Vd[words].T)
        if self.bias_V is not None:
            logits += self.bias_V[words]
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        return logits if self.temperature == 1 else logits / self.temperature


def token_statistics(
    hidden_Md: Tensor,
    head: Head,
    target_M: Tensor,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    collision: bool = False,
    reverse_kl: bool = False,
    uniform: bool = False,
    reference: tuple[Tensor, Head] | None = None,
    at_once: int | None = None,
) -> TokenStatistics:
    """Statistics of softmax(logits / temperature) at the given tokens.

    `reference` is the reference's hidden states and head: it gives the KL over the whole vocabulary, either way, and is
    constant.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be positive to score tokens, got {temperature}; score greedy tokens at 1")
    reference_hidden_Md, reference_head = reference or (None, None)
    task = _Task(
        temperature=temperature,
        softcap=head.softcap,
        reference_softcap=reference_head.softcap if reference_head else None,
        spread=entropy or collision,
        reverse=reverse_kl and reference is not None,
        uniform=uniform,
        at_once=at_once or LOGITS_AT_ONCE.get(hidden_Md.device.type, LOGITS_AT_ONCE["cuda"]),
    )
    logprob_M, entropy_M, collision_M, kl_M, reverse_kl_M, uniform_M = _ChunkedHead.apply(
        hidden_Md,
        head.weight_Vd,
        head.bias_V,
        target_M,
        reference_hidden_Md,
        reference_head.weight_Vd if reference_head else None,
        reference_head.bias_V if reference_head else None,
        task,
    )
    return TokenStatistics(
        logprob_M=logprob_M,
        entropy_M=entropy_M if entropy else None,
        collision_M=collision_M if collision else None,
        kl_M=kl_M if reference is not None else None,
        reverse_kl_M=reverse_kl_M if task.reverse else None,
        uniform_M=uniform_M if uniform else None,
    )


def mixed_logprobs(
    now: tuple[Tensor, Head],
    before: tuple[Tensor, Head],
    target_M: Tensor,
    *,
    mix: Callable[[Tensor, Tensor], Tensor],
    temperature: float = 1.0,
) -> Tensor:
    """Log-probs of the given tokens under softmax(mix(logits, other logits) / temperature), without a gradient."""
    sides = [
        _Side(hidden_Md=hidden_Md, weight_Vd=head.weight_Vd, bias_V=head.bias_V, softcap=head.softcap, temperature=1.0)
        for hidden_Md, head in (now, before)
    ]
    at_once = LOGITS_AT_ONCE.get(target_M.device.type, LOGITS_AT_ONCE["cuda"])
    found = [sides[0].hidden_Md.new_empty(0, dtype=_working(sides[0].hidden_Md.dtype))]
    for rows in _blocks(target_M.numel(), at_once // sides[0].weight_Vd.shape[0]):
        logits = mix(*(side.logits(rows=rows) for side in sides)) / temperature
        found.append(logits.log_softmax(-1).gather(1, target_M[rows, None]).squeeze(1))
    return torch.cat(found)


class _ChunkedHead(torch.autograd.Function):
    """Five statistics per token with the gradient of each, and one without."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_Md: Tensor,
        weight_Vd: Tensor,
        bias_V: Tensor | None,
        target_M: Tensor,
        reference_hidden_Md: Tensor | None,
        reference_weight_Vd: Tensor | None,
        reference_bias_V: Tensor | None,
        task: _Task,
    ) -> tuple[Tensor, ...]:
        tensors = hidden_Md, weight_Vd, bias_V, reference_hidden_Md, reference_weight_Vd, reference_bias_V
        mine, other = _sides(task, *tensors)
        statistics = _fused(_statistics, hidden_Md)
        parts = [torch.empty(8, 0, dtype=_working(hidden_Md.dtype), device=hidden_Md.device)]
        for rows in _blocks(target_M.numel(), task.at_once // weight_Vd.shape[0]):
            other_logits = None if other is None else other.logits(rows=rows)
            parts.append(statistics(mine.logits(rows=rows), other_logits, target_M[rows], task=task))
        found_8M = torch.cat(parts, dim=1)
        ctx.task = task
        ctx.save_for_backward(target_M, found_8M, *tensors)
        uniform_M = found_8M[7].clone()
        ctx.mark_non_differentiable(uniform_M)
        return (*(row_M.clone() for row_M in found_8M[:5]), uniform_M)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients_M: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        task: _Task = ctx.task
        target_M, found_8M, *tensors = ctx.saved_tensors
        mine, other = _sides(task, *tensors)
        gradient_5M = torch.stack(gradients_M[:5])
        logit_gradient = _fused(_logit_gradient, mine.hidden_Md)
        sums = _Sums.like(mine, wanted=ctx.needs_input_grad[:3])
        for words in _blocks(mine.weight_Vd.shape[0], task.at_once // max(target_M.numel(), 1)):
            change = logit_gradient(
                mine.logits(words=words),
                None if other is None else other.logits(words=words),
                target_M - words.start,
                found_8M,
                gradient_5M,
                task=task,
                dtype=mine.hidden_Md.dtype,
            )
            sums.add(mine, words, change)
        hidden_Md = None if sums.hidden_Md is None else sums.hidden_Md.to(mine.hidden_Md.dtype)
        return hidden_Md, sums.weight_Vd, sums.bias_V, None, None, None, None, None


@dataclass(frozen=True, kw_only=True)
class _Sums:
    """Gradients of the head's inputs; None: not needed."""

    hidden_Md: Tensor | None
    weight_Vd: Tensor | None
    bias_V: Tensor | None

    @classmethod
    def like(cls, side: _Side, *, wanted: tuple[bool, bool, bool]) -> _Sums:
        """Zeros; those of the hidden states, which many blocks add to, are in the working precision."""
        hidden_Md = torch.zeros_like(side.hidden_Md, dtype=_working(side.hidden_Md.dtype)) if wanted[0] else None
        weight_Vd = torch.zeros_like(side.weight_Vd) if wanted[1] else None
        bias_V = torch.zeros_like(side.bias_V) if wanted[2] and side.bias_V is not None else None
        return cls(hidden_Md=hidden_Md, weight_Vd=weight_Vd, bias_V=bias_V)

    def add(self, side: _Side, words: slice, change: Tensor) -> None:
        """Add the gradient of one block of logits."""
        if self.hidden_Md is not None:
            self.hidden_Md.add_(_product(change, side.weight_Vd[words]))
        if self.weight_Vd is not None:
            torch.mm(change.T, side.hidden_Md, out=self.weight_Vd[words])
        if self.bias_V is not None:
            self.bias_V[words] = change.sum(0)


def _sides(
    task: _Task,
    hidden_Md: Tensor,
    weight_Vd: Tensor,
    bias_V: Tensor | None,
    reference_hidden_Md: Tensor | None,
    reference_weight_Vd: Tensor | None,
    reference_bias_V: Tensor | None,
) -> tuple[_Side, _Side | None]:
    """The policy's side, and the reference's if there is one."""
    mine = _Side(
        hidden_Md=hidden_Md, weight_Vd=weight_Vd, bias_V=bias_V, softcap=task.softcap, temperature=task.temperature
    )
    if reference_hidden_Md is None or reference_weight_Vd is None:
        return mine, None
    return mine, _Side(
        hidden_Md=reference_hidden_Md,
        weight_Vd=reference_weight_Vd,
        bias_V=reference_bias_V,
        softcap=task.reference_softcap,
        temperature=task.temperature,
    )


def _statistics(logits: Tensor, other: Tensor | None, target_M: Tensor, *, task: _Task) -> Tensor:
    """Rows: log-prob, entropy, collision, KL, reverse KL, log Σ exp of the logits and of the reference's,
    mean log-prob of all words.

    What is not requested is zero.
    """
    total_M = logits.logsumexp(-1)
    logprob_M = logits.gather(1, target_M[:, None]).squeeze(1) - total_M
    entropy_M = collision_M = kl_M = reverse_M = other_total_M = uniform_M = torch.zeros_like(total_M)
    if task.uniform:
        uniform_M = logits.mean(-1) - total_M
    if task.spread or other is not None:
        log_p = logits - total_M[:, None]
        p = log_p.exp()
        entropy_M = -(p * log_p).sum(-1)
        collision_M = p.square().sum(-1)
        if other is not None:
            other_total_M = other.logsumexp(-1)
            kl_M = (p * (log_p - other + other_total_M[:, None])).sum(-1)
            if task.reverse:
                log_q = other - other_total_M[:, None]
                reverse_M = (log_q.exp() * (log_q - log_p)).sum(-1)
    return torch.stack([logprob_M, entropy_M, collision_M, kl_M, reverse_M, total_M, other_total_M, uniform_M])


def _logit_gradient(
    logits: Tensor,
    other: Tensor | None,
    target_M: Tensor,
    found_8M: Tensor,
    gradient_5M: Tensor,
    *,
    task: _Task,
    dtype: torch.dtype,
) -> Tensor:
    """Gradient of the five statistics with respect to a block of raw logits, whose first word is number 0.

    Every statistic's gradient is p ⊙ something, except for the one-hot of the log-prob and the reverse KL:
        log p_y: 1{y} − p;   H: −p (log p + H);   Σp²: 2p (p − Σp²);   KL: p (log p − log q − KL);   reverse: p − q
    """
    _, entropy, collision, kl, _, total, other_total, _ = found_8M[:, :, None]
    of_logprob, of_entropy, of_collision, of_kl, of_reverse = gradient_5M[:, :, None] / task.temperature
    log_p = logits - total
    p = log_p.exp()
    factor = -of_logprob
    if task.spread:
        factor = factor - of_entropy * (log_p + entropy) + 2 * of_collision * (p - collision)
    if other is not None:
        factor = factor + of_kl * (log_p - other + other_total - kl)
    # The one-hot comes before rounding to `dtype`: for a likely token 1 − p would otherwise be lost.
    change = _add_at_target(p * factor, target_M, of_logprob)
    if task.reverse and other is not None:
        change = change + of_reverse * (p - (other - other_total).exp())
    if task.softcap is not None:
        change = change * (1 - (logits * (task.temperature / task.softcap)).square())
    return change.to(dtype)


def _add_at_target(change: Tensor, target_M: Tensor, amount: Tensor) -> Tensor:
    """Add to each row's target, if it is in this block."""
    width = change.shape[1]
    if change.is_cuda:  # a comparison in a fused kernel is free, a scatter needs separate passes
        return change + torch.where(torch.arange(width, device=change.device) == target_M[:, None], amount, 0)
    inside = (target_M >= 0) & (target_M < width)
    return change.scatter_add_(1, target_M.clamp(0, width - 1)[:, None], torch.where(inside[:, None], amount, 0))


def _product(left: Tensor, right: Tensor) -> Tensor:
    """A matrix product whose result is never rounded below single precision: bf16 logits near 20 are off by 0.06."""
    working = _working(left.dtype)
    if left.dtype == working:
        return left @ right
    return torch.mm(left, right, out_dtype=working) if left.is_cuda else left.to(working) @ right.to(working)


def _working(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _blocks(count: int, size: int) -> Iterator[slice]:
    size = max(size, 1)
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def _fused(function: Callable[..., Tensor], like: Tensor) -> Callable[..., Tensor]:
    """On CUDA fuse a block's element-wise work into one pass over memory, which limits it; elsewhere change nothing."""
    return _FUSED[function] if like.is_cuda else function


_FUSED: dict[Callable[..., Tensor], Callable[..., Tensor]] = {
    function: torch.compile(function, dynamic=True) for function in (_statistics, _logit_gradient)
}
