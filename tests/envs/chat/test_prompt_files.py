"""Prompts from files: forms, errors, splits, scores, several turns."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from turnwise.envs import Env, check_env, make
from turnwise.envs.base import Step


def write(folder: Path, *rows: Any) -> str:
    file = folder / "prompts.jsonl"
    file.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return str(file)


def questions(count: int = 60, **more: Any) -> list[dict[str, Any]]:
    return [{"prompt": f"say the number {number}", "reference": f"number {number}", **more} for number in range(count)]


def step(env: Env, action: str) -> Step:
    done = env.step(action)
    assert isinstance(done, tuple)
    return done


def start(env: Env, **how: Any) -> str:
    reset = env.reset(**how)
    assert isinstance(reset, tuple)
    return reset[0]


def polite(task: dict[str, Any], answer: str) -> dict[str, float]:
    """A score for the tests."""
    return {"reward": float("please" in answer), "words": len(answer.split()), "turns": len(task["messages"]) / 2}


def length(task: dict[str, Any], answer: str) -> float:
    """Another one."""
    return float(len(answer)) * task["weight"]


def lost(task: dict[str, Any], answer: str) -> dict[str, float]:
    """One without a reward."""
    return {"words": 1.0}


def test_splits_share_no_prompt_and_miss_none(tmp_path: Path):
    path = write(tmp_path, *questions())
    prompts = {
        split: {
            start(env, task=task)
            for env in [make("chat/prompts", path=path, split=split)]
            for task in env.list_tasks() or ()
        }
        for split in ("train", "validation", "test")
    }
    assert sum(map(len, prompts.values())) == len(set().union(*prompts.values())) == 60
    assert len(prompts["train"]) > 40


def test_the_reference_is_the_expert_and_its_words_are_the_score(tmp_path: Path):
    env = make("chat/prompts", path=write(tmp_path, *questions()), score="reference")
    start(env, seed=1)
    assert step(env, env.oracle())[1] == 1
    start(env, seed=1)
    _, reward, over, _, info = step(env, "number")
    assert (reward, over, info["success"]) == (pytest.approx(2 / 3), True, True)
    assert check_env("chat/prompts", kwargs={"path": write(tmp_path, *questions()), "score": "reference"}, seeds=2).ok


def test_without_a_score_every_answer_earns_nothing_and_an_answer_is_a_success(tmp_path: Path):
    env = make("chat/prompts", path=write(tmp_path, *questions()))
    start(env, seed=1)
    assert step(env, "whatever")[1:] == (0.0, True, False, {"success": True})
    start(env, seed=1)
    assert not step(env, " ")[4]["success"]
    assert not make("chat/prompts", path=write(tmp_path, *[{"prompt": f"p {n}"} for n in range(40)])).has_oracle()


def test_a_function_scores_and_its_other_numbers_are_scores(tmp_path: Path):
    path, place = write(tmp_path, *questions(weight=2)), "tests.envs.chat.test_prompt_files"
    env = make("chat/prompts", path=path, score=f"{place}:polite", require=1)
    start(env, seed=1)
    assert step(env, "please") == ("", 1.0, True, False, {"success": True, "scores": {"words": 1.0, "turns": 1.0}})
    env = make("chat/prompts", path=path, score=f"{place}:length")
    start(env, seed=1)
    assert step(env, "abc")[1] == 6
    env = make("chat/prompts", path=path, score=f"{place}:lost")
    start(env, seed=1)
    with pytest.raises(ValueError, match="lost must return a number, or a mapping with 'reward'; got \\['words'\\]"):
        env.step("abc")


def test_the_user_follows_the_script_for_as_many_turns(tmp_path: Path):
    path = write(tmp_path, *questions(followups=["shorter", "louder", "again"]))
    env = make("chat/prompts", path=path, turns=3, score="tests.envs.chat.test_prompt_files:polite")
    start(env, seed=1)
    assert [step(env, "hm")[:3] for _ in range(2)] == [("shorter", 0.0, False), ("louder", 0.0, False)]
    assert step(env, "please")[1:3] == (1.0, True)
    start(env, seed=1)
    step(env, "please")
    step(env, "please")
    assert step(env, "no")[4]["scores"]["turns"] == 3
    short = make("chat/prompts", path=write(tmp_path, *questions()), turns=3)
    start(short, seed=1)
    assert step(short, "hm")[2]


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ([{"role": "user", "content": "hello"}], "hello"),
        ([{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}], "be brief\n\nhello"),
        (
            [{"role": role, "content": role[0]} for role in ("user", "assistant", "user")],
            "user: u\nassistant: a\nuser: u",
        ),
    ],
)
def test_messages_become_one_text(tmp_path: Path, prompt: Any, text: str):
    path = write(tmp_path, *questions(), {"prompt": prompt})
    envs = [make("chat/prompts", path=path, split=split) for split in ("train", "validation", "test")]
    assert text in {start(env, task=task) for env in envs for task in env.list_tasks() or ()}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 61: not JSON"),
        ("[1]", "line 61: not an object with a prompt"),
        ({"text": "a"}, "line 61: not an object with a prompt"),
        ({"prompt": 3}, "the prompt must be a text or a list of messages"),
        ({"prompt": " "}, "the prompt must end with a message of the user that is not empty"),
        ({"prompt": []}, "the prompt must end with a message of the user"),
        ({"prompt": [{"role": "bot", "content": "a"}]}, "a message has the role 'bot'; the roles are system, user,"),
        ({"prompt": [{"role": "assistant", "content": "a"}]}, "must end with a message of the user"),
        ({"prompt": [{"content": 3}]}, 'must have the form {"role": "user", "content": "..."}'),
        ({"prompt": "a", "reference": 3}, "the reference must be a text"),
        ({"prompt": "a", "followups": [""]}, "followups must be a list of texts"),
    ],
)
def test_a_bad_line_is_named_with_its_fault(tmp_path: Path, line: Any, words: str):
    path = write(tmp_path, *questions(), line)
    with pytest.raises(ValueError, match=re.escape(words)):
        make("chat/prompts", path=path)


def test_one_error_lists_all_bad_lines_up_to_five(tmp_path: Path):
    path = write(tmp_path, *questions(3), *["{"] * 7)
    with pytest.raises(ValueError, match=r"has 7 bad lines: line 4: not JSON .*; line 8: .*; and 2 more"):
        make("chat/prompts", path=path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"path": "/nowhere.jsonl"}, "no such file: /nowhere.jsonl; path= names a JSONL file"),
        ({"score": "best"}, "unknown score 'best'; for a file choose none, reference, or package.module:function"),
        ({"score": "os:system"}, "score: os:system is not a function of (task, answer)"),
        ({"score": "nowhere:at_all"}, "score: nowhere:at_all does not load"),
        ({"turns": 0}, "turns is 0; an episode has at least one"),
    ],
)
def test_wrong_options_are_refused_with_the_fix(tmp_path: Path, options: dict[str, Any], words: str):
    with pytest.raises(ValueError, match=re.escape(words)):
        make("chat/prompts", **{"path": write(tmp_path, *questions()), **options})


def test_references_that_are_missing_are_counted(tmp_path: Path):
    path = write(tmp_path, *[{"prompt": f"p {number}"} for number in range(40)])
    with pytest.raises(ValueError, match=r"have no reference; use another score"):
        make("chat/prompts", path=path, score="reference")
