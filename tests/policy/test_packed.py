"""Packed sequences: the same numbers and gradients as one by one, and blind to each other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tests.policy.shapes import CONFIGS, RAGGED, make_batch, make_model
from turnwise.batch import TokenBatch
from turnwise.model_attention import attention
from turnwise.policy.packed import Layout, packed_hidden
from turnwise.policy.packed_rows import rows_at_end, rows_before

SHAPES = sorted(CONFIGS)


def packed(model: PreTrainedModel, batch: TokenBatch) -> Tensor:
    return packed_hidden(model, batch.ids_T, batch.position_T, Layout.of(batch.length_S))


def one_by_one(model: PreTrainedModel, batch: TokenBatch) -> Tensor:
    """The model as transformers runs it, each sequence alone, with no part of ours."""
    model.set_attn_implementation("eager")
    ends = batch.length_S.cumsum(0).tolist()
    starts = [0, *ends[:-1]]
    return torch.cat(
        [
            model.base_model(input_ids=batch.ids_T[None, start:end]).last_hidden_state[0]
            for start, end in zip(starts, ends, strict=True)
        ]
    )


def gradients(model: PreTrainedModel, hidden_Td: Tensor) -> list[Tensor]:
    pull = torch.randn(hidden_Td.shape, generator=torch.Generator().manual_seed(7))
    parameters = [*model.base_model.parameters()]
    return list(torch.autograd.grad((hidden_Td * pull).sum(), parameters))


@pytest.mark.parametrize("shape", SHAPES)
def test_packed_equals_one_by_one_with_gradients(shape: str) -> None:
    model = make_model(shape).eval()
    batch = make_batch(RAGGED)
    expected = one_by_one(model, batch)
    expected_gradients = gradients(model, expected)
    actual = packed(model, batch)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    for found, wanted in zip(gradients(model, actual), expected_gradients, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5 * float(wanted.abs().max()))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_changed_sequence_leaves_the_others_bit_for_bit_alone(shape: str) -> None:
    model = make_model(shape).eval()
    batch = make_batch(RAGGED)
    changed_T = batch.sequence_T == 2
    other = batch.with_(ids_T=torch.where(changed_T, (batch.ids_T + 1) % 61, batch.ids_T))
    before, after = packed(model, batch), packed(model, other)
    assert torch.equal(before[~changed_T], after[~changed_T])
    assert not torch.isclose(before[changed_T], after[changed_T]).all(1).any()


def test_the_sliding_window_of_four_ends_at_four() -> None:
    noise = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 2, 9, 8, generator=noise) for _ in range(3))
    layout = Layout.of(torch.tensor([9]))
    output, _ = attention(nn.Module(), query, key, value, None, layout=layout, sliding_window=4)
    value[:, :, 4] += 1.0
    moved, _ = attention(nn.Module(), query, key, value, None, layout=layout, sliding_window=4)
    assert ((output - moved).abs().sum((0, 2, 3)) > 0).tolist() == [False] * 4 + [True] * 4 + [False]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="variable-length attention needs CUDA")
@pytest.mark.parametrize("window", [None, 4])
def test_variable_length_attention_equals_buckets(window: int | None) -> None:
    noise = torch.Generator().manual_seed(0)
    layout = Layout.of(torch.tensor([5, 0, 17, 9, 9], device="cuda"))
    states = [torch.randn(1, heads, 40, 64, generator=noise).cuda() for heads in (4, 2, 2)]
    results: list[list[Tensor]] = []
    for dtype in (torch.bfloat16, torch.float32):  # only the first goes the variable-length way
        leaves = [state.to(dtype).requires_grad_() for state in states]
        query, key, value = leaves
        output, _ = attention(nn.Module(), query, key, value, None, layout=layout, sliding_window=window)
        results.append([output, *torch.autograd.grad(output.float().square().sum(), leaves)])
    for half, single in zip(*results, strict=True):
        assert float((half.float() - single).norm() / single.norm()) < 2e-2


def test_empty_sequences_take_no_room() -> None:
    layout = Layout.of(torch.tensor([0, 3, 0, 9, 20, 17, 0]))
    assert layout.longest == 20
    assert layout.offset_S.tolist() == [0, 0, 3, 3, 12, 32, 49, 49]
    assert [tuple(rows.shape) for rows in layout.buckets] == [(1, 8), (1, 16), (2, 24)]
    flat = torch.cat([rows.flatten() for rows in layout.buckets])
    assert flat[layout.place_T].tolist() == list(range(49))


def test_at_most_a_quarter_of_a_bucket_is_filling() -> None:
    for length in range(32, 5000, 37):
        (rows,) = Layout.of(torch.tensor([length])).buckets
        assert length <= rows.shape[1] <= 1.25 * length


def test_rows_before_are_the_tokens_before() -> None:
    batch = make_batch([[(2, 1)], [(1, 2)]])
    assert rows_before(batch, batch.sampled_T.nonzero().squeeze(1)).tolist() == [1, 3, 4]


def test_rows_at_end_are_the_last_of_the_trajectory() -> None:
    batch = make_batch([[(2, 1)], [(1, 2)], [(1, 1)], []])
    assert rows_at_end(batch).tolist() == [2, 5, 7, -1]
    assert rows_at_end(batch.with_(trajectory_S=torch.tensor([0, 1, 1, 2]))).tolist() == [2, 7, 7, -1]


def test_a_token_sampled_from_nothing_is_refused_by_name() -> None:
    batch = make_batch([[(2, 1)], [(0, 2)]])
    with pytest.raises(ValueError, match=r"trajectory 't1', turn 0, token 0 was sampled from nothing.*begin-of-text"):
        rows_before(batch, batch.sampled_T.nonzero().squeeze(1))


def test_unsupported_attention_is_refused() -> None:
    states = torch.zeros(1, 1, 2, 8)
    layout = Layout.of(torch.tensor([2]))
    with pytest.raises(ValueError, match="attention sinks"):
        attention(nn.Module(), states, states, states, None, layout=layout, s_aux=torch.ones(1))


def test_the_model_says_how_to_use_it_unpacked() -> None:
    model = make_model("llama")
    packed(model, make_batch([[(1, 1)]]))
    with pytest.raises(ValueError, match=r"set_attn_implementation\('sdpa'\)"):
        model(input_ids=torch.tensor([[1, 2]]))


def test_compiled_layers_give_the_same_numbers() -> None:
    model = make_model("qwen2").eval()
    batch = make_batch(RAGGED[:2])
    expected = packed(model, batch)
    for layer in model.base_model.get_submodule("layers").children():
        layer.compile(backend="eager")
    torch.testing.assert_close(packed(model, batch), expected)
