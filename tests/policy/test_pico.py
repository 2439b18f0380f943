"""The pico model: made from a seed, read by transformers, spoken to through the renderer."""

import re
from random import Random

import pytest
import torch

from turnwise.envs.chat.reviews import SUBJECTS, WORDS, write_review
from turnwise.envs.classify.kinds_of_words import WORDS as KIND_WORDS
from turnwise.envs.classify.kinds_of_words import Kinds
from turnwise.envs.memory.memory_env import MemoryEnv
from turnwise.envs.memory.memory_facts import known_words
from turnwise.envs.plans.activities import LETTERS
from turnwise.envs.plans.planning import Planning
from turnwise.envs.plans.sentence_words import readings
from turnwise.envs.registry import make
from turnwise.envs.tasks.lookup import Lookup
from turnwise.policy.models import resolve_model
from turnwise.policy.pico import FAMILIES, build_model, build_tokenizer, pico_seed
from turnwise.policy.rendering import Renderer
from turnwise.policy.text import TextPolicy


def test_names_carry_the_seed():
    assert [pico_seed(name) for name in ("pico", "pico-7", "pico-", "nano", "runs/pico-7")] == [0, 7, None, None, None]
    assert [pico_seed(name) for name in ("pico-guess", "pico-chat-7", "pico-words-7")] == [0, 7, None]
    assert [pico_seed(name) for name in ("pico-moe", "pico-mixtral-7", "pico-moe-x")] == [0, 7, None]


def test_equal_seeds_make_equal_weights_and_leave_the_global_generator_alone():
    before = torch.random.get_rng_state()
    one, same, other = build_model(3), build_model(3), build_model(4)
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.lm_head.weight, other.lm_head.weight)


def test_it_loads_by_name_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path))
    policy = TextPolicy.load("pico-5")
    assert sum(parameter.numel() for parameter in policy.model.parameters()) == 57_840
    assert torch.equal(policy.model.lm_head.weight, build_model(5).lm_head.weight)
    assert resolve_model("pico-5") == str(next(tmp_path.iterdir()))


def test_every_word_of_the_task_is_one_token_and_comes_back():
    tokenizer = build_tokenizer()
    env = Lookup(hops=(1, 2, 3, 4))
    texts = [env.reset(seed=seed)[0] for seed in range(8)] + [env.sample_random_action(), "right", "wrong", "error"]
    for text in texts:
        ids = tokenizer.encode(text)
        assert len(ids) == len(text.split())
        assert tokenizer.decode(ids) == text


def test_every_phrase_of_guess_number_is_one_token_and_comes_back():
    tokenizer = build_tokenizer(FAMILIES["pico-guess"])
    env = make("game/guess-number-hard", max_turns=16)
    reset = env.reset(seed=1)
    assert isinstance(reset, tuple)
    opening = reset[0]
    assert len(tokenizer.encode(opening)) == 6
    texts, over = [opening], False
    while not over:
        action = env.sample_random_action()
        assert len(tokenizer.encode(action)) == 1
        step = env.step(action)
        assert isinstance(step, tuple)
        observation, _, terminated, truncated, _ = step
        over = terminated or truncated
        texts += [action] if terminated else [action, observation]
    assert len(texts) > 8
    assert all(len(tokenizer.encode(text)) == 4 for text in texts[2::2])
    assert [tokenizer.decode(tokenizer.encode(text)) for text in texts] == texts


def test_pico_chat_knows_exactly_the_words_of_reviews():
    assert set(FAMILIES["pico-chat"].words) == set(WORDS)
    assert len(FAMILIES["pico-chat"].words) == len(WORDS)
    tokenizer = build_tokenizer(FAMILIES["pico-chat"])
    texts = [SUBJECTS[7].prompt, write_review(Random(0), SUBJECTS[7])]
    assert [len(tokenizer.encode(text)) for text in texts] == [len(text.split()) for text in texts]
    assert [tokenizer.decode(tokenizer.encode(text)) for text in texts] == texts


def test_pico_classify_knows_exactly_the_words_of_kinds():
    assert sorted(FAMILIES["pico-classify"].words) == sorted(KIND_WORDS)
    tokenizer, env = build_tokenizer(FAMILIES["pico-classify"]), Kinds()
    texts = [env.reset(seed=1)[0], env.oracle()]
    assert [len(tokenizer.encode(text)) for text in texts] == [3, 3]
    assert [tokenizer.decode(tokenizer.encode(text)) for text in texts] == texts


@pytest.mark.parametrize("timed", [False, True])
def test_pico_plans_knows_all_words_of_terse_requests(timed: bool):
    tokenizer = build_tokenizer(FAMILIES["pico-plans"])
    env = Planning(sizes=[3, 6, 9], timed=timed, protocol="plain", prompt="terse")
    for seed in range(40):
        texts = [env.reset(seed=seed)[0], env.oracle(), env.step(env.oracle())[0]]
        assert [tokenizer.decode(tokenizer.encode(text)) for text in texts] == texts
        assert tokenizer.unk_token_id not in tokenizer.encode(" ".join(texts))
    env.reset(seed=1)
    assert tokenizer.unk_token_id not in tokenizer.encode(env.step("nonsense")[0])


def test_pico_plans_knows_no_word_that_requests_do_not_have():
    spoken = {word for phrase in readings() for word in phrase.split()} | {
        "which",
        "and",
        "but",
        "yet",
        "while",
        "whereas",
    }
    punctuation = {",", ";", ".", ":"}
    answers = {"done", "error", "in", "minutes", "30", "60", "90", "start_over", "new", "day", "begins."}
    words = {word for word in FAMILIES["pico-plans"].words if ":" not in word[1:]}
    assert words == {*spoken, *LETTERS, *punctuation, *answers}


def test_pico_memory_knows_exactly_the_words_of_terse_dialogues():
    asked = ["fact", "use", "answer", "what", "when", "of", "country", ":", ";", "ADD", "UPDATE", "DELETE", "NOOP"]
    assert {*FAMILIES["pico-memory"].words} == {*asked, *known_words(), *map(str, range(1, 81))}
    tokenizer = build_tokenizer(FAMILIES["pico-memory"])
    for seed in range(20):
        env = make("memory/both", prompt="terse", distil=None, split="validation", memories=66)
        assert isinstance(env, MemoryEnv)
        texts = [env.reset(seed=seed)[0], env.oracle(), env.step(env.oracle())[0], env.oracle()]
        assert [tokenizer.decode(tokenizer.encode(text)) for text in texts] == texts
        assert max(len(tokenizer.encode(text)) for text in texts) < FAMILIES["pico-memory"].context - 60


@pytest.mark.parametrize(
    ("name", "kind", "size"), [("pico-moe-5", "Qwen3Moe", 95_520), ("pico-mixtral-5", "Mixtral", 95_472)]
)
def test_mixtures_of_experts_load_from_files_with_the_weights_of_their_seed(
    name: str, kind: str, size: int, tmp_path, monkeypatch
):
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path))
    loaded, built = TextPolicy.load(name).model.state_dict(), build_model(5, FAMILIES[name.removesuffix("-5")])
    assert type(built).__name__ == f"{kind}ForCausalLM"
    assert sum(parameter.numel() for parameter in built.parameters()) == size
    assert loaded.keys() == built.state_dict().keys()
    assert all(torch.equal(loaded[key], weight) for key, weight in built.state_dict().items())


def test_families_are_models_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path))
    assert resolve_model("pico-guess-5") != resolve_model("pico-5")
    policy = TextPolicy.load("pico-guess-5")
    assert sum(parameter.numel() for parameter in policy.model.parameters()) == 66_192
    opening, turns, further, reply = 8, 16, 6, 3
    assert opening + turns * reply + (turns - 1) * further <= FAMILIES["pico-guess"].context


def test_unknown_words_read_as_a_question_mark():
    tokenizer = build_tokenizer()
    assert tokenizer.decode(tokenizer.encode("get a hippopotamus")) == "get a ?"


def test_a_conversation_grows_by_deltas_that_spell_the_template():
    renderer = Renderer(build_tokenizer())
    conversation = renderer.open()
    first = conversation.observe("2 hops from c f")
    assert renderer.decode(first.ids) == "<|user|>2 hops from c f<|agent|>"
    assert conversation.record([*renderer.encode("get c f"), *renderer.stop_ids]) == "get c f"
    second = conversation.observe("a h")
    assert (renderer.decode(second.ids), second.restarts, renderer.stats.altered) == ("<|user|>a h<|agent|>", False, 0)


def test_the_longest_episode_fits():
    question, turns, longest_turn, reply = 7, 5, 8, 4
    assert question + turns * (longest_turn + reply) <= FAMILIES["pico"].context


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nanoo", "there is no model 'nanoo'; did you mean nano?"),
        ("smollm2", "did you mean smollm2-135m?"),
        ("/nowhere/model", "there is no folder /nowhere/model"),
        ("./runs/mine", "there is no folder ./runs/mine"),
    ],
)
def test_a_slip_in_a_models_name_is_told_before_anyone_asks_the_hub(name: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        resolve_model(name)
