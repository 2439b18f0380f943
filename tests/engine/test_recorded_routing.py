"""The experts that the engine reports: one row per token that it ran, and the learner's own where weights are equal."""

from __future__ import annotations

import random

import pytest
import torch

from tests.engine.test_families import SAMPLED, Played, engine_logprobs, learner_logprobs, play
from tests.model_families import ROOM, make_family
from turnwise.batch import TokenBatch
from turnwise.engine.contract import SamplingParams
from turnwise.engine.runners import cache_shape
from turnwise.engine.torch_engine import TorchEngine
from turnwise.expert_routing import ExpertRecorder, ExpertReplay, Routing
from turnwise.policy.pico import FAMILIES, build_model
from turnwise.policy.sampling_copy import SamplingCopy, SamplingPrecision
from turnwise.policy.text import TextPolicy
from turnwise.rollout.packing import pack
from turnwise.types import ANY_EXPERT, Group, StopReason, Trajectory, Turn


def engine_of(policy: TextPolicy, *, slots: int = 5, recompute: bool = False) -> TorchEngine:
    memory = slots * (cache_shape(policy.model).bytes_per_slot(ROOM) + 2 * 4 * ROOM)
    return TorchEngine(
        policy.model, memory_bytes=memory, chunk_tokens=7, max_batch=8, routing=True, recompute=recompute
    )


def packed(played: Played) -> TokenBatch:
    trajectories = [
        Trajectory(
            id=name,
            turns=[
                Turn(prompt_ids=new, sampled_ids=list(result.ids), streams={"routing": result.routing})
                for new, result in turns
            ],
            stop=StopReason.DONE,
            terminated=True,
        )
        for name, turns in played.items()
    ]
    return pack([Group(id="g", trajectories=trajectories)])


@pytest.mark.parametrize("family", ["qwen3-moe", "mixtral", "olmoe"])
def test_every_token_but_the_last_has_the_learners_experts_with_shared_prompts_and_evictions(family: str) -> None:
    policy = TextPolicy(make_family(family))
    engine = engine_of(policy, slots=3)
    played = play(engine)
    assert engine.counts["shared"] > 0
    assert engine.counts["evicted"] > 0
    batch, recording = packed(played), ExpertRecorder()
    with torch.no_grad():
        policy.score(batch, routing=recording)
    last_T = torch.zeros(batch.tokens, dtype=torch.bool)
    last_T[batch.length_S.cumsum(0) - 1] = True
    found = batch.extra_T["routing"]
    assert bool((found[last_T] == ANY_EXPERT).all())
    assert torch.equal(found[~last_T], recording.experts()[~last_T])
    torch.testing.assert_close(engine_logprobs(played), learner_logprobs(policy, played), rtol=0, atol=1e-5)


def test_a_row_is_reported_once_even_if_keys_and_values_are_computed_again() -> None:
    policy = TextPolicy(make_family("qwen3-moe"))
    engine = engine_of(policy, recompute=True)
    first = engine.run([("s", [1, 2, 3], SAMPLED)])[0]
    assert len(first.routing) == 3 + len(first.ids) - 1
    engine.publish(1)
    second = engine.run([("s", [4, 5], SAMPLED)])[0]
    assert (
        len(second.routing) == 1 + 2 + len(second.ids) - 1
    )  # the last token of before, the new ones, all but the last
    assert {len(row) for row in second.routing} == {4}


def test_an_engine_reports_experts_only_if_asked_and_a_dense_model_has_none() -> None:
    policy = TextPolicy(make_family("qwen3-moe"))
    assert TorchEngine(policy.model, memory_bytes=2**20).run([("s", [1], SAMPLED)])[0].routing == []
    with pytest.raises(ValueError, match=r"Llama.* has no experts .* set algorithm\.routing=free, or use a mixture"):
        TorchEngine(make_family("llama"), memory_bytes=2**20, routing=True)


def test_more_rows_than_tokens_are_refused_by_name() -> None:
    turn = Turn(prompt_ids=[1], sampled_ids=[2, 3], streams={"routing": [[0, 1]] * 3})
    one = Trajectory(id="t", turns=[turn], stop=StopReason.DONE, terminated=True)
    with pytest.raises(ValueError, match=r"trajectory 't', turn 0: 3 rows of routing for a sequence of 3 tokens"):
        pack([Group(id="g", trajectories=[one])])


@pytest.mark.parametrize("precision", ["bf16", "int8"])
@pytest.mark.parametrize("family", ["pico-moe", "pico-mixtral"])
def test_with_the_samplers_experts_the_kl_to_a_rounded_sampler_is_a_third_or_less(
    family: str, precision: SamplingPrecision
) -> None:
    policy = TextPolicy(build_model(3, FAMILIES[family]))
    sampler = SamplingCopy(policy, precision)
    sampler.refresh()
    rng = random.Random(0)
    prompts = [[rng.randrange(5, 24) for _ in range(8)] for _ in range(96)]
    asked = [(str(number), prompt, SamplingParams(max_tokens=48)) for number, prompt in enumerate(prompts)]
    completions = TorchEngine(sampler.model, memory_bytes=2**26, routing=True).run(asked)
    batch = packed({name: [(prompt, each)] for (name, prompt, _), each in zip(asked, completions, strict=True)})
    mu = torch.tensor([logprob for each in completions for logprob in each.logprobs], dtype=torch.float64)

    @torch.no_grad()
    def kl(routing: Routing) -> float:
        gap = policy.score(batch, routing=routing).logprob_T[batch.sampled_T].double() - mu
        return float((gap.expm1() - gap).mean())

    recording = ExpertRecorder()
    free, replayed = kl(recording), kl(ExpertReplay(batch.extra_T["routing"]))
    known_T = batch.extra_T["routing"][:, 0] != ANY_EXPERT
    rerouted = (recording.experts() != batch.extra_T["routing"])[known_T].float().mean()
    assert 0.005 < float(rerouted) < 0.05
    assert 0 < replayed < free / 3
