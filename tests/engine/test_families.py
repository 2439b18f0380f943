"""Every family of docs/models.md in the engine: the learner's log-probs over turns that outgrow the window."""

from __future__ import annotations

import random
import threading

import pytest
import torch
from transformers import PreTrainedModel

from tests.engine.conversations import logprobs_by_transformers
from tests.model_families import FAMILIES, REFUSED, ROOM, WINDOW, WORDS, make_family
from tests.policy.shapes import RAGGED, make_batch
from turnwise.engine.contract import Completion, SamplingParams
from turnwise.engine.runners import cache_shape
from turnwise.engine.torch_engine import TorchEngine
from turnwise.policy.text import TextPolicy
from turnwise.rollout.packing import pack
from turnwise.types import Group, StopReason, Trajectory, Turn

SAMPLED = SamplingParams(max_tokens=9)
Played = dict[str, list[tuple[list[int], Completion]]]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"))]


def engine_of(model: PreTrainedModel, *, slots: int = 5, max_batch: int = 8, share_prompts: bool = True) -> TorchEngine:
    memory = slots * cache_shape(model).bytes_per_slot(ROOM)
    return TorchEngine(model, memory_bytes=memory, chunk_tokens=7, max_batch=max_batch, share_prompts=share_prompts)


def play(engine: TorchEngine, *, sessions: int = 5, turns: int = 3) -> Played:
    """Tries at one task: a shared prompt longer than the window, then ragged turns of their own."""
    rng = random.Random(0)
    prompt = [rng.randrange(WORDS) for _ in range(2 * WINDOW)]
    played: Played = {f"s{n}": [] for n in range(sessions)}
    for turn in range(turns):
        news = {name: [rng.randrange(WORDS) for _ in range(rng.randint(1, 12))] if turn else prompt for name in played}
        results = engine.run([(name, new, SAMPLED) for name, new in news.items()])
        for (name, new), result in zip(news.items(), results, strict=True):
            played[name].append((new, result))
    return played


def learner_logprobs(policy: TextPolicy, played: Played) -> torch.Tensor:
    trajectories = [
        Trajectory(
            id=name,
            turns=[Turn(prompt_ids=new, sampled_ids=list(result.ids)) for new, result in turns],
            stop=StopReason.DONE,
            terminated=True,
            truncated=False,
        )
        for name, turns in played.items()
    ]
    batch = pack([Group(id="g", trajectories=trajectories)]).to(policy.model.device)
    with torch.no_grad():
        return policy.score(batch).logprob_T[batch.sampled_T].cpu()


def engine_logprobs(played: Played) -> torch.Tensor:
    return torch.tensor([p for turns in played.values() for _, result in turns for p in result.logprobs])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_are_the_learners_with_shared_prompts_and_evictions(family: str, device: str) -> None:
    policy = TextPolicy(make_family(family, device=device))
    engine = engine_of(policy.model, slots=3)
    played = play(engine)
    assert engine.counts["shared"] > 0
    assert engine.counts["evicted"] > 0
    found, plain = engine_logprobs(played), make_family(family, device=device)
    torch.testing.assert_close(found, learner_logprobs(policy, played), rtol=0, atol=1e-5 if device == "cpu" else 1e-4)
    plain.set_attn_implementation("eager")
    expected = torch.cat([logprobs_by_transformers(plain, turns) for turns in played.values()])
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5 if device == "cpu" else 1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_batch_mates_slots_and_chunks_change_no_token(family: str) -> None:
    model = make_family(family)
    cramped = play(engine_of(model, slots=2), sessions=3)
    lonely = play(engine_of(model, max_batch=1, share_prompts=False), sessions=3)
    assert [[result.ids for _, result in turns] for turns in cramped.values()] == [
        [result.ids for _, result in turns] for turns in lonely.values()
    ]
    torch.testing.assert_close(engine_logprobs(cramped), engine_logprobs(lonely), rtol=0, atol=2e-5)


def test_a_window_hides_what_lies_before_it() -> None:
    model = make_family("mistral-window")
    reach = 2 * (WINDOW - 1)  # of two layers
    news = [[1, *range(3, 4 + reach)], [2, *range(3, 4 + reach)]]
    first, second = engine_of(model).run([(f"s{n}", new, SAMPLED) for n, new in enumerate(news)])
    same_seed = [engine_of(model).run([("s", new, SAMPLED)])[0] for new in news]
    assert first.ids != second.ids  # each session has numbers of its own
    assert same_seed[0].ids == same_seed[1].ids
    assert list(same_seed[0].logprobs) == pytest.approx(list(same_seed[1].logprobs), abs=1e-6)


@pytest.mark.parametrize("family", [name for name, (*_, why) in REFUSED.items() if why])
def test_a_family_that_the_engine_would_run_wrongly_is_refused_with_the_reason(family: str) -> None:
    with pytest.raises(ValueError, match=REFUSED[family][3]):
        TorchEngine(make_family(family))


def test_the_learner_may_run_the_model_in_the_middle_of_a_step_of_the_engine() -> None:
    policy, batch = TextPolicy(make_family("gemma2")), make_batch(RAGGED)
    quiet, expected = engine_of(policy.model).run([("a", [1, 2, 3], SAMPLED)])[0], policy.score(batch).logprob_T
    found: list[torch.Tensor] = []

    def learn(*_: object) -> None:
        if not found and threading.current_thread() is threading.main_thread():
            learner = threading.Thread(target=lambda: found.append(policy.score(batch).logprob_T))
            learner.start()
            learner.join()

    engine = engine_of(policy.model)
    policy.model.get_submodule("model.layers.0").register_forward_hook(learn)
    busy = engine.run([("a", [1, 2, 3], SAMPLED)])[0]
    assert (list(busy.ids), list(busy.logprobs)) == (list(quiet.ids), list(quiet.logprobs))
    assert torch.equal(found[0], expected)


def test_a_model_is_left_as_it_was() -> None:
    model = make_family("gemma2").train()
    usual = model.config._attn_implementation
    engine_of(model).run([("a", [1, 2, 3], SAMPLED)])
    assert (model.config._attn_implementation, model.training) == (usual, True)
