"""The largest model that one GPU trains, engine in the process: `python benchmarks/big.py`.

On CUDA: Qwen2.5-7B's shape with random bf16 weights. On CPU: a toy shape in bf16, to see that it runs. First it asks
how well engine and learner agree on what the engine sampled, and which roundings they disagree by. Then, for every way
to keep AdamW's state, it plays, learns from 8,192 tokens and publishes. `share` is that of the rate of one large matrix
product measured first, counting 6 FLOP per weight and token and causal attention, nothing that is done twice; `f+b` is
the same without clip and optimiser. `GiB` is the peak of what was allocated, `held` of what torch held, `said` what
`--dry-run` predicts.
"""

from __future__ import annotations

import os

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # read when torch starts

import argparse
import gc
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention, silu
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config

from turnwise.batch import TokenBatch
from turnwise.engine.contract import SamplingParams
from turnwise.engine.torch_engine import TorchEngine
from turnwise.learn.learner import Learner
from turnwise.policy.packed_rows import rows_before
from turnwise.policy.text import TextPolicy
from turnwise.recipe.loading import load_recipe
from turnwise.recipe.schema import Recipe
from turnwise.rollout.packing import pack
from turnwise.train.estimate import GIB, memory_by_part
from turnwise.types import Group, StopReason, Trajectory, Turn

TURNS = 2


@dataclass(frozen=True, kw_only=True)
class Size:
    """The model's shape, the tokens of a step, and how long each part may take."""

    config: Qwen2Config
    device: str
    sessions: int
    length: int
    matmul: int
    engine_gib: float
    seconds: float

    @property
    def turn_tokens(self) -> int:
        """Of the prompt, and as many sampled."""
        return self.length // (2 * TURNS)

    @property
    def work(self) -> float:
        """FLOP of one forward and backward pass; the head sees sampled tokens only."""
        c, tokens = self.config, self.sessions * self.length
        head_width = c.hidden_size // c.num_attention_heads
        attention = 2 * c.hidden_size * (c.num_attention_heads + (c.num_key_value_heads or 0)) * head_width
        layer = attention + 3 * c.hidden_size * c.intermediate_size + c.hidden_size * self.length
        return 6.0 * tokens * (c.num_hidden_layers * layer + c.vocab_size * c.hidden_size / 2)


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a step is taken."""

    algorithm: str
    masters: str = "residual"
    moments: str = "fp32"
    offload: str = "none"
    checkpointing: bool = True
    compiled: bool = False
    reference: bool = False

    def __str__(self) -> str:
        parts = [self.algorithm, f"{self.masters}+{self.moments}"]
        parts += ["offload"] if self.offload == "cpu" else []
        parts += ["reference"] if self.reference else []
        parts += [] if self.checkpointing else ["no checkpointing"]
        return ", ".join(parts + (["compiled"] if self.compiled else []))

    def recipe(self, size: Size, folder: str) -> Recipe:
        """What `turnwise train` would be given: one update on the whole batch."""
        row: dict[str, Any] = {"preset": self.algorithm, "minibatches": 1, "epochs": 1}
        row |= {} if self.reference else {"regularizers": []}
        rollout = {"episodes": size.sessions, "max_turns": TURNS, "max_tokens": size.turn_tokens}
        train = {"masters": self.masters, "moments": self.moments, "offload": self.offload, "critic": "shared"}
        return load_recipe(
            None,
            {
                "device": size.device,
                "model": {"name": folder, "dtype": "bf16", "checkpointing": self.checkpointing},
                "rollout": {**rollout, "context": size.length},
                "engine": {"memory_gib": size.engine_gib, "options": {"release": True}},
                "train": {**train, "micro_tokens": size.sessions * size.length, "learning_rate": 1e-6, "steps": 10},
                "algorithm": row,
            },
        )


WAYS = [
    Way(algorithm="st-ppo"),
    Way(algorithm="grpo", reference=True),
    Way(algorithm="grpo", masters="fp32"),
    Way(algorithm="grpo", moments="bf16"),
    Way(algorithm="grpo", moments="int8"),
    Way(algorithm="grpo", masters="stochastic", moments="bf16"),
    Way(algorithm="grpo", moments="bf16", checkpointing=False),
    Way(algorithm="grpo", offload="cpu"),
    Way(algorithm="st-ppo", compiled=True),
    Way(algorithm="grpo", moments="bf16", checkpointing=False, compiled=True),
]


class Clock:
    """Seconds by phase, with the device synchronised at both ends of each."""

    def __init__(self, device: str) -> None:
        self._device = device
        self.seconds: dict[str, list[float]] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = self.now()
        try:
            yield
        finally:
            self.seconds.setdefault(name, []).append(self.now() - started)

    def timed(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, with its time taken."""

        def run(*arguments: Any, **options: Any) -> Any:
            with self.phase(name):
                return work(*arguments, **options)

        return run

    def now(self) -> float:
        if self._device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def of(self, name: str) -> float:
        """The median, without the first time: kernels are chosen and compiled then."""
        taken = self.seconds.get(name, [0.0])
        return median(taken[1:] or taken)


def make_model(size: Size) -> PreTrainedModel:
    """Random weights, made where they are used."""
    torch.manual_seed(0)
    with torch.device(size.device):
        model: Any = AutoModelForCausalLM.from_config(size.config, dtype=torch.bfloat16)
    return model


def play(engine: TorchEngine, size: Size, round_: int) -> list[Group]:
    """Sessions of two turns with random prompts, as one group with random rewards."""
    generator = torch.Generator().manual_seed(round_)
    params = SamplingParams(max_tokens=size.turn_tokens)
    paths = [
        Trajectory(id=f"{round_}/{n}", turns=[], stop=StopReason.DONE, terminated=True) for n in range(size.sessions)
    ]
    for _ in range(TURNS):
        shape = (size.sessions, size.turn_tokens)
        prompts = torch.randint(0, size.config.vocab_size, shape, generator=generator).tolist()
        results = engine.run([(path.id, new, params) for path, new in zip(paths, prompts, strict=True)])
        for path, new, result in zip(paths, prompts, results, strict=True):
            path.turns.append(Turn(prompt_ids=new, sampled_ids=result.ids, logprobs=result.logprobs))
    for number, path in enumerate(paths):
        path.turns[-1].reward = float(number % 2)
        engine.close(path.id)
    return [Group(id=str(round_), trajectories=paths)]


def make_engine(model: PreTrainedModel, size: Size) -> TorchEngine:
    return TorchEngine(
        model, capacity=size.length, memory_bytes=int(size.engine_gib * GIB), chunk_tokens=8192, release=True
    )


def gap(ours: Tensor, theirs: Tensor) -> tuple[float, float]:
    """KL from theirs (k3 on what they sampled), and the largest difference of log-probs."""
    difference = (ours - theirs).double()
    return float((difference.expm1() - difference).mean()), float(difference.abs().max())


# Part 1: who rounds what.


def agreement(size: Size) -> None:
    """First as transformers initialises the model, then with layers that change the stream as little as trained ones.

    With random weights of width 3584 each layer adds as much as all before it, and the noise of every rounding grows
    from layer to layer.
    """
    model = make_model(size)
    print("\nweights as transformers initialises them", flush=True)
    who_rounds(model, size)
    body: Any = model.base_model
    with torch.no_grad():
        for layer in body.layers:
            for projection in (layer.self_attn.o_proj, layer.mlp.down_proj):
                projection.weight.mul_((2 * len(body.layers)) ** -0.5)
    print("\nthe same, what each layer adds divided by √(2 · layers), as GPT-2 is initialised", flush=True)
    who_rounds(model, size)


def who_rounds(model: PreTrainedModel, size: Size) -> None:
    """KL of engine, learner and others from the same model in single precision, on what the engine sampled."""
    policy = TextPolicy(model)
    groups = play(make_engine(model, size), size, 0)
    batch = pack(groups).to(size.device)
    assert batch.mu_T is not None
    engine_M = batch.mu_T[batch.sampled_T]
    learner_M = _scored(policy, batch)
    print(f"  {f'{engine_M.numel():,} sampled tokens':<66}{'KL':>10}{'max':>9}", flush=True)
    _line("learner from engine", learner_M, engine_M)
    hooks = _without_hooks(model)
    narrow_M = _scored(policy, batch)
    for saved, module in hooks:
        module._forward_hooks.update(saved)
    exact_M = rounded_scores(model, batch, frozenset())
    _line("engine from fp32", engine_M, exact_M)
    _line("learner from fp32", learner_M, exact_M)
    _line("learner with a bf16 residual stream from fp32", narrow_M, exact_M)
    _line("  the same from the learner", narrow_M, learner_M)
    for rounded in (*((place,) for place in PLACES), PLACES, PLACES[1:]):
        scores_M = rounded_scores(model, batch, frozenset(rounded))
        _line(f"fp32 with bf16 {', '.join(rounded)}, from fp32", scores_M, exact_M)


@torch.no_grad()
def _scored(policy: TextPolicy, batch: TokenBatch) -> Tensor:
    return policy.score(batch).logprob_T[batch.sampled_T]


def _line(name: str, ours: Tensor, theirs: Tensor) -> None:
    kl, most = gap(ours, theirs)
    print(f"  {name:<66}{kl:>10.1e}{most:>9.2f}", flush=True)


def _without_hooks(model: PreTrainedModel) -> list[tuple[dict[int, Any], Any]]:
    """Take the hooks of `residual_stream.py` off for a moment."""
    taken: list[tuple[dict[int, Any], Any]] = []
    for module in model.modules():
        if module._forward_hooks:
            taken.append((dict(module._forward_hooks), module))
            module._forward_hooks.clear()
    return taken


PLACES = ("residual", "norms", "attention", "feed-forward")


@torch.no_grad()
def rounded_scores(model: PreTrainedModel, batch: TokenBatch, rounded: frozenset[str]) -> Tensor:
    """Log-probs of the sampled tokens in single precision, with bf16 roundings in some places only."""

    def at(place: str, x: Tensor) -> Tensor:
        return x.bfloat16().float() if place in rounded else x

    body: Any = model.base_model
    last: Any = model.get_output_embeddings()
    embed, head = body.embed_tokens.weight, last.weight
    x = embed[batch.ids_T].float()
    cosine, sine = (each[0, :, None].float() for each in body.rotary_emb(x[None], batch.position_T[None]))
    for layer in body.layers:
        normed = at("norms", _normed(x, layer.input_layernorm))
        x = at("residual", x + _attention(layer.self_attn, normed, cosine, sine, batch, at))
        normed = at("norms", _normed(x, layer.post_attention_layernorm))
        mlp = layer.mlp
        gate, up = (at("feed-forward", _product(part, normed)) for part in (mlp.gate_proj, mlp.up_proj))
        inner = at("feed-forward", at("feed-forward", silu(gate)) * up)
        x = at("residual", x + at("feed-forward", _product(mlp.down_proj, inner)))
    token_M = batch.sampled_T.nonzero().squeeze(1)
    hidden_M = at("norms", _normed(x, body.norm))[rows_before(batch, token_M)]
    parts = []
    for rows in torch.arange(token_M.numel(), device=x.device).split(512):
        logits = hidden_M[rows] @ head.float().T
        parts.append(logits.log_softmax(-1).gather(1, batch.ids_T[token_M[rows], None]).squeeze(1))
    return torch.cat(parts)


def _normed(x: Tensor, norm: Any) -> Tensor:
    return norm.weight.float() * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.variance_epsilon)


def _product(module: Any, x: Tensor) -> Tensor:
    return linear(x, module.weight.float(), None if module.bias is None else module.bias.float())


def _attention(
    block: Any, x: Tensor, cosine: Tensor, sine: Tensor, batch: TokenBatch, at: Callable[[str, Tensor], Tensor]
) -> Tensor:
    def turned(states: Tensor) -> Tensor:
        first, second = states.chunk(2, dim=-1)
        return at("attention", states * cosine + torch.cat((-second, first), dim=-1) * sine)

    query, key, value = (
        at("attention", _product(part, x)).unflatten(1, (-1, block.head_dim))
        for part in (block.q_proj, block.k_proj, block.v_proj)
    )
    lengths, outputs = batch.length_S.tolist(), list[Tensor]()
    for q, k, v in zip(*(each.split(lengths) for each in (turned(query), turned(key), value)), strict=True):
        q, k, v = (each.transpose(0, 1)[None] for each in (q, k, v))
        outputs.append(scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1))
    return at("attention", _product(block.o_proj, at("attention", torch.cat(outputs).flatten(1))))


# Part 2: steps.


@dataclass(kw_only=True)
class Found:
    """What a way was measured to take."""

    clock: Clock
    kl: float = 0.0
    largest: float = 0.0
    peak: int = 0
    reserved: int = 0
    losses: list[float] = field(default_factory=list[float])


def steps(way: Way, policy: TextPolicy, engine: TorchEngine, size: Size, recipe: Recipe) -> Found:
    """Play, learn and publish, at least twice and until the time is over."""
    clock = Clock(size.device)
    found = Found(clock=clock)
    learner = Learner(policy, recipe.algorithm, recipe.train, seed=0)
    learner.optimizer.step = clock.timed("optimiser", learner.optimizer.step)
    learner.optimizer.clip = clock.timed("clip", learner.optimizer.clip)
    started, number = clock.now(), 0
    while number < 2 or (clock.now() - started < size.seconds and number < 6):
        number += 1
        with clock.phase("play"):
            groups = play(engine, size, number)
        if size.device == "cuda" and number == 2:
            torch.cuda.reset_peak_memory_stats()
        with clock.phase("score"):
            batch = learner.prepare(groups)
        assert batch is not None
        assert batch.mu_T is not None
        score_T = learner.score(batch) if batch.old_T is None else batch.old_T
        found.kl, found.largest = gap(score_T[batch.sampled_T], batch.mu_T[batch.sampled_T])
        score: Any = policy.score
        policy.score = clock.timed("forward", score)
        try:
            with clock.phase("learn"):
                report = learner.learn(batch, number)
        finally:
            policy.score = score
        found.losses.append(report.metrics["train/gradient_norm"])
        learner.free_gradients()
        if size.device == "cuda":
            found.peak, found.reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        with clock.phase("publish"):
            engine.publish(number)
    return found


HEADER = (
    f"{'way':<48}{'tokens/s':>9}{'share':>7}{'f+b':>7} | {'score':>6}{'fwd':>6}{'bwd':>6}{'clip':>6}{'adam':>6}"
    f"{'publ':>6}{'play':>6} | {'GiB':>6}{'held':>6}{'said':>6} | {'KL':>8}{'max':>6}{'norm':>8}"
)


def print_line(way: Way, found: Found, size: Size, rate: float, predicted: int) -> None:
    clock = found.clock
    learn, forward, clip, adam = (clock.of(name) for name in ("learn", "forward", "clip", "optimiser"))
    backward, tokens = learn - forward - clip - adam, size.sessions * size.length
    share, moving = (size.work / taken / rate for taken in (learn, learn - clip - adam))
    times = (clock.of("score"), forward, backward, clip, adam, clock.of("publish"), clock.of("play"))
    gib = (found.peak / GIB, found.reserved / GIB, predicted / GIB)
    print(
        f"{way!s:<48}{tokens / learn:>9,.0f}{share:>7.1%}{moving:>7.1%} | "
        + "".join(f"{seconds:>6.2f}" for seconds in times)
        + " | "
        + "".join(f"{size:>6.1f}" for size in gib)
        + f" | {found.kl:>8.1e}{found.largest:>6.2f}{found.losses[-1]:>8.2g}",
        flush=True,
    )


def learning(size: Size, ways: Sequence[Way], rate: float) -> None:
    """Every way on the same weights; a way that fails does not end the others."""
    model = make_model(size)
    print(f"\n{HEADER}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        size.config.save_pretrained(folder)
        for way in ways:
            recipe = way.recipe(size, folder)
            memory = memory_by_part(recipe, size.length, size.device)
            try:
                model.gradient_checkpointing_disable()
                policy = TextPolicy(model, checkpointing=way.checkpointing, compile_layers=way.compiled)
                engine = make_engine(model, size)
                print_line(way, steps(way, policy, engine, size, recipe), size, rate, sum(memory.values()))
            except Exception as error:  # the other ways still count
                print(f"{way!s:<48}failed: {type(error).__name__}: {str(error).splitlines()[0][:200]}", flush=True)
                traceback.print_exc()
            finally:
                policy = engine = None
                model.zero_grad(set_to_none=True)
                gc.collect()
                torch.cuda.empty_cache()
            print(
                "    said: " + ", ".join(f"{part} {size / GIB:.2f}" for part, size in memory.items() if size),
                flush=True,
            )


def matmul_rate(size: int, device: str) -> float:
    """FLOP per second of a square bf16 matrix product: the ceiling."""
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    clock = Clock(device)
    for repeats in (3, 10):
        started = clock.now()
        for _ in range(repeats):
            torch.mm(left, right)
    return 10 * 2.0 * size**3 / (clock.now() - started)


def make_size(arguments: argparse.Namespace) -> Size:
    on_gpu = arguments.device == "cuda"
    config = Qwen2Config(
        vocab_size=arguments.vocabulary or (152_064 if on_gpu else 512),
        hidden_size=arguments.width or (3584 if on_gpu else 64),
        intermediate_size=arguments.inner or (18_944 if on_gpu else 192),
        num_hidden_layers=arguments.layers or (28 if on_gpu else 3),
        num_attention_heads=arguments.heads or (28 if on_gpu else 4),
        num_key_value_heads=arguments.kv_heads or (4 if on_gpu else 2),
        max_position_embeddings=32_768,
        tie_word_embeddings=False,
    )
    length = arguments.length or (1024 if on_gpu else 32)
    tokens = arguments.tokens or (8192 if on_gpu else 256)
    return Size(
        config=config,
        device=arguments.device,
        sessions=tokens // length,
        length=length,
        matmul=8192 if on_gpu else 512,
        engine_gib=arguments.engine_gib or (4.0 if on_gpu else 0.01),
        seconds=arguments.seconds,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for name in ("layers", "width", "inner", "heads", "kv-heads", "vocabulary", "length", "tokens"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--engine-gib", type=float, help="memory for keys and values")
    parser.add_argument("--seconds", type=float, default=20, help="for each way, after its second step")
    parser.add_argument("--only", nargs="+", help="substrings of the ways to run")
    parser.add_argument("--parts", nargs="+", default=["agreement", "learning"])
    arguments = parser.parse_args()
    size = make_size(arguments)
    torch.backends.cuda.matmul.allow_tf32 = False
    rate = matmul_rate(size.matmul, size.device)
    machine = torch.cuda.get_device_name() if size.device == "cuda" else "CPU"
    print(f"{machine}, torch {torch.__version__}: {size.sessions} sessions of {size.length} tokens; ", end="")
    print(f"{size.work / 1e12:.1f} TFLOP a step; matrix product {rate / 1e12:.1f} TFLOP/s", flush=True)
    ways = [way for way in WAYS if size.device == "cuda" or not way.compiled]
    if arguments.only:
        ways = [way for way in WAYS if any(part in str(way) for part in arguments.only)]
    parts = {"agreement": lambda: agreement(size), "learning": lambda: learning(size, ways, rate)}
    for name in arguments.parts:
        try:
            parts[name]()
        except Exception:  # the other part still counts
            traceback.print_exc()
        finally:
            gc.collect()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
