"""The residual stream of half-precision models: in single precision, with less noise between two ways to run them."""

import copy
from typing import Any

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from tests.engine.shapes import VOCABULARY, small_model
from turnwise.engine.contract import SamplingParams
from turnwise.engine.torch_engine import TorchEngine
from turnwise.policy.packed import Layout, packed_hidden
from turnwise.policy.text import TextPolicy
from turnwise.residual_stream import is_wide, widen_residual
from turnwise.rollout.packing import pack
from turnwise.types import Group, StopReason, Trajectory, Turn

FAMILY = ("llama", "qwen2", "qwen3", "smollm2")
IDS = torch.randint(0, VOCABULARY, (96,), generator=torch.Generator().manual_seed(0))


def hidden(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return packed_hidden(model, IDS, torch.arange(96), Layout.of(torch.tensor([96]))).float()


@pytest.mark.parametrize("shape", FAMILY)
def test_layers_pass_on_single_precision_and_multiply_in_half(shape: str) -> None:
    model: Any = small_model(shape, dtype=torch.bfloat16)
    widen_residual(model)
    seen: dict[str, torch.dtype] = {}
    last = model.model.layers[-1]
    last.register_forward_hook(lambda _, inputs, out: seen.update(stream=out.dtype))
    last.mlp.register_forward_hook(lambda _, inputs, out: seen.update(inner=inputs[0].dtype))
    hidden(model)
    assert seen == {"stream": torch.float32, "inner": torch.bfloat16}


def test_a_wide_stream_is_nearer_to_the_model_in_single_precision() -> None:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=384, num_hidden_layers=24, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.03,
    )  # fmt: skip
    narrow: Any = Qwen2ForCausalLM(config).to(torch.bfloat16)  # pyright: ignore[reportArgumentType]
    wide, exact = copy.deepcopy(narrow), copy.deepcopy(narrow).float()
    widen_residual(wide)
    near, far = ((hidden(model) - hidden(exact)).square().mean() for model in (wide, narrow))
    # With larger weights the layers amplify the noise of all earlier roundings, and this one counts for less.
    assert float(near) < 0.5 * float(far)


def test_models_in_single_precision_and_other_families_stay_as_they_are() -> None:
    for model in (small_model("llama"), small_model("gpt2", dtype=torch.bfloat16)):
        widen_residual(model)
        assert not is_wide(model)
        assert not any(module._forward_hooks for module in model.modules())


def test_copies_are_wide_and_asking_twice_changes_nothing() -> None:
    model = small_model("qwen2", dtype=torch.bfloat16)
    widen_residual(model)
    once = sum(len(module._forward_hooks) for module in model.modules())
    widen_residual(model)
    assert sum(len(module._forward_hooks) for module in model.modules()) == once
    twin = copy.deepcopy(model)
    assert is_wide(twin)
    assert torch.equal(hidden(model), hidden(twin))


@pytest.mark.parametrize("shape", FAMILY)
def test_engine_and_learner_agree_on_a_half_precision_model(shape: str) -> None:
    model = small_model(shape, dtype=torch.bfloat16)
    engine, policy = TorchEngine(model, capacity=100, memory_bytes=2**24), TextPolicy(model)
    prompts = [[1 + n, 2, 3 + n] for n in range(16)]
    results = engine.run([(str(n), prompt, SamplingParams(max_tokens=40)) for n, prompt in enumerate(prompts)])
    paths = [
        Trajectory(
            id=str(n),
            turns=[Turn(prompt_ids=prompt, sampled_ids=result.ids, logprobs=result.logprobs)],
            stop=StopReason.DONE,
            terminated=True,
        )
        for n, (prompt, result) in enumerate(zip(prompts, results, strict=True))
    ]
    batch = pack([Group(id="g", trajectories=paths)])
    assert batch.mu_T is not None
    with torch.no_grad():
        gap = (policy.score(batch).logprob_T - batch.mu_T)[batch.sampled_T]
    assert float((gap.expm1() - gap).mean()) < 5e-3
