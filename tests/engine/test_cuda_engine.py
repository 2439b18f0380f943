"""The CUDA backend: the same tokens and log-probs as transformers."""

from __future__ import annotations

import pytest
import torch

from tests.engine.conversations import greedy_by_transformers, logprobs_by_transformers, play, whole
from tests.engine.shapes import small_model
from turnwise.engine.contract import SamplingParams
from turnwise.engine.torch_engine import TorchEngine

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("shape", ["llama", "qwen2", "qwen3", "smollm2", "gpt2"])
def test_greedy_output_equals_transformers(shape: str) -> None:
    model = small_model(shape, device="cuda")
    torch.backends.cuda.matmul.allow_tf32 = False
    engine = TorchEngine(model, capacity=120, memory_bytes=2**24, chunk_tokens=17)
    for turns in play(engine, SamplingParams(temperature=0, max_tokens=8)).values():
        history: list[int] = []
        for new, result in turns:
            history += new
            assert list(result.ids) == greedy_by_transformers(model, history, 8)
            history += result.ids


@pytest.mark.parametrize("shape", ["llama", "qwen3", "smollm2"])
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.bfloat16, 5e-2)])
def test_logprobs_are_those_of_the_model(shape: str, dtype: torch.dtype, limit: float) -> None:
    model = small_model(shape, device="cuda", dtype=dtype)
    engine = TorchEngine(model, capacity=120, memory_bytes=2**22, chunk_tokens=17)  # few slots: sessions are evicted
    played = play(engine, SamplingParams(temperature=0.7, max_tokens=8), sessions=40)
    gaps = []
    for turns in played.values():
        expected = logprobs_by_transformers(model, turns, 0.7)
        actual = torch.tensor([x for _, result in turns for x in result.logprobs])
        gaps.append((expected - actual).abs())
    assert float(torch.cat(gaps).mean()) < limit


def test_sampling_frequencies_match_the_softmax() -> None:
    model = small_model("llama", device="cuda")
    engine = TorchEngine(model, capacity=16, memory_bytes=2**26, share_prompts=False, max_batch=1024)
    params = SamplingParams(temperature=1.3, max_tokens=1)
    results = engine.run([(f"s{n}", [5, 6, 7], params) for n in range(8000)])
    counts = torch.bincount(torch.tensor([result.ids[0] for result in results]), minlength=97).double()
    with torch.no_grad():
        logits = model(torch.tensor([[5, 6, 7]], device="cuda")).logits[0, -1].double().cpu()
    expected = (logits / 1.3).softmax(-1) * counts.sum()
    big = expected > 5
    chi_square = float(((counts - expected)[big] ** 2 / expected[big]).sum())
    assert chi_square < int(big.sum()) + 5 * (2 * int(big.sum())) ** 0.5


def test_who_else_is_in_the_batch_does_not_matter() -> None:
    model = small_model("qwen3", device="cuda")
    params = SamplingParams(max_tokens=12, stop_ids=(3, 4, 5))
    alone = play(TorchEngine(model, capacity=120, memory_bytes=2**24), params, sessions=5, seed=1)
    crowd = TorchEngine(model, capacity=120, memory_bytes=2**24, chunk_tokens=5)
    for n in range(20):
        crowd.submit(f"other{n}", [n + 1] * (n + 1), params, lambda _: None)
    together = play(crowd, params, sessions=5, seed=1)
    assert {name: whole(turns) for name, turns in alone.items()} == {n: whole(t) for n, t in together.items()}


def test_restricted_and_free_requests_share_a_batch_without_losing_tokens() -> None:
    model = small_model("llama", device="cuda")
    engine = TorchEngine(model, capacity=60, memory_bytes=2**24)
    kinds = [
        SamplingParams(max_tokens=9),
        SamplingParams(max_tokens=9, top_k=3),
        SamplingParams(max_tokens=9, top_p=0.5),
    ]
    for turn in range(2):
        results = engine.run([(f"s{n}", [n + 1, turn + 1, 5], kinds[n % 3]) for n in range(12)])
        assert [len(result.ids) for result in results] == [9] * 12
    free = TorchEngine(model, capacity=60, memory_bytes=2**24).run([("s0", [1, 1, 5], kinds[0])])[0]
    assert list(free.ids) == list(
        TorchEngine(model, capacity=60, memory_bytes=2**24, seed=0)
        .run([("s0", [1, 1, 5], kinds[0]), ("s1", [2, 1, 5], kinds[1])])[0]
        .ids
    )


def test_padding_rows_never_grow() -> None:
    model = small_model("llama", device="cuda")
    engine = TorchEngine(model, capacity=40, memory_bytes=2**22)
    for round_ in range(12):  # three rows in a graph of four, far more steps than a slot has places
        engine.run([(f"{round_}/{n}", [n + 1, 2], SamplingParams(max_tokens=30)) for n in range(3)])
        for n in range(3):
            engine.close(f"{round_}/{n}")
    backend = engine._backend
    assert int(backend._length_S[-1]) == 0  # pyright: ignore
    turns = [([7, 8, 9], engine.run([("last", [7, 8, 9], SamplingParams(max_tokens=8))])[0])]
    gap = torch.tensor(turns[0][1].logprobs) - logprobs_by_transformers(model, turns)
    assert float(gap.abs().max()) < 1e-4
