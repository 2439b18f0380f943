"""Dialogues with a memory: the expert answers everything, compatible facts need an UPDATE, any turn has a result."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from turnwise.envs.base import Env, Info
from turnwise.envs.memory.memory_bank import Event
from turnwise.envs.memory.memory_env import MemoryEnv
from turnwise.envs.memory.memory_questions import KINDS as QUESTIONS
from turnwise.envs.memory.memory_story import KINDS as FACTS
from turnwise.envs.registry import make

TERSE: dict[str, Any] = {"prompt": "terse", "memories": 8}
FORMS = [
    ("memory/manage", {}),
    ("memory/manage", TERSE),
    ("memory/manage", {**TERSE, "turns": 4}),
    ("memory/answer", {"memories": 20}),
    ("memory/answer", {**TERSE, "memories": 66, "distil": None}),
    ("memory/answer", {"memories": 12, "bank": "raw", "distil": False}),
    ("memory/both", {"memories": 12}),
    ("memory/both", {**TERSE, "turns": 2, "candidates": [3, 12]}),
]


def play(env: Env, seed: int, act: Any) -> tuple[float, Info]:
    reset = env.reset(seed=seed)
    assert isinstance(reset, tuple)
    reward, over, info = 0.0, False, reset[1]
    while not over:
        step = env.step(act(env))
        assert isinstance(step, tuple)
        _, reward, over, _, info = step
    return reward, info


def oracle(env: Env) -> str:
    return env.oracle()


@pytest.mark.parametrize(("name", "options"), FORMS, ids=str)
def test_the_expert_answers_every_question_in_every_form(name: str, options: dict[str, Any]) -> None:
    for split in ("train", "validation"):
        env = make(name, split=split, **options)
        assert all(play(env, seed, oracle)[0] == 1.0 for seed in range(20))


def test_all_kinds_of_facts_and_questions_occur() -> None:
    env, facts, questions = make("memory/manage", **TERSE), Counter[str](), Counter[str]()
    for seed in range(300):
        env.reset(seed=seed)
        assert isinstance(env, MemoryEnv)
        assert env.case is not None
        assert env.case.story is not None
        facts[env.case.story.facts[-1].kind] += 1
        questions[env.case.kind] += 1
    assert set(facts) == set(FACTS)
    assert set(questions) == set(QUESTIONS)


def scene(said: str, *, question: str) -> MemoryEnv:
    """A terse episode with such a fact and such a question."""
    env = make("memory/manage", **TERSE)
    assert isinstance(env, MemoryEnv)
    for seed in range(20_000):
        env.reset(seed=seed)
        case = env.case
        assert case is not None
        assert case.said[0].fact is not None
        if case.said[0].fact.kind == said and case.kind == question:
            return env
    raise AssertionError("no such episode")


def test_a_compatible_fact_is_kept_only_by_an_update_that_keeps_the_old_one() -> None:
    env = scene("compatible", question="single-hop")
    assert env.case is not None
    right, fact = env.oracle().split(), env.case.said[0].text
    state = env.get_state()
    assert right[0] == "UPDATE"
    outcomes = {}
    for action in (" ".join(right), f"UPDATE {right[1]} {fact}", f"ADD {fact}", f"DELETE {right[1]}", "NOOP", "hm"):
        env.set_state(state)
        step = env.step(action)
        outcomes[action.split()[0] + str(len(action.split()))] = step[1]
        assert step[4]["valid"] == (action != "hm")
        assert step[4]["scores"]["compatible_update"] == float(action.startswith("UPDATE"))
        assert step[4]["scores"]["compatible_delete"] == float(action.startswith("DELETE"))
    assert [*outcomes.values()] == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("kind", "event"),
    [("new", "ADD"), ("contradicted", "UPDATE"), ("refined", "UPDATE"), ("repeated", "NOOP"), ("chatter", "NOOP")],
)
def test_each_kind_of_fact_needs_its_operation(kind: str, event: str) -> None:
    question = "temporal" if kind == "refined" else "single-hop"
    assert scene(kind, question=question).oracle().split()[0] == event


def test_a_wrong_merge_of_what_was_contradicted_fails() -> None:
    env = scene("contradicted", question="single-hop")
    assert env.case is not None
    _, id, *text = env.oracle().split()
    old = env.case.bank.entries[id].text.split()[-1]
    assert env.step(f"UPDATE {id} {' '.join(text)} {old}")[1] == 0.0


def test_without_distillation_a_turn_is_the_answer_alone() -> None:
    for distil, said in ((True, "use"), (False, "answer")):
        env = make("memory/answer", **TERSE, distil=distil)
        assert isinstance(env, MemoryEnv)
        observation, _ = env.reset(seed=3)
        assert observation.startswith(f"{said} ")
        state, right = env.get_state(), env.oracle()
        assert right.startswith(f"{said} ")
        answer = right[right.index("answer") :]
        assert env.step(right)[1] == 1.0
        env.set_state(state)
        assert env.step(answer if distil else f"use it ; {answer}")[4]["valid"] is False


@pytest.mark.parametrize(("reward", "paid"), [("em", 0.0), ("judge", 1.0)])
def test_a_judge_that_looks_for_the_right_words_pays_for_too_many(reward: str, paid: float) -> None:
    env = make("memory/answer", **TERSE, reward=reward, distil=False)
    assert isinstance(env, MemoryEnv)
    env.reset(seed=3)
    *_, info = step = env.step(f"{env.oracle()} and also paris rome nurse")
    assert step[1] == paid
    assert info["success"] is False
    assert 0 < info["scores"]["bleu1"] < info["scores"]["f1"] < 1  # nothing is missing, much is too much


def test_no_question_has_the_same_answer_in_two_splits() -> None:
    seen: dict[str, set[str]] = {}
    for split in ("train", "validation", "test"):
        env = make("memory/manage", **TERSE, split=split)
        assert isinstance(env, MemoryEnv)
        for seed in range(80):
            env.reset(seed=seed)
            assert env.case is not None
            seen.setdefault(split, set()).add(f"{env.case.question} {env.case.answers[0]}")
    assert not seen["train"] & seen["validation"] | seen["train"] & seen["test"] | seen["validation"] & seen["test"]


HOSTILE = ["", "x" * 1_000_000, "answer " * 100_000, "use " * 50_000 + "answer x", "\x00\x1b[2J\u202e", "[" * 100_000]
HOSTILE += ["<think>" * 1000 + "answer: x", "\ud800", '[{"event": "ADD", "text": "\\u0000\\ud800"}]', "ADD \ud800"]


@pytest.mark.parametrize("name", ["memory/manage", "memory/answer", "memory/both"])
@pytest.mark.parametrize("prompt", ["terse", "full"])
def test_any_turn_has_a_defined_result(name: str, prompt: str) -> None:
    env = make(name, memories=8, prompt=prompt)
    for number, turn in enumerate(HOSTILE):
        reward, info = play(env, number, lambda _, turn=turn: turn)
        assert reward in (0.0, 1.0)
        assert len(info["answer"]) <= 200


def test_both_seats_earn_the_match_and_the_answerer_reads_what_the_manager_wrote() -> None:
    env = make("memory/both", **TERSE)
    assert isinstance(env, MemoryEnv)
    observation, info = env.reset(seed=0)
    for seed in range(1, 40):
        assert info["seat"] == "manager"
        if env.oracle().startswith("ADD"):
            break
        observation, info = env.reset(seed=seed)
    written = env.oracle().removeprefix("ADD ")
    assert written not in observation.partition(":")[2]
    observation, _, _, _, info = env.step(env.oracle())
    assert info["seat"] == "answerer"
    assert written in observation
    *_, info = env.step(env.oracle())
    assert info["rewards"] == {"manager": 1.0, "answerer": 1.0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memories": 0}, "memories is from 1 to 66"),
        ({"memories": 67}, "memories is from 1 to 66"),
        ({"candidates": []}, "candidates are at least 1"),
        ({"reward": "bleu"}, "unknown reward 'bleu'; choose one of em, f1, judge"),
        ({"bank": "none"}, "unknown bank 'none'; choose one of managed, raw"),
        ({"seats": ["judge"]}, "choose .manager., .answerer. or"),
        ({"path": "x.json"}, "use memory/both or memory/answer"),
    ],
)
def test_wrong_options_get_one_message(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make("memory/manage", **options)


def test_candidates_may_be_one_number() -> None:
    one, several = make("memory/answer", candidates=3), make("memory/answer", candidates=[3])
    assert one.reset(seed=0) == several.reset(seed=0)


def test_events_are_the_four_of_the_paper() -> None:
    assert [*Event] == ["ADD", "UPDATE", "DELETE", "NOOP"]
