"""Forward + backward of the learner against plain transformers, in one process: `python benchmarks/learner.py`.

On CUDA: 16k tokens, a Qwen2 shape of half a billion parameters, bf16. On CPU: a small shape, to see that it runs. All
sequences are equally long, so that the plain way (a padded batch, full logits) wastes nothing on padding; every token
but the first of a sequence is scored. `share` is that of the rate of one large matrix product measured first, counting
the work of the model itself (6 FLOP per weight and token, and causal attention), nothing that is done twice.

The last line is what ROVER's statistic, the mean log-prob of the vocabulary, adds to a step of the learner.
"""

from __future__ import annotations

import argparse
import copy
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config

from turnwise.algorithm import preset
from turnwise.batch import Scores, TokenBatch
from turnwise.learn.learner import Learner
from turnwise.policy.text import TextPolicy
from turnwise.recipe.schema import Train
from turnwise.types import Group, StopReason, Trajectory, Turn

COSTLY = 1.10
"""What ROVER's statistic may make of the time of a learner's step."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is measured: a model's shape, sequences, and how often."""

    config: Qwen2Config
    sequences: int
    length: int
    dtype: torch.dtype
    matmul: int
    repeats: int

    @property
    def tokens(self) -> int:
        return self.sequences * self.length

    @property
    def work(self) -> float:
        """FLOP of one forward and backward pass."""
        c = self.config
        head_width = c.hidden_size // c.num_attention_heads
        attention = 2 * c.hidden_size * (c.num_attention_heads + (c.num_key_value_heads or 0)) * head_width
        layer = attention + 3 * c.hidden_size * c.intermediate_size
        weights = c.num_hidden_layers * layer + c.vocab_size * c.hidden_size
        return self.tokens * 6.0 * (weights + c.num_hidden_layers * c.hidden_size * self.length)


HALF_BILLION: dict[str, Any] = {
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
SMALL: dict[str, Any] = {
    "vocab_size": 4096,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}


def make_case(device: str, *, length: int | None, repeats: int | None) -> Case:
    """The shape that fits the device."""
    if device == "cuda":
        length = length or 512
        config, sequences, dtype, matmul = Qwen2Config(**HALF_BILLION), 16_384 // length, torch.bfloat16, 8192
    else:
        length = length or 128
        config, sequences, dtype, matmul = Qwen2Config(**SMALL), 1024 // length, torch.float32, 1024
    return Case(config=config, sequences=sequences, length=length, dtype=dtype, matmul=matmul, repeats=repeats or 7)


def make_batch(case: Case, device: str) -> TokenBatch:
    """Random ids; every sequence is one turn that was sampled after one prompt token."""
    noise = torch.Generator().manual_seed(0)
    sequence_S = torch.arange(case.sequences)
    sequence_T = sequence_S.repeat_interleave(case.length)
    position_T = torch.arange(case.length).repeat(case.sequences)
    turn_T = torch.where(position_T > 0, sequence_T, -1)
    zero_S = torch.zeros_like(sequence_S)
    return TokenBatch(
        ids_T=torch.randint(0, case.config.vocab_size, (case.tokens,), generator=noise),
        position_T=position_T,
        sequence_T=sequence_T,
        turn_T=turn_T,
        source_T=(turn_T >= 0).long(),
        reward_T=torch.zeros(case.tokens),
        sequence_K=sequence_S,
        index_K=zero_S,
        version_K=zero_S,
        anchor_K=zero_S - 1,
        length_S=torch.full_like(sequence_S, case.length),
        trajectory_S=sequence_S,
        group_S=zero_S,
        seat_S=zero_S,
        truncated_S=zero_S.bool(),
    ).to(device)


def plain_scores(model: PreTrainedModel, case: Case, batch: TokenBatch) -> Tensor:
    """The usual way: a padded batch, all logits, log-softmax."""
    ids = batch.ids_T.view(case.sequences, case.length)
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
    logprob = logits.log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)
    return torch.nn.functional.pad(logprob, (1, 0)).flatten()


Score = Callable[[], Tensor]


def plain(model: PreTrainedModel, case: Case, batch: TokenBatch) -> Score:
    """Transformers unchanged, with its own fast attention."""
    model.set_attn_implementation("sdpa")
    return lambda: plain_scores(model, case, batch)


def ours(*, checkpointing: bool, compile_layers: bool) -> Callable[[PreTrainedModel, Case, TokenBatch], Score]:
    """Packed attention and the chunked head, in one of four ways."""

    def make(model: PreTrainedModel, case: Case, batch: TokenBatch) -> Score:
        policy = TextPolicy(model, checkpointing=checkpointing, compile_layers=compile_layers)
        return lambda: policy.score(batch).logprob_T

    return make


WAYS: dict[str, Callable[[PreTrainedModel, Case, TokenBatch], Score]] = {
    "padded, full logits (transformers)": plain,
    "ours": ours(checkpointing=False, compile_layers=False),
    "ours, checkpointing": ours(checkpointing=True, compile_layers=False),
    "ours, compiled layers": ours(checkpointing=False, compile_layers=True),
    "ours, compiled layers, checkpointing": ours(checkpointing=True, compile_layers=True),
}


def measure(way: str, base: PreTrainedModel, case: Case, batch: TokenBatch) -> tuple[list[float], float, Tensor]:
    """Seconds of each repeat, peak gigabytes, and the log-probs."""
    device: Any = batch.ids_T.device
    model: Any = copy.deepcopy(base)
    model.to(device)
    score = WAYS[way](model, case, batch)
    weight_T = torch.linspace(-1, 1, case.tokens, device=device)
    seconds: list[float] = []
    logprob_T = weight_T
    for repeat in range(case.repeats + 3):  # the first three warm up: kernels are chosen, compiled and cached
        if repeat == 3 and device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        model.zero_grad(set_to_none=True)
        _synchronize(device)
        start = time.perf_counter()
        logprob_T = score()
        (logprob_T * weight_T).mean().backward()
        _synchronize(device)
        seconds.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else float("nan")
    return seconds[3:], peak, logprob_T.detach()


def matmul_rate(size: int, device: str, dtype: torch.dtype) -> float:
    """FLOP per second of a square matrix product: the ceiling."""
    noise = torch.Generator().manual_seed(0)
    left, right = (torch.randn(size, size, generator=noise).to(device, dtype) for _ in range(2))
    for _ in range(3):
        torch.mm(left, right)
    _synchronize(left.device)
    start = time.perf_counter()
    for _ in range(10):
        torch.mm(left, right)
    _synchronize(left.device)
    return 10 * 2.0 * size**3 / (time.perf_counter() - start)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def run(base: PreTrainedModel, case: Case, batch: TokenBatch, ways: list[str], rate: float) -> None:
    """Measure each way and print its line; `gap` is the mean distance of its log-probs from those of the first."""
    print(f"{'way':<38}{'ms':>9}{'tokens/s':>11}{'share':>8}{'peak GB':>9}{'gap':>10}", flush=True)
    first_T: Tensor | None = None
    for way in ways:
        try:
            seconds, peak, logprob_T = measure(way, base, case, batch)
        except torch.cuda.OutOfMemoryError:
            print(f"{way:<38}  out of memory", flush=True)
            continue
        finally:
            gc.collect()
            torch.cuda.empty_cache()
        first_T = logprob_T if first_T is None else first_T
        gap = float((logprob_T - first_T)[batch.sampled_T].abs().mean())
        taken = median(seconds)
        speed, share = case.tokens / taken, case.work / taken / rate
        print(f"{way:<38}{1e3 * taken:>9.1f}{speed:>11,.0f}{share:>8.1%}{peak:>9.1f}{gap:>10.1e}", flush=True)


class GivenMean(TextPolicy):
    """The policy with the vocabulary mean for nothing: the log-probs stand for it, so that all else stays as it is."""

    def score(self, batch: TokenBatch, *, uniform: bool = False, **asked: Any) -> Scores:
        scores = super().score(batch, **asked)
        return replace(scores, uniform_T=scores.logprob_T) if uniform else scores


def make_groups(case: Case) -> list[Group]:
    """The same sequences as answers in groups of eight, every other one rewarded."""
    ids = make_batch(case, "cpu").ids_T.view(case.sequences, case.length).tolist()
    turns = [
        Turn(prompt_ids=row[:1], sampled_ids=row[1:], logprobs=[-1.0] * (len(row) - 1), reward=float(number % 2))
        for number, row in enumerate(ids)
    ]
    answers = [
        Trajectory(id=str(number), turns=[turn], stop=StopReason.DONE, terminated=True)
        for number, turn in enumerate(turns)
    ]
    return [Group(id=str(first), trajectories=answers[first : first + 8]) for first in range(0, len(answers), 8)]


def statistic_cost(base: PreTrainedModel, case: Case, device: str) -> float:
    """Time of a learner's step of ROVER over that of the same step with the vocabulary mean for nothing.

    The step is all that the learner does with a rollout: `prepare` and `learn`. The two take turns, so that whatever
    else the machine does is shared by both.
    """
    groups = make_groups(case)
    learners = [
        Learner(kind(copy.deepcopy(base).to(device)), preset("rover"), Train())  # pyright: ignore[reportArgumentType]
        for kind in (GivenMean, TextPolicy)
    ]
    seconds: list[list[float]] = [[] for _ in learners]
    for step in range(1, 3 * case.repeats + 3):
        for learner, taken in zip(learners, seconds, strict=True):
            _synchronize(learner.policy.device)
            start = time.perf_counter()
            batch = learner.prepare(groups)
            assert batch is not None
            learner.learn(batch, step)
            _synchronize(learner.policy.device)
            if step > 2:
                taken.append(time.perf_counter() - start)
    return median(seconds[1]) / median(seconds[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--length", type=int, help="tokens per sequence")
    parser.add_argument("--repeats", type=int, help="timed passes of each way")
    parser.add_argument("--only", nargs="+", help="substrings of the ways to run; on CPU the compiled ones run only so")
    parser.add_argument("--check", action="store_true", help=f"fail if ROVER's statistic costs over {COSTLY - 1:.0%}")
    arguments = parser.parse_args()
    case = make_case(arguments.device, length=arguments.length, repeats=arguments.repeats)
    base: PreTrainedModel = AutoModelForCausalLM.from_config(case.config, dtype=case.dtype)
    rate = matmul_rate(case.matmul, arguments.device, case.dtype)
    machine = torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU"
    print(f"{machine}, torch {torch.__version__}: {case.tokens:,} tokens in {case.sequences} sequences, ", end="")
    print(f"{case.work / 1e12:.2f} TFLOP; matrix product {rate / 1e12:.1f} TFLOP/s; median of {case.repeats}")
    ways = [way for way in WAYS if arguments.device == "cuda" or "compiled" not in way]
    if arguments.only:
        ways = [way for way in WAYS if any(part in way for part in arguments.only)]
    batch = make_batch(case, arguments.device)
    run(base, case, batch, ways, rate)
    cost = statistic_cost(base, case, arguments.device)
    print(f"with ROVER's vocabulary mean a learner's step takes {cost:.3f} times as long")
    if arguments.check and cost > COSTLY:
        raise SystemExit(f"that is more than {COSTLY}")


if __name__ == "__main__":
    main()
