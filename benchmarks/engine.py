"""The built-in engine against transformers `generate`, same model, same tokens, one run: `python benchmarks/engine.py`.

On CUDA: a 0.5 B Qwen2 shape in bf16 with random weights, 256 sessions. On CPU: a nano shape in fp32, 64 sessions.
The last line says how well engine and learner agree on the log-probs of the sampled tokens.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from turnwise.engine.contract import SamplingParams
from turnwise.engine.torch_engine import TorchEngine
from turnwise.policy.text import TextPolicy
from turnwise.rollout.packing import pack
from turnwise.types import Group, StopReason, Trajectory, Turn


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Sizes of the benchmark."""

    sessions: int
    prompt: int
    new_tokens: int
    turns: int
    observation: int
    per_turn: int


GPU = Workload(sessions=256, prompt=512, new_tokens=128, turns=5, observation=200, per_turn=64)
CPU = Workload(sessions=64, prompt=40, new_tokens=40, turns=4, observation=25, per_turn=12)


def make_model(device: str) -> PreTrainedModel:
    """Random weights: the arithmetic does not depend on their values."""
    torch.manual_seed(0)
    if device == "cuda":
        config = Qwen2Config(
            vocab_size=151_936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
            num_key_value_heads=2, max_position_embeddings=4096, tie_word_embeddings=True,
        )  # fmt: skip
    else:
        config = Qwen2Config(
            vocab_size=2048, hidden_size=256, intermediate_size=768, num_hidden_layers=6, num_attention_heads=4,
            num_key_value_heads=4, max_position_embeddings=512, tie_word_embeddings=True,
        )  # fmt: skip
    with torch.device(device):
        model: Any = Qwen2ForCausalLM(config)
    return model.to(torch.bfloat16 if device == "cuda" else torch.float32).eval()


class Clock:
    """Wall time, with the device synchronised at both ends."""

    def __init__(self, device: str) -> None:
        self._wait: Callable[[], None] = torch.cuda.synchronize if device == "cuda" else (lambda: None)

    def measure(self, work: Callable[[], Any]) -> tuple[float, Any]:
        self._wait()
        start = time.perf_counter()
        result = work()
        self._wait()
        return time.perf_counter() - start, result


def new_engine(model: PreTrainedModel, size: Workload) -> TorchEngine:
    longest = size.prompt + size.turns * (size.observation + size.per_turn) + size.new_tokens
    config: Any = model.config
    each = 2 * 24 * config.num_key_value_heads * 64 * longest * 4
    return TorchEngine(
        model, capacity=longest, memory_bytes=max(each * size.sessions * 2, 2**28), chunk_tokens=16_384,
        max_batch=size.sessions, share_prompts=False,
    )  # fmt: skip


def random_ids(model: PreTrainedModel, count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    config: Any = model.config
    return torch.randint(0, config.vocab_size, (count,), generator=generator).tolist()


def check(model: PreTrainedModel, size: Workload) -> str:
    """Mean log-prob gap and KL between the engine and the learner, over multi-turn sessions."""
    engine, policy = new_engine(model, size), TextPolicy(model)
    trajectories = [Trajectory(id=f"check/{n}", turns=[], stop=StopReason.DONE, terminated=True) for n in range(32)]
    params = SamplingParams(max_tokens=32)
    for turn in range(3):
        length = size.prompt if turn == 0 else size.observation
        news = [random_ids(model, length, 100 * turn + n) for n in range(32)]
        results = engine.run([(t.id, new, params) for t, new in zip(trajectories, news, strict=True)])
        for trajectory, new, result in zip(trajectories, news, results, strict=True):
            trajectory.turns.append(Turn(prompt_ids=new, sampled_ids=result.ids, logprobs=result.logprobs))
    batch = pack([Group(id="check", trajectories=trajectories)]).to(model.device)
    assert batch.mu_T is not None
    with torch.no_grad():
        difference = (policy.score(batch).logprob_T - batch.mu_T)[batch.sampled_T]
    kl = (difference.exp() - 1 - difference).mean()
    return f"mean |log-prob gap| {float(difference.abs().mean()):.2e}, KL {float(kl):.2e}"


def decode_ours(model: PreTrainedModel, size: Workload, clock: Clock) -> float:
    """Decode tokens per second once every prompt is in."""
    engine = new_engine(model, size)
    params = SamplingParams(max_tokens=size.new_tokens)
    rate = 0.0
    for round_ in range(2):  # the first round captures graphs and compiles kernels
        for n in range(size.sessions):
            engine.submit(f"{round_}/{n}", random_ids(model, size.prompt, n), params, lambda _: None)
        while engine.counts["sampled"] < (round_ * size.new_tokens + 4) * size.sessions:
            engine.step()
        before = engine.counts["sampled"]

        def finish() -> None:
            while engine.step():
                pass

        elapsed, _ = clock.measure(finish)
        rate = (engine.counts["sampled"] - before) / elapsed
        for n in range(size.sessions):
            engine.close(f"{round_}/{n}")
    return rate


def decode_transformers(model: PreTrainedModel, size: Workload, clock: Clock, **options: Any) -> float:
    """`generate` minus its prefill (timed separately with one new token)."""
    ids = torch.tensor([random_ids(model, size.prompt, n) for n in range(size.sessions)], device=model.device)
    generate: Any = model.generate

    def run(count: int) -> Any:
        return generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, max_new_tokens=count,
            eos_token_id=None, pad_token_id=0, **options,
        )  # fmt: skip

    run(2)
    prefill, _ = clock.measure(lambda: run(1))
    whole, _ = clock.measure(lambda: run(size.new_tokens))
    return size.sessions * (size.new_tokens - 1) / (whole - prefill)


def turns_ours(model: PreTrainedModel, size: Workload, clock: Clock) -> float:
    """Seconds for multi-turn episodes; only new tokens are run."""
    engine = new_engine(model, size)
    params = SamplingParams(max_tokens=size.per_turn)

    def play(round_: int) -> None:
        for turn in range(size.turns):
            length = size.prompt if turn == 0 else size.observation
            engine.run(
                [(f"{round_}/{n}", random_ids(model, length, 100 * turn + n), params) for n in range(size.sessions)]
            )
        for n in range(size.sessions):
            engine.close(f"{round_}/{n}")

    play(0)
    return clock.measure(lambda: play(1))[0]


def turns_transformers(model: PreTrainedModel, size: Workload, clock: Clock) -> float:
    """The same episodes with `generate` called per turn on the whole history."""
    generate: Any = model.generate

    def play() -> None:
        history = torch.empty((size.sessions, 0), dtype=torch.long, device=model.device)
        for turn in range(size.turns):
            length = size.prompt if turn == 0 else size.observation
            new = [random_ids(model, length, 100 * turn + n) for n in range(size.sessions)]
            history = torch.cat([history, torch.tensor(new, device=model.device)], dim=1)
            history = generate(
                history, attention_mask=torch.ones_like(history), do_sample=True, top_k=0, max_new_tokens=size.per_turn,
                eos_token_id=None, pad_token_id=0,
            )  # fmt: skip

    return clock.measure(play)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--ours-only", action="store_true", help="leave transformers out")
    options = parser.parse_args()
    size, clock, model = (GPU if options.device == "cuda" else CPU), Clock(options.device), make_model(options.device)
    name = torch.cuda.get_device_name() if options.device == "cuda" else f"{torch.get_num_threads()} CPU threads"
    print(f"{name}, torch {torch.__version__}, {sum(p.numel() for p in model.parameters()) / 1e6:.0f} M parameters")
    rate = decode_ours(model, size, clock)
    print(f"\ndecode, {size.sessions} sessions, context {size.prompt}-{size.prompt + size.new_tokens}")
    print(f"{'ours':<28}{rate:>10,.0f} tok/s{1e3 * size.sessions / rate:>8.2f} ms/step")
    ours = turns_ours(model, size, clock)
    if not options.ours_only:
        theirs = decode_transformers(model, size, clock)
        print(f"{'transformers generate':<28}{theirs:>10,.0f} tok/s{rate / theirs:>8.1f} x")
        theirs = decode_transformers(model, size, clock, cache_implementation="static")
        print(f"{'transformers, static cache':<28}{theirs:>10,.0f} tok/s{rate / theirs:>8.1f} x")
    print(f"\n{size.turns} turns of {size.observation} + {size.per_turn} tokens, {size.sessions} episodes")
    print(f"{'ours':<28}{ours:>10.2f} s")
    if not options.ours_only:
        whole = turns_transformers(model, size, clock)
        print(f"{'transformers per turn':<28}{whole:>10.2f} s{whole / ours:>8.1f} x")
    print("\nengine against learner:", check(model, size))


if __name__ == "__main__":
    main()
