"""Every family of docs/models.md in the learner: the scores of transformers, whoever shares the batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tests.model_families import FAMILIES, REFUSED, WINDOW, make_family
from tests.policy.shapes import RAGGED, make_batch
from turnwise.batch import TokenBatch
from turnwise.engine.torch_engine import TorchEngine
from turnwise.policy.critics import Critic
from turnwise.policy.text import Reference, TextPolicy
from turnwise.policy.text_lora import LoraSettings

ONE_OF_EACH = ["gemma2", "gemma3", "mistral-window", "qwen3-moe", "gpt-neox"]
"""Bounded scores, two rotary bases, a plain window, experts, and layers that run side by side."""

DEEP: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "initializer_range": 0.15,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 32,
    "query_pre_attn_scalar": 16,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def plain_logprobs(model: PreTrainedModel, batch: TokenBatch) -> Tensor:
    """Log-probs of every token by transformers alone, one sequence at a time; zero at the first."""
    model.set_attn_implementation("eager")
    parts: list[Tensor] = []
    for ids in batch.ids_T.split(batch.length_S.tolist()):
        logits = model(input_ids=ids[None]).logits[0].log_softmax(-1)
        parts.append(torch.cat([logits.new_zeros(1), logits[:-1].gather(1, ids[1:, None]).squeeze(1)]))
    return torch.cat(parts)


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_and_gradients_are_those_of_transformers(family: str) -> None:
    batch = make_batch(RAGGED)
    assert int(batch.length_S.max()) > 2 * WINDOW
    policy, plain = TextPolicy(make_family(family)), make_family(family)
    scores, expected = policy.score(batch).logprob_T, plain_logprobs(plain, batch)
    torch.testing.assert_close(scores[batch.sampled_T], expected[batch.sampled_T], rtol=1e-5, atol=1e-5)
    scores.sum().backward()
    expected[batch.sampled_T].sum().backward()
    for (name, mine), other in zip(policy.model.named_parameters(), plain.parameters(), strict=True):
        assert mine.grad is not None, name
        assert mine.grad.any(), name
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-3, atol=1e-5 * float(mine.grad.abs().max()) + 1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_who_shares_the_batch_matters_by_rounding_alone(family: str) -> None:
    policy, batch = TextPolicy(make_family(family)), make_batch(RAGGED)
    changed_T = batch.sequence_T == 2
    other = batch.with_(ids_T=torch.where(changed_T, (batch.ids_T + 1) % 61, batch.ids_T))
    before, after = policy.score(batch).logprob_T, policy.score(other).logprob_T
    torch.testing.assert_close(before[~changed_T], after[~changed_T], rtol=0, atol=1e-5)
    assert not torch.allclose(before[changed_T], after[changed_T])


@pytest.mark.parametrize("family", ONE_OF_EACH)
def test_checkpointing_changes_no_gradient(family: str) -> None:
    batch, found = make_batch(RAGGED), list[list[Tensor]]()
    for checkpointing in (False, True):
        policy = TextPolicy(make_family(family), checkpointing=checkpointing)
        policy.score(batch).logprob_T.sum().backward()
        found.append([parameter.grad for parameter in policy.trainable().values() if parameter.grad is not None])
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("family", ONE_OF_EACH)
def test_an_adapter_learns_and_its_base_is_the_reference(family: str) -> None:
    pytest.importorskip("peft", reason="needs turnwise[lora]")
    pytest.importorskip("peft")
    batch = make_batch(RAGGED)
    base = TextPolicy(make_family(family)).score(batch).logprob_T.detach()
    policy = TextPolicy(make_family(family), lora=LoraSettings(rank=4))
    torch.testing.assert_close(policy.score(batch).logprob_T.detach(), base, rtol=1e-5, atol=1e-5)
    policy.score(batch).logprob_T.sum().backward()
    with torch.no_grad():
        for parameter in policy.trainable().values():
            assert parameter.grad is not None
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    scores = policy.score(batch, reference=Reference.base_of(policy))
    assert float((scores.logprob_T.detach() - base).abs().max()) > 0.05
    assert scores.reference_kl_T is not None
    assert float(scores.reference_kl_T[batch.sampled_T].detach().min()) > 0
    torch.testing.assert_close(Reference.base_of(policy).score(batch).logprob_T, base, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", [*ONE_OF_EACH, "mixtral", "qwen2-moe"])
@pytest.mark.parametrize("lora", [None, LoraSettings(rank=2)])
def test_a_saved_policy_is_the_same_to_transformers(family: str, lora: LoraSettings | None, tmp_path: Path) -> None:
    if lora:
        pytest.importorskip("peft", reason="needs turnwise[lora]")
    if lora is not None:
        pytest.importorskip("peft")
    policy, batch = TextPolicy(make_family(family), lora=lora), make_batch(RAGGED)
    with torch.no_grad():
        for parameter in policy.trainable().values():
            parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    policy.save(tmp_path)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path)
    scores, expected = policy.score(batch).logprob_T, plain_logprobs(plain, batch)
    torch.testing.assert_close(scores[batch.sampled_T], expected[batch.sampled_T], rtol=1e-4, atol=1e-4)


def test_an_adapter_on_experts_is_refused() -> None:
    pytest.importorskip("peft", reason="needs turnwise[lora]")
    pytest.importorskip("peft")
    with pytest.raises(ValueError, match=r"cannot adapt model\.layers\.0\.mlp\.experts"):
        TextPolicy(make_family("qwen3-moe"), lora=LoraSettings(targets=("q_proj", "down_proj")))


@pytest.mark.parametrize("family", ONE_OF_EACH)
def test_a_copied_reference_is_at_no_distance(family: str) -> None:
    policy, batch = TextPolicy(make_family(family)), make_batch(RAGGED)
    scores = policy.score(batch, reference=Reference.copy_of(policy))
    assert scores.reference_kl_T is not None
    assert float(scores.reference_kl_T.detach().abs().max()) < 1e-5


@pytest.mark.parametrize("family", ONE_OF_EACH)
@pytest.mark.parametrize("separate", [False, True])
def test_a_critic_values_the_states_of_its_trunk(family: str, separate: bool) -> None:
    policy, batch = TextPolicy(make_family(family)), make_batch(RAGGED)
    critic = Critic.separate(policy.model) if separate else Critic.shared(policy)
    torch.nn.init.ones_(critic.head.weight)
    values = policy.score(batch, critic=critic).value_T
    assert values is not None
    expected = policy.hidden(batch).sum(-1).roll(1)
    torch.testing.assert_close(values[batch.sampled_T], expected[batch.sampled_T], rtol=1e-4, atol=1e-4)
    values.sum().backward()
    trunk = policy.model.base_model if critic.trunk is None else critic.trunk
    assert all(parameter.grad is not None for parameter in trunk.parameters())


@pytest.mark.parametrize("family", [name for name, (*_, why, _) in REFUSED.items() if why])
def test_a_family_that_cannot_be_packed_is_refused_with_the_reason(family: str) -> None:
    with pytest.raises(ValueError, match=REFUSED[family][2]):
        TextPolicy(make_family(family))


def test_a_weight_that_is_not_a_number_is_named() -> None:
    for name, value in (("model.layers.1.mlp.up_proj.weight", float("nan")), ("lm_head.weight", float("inf"))):
        model = make_family("llama")
        with torch.no_grad():
            model.get_parameter(name).view(-1)[7] = value
        with pytest.raises(ValueError, match=rf"weight {name} has NaN or infinity in 1 of [\d,]+ places"):
            TextPolicy(model)


@pytest.mark.parametrize("family", ["qwen3_moe", "gemma3_text"])
def test_a_deep_model_in_half_precision_is_not_refused_for_its_rounding(family: str) -> None:
    config = AutoConfig.for_model(family, **DEEP)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    assert TextPolicy(model).trainable()
    assert TorchEngine(model, memory_bytes=2**24).slots > 0


def test_a_leak_of_any_size_is_found() -> None:
    model = make_family("llama")
    norm = model.get_submodule("model.norm")
    norm.register_forward_hook(lambda module, inputs, output: output + 1e-30 * output.roll(1, dims=1))
    with pytest.raises(ValueError, match="see each other"):
        TextPolicy(model)


def test_numbers_that_overflow_are_not_blamed_on_packing() -> None:
    model = make_family("llama")
    with torch.no_grad():
        model.get_parameter("model.norm.weight").fill_(3e38)
    with pytest.raises(ValueError, match=r"overflows in torch\.float32"):
        TextPolicy(model)
