"""Cost of credit + loss + gradient, on CPU, in one process: `python benchmarks/ops.py`.

Three questions, one table each: what does ST-PPO cost next to token PPO on the same batch; how much faster is GAE than
a Python loop over tokens; do time and memory grow linearly with the batch.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from turnwise.algorithm import Algorithm, compute_credit, compute_loss, make_scale, preset
from turnwise.batch import Scores, TokenBatch
from turnwise.ops.advantages import gae


def make_batch(tokens: int, *, seed: int = 0) -> TokenBatch:
    """About `tokens` tokens in episodes of 250 tokens and 1-10 turns; half of the tokens are the environment's."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(low: int, high: int, count: int) -> torch.Tensor:
        return torch.randint(low, high + 1, (count,), generator=generator)

    episodes = max(tokens // 250, 1)
    turns_S = uniform(1, 10, episodes)
    # Every turn is a run of environment tokens followed by a run of sampled ones; together an episode has 250 tokens.
    share_K = (250 // (2 * turns_S)).repeat_interleave(turns_S)
    run = share_K.repeat_interleave(2)
    sampled_T = (torch.arange(run.numel()) % 2 == 1).repeat_interleave(run)
    turn_T = torch.where(sampled_T, torch.arange(share_K.numel()).repeat_interleave(2 * share_K), -1)
    sequence_K = torch.arange(episodes).repeat_interleave(turns_S)
    sequence_T = sequence_K.repeat_interleave(2 * share_K)
    count, first_S = sequence_T.numel(), turns_S.cumsum(0) - turns_S
    length_S = torch.bincount(sequence_T, minlength=episodes)
    end_T = torch.zeros(count, dtype=torch.bool)
    end_T[length_S.cumsum(0) - 1] = True
    old_T = -torch.rand(count, generator=generator)
    reward_T = torch.where(end_T, torch.rand(count, generator=generator).round(), 0)
    return TokenBatch(
        ids_T=uniform(0, 999, count),
        position_T=torch.arange(count) - (length_S.cumsum(0) - length_S)[sequence_T],
        sequence_T=sequence_T,
        turn_T=turn_T,
        source_T=sampled_T.long(),
        reward_T=reward_T,
        sequence_K=sequence_K,
        index_K=torch.arange(sequence_K.numel()) - first_S[sequence_K],
        version_K=torch.zeros_like(sequence_K),
        anchor_K=torch.full_like(sequence_K, -1),
        length_S=length_S,
        trajectory_S=torch.arange(episodes),
        group_S=torch.arange(episodes) // 8,
        seat_S=torch.zeros(episodes, dtype=torch.long),
        truncated_S=torch.zeros(episodes, dtype=torch.bool),
        bootstrap_S=torch.zeros(episodes),
        mu_T=old_T,
        old_T=old_T,
        value_T=torch.rand(count, generator=generator),
        trajectory_names=tuple(map(str, range(episodes))),
    )


def update(row: Algorithm, batch: TokenBatch, logprob_T: torch.Tensor, value_T: torch.Tensor) -> None:
    """Credit, loss, clipping bias and gradient: everything between the model's two passes."""
    batch = compute_credit(row, batch)
    logprob_T = logprob_T.clone().requires_grad_()
    scores = Scores(logprob_T=logprob_T, value_T=value_T, collision_T=logprob_T.detach().exp() ** 2)
    loss = compute_loss(row, batch, scores)
    scale = make_scale(row)
    if scale is not None:
        scale.observe(loss, scores)
        scale.finish()
    loss.total.backward()


def gae_by_loop(reward: Any, value: Any, sampled: list[bool], ends: list[bool], advantage: Any) -> Any:
    """Token GAE as a plain loop over tokens; the columns may be tensors or, much faster in Python, lists."""
    following, after = 0.0, 0.0
    for t in range(len(reward) - 1, -1, -1):
        if ends[t]:
            following = after = 0.0
        if sampled[t]:
            after = reward[t] + following - value[t] + 0.95 * after
            advantage[t], following = after, value[t]
    return advantage


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Median time of `repeats` runs after one to warm up."""
    work()
    times: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def compare_algorithms(batch: TokenBatch, repeats: int) -> None:
    """Interleaved, so that a noisy machine hits all rows alike."""
    assert batch.old_T is not None
    assert batch.value_T is not None
    logprob_T = (batch.old_T + 0.4 * torch.randn(batch.tokens, generator=torch.Generator().manual_seed(1))).clamp_max(0)
    rows = {"ppo": preset("ppo"), "turn-ppo": preset("turn-ppo"), "st-ppo loss": preset("st-ppo")}
    rows["st-ppo logit"] = preset("st-ppo").override({"scale": {"estimator": "logit"}})
    times: dict[str, list[float]] = {name: [] for name in rows}
    for repeat in range(repeats + 1):
        for name, row in rows.items():
            start = time.perf_counter()
            update(row, batch, logprob_T, batch.value_T)
            if repeat:
                times[name].append(time.perf_counter() - start)
    plain = statistics.median(times["ppo"])
    print(f"\ncredit + loss + gradient, {batch.tokens:,} tokens, {batch.sequences:,} episodes")
    print(f"{'algorithm':<14}{'ms':>8}{'x ppo':>8}")
    for name, measured in times.items():
        middle = statistics.median(measured)
        print(f"{name:<14}{1e3 * middle:>8.0f}{middle / plain:>8.2f}")


def compare_gae(batch: TokenBatch, repeats: int) -> None:
    """Against the loop over tensors (timed on its first 20,000 tokens) and against the same loop over Python lists."""
    assert batch.value_T is not None
    ends_T = torch.zeros(batch.tokens, dtype=torch.bool)
    ends_T[batch.length_S.cumsum(0) - 1] = True
    sampled, ends, part = batch.sampled_T.tolist(), ends_T.tolist(), 20_000
    reward, value = batch.reward_T.tolist(), batch.value_T.tolist()
    ours = seconds(lambda: gae(batch, gamma=1.0, lam=0.95), repeats)
    lists = seconds(lambda: gae_by_loop(reward, value, sampled, ends, [0.0] * batch.tokens), 1)
    first = (batch.reward_T[:part], batch.value_T[:part], sampled, ends, torch.zeros(part))
    tensors = seconds(lambda: gae_by_loop(*first), 1) * batch.tokens / part
    expected = torch.tensor(gae_by_loop(reward, value, sampled, ends, [0.0] * batch.tokens))
    difference = float((gae(batch, gamma=1.0, lam=0.95).advantage_T - expected).abs().max())
    print(f"\ntoken GAE, {batch.tokens:,} tokens; largest difference to the loop {difference:.1e}")
    print(f"{'':<22}{'ms':>8}{'x ours':>8}")
    for name, elapsed in (("ours", ours), ("loop over tensors", tensors), ("loop over lists", lists)):
        print(f"{name:<22}{1e3 * elapsed:>8.0f}{elapsed / ours:>8.0f}")


def growth(sizes: list[int], repeats: int) -> None:
    row = preset("st-ppo")
    print(f"\nst-ppo by batch size\n{'tokens':>10}{'ms':>10}{'ns/token':>10}{'peak MB':>10}")
    for size in sizes:
        batch = make_batch(size)
        assert batch.old_T is not None
        assert batch.value_T is not None
        logprob_T, value_T = batch.old_T + 0.2, batch.value_T
        elapsed = seconds(lambda b=batch, p=logprob_T, v=value_T: update(row, b, p, v), repeats)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{batch.tokens:>10,}{1e3 * elapsed:>10.1f}{1e9 * elapsed / batch.tokens:>10.0f}{peak:>10.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    growth([10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000], options.repeats)
    batch = make_batch(options.tokens)
    compare_algorithms(batch, options.repeats)
    compare_gae(batch, options.repeats)


if __name__ == "__main__":
    main()
