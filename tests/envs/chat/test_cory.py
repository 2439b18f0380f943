"""`chat/cory`: who reads what, and that both seats earn both scores."""

from __future__ import annotations

from typing import Any

import pytest

from turnwise.envs.base import Env
from turnwise.envs.registry import make

TASK = {"topic": "film", "first": "style", "second": "end"}
GOOD = "the style of the film is great and the end is superb ."
POOR = "the style is bad and the end is dull ."  # it does not name the film


def play(env: Env, *answers: str) -> list[tuple[Any, ...]]:
    env.reset(seed=0, task=TASK)
    return [env.step(answer) for answer in answers]  # pyright: ignore[reportReturnType]


def alone(answer: str) -> float:
    env = make("chat/prompts")
    env.reset(seed=0, task=TASK)
    return env.step(answer)[1]  # pyright: ignore[reportIndexIssue]


def test_both_seats_earn_the_sum_and_each_succeeds_by_its_own_answer():
    first, last = play(make("chat/cory"), GOOD, POOR)
    both = alone(GOOD) + alone(POOR)
    assert first[1:4] == (0.0, False, False)
    assert last[1:4] == (pytest.approx(both), True, False)
    assert last[4]["rewards"] == {"pioneer": pytest.approx(both), "observer": pytest.approx(both)}
    assert last[4]["scores"] == {"pioneer": pytest.approx(alone(GOOD)), "observer": pytest.approx(alone(POOR))}
    assert last[4]["success"] == {"pioneer": True, "observer": False}


def test_the_observer_reads_the_answer_and_the_prompt_by_the_template():
    env = make("chat/cory", template="so {answer} now {query}")
    prompt, info = env.reset(seed=0, task=TASK)  # pyright: ignore[reportGeneralTypeIssues]
    assert info["seat"] == "pioneer"
    (observation, *_, info), *_ = play(env, "very {query} good")
    assert observation == f"so very {{query}} good now {prompt}"  # what a model says is never a template
    assert info == {"seat": "observer", "heard": ["very {query} good"]}


def test_without_transfer_the_observer_reads_the_prompt_alone():
    env = make("chat/cory", transfer=False)
    (observation, *_, info), _ = play(env, GOOD, GOOD)
    assert observation == env.reset(seed=0, task=TASK)[0]  # pyright: ignore[reportIndexIssue]
    assert "heard" not in info


def test_prompts_from_a_file_work_as_they_do_alone(tmp_path):
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "What is blue?", "reference": "the sky"}\n' * 3)
    env = make("chat/cory", path=str(tmp_path / "prompts.jsonl"), score="reference")
    env.reset(seed=1)
    assert env.oracle() == "the sky"
    env.step("grass")
    assert env.oracle() == "the sky"
    assert env.step("the sky")[1] == 1.0  # pyright: ignore[reportIndexIssue]


def test_a_template_needs_both_places():
    with pytest.raises(ValueError, match=r"lacks \{answer\}"):
        make("chat/cory", template="{query}")
