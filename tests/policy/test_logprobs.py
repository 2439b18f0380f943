"""The chunked head against the plain one: values, gradients, and what it never allocates."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from turnwise.ops.regularizers import collision, full_vocabulary_kl, token_entropy
from turnwise.policy.logprobs import Head, TokenStatistics, token_statistics

TOKENS, WORDS, WIDTH = 13, 37, 5
NAMES = ("logprob_M", "entropy_M", "collision_M", "kl_M")


class Example:
    """Random hidden states and heads in float64."""

    def __init__(self, *, tokens: int = TOKENS, seed: int = 0) -> None:
        noise = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=noise, dtype=torch.float64)

        self.hidden = normal(tokens, WIDTH).requires_grad_()
        self.weight = normal(WORDS, WIDTH).requires_grad_()
        self.bias = normal(WORDS).requires_grad_()
        self.reference = normal(tokens, WIDTH), Head(weight_Vd=normal(WORDS, WIDTH), bias_V=normal(WORDS))
        self.target = torch.randint(0, WORDS, (tokens,), generator=noise)
        self.pull_4M = normal(4, tokens)

    @property
    def inputs(self) -> list[Tensor]:
        return [self.hidden, self.weight, self.bias]

    def chunked(self, *, temperature: float, softcap: float | None, at_once: int) -> TokenStatistics:
        head = Head(weight_Vd=self.weight, bias_V=self.bias, softcap=softcap)
        return token_statistics(
            self.hidden,
            head,
            self.target,
            temperature=temperature,
            entropy=True,
            collision=True,
            reference=self.reference,
            at_once=at_once,
        )

    def naive(self, *, temperature: float, softcap: float | None) -> list[Tensor]:
        def logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, cap: float | None) -> Tensor:
            raw = hidden @ weight.T + (0 if bias is None else bias)
            return (raw if cap is None else cap * torch.tanh(raw / cap)) / temperature

        mine = logits(self.hidden, self.weight, self.bias, softcap)
        hidden, head = self.reference
        other = logits(hidden, head.weight_Vd, head.bias_V, head.softcap)
        logprob = mine.log_softmax(-1).gather(1, self.target[:, None]).squeeze(1)
        kl = full_vocabulary_kl(mine, other, direction="to-reference")
        return [logprob, token_entropy(mine), collision(mine), kl]

    def gradients(self, statistics: list[Tensor]) -> tuple[Tensor, ...]:
        pulled = (torch.stack(statistics) * self.pull_4M).sum()
        return torch.autograd.grad(pulled, self.inputs, retain_graph=True)


@pytest.mark.parametrize("at_once", [1, 3 * WORDS, 10**9])
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_chunked_statistics_and_gradients_equal_the_plain_ones(
    temperature: float, softcap: float | None, at_once: int
) -> None:
    example = Example()
    found = example.chunked(temperature=temperature, softcap=softcap, at_once=at_once)
    actual, expected = [getattr(found, name) for name in NAMES], example.naive(temperature=temperature, softcap=softcap)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(example.gradients(actual), example.gradients(expected), rtol=1e-9, atol=1e-10)


def test_gradients_agree_with_finite_differences() -> None:
    example = Example(tokens=4, seed=3)

    def all_four(hidden: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        example.hidden, example.weight, example.bias = hidden, weight, bias
        found = example.chunked(temperature=0.8, softcap=3.0, at_once=2 * WORDS)
        return tuple(getattr(found, name) for name in NAMES)

    assert torch.autograd.gradcheck(all_four, tuple(example.inputs))


@pytest.mark.parametrize("at_once", [1, 3 * WORDS, 10**9])
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_the_mean_over_the_vocabulary_is_that_of_all_logits_and_has_no_gradient(
    softcap: float | None, at_once: int
) -> None:
    example = Example()
    head = Head(weight_Vd=example.weight, bias_V=example.bias, softcap=softcap)
    found = token_statistics(
        example.hidden, head, example.target, temperature=0.6, uniform=True, entropy=True, at_once=at_once
    )
    raw = example.hidden @ example.weight.T + example.bias
    logits = (raw if softcap is None else softcap * torch.tanh(raw / softcap)) / 0.6
    assert found.uniform_M is not None
    torch.testing.assert_close(found.uniform_M, logits.log_softmax(-1).mean(-1).detach(), rtol=1e-10, atol=1e-10)
    assert not found.uniform_M.requires_grad
    assert found.entropy_M is not None
    plain = example.gradients([found.logprob_M, found.entropy_M, *[torch.zeros_like(found.logprob_M)] * 2])
    asked = token_statistics(example.hidden, head, example.target, temperature=0.6, entropy=True, at_once=at_once)
    assert asked.uniform_M is None
    assert asked.entropy_M is not None
    again = example.gradients([asked.logprob_M, asked.entropy_M, *[torch.zeros_like(asked.logprob_M)] * 2])
    torch.testing.assert_close(plain, again, rtol=0, atol=0)


def test_a_graph_can_be_walked_twice() -> None:
    example = Example()
    statistics = [getattr(example.chunked(temperature=1.0, softcap=None, at_once=50), name) for name in NAMES]
    torch.testing.assert_close(example.gradients(statistics), example.gradients(statistics), rtol=0, atol=0)


def test_only_what_is_asked_for_comes_back() -> None:
    example = Example()
    found = token_statistics(example.hidden, Head(weight_Vd=example.weight), example.target, entropy=True)
    assert found.entropy_M is not None
    assert found.collision_M is None
    assert found.kl_M is None
    uniform = token_statistics(example.hidden * 0, Head(weight_Vd=example.weight), example.target, entropy=True)
    assert uniform.logprob_M.tolist() == pytest.approx([-math.log(WORDS)] * TOKENS)
    assert uniform.entropy_M is not None
    assert uniform.entropy_M.tolist() == pytest.approx([math.log(WORDS)] * TOKENS)


def test_frozen_parts_get_no_gradient() -> None:
    example = Example()
    found = token_statistics(example.hidden, Head(weight_Vd=example.weight.detach()), example.target)
    found.logprob_M.sum().backward()
    assert example.hidden.grad is not None
    assert example.weight.grad is None


def test_no_tokens_at_all_still_make_a_graph() -> None:
    example = Example(tokens=0)
    found = token_statistics(example.hidden, Head(weight_Vd=example.weight), example.target, entropy=True)
    assert found.logprob_M.shape == (0,)
    found.logprob_M.sum().backward()
    assert example.weight.grad is not None
    assert not example.weight.grad.any()


def test_single_precision_stays_within_a_millionth() -> None:
    example = Example(tokens=200)
    head = Head(weight_Vd=example.weight.detach().float())
    found = token_statistics(example.hidden.detach().float(), head, example.target, at_once=500)
    exact = (example.hidden @ example.weight.T).log_softmax(-1).gather(1, example.target[:, None]).squeeze(1)
    assert float((found.logprob_M - exact.detach()).abs().max()) < 2e-6


def test_half_precision_logits_are_not_rounded_to_half_precision() -> None:
    noise = torch.Generator().manual_seed(0)
    hidden = torch.randn(50, 64, generator=noise).bfloat16()
    weight = torch.randn(400, 64, generator=noise).bfloat16()
    target = torch.randint(0, 400, (50,), generator=noise)
    exact = (hidden.double() @ weight.double().T).log_softmax(-1).gather(1, target[:, None]).squeeze(1)
    found = token_statistics(hidden, Head(weight_Vd=weight), target).logprob_M
    assert found.dtype == torch.float32
    assert float((found - exact).abs().max()) < 1e-4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="compares CUDA with CPU")
def test_fused_kernels_give_the_numbers_of_the_plain_ones() -> None:
    noise = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(count, 64, generator=noise).bfloat16() for count in (50, 400))
    target = torch.randint(0, 400, (50,), generator=noise)
    found: list[list[Tensor]] = []
    for device in ("cpu", "cuda"):
        inputs = [tensor.to(device).requires_grad_() for tensor in (hidden, weight)]
        head = Head(weight_Vd=inputs[1])
        statistics = token_statistics(inputs[0], head, target.to(device), temperature=0.8, entropy=True, at_once=4000)
        assert statistics.entropy_M is not None
        number = (statistics.logprob_M + 0.1 * statistics.entropy_M).sum()
        gradients = torch.autograd.grad(number, inputs)
        found.append([statistics.logprob_M.detach().cpu(), *(gradient.float().cpu() for gradient in gradients)])
    for on_cpu, on_cuda in zip(*found, strict=True):
        assert float((on_cuda - on_cpu).norm() / on_cpu.norm()) < 1e-2


class Largest(TorchDispatchMode):
    """Remembers the largest tensor that any operation made."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


def test_neither_pass_ever_holds_more_logits_than_allowed() -> None:
    hidden = torch.randn(300, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    weight = torch.randn(500, 4, generator=torch.Generator().manual_seed(1)).requires_grad_()
    target = torch.zeros(300, dtype=torch.long)
    with Largest() as seen:
        found = token_statistics(hidden, Head(weight_Vd=weight), target, entropy=True, at_once=6000)
        assert found.entropy_M is not None
        (found.logprob_M + found.entropy_M).sum().backward()
    assert 5000 <= seen.elements <= 6000  # the full logits would be 150,000


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_greedy_temperature_is_refused(temperature: float) -> None:
    example = Example()
    with pytest.raises(ValueError, match="temperature must be positive"):
        token_statistics(example.hidden, Head(weight_Vd=example.weight), example.target, temperature=temperature)
