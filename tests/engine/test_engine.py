"""The engine on the CPU: exact tokens, whatever is scheduled, evicted, shared or published."""

from __future__ import annotations

import random

import pytest
import torch

from tests.engine.conversations import greedy_by_transformers, logprobs_by_transformers, play, whole
from tests.engine.shapes import CONTEXT, SHAPES, VOCABULARY, small_model
from turnwise.engine.contract import Completion, Finish, SamplingParams
from turnwise.engine.memory import slots_within
from turnwise.engine.runners import cache_shape
from turnwise.engine.torch_engine import TorchEngine

MANY, FEW = 2**24, 5
GREEDY = SamplingParams(temperature=0, max_tokens=8)
SAMPLED = SamplingParams(max_tokens=8, stop_ids=(3, 4, 5))


def bytes_for(slots: int, shape: str = "llama", capacity: int = 120) -> int:
    return slots * cache_shape(small_model(shape)).bytes_per_slot(capacity)


@pytest.mark.parametrize("shape", SHAPES)
def test_greedy_output_equals_transformers_over_ragged_turns(shape: str) -> None:
    model = small_model(shape)
    engine = TorchEngine(model, capacity=120, memory_bytes=MANY, chunk_tokens=7)
    for turns in play(engine, GREEDY).values():
        history: list[int] = []
        for new, result in turns:
            history += new
            assert list(result.ids) == greedy_by_transformers(model, history, 8)
            history += result.ids


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_logprobs_are_those_of_the_sampled_distribution_with_joins_leaves_and_evictions(
    shape: str, temperature: float
) -> None:
    model = small_model(shape)
    engine = TorchEngine(model, capacity=120, memory_bytes=bytes_for(FEW, shape), chunk_tokens=11)
    played = play(engine, SamplingParams(temperature=temperature, max_tokens=8, stop_ids=(3, 4, 5)), sessions=12)
    assert engine.counts["evicted"] > 0
    for turns in played.values():
        actual = torch.tensor([logprob for _, result in turns for logprob in result.logprobs])
        assert float((actual - logprobs_by_transformers(model, turns, temperature)).abs().mean()) < 1e-5


@pytest.mark.parametrize("shape", SHAPES)
def test_a_session_does_not_notice_who_else_is_served_or_how(shape: str) -> None:
    model = small_model(shape)
    alone = play(TorchEngine(model, capacity=120, memory_bytes=MANY, max_batch=1), SAMPLED, sessions=6, seed=1)
    crowd = TorchEngine(model, capacity=120, memory_bytes=bytes_for(4, shape), chunk_tokens=5)
    for n in range(7):
        crowd.submit(f"other{n}", [n + 1] * (n + 1), SAMPLED, lambda _: None)
    together = play(crowd, SAMPLED, sessions=6, seed=1)
    assert {name: whole(turns) for name, turns in alone.items()} == {name: whole(t) for name, t in together.items()}


def test_seeds_and_session_names_decide_the_tokens() -> None:
    model = small_model("llama")
    first = play(TorchEngine(model, memory_bytes=MANY, seed=0), SAMPLED)
    again = play(TorchEngine(model, memory_bytes=MANY, seed=0), SAMPLED)
    other = play(TorchEngine(model, memory_bytes=MANY, seed=1), SAMPLED)
    assert {n: whole(t) for n, t in first.items()} == {n: whole(t) for n, t in again.items()}
    assert {n: whole(t) for n, t in first.items()} != {n: whole(t) for n, t in other.items()}


def test_sampled_frequencies_match_the_softmax() -> None:
    model = small_model("llama")
    engine = TorchEngine(model, capacity=8, memory_bytes=MANY, max_batch=4096)
    params = SamplingParams(temperature=1.3, max_tokens=1)
    results = engine.run([(f"s{n}", [5, 6, 7], params) for n in range(8000)])
    counts = torch.bincount(torch.tensor([result.ids[0] for result in results]), minlength=VOCABULARY).double()
    with torch.no_grad():
        expected = (model(torch.tensor([[5, 6, 7]])).logits[0, -1].double() / 1.3).softmax(-1) * 8000
    big = expected > 5
    chi_square, freedom = float(((counts - expected)[big] ** 2 / expected[big]).sum()), int(big.sum())
    # Five standard deviations of a chi-square: a wrong distribution is far beyond.
    assert chi_square < freedom + 5 * (2 * freedom) ** 0.5


def test_a_turn_runs_only_its_new_tokens() -> None:
    engine = TorchEngine(small_model("llama"), memory_bytes=MANY)
    first = engine.run([("a", [1, 2, 3, 4, 5], GREEDY)])[0]
    assert engine.counts["prefilled"] == 5
    engine.run([("a", [6, 7], GREEDY)])
    # The last sampled token was never fed back, so it is run with the two new ones.
    assert engine.counts["prefilled"] == 5 + 1 + 2
    assert engine.counts["sampled"] == len(first.ids) + 8


def test_tries_at_one_task_run_their_prompt_once() -> None:
    model = small_model("qwen3")
    prompt = list(range(1, 31))
    shared = TorchEngine(model, memory_bytes=MANY)
    results = shared.run([(f"try{n}", prompt, SAMPLED) for n in range(8)])
    # One full prompt, and for each other try the last token only.
    assert shared.counts["prefilled"] == 30 + 7
    assert shared.counts["shared"] == 7 * 29
    apart = TorchEngine(model, memory_bytes=MANY, share_prompts=False)
    assert [r.ids for r in results] == [r.ids for r in apart.run([(f"try{n}", prompt, SAMPLED) for n in range(8)])]


def test_an_evicted_session_goes_on_exactly() -> None:
    model = small_model("llama")
    roomy = play(TorchEngine(model, capacity=120, memory_bytes=MANY), SAMPLED, sessions=10)
    tight = TorchEngine(model, capacity=120, memory_bytes=bytes_for(1))
    cramped = play(tight, SAMPLED, sessions=10)
    assert tight.slots == 1
    assert tight.counts["evicted"] >= 20
    assert {n: whole(t) for n, t in roomy.items()} == {n: whole(t) for n, t in cramped.items()}


def test_an_idle_session_with_the_same_prompt_does_not_keep_the_only_slot() -> None:
    model = small_model("llama")
    engine = TorchEngine(model, capacity=120, memory_bytes=bytes_for(1))
    prompt = list(range(1, 20))
    first, second = (engine.run([(name, prompt, GREEDY)])[0] for name in ("a", "b"))
    assert first.ids == second.ids


def changed(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.05)


@pytest.mark.parametrize("recompute", [True, False])
def test_published_weights_are_live_at_once_and_kept_keys_are_recorded(recompute: bool) -> None:
    model = small_model("llama")
    engine = TorchEngine(model, memory_bytes=MANY, recompute=recompute)
    first = engine.run([("a", [1, 2, 3, 4], GREEDY)])[0]
    changed(model)
    engine.publish(1)
    second = engine.run([("a", [5, 6], GREEDY)])[0]
    assert list(second.versions) == [1] * 8
    assert second.oldest_version == (1 if recompute else 0)
    turns = [([1, 2, 3, 4], first), ([5, 6], second)]
    gap = (torch.tensor(second.logprobs) - logprobs_by_transformers(model, turns)[-8:]).abs().max()
    # Kept keys and values belong to the old weights, and show it.
    assert (float(gap) < 1e-5) == recompute


def test_weights_may_change_in_the_middle_of_a_turn() -> None:
    model = small_model("llama")
    engine = TorchEngine(model, memory_bytes=MANY, recompute=True)
    results: list[Completion] = []
    engine.submit("a", [1, 2, 3], GREEDY, results.append)
    for _ in range(4):
        engine.step()
    changed(model)
    engine.publish(7)
    while engine.step():
        pass
    (result,) = results
    assert list(result.versions) == [0] * 4 + [7] * 4
    tail = [([1, 2, 3], result)]
    gap = torch.tensor(result.logprobs[4:]) - logprobs_by_transformers(model, tail)[4:]
    assert float(gap.abs().max()) < 1e-5


class Alphabet:
    """A tokenizer of letters."""

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(ord("a") + token % 26) for token in ids)


def test_stop_tokens_and_stop_strings_end_a_turn_and_stay_in_it() -> None:
    model = small_model("llama")
    engine = TorchEngine(model, tokenizer=Alphabet(), memory_bytes=MANY)
    free = engine.run([("a", [1, 2, 3], SamplingParams(max_tokens=40))])[0]
    assert free.finish is Finish.MAX_TOKENS
    engine.close("a")
    stopped = engine.run([("a", [1, 2, 3], SamplingParams(max_tokens=40, stop_ids=(free.ids[5],)))])[0]
    end = list(free.ids).index(free.ids[5]) + 1
    assert (list(stopped.ids), stopped.finish) == (list(free.ids[:end]), Finish.STOP)
    engine.close("a")
    word = Alphabet().decode(list(free.ids[7:9]))
    cut = engine.run([("a", [1, 2, 3], SamplingParams(max_tokens=40, stop_strings=(word,)))])[0]
    assert Alphabet().decode(list(cut.ids)).endswith(word)
    assert Alphabet().decode(list(cut.ids)).count(word) == 1


def distribution(params: SamplingParams, draws: int = 600) -> tuple[set[int], list[Completion]]:
    engine = TorchEngine(small_model("llama"), capacity=8, memory_bytes=MANY)
    results = engine.run([(f"s{n}", [5, 6, 7], params) for n in range(draws)])
    return {result.ids[0] for result in results}, results


def probabilities() -> torch.Tensor:
    with torch.no_grad():
        return small_model("llama")(torch.tensor([[5, 6, 7]])).logits[0, -1].softmax(-1)


def test_top_k_keeps_the_k_most_likely_and_reports_their_renormalised_logprobs() -> None:
    seen, results = distribution(SamplingParams(top_k=3, max_tokens=1))
    best = probabilities().topk(3)
    assert seen == set(best.indices.tolist())
    renormalised = dict(zip(best.indices.tolist(), (best.values / best.values.sum()).log().tolist(), strict=True))
    assert results[0].logprobs[0] == pytest.approx(renormalised[results[0].ids[0]], abs=1e-5)


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    seen, _ = distribution(SamplingParams(top_p=0.5, max_tokens=1))
    ordered = probabilities().sort(descending=True)
    size = int((ordered.values.cumsum(0) < 0.5).sum()) + 1
    assert seen == set(ordered.indices[:size].tolist())


def test_min_p_drops_what_is_far_less_likely_than_the_best() -> None:
    seen, _ = distribution(SamplingParams(min_p=0.4, max_tokens=1))
    chances = probabilities()
    assert seen == set((chances >= 0.4 * chances.max()).nonzero().squeeze(1).tolist())


def test_bad_tokens_are_never_sampled() -> None:
    best = probabilities().topk(2).indices.tolist()
    result = distribution(SamplingParams(temperature=0, bad_ids=(best[0],), max_tokens=1), draws=1)[1][0]
    assert result.ids[0] == best[1]


def test_the_most_likely_tokens_are_reported_on_request() -> None:
    result = distribution(SamplingParams(temperature=0, top_logprobs=4, max_tokens=2), draws=1)[1][0]
    best = probabilities().topk(4)
    assert [token for token, _ in result.top[0]] == best.indices.tolist()
    assert [p for _, p in result.top[0]] == pytest.approx(best.values.log().tolist(), abs=1e-5)
    assert len(result.top) == 2


def test_trouble_is_a_value_and_other_sessions_go_on() -> None:
    model = small_model("llama")
    engine = TorchEngine(model, capacity=20, memory_bytes=MANY)
    too_long, fills_up, fine = engine.run(
        [("long", [1] * 25, GREEDY), ("full", [1] * 15, SamplingParams(max_tokens=50)), ("fine", [1, 2, 3], GREEDY)]
    )
    assert (too_long.finish, list(too_long.ids)) == (Finish.CONTEXT_FULL, [])
    assert (fills_up.finish, len(fills_up.ids)) == (Finish.CONTEXT_FULL, 5)
    assert list(fine.ids) == greedy_by_transformers(model, [1, 2, 3], 8)


def test_closing_a_session_while_it_is_served_cancels_it_and_frees_its_slot() -> None:
    engine = TorchEngine(small_model("llama"), memory_bytes=MANY)
    results: list[Completion] = []
    engine.submit("a", [1, 2, 3], GREEDY, results.append)
    engine.step()
    engine.step()
    engine.close("a")
    engine.close("a")
    assert results[0].finish is Finish.CANCELLED
    assert not engine.step()
    assert len(engine._free) == engine.slots  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("session", "ids", "params", "message"),
    [
        ("new", [], GREEDY, "starts with an empty prompt"),
        ("new", [VOCABULARY], GREEDY, f"token {VOCABULARY} is outside the vocabulary of {VOCABULARY}"),
        ("new", [1], SamplingParams(stop_strings=("x",)), "stop strings need a tokenizer"),
        ("busy", [1], GREEDY, "is still generating"),
    ],
)
def test_bad_requests_are_refused_with_the_fix(
    session: str, ids: list[int], params: SamplingParams, message: str
) -> None:
    engine = TorchEngine(small_model("llama"), memory_bytes=MANY)
    engine.submit("busy", [1, 2], GREEDY, lambda _: None)
    with pytest.raises(ValueError, match=message):
        engine.submit(session, ids, params, lambda _: None)


def test_a_memory_budget_or_capacity_that_cannot_work_is_refused() -> None:
    model = small_model("llama")
    with pytest.raises(ValueError, match=r"raise memory_bytes \(engine.memory_gib in a recipe\)"):
        TorchEngine(model, memory_bytes=100)
    with pytest.raises(ValueError, match=f"the model's context of {CONTEXT} tokens"):
        TorchEngine(model, capacity=CONTEXT + 1)
    assert slots_within(bytes_for(3), cache_shape(model), 120) == 3


@pytest.mark.parametrize("bad", [{"temperature": -1}, {"top_p": 0}, {"max_tokens": 0}, {"stop_strings": ("",)}])
def test_impossible_sampling_settings_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"must|empty"):
        SamplingParams(**bad)  # pyright: ignore[reportArgumentType]


def test_random_schedules_never_change_a_session() -> None:
    """Joins, leaves, cancellations and evictions in random order: every finished turn equals the undisturbed one."""
    model, rng = small_model("qwen2"), random.Random(0)
    engine = TorchEngine(model, capacity=60, memory_bytes=bytes_for(3, "qwen2", 60), chunk_tokens=6, max_batch=4)
    history: dict[str, list[int]] = {}
    turns: dict[str, list[tuple[list[int], Completion]]] = {}
    idle: set[str] = set()
    for _ in range(300):
        if rng.random() < 0.3:
            name = rng.choice(sorted(idle)) if idle and rng.random() < 0.6 else f"s{len(history)}"
            idle.discard(name)
            new = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 9))]
            history.setdefault(name, [])
            turns.setdefault(name, [])

            def done(result: Completion, name: str = name, new: list[int] = new) -> None:
                turns[name].append((new, result))
                if result.finish is not Finish.CONTEXT_FULL:
                    idle.add(name)

            engine.submit(name, new, SamplingParams(max_tokens=4), done)
        engine.step()
    while engine.step():
        pass
    alone = TorchEngine(model, capacity=60, memory_bytes=MANY, max_batch=1)
    assert sum(len(t) for t in turns.values()) > 40
    for name, played in turns.items():
        for new, result in played:
            expected = alone.run([(name, new, SamplingParams(max_tokens=4))])[0]
            assert list(result.ids) == list(expected.ids)
