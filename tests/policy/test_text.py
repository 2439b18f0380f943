"""The text policy: scores like transformers, what trains, checkpointing, LoRA, references, saving, refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    GraniteConfig,
    Lfm2Config,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    T5Config,
)

from tests.policy.shapes import CONFIGS, RAGGED, WORDS, make_batch, make_model
from turnwise.batch import Scores, TokenBatch
from turnwise.ops.regularizers import full_vocabulary_kl, token_entropy
from turnwise.policy.text import Reference, TextPolicy
from turnwise.policy.text_lora import LoraSettings

MAIN_SHAPES = ["llama", "qwen2", "qwen3", "gpt2"]


def plain_logits(model: PreTrainedModel, batch: TokenBatch) -> Tensor:
    """Logits of every token's own distribution, by transformers alone, one sequence at a time; zero at the first."""
    model.set_attn_implementation("eager")
    model.eval()
    parts: list[Tensor] = []
    for ids in batch.ids_T.split(batch.length_S.tolist()):
        logits = model(input_ids=ids[None]).logits[0]
        parts.append(torch.cat([torch.zeros_like(logits[:1]), logits[:-1]]))
    return torch.cat(parts)


def loss(scores: Scores) -> Tensor:
    return (scores.logprob_T * torch.linspace(-1, 1, scores.logprob_T.numel())).sum()


def gradients(policy: TextPolicy, number: Tensor) -> dict[str, Tensor]:
    found = torch.autograd.grad(number, [*policy.trainable().values()])
    return dict(zip(policy.trainable(), found, strict=True))


def make_tokenizer() -> PreTrainedTokenizerFast:
    words = WordLevel({f"w{number}": number for number in range(WORDS)}, unk_token="w0")
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), eos_token="w1")


@pytest.mark.parametrize("shape", MAIN_SHAPES)
def test_scores_equal_those_of_transformers(shape: str) -> None:
    batch = make_batch(RAGGED)
    policy = TextPolicy(make_model(shape))
    scores = policy.score(batch, temperature=0.7, entropy=True, collision=True)
    logits = plain_logits(make_model(shape), batch) / 0.7
    mask = batch.sampled_T
    logprob = logits.log_softmax(-1).gather(1, batch.ids_T[:, None]).squeeze(1)
    torch.testing.assert_close(scores.logprob_T[mask], logprob[mask], rtol=1e-5, atol=1e-5)
    assert scores.entropy_T is not None
    torch.testing.assert_close(scores.entropy_T[mask], token_entropy(logits)[mask], rtol=1e-5, atol=1e-5)
    assert scores.collision_T is not None
    torch.testing.assert_close(
        scores.collision_T[mask], logits.softmax(-1).square().sum(-1)[mask], rtol=1e-5, atol=1e-5
    )
    assert not scores.logprob_T[~mask].any()


@pytest.mark.parametrize("shape", ["qwen2", "gpt2"])
def test_checkpointing_changes_no_gradient(shape: str) -> None:
    batch = make_batch(RAGGED)
    plain = TextPolicy(make_model(shape))
    thrifty = TextPolicy(make_model(shape), checkpointing=True)
    expected = gradients(plain, loss(plain.score(batch)))
    actual = gradients(thrifty, loss(thrifty.score(batch)))
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


def test_checkpointing_keeps_fewer_activations() -> None:
    def kept(policy: TextPolicy) -> int:
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
            policy.score(make_batch(RAGGED))
        return sum(sizes)

    assert kept(TextPolicy(make_model("llama"), checkpointing=True)) < kept(TextPolicy(make_model("llama"))) / 2


def test_dropout_never_touches_scores() -> None:
    policy = TextPolicy(make_model("gpt2"))  # whose configuration drops a tenth
    batch = make_batch(RAGGED)
    assert torch.equal(policy.score(batch).logprob_T, policy.score(batch).logprob_T)


def test_half_precision_scores_are_single_precision() -> None:
    policy = TextPolicy(make_model("llama", dtype=torch.bfloat16))
    batch = make_batch(RAGGED)
    scores = policy.score(batch, entropy=True)
    assert scores.logprob_T.dtype == torch.float32
    exact = TextPolicy(make_model("llama")).score(batch)
    assert float((scores.logprob_T - exact.logprob_T).detach().abs().mean()) < 0.05


def test_patterns_choose_what_trains() -> None:
    policy = TextPolicy(make_model("llama"), train=["model.layers.1.*", "*.norm.weight"])
    assert all(name.startswith("model.layers.1.") or name == "model.norm.weight" for name in policy.trainable())
    assert len(policy.trainable()) == 10
    loss(policy.score(make_batch(RAGGED))).backward()
    assert all(parameter.grad is not None for parameter in policy.trainable().values())
    assert policy.model.get_input_embeddings().weight.grad is None


@pytest.mark.parametrize("shape", MAIN_SHAPES)
def test_a_fresh_adapter_changes_nothing_and_alone_trains(shape: str) -> None:
    pytest.importorskip("peft", reason="needs turnwise[lora]")
    batch = make_batch(RAGGED)
    base = TextPolicy(make_model(shape)).score(batch)
    policy = TextPolicy(make_model(shape), lora=LoraSettings(rank=4))
    torch.testing.assert_close(policy.score(batch).logprob_T, base.logprob_T)
    assert policy.trainable()
    assert all(".lora_" in name for name in policy.trainable())
    again = TextPolicy(make_model(shape), lora=LoraSettings(rank=4))
    for name, parameter in policy.trainable().items():
        assert torch.equal(parameter, again.trainable()[name])


def moved(policy: TextPolicy, *, seed: int = 5) -> TextPolicy:
    """The policy after a random step of everything that trains."""
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.trainable().values():
            parameter += torch.randn(parameter.shape, generator=noise) * 0.1
    return policy


def test_the_base_under_a_lora_is_the_reference() -> None:
    pytest.importorskip("peft", reason="needs turnwise[lora]")
    batch = make_batch(RAGGED)
    expected = TextPolicy(make_model("qwen2")).score(batch).logprob_T.detach()
    policy = moved(TextPolicy(make_model("qwen2"), lora=LoraSettings(rank=4)))
    now = policy.score(batch).logprob_T.detach()
    assert float((now - expected).abs().max()) > 0.1
    trains = list(policy.trainable())
    reference = Reference.base_of(policy).score(batch)
    torch.testing.assert_close(reference.logprob_T, expected)
    assert not reference.logprob_T.requires_grad
    torch.testing.assert_close(policy.score(batch).logprob_T.detach(), now, rtol=0, atol=0)
    assert list(policy.trainable()) == trains


def test_a_copied_reference_stays_when_the_policy_moves() -> None:
    batch = make_batch(RAGGED)
    policy = TextPolicy(make_model("llama"))
    before = policy.score(batch).logprob_T.detach()
    reference = Reference.copy_of(policy)
    moved(policy)
    torch.testing.assert_close(reference.score(batch).logprob_T, before)
    assert not torch.allclose(policy.score(batch).logprob_T, before)


def test_kl_to_the_reference_over_the_vocabulary() -> None:
    pytest.importorskip("peft", reason="needs turnwise[lora]")
    batch = make_batch(RAGGED)
    policy = moved(TextPolicy(make_model("qwen3"), lora=LoraSettings(rank=4)))
    scores = policy.score(batch, reference=Reference.base_of(policy))
    assert scores.reference_kl_T is not None
    assert scores.reference_kl_T.requires_grad
    other = plain_logits(make_model("qwen3"), batch)
    mine = plain_logits(moved(TextPolicy(make_model("qwen3"), lora=LoraSettings(rank=4))).model, batch)
    expected = full_vocabulary_kl(mine, other, direction="to-reference")
    mask = batch.sampled_T
    torch.testing.assert_close(scores.reference_kl_T[mask], expected[mask], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", MAIN_SHAPES)
@pytest.mark.parametrize("lora", [None, LoraSettings(rank=4)])
def test_a_saved_policy_loads_anywhere(shape: str, lora: LoraSettings | None, tmp_path: Path) -> None:
    if lora:
        pytest.importorskip("peft", reason="needs turnwise[lora]")
    batch = make_batch(RAGGED)
    policy = moved(TextPolicy(make_model(shape), make_tokenizer(), lora=lora))
    expected = policy.score(batch).logprob_T.detach()
    policy.save(tmp_path)
    assert list(tmp_path.glob("*.safetensors"))
    plain = AutoModelForCausalLM.from_pretrained(tmp_path)
    logprob = plain_logits(plain, batch).log_softmax(-1).gather(1, batch.ids_T[:, None]).squeeze(1)
    torch.testing.assert_close(logprob[batch.sampled_T], expected[batch.sampled_T], rtol=1e-4, atol=1e-5)
    again = TextPolicy.load(tmp_path)
    torch.testing.assert_close(again.score(batch).logprob_T.detach(), expected, rtol=1e-4, atol=1e-5)
    assert again.tokenizer.eos_token == "w1"
    torch.testing.assert_close(policy.score(batch).logprob_T.detach(), expected, rtol=0, atol=0)


def test_a_load_in_half_precision(tmp_path: Path) -> None:
    TextPolicy(make_model("llama"), make_tokenizer()).save(tmp_path)
    assert TextPolicy.load(tmp_path, dtype="bf16").head.weight_Vd.dtype == torch.bfloat16


def test_a_batch_without_sampled_tokens_scores_to_nothing() -> None:
    policy = TextPolicy(make_model("llama"))
    scores = policy.score(make_batch([[(3, 0)]]))
    assert scores.logprob_T.tolist() == [0, 0, 0]
    scores.logprob_T.sum().backward()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no folder"):
        TextPolicy.load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="there is no folder"):
        TextPolicy.load(str(tmp_path / "nowhere"))


def test_a_model_that_is_not_causal_is_refused(tmp_path: Path) -> None:
    T5Config().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="is a t5 model, not a causal language model"):
        TextPolicy.load(tmp_path)


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    make_model("llama").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"has no tokenizer.*save_pretrained"):
        TextPolicy.load(tmp_path)


def test_a_model_without_some_of_its_weights_is_refused(tmp_path: Path) -> None:
    policy = TextPolicy.load("pico")
    policy.save(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    gone = sorted(weights)[3]
    kept = {name: weight for name, weight in weights.items() if name != gone}
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=rf"has no weights for {gone} .* random numbers; copy the model again"):
        TextPolicy.load(tmp_path)


def test_an_unknown_precision_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="choose one of fp32, bf16"):
        TextPolicy.load(tmp_path, dtype="fp8")  # pyright: ignore[reportArgumentType]


def test_a_pattern_without_a_match_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no parameter matches 'layer\.1'"):
        TextPolicy(make_model("llama"), train=["layer.1"])


def test_contradicting_choices_of_what_trains_are_refused() -> None:
    pytest.importorskip("peft", reason="needs turnwise[lora]")
    with pytest.raises(ValueError, match=r"lora=LoraSettings\(\)"):
        TextPolicy(make_model("llama"), train="lora")
    with pytest.raises(ValueError, match="would train the base under its LoRA"):
        TextPolicy(make_model("llama"), lora=LoraSettings(), train="all")
    with pytest.raises(ValueError, match="rank of a LoRA"):
        LoraSettings(rank=0)


def test_references_that_would_move_are_refused() -> None:
    pytest.importorskip("peft", reason="needs turnwise[lora]")
    with pytest.raises(ValueError, match="no LoRA to turn off"):
        Reference.base_of(TextPolicy(make_model("llama")))
    mixed = TextPolicy(make_model("llama"), lora=LoraSettings(rank=2), train=["*lora_*", "model.norm.weight"])
    with pytest.raises(ValueError, match=r"model\.norm\.weight"):
        Reference.base_of(mixed)


def test_a_head_with_lora_is_refused() -> None:
    pytest.importorskip("peft", reason="needs turnwise[lora]")
    with pytest.raises(ValueError, match="leave the head out"):
        TextPolicy(make_model("llama"), lora=LoraSettings(targets=("lm_head",)))


def test_a_sequence_beyond_the_context_is_refused() -> None:
    policy = TextPolicy(make_model("gpt2"))
    with pytest.raises(ValueError, match="129 tokens but the model has room for 128"):
        policy.score(make_batch([[(1, 128)]]))


def test_ids_of_another_tokenizer_are_refused_by_name() -> None:
    policy = TextPolicy(make_model("llama"))
    batch = make_batch(RAGGED)
    ids_T = batch.ids_T.clone()
    ids_T[4] = WORDS
    with pytest.raises(ValueError, match=r"id 61 at trajectory 't0', turn 0, token 4 is beyond the model's 61 words"):
        policy.score(batch.with_(ids_T=ids_T))


def test_layers_that_mix_tokens_outside_of_attention_are_refused() -> None:
    config = Lfm2Config(
        vocab_size=WORDS,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        layer_types=["conv", "full_attention"],
    )
    with pytest.raises(ValueError, match="see each other"):
        TextPolicy(AutoModelForCausalLM.from_config(config))


def test_logits_that_are_changed_after_the_head_are_refused() -> None:
    config = GraniteConfig(
        vocab_size=WORDS,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        logits_scaling=8.0,
    )
    with pytest.raises(ValueError, match="changes its logits"):
        TextPolicy(AutoModelForCausalLM.from_config(config))


def test_every_shape_makes_a_policy() -> None:
    for shape in CONFIGS:
        assert TextPolicy(make_model(shape)).trainable()
