"""Maths tasks: reading answers, comparing them by value, and the files they come from."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sandboxes import needs_bubblewrap
from turnwise.envs import Env, Step, make
from turnwise.envs.tasks.answers import extract_answer, grade, parse_number, same_answer

GSM8K = Path(__file__).parents[3].parent / "shared" / "data" / "gsm8k" / "train.jsonl"
SPLITS = ("train", "validation", "test")


def begin(env: Env, seed: int) -> tuple[str, dict[str, str]]:
    reset = env.reset(seed=seed)
    assert isinstance(reset, tuple)
    return reset[0], reset[1]["task"]


def settle(value: Step | Awaitable[Step]) -> Step:
    async def wait(pending: Awaitable[Step]) -> Step:
        return await pending

    return value if isinstance(value, tuple) else asyncio.run(wait(value))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{72}", "72"),
        (r"\boxed{1} then \boxed{ 2 }", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        ("working\n#### 72\n", "72"),
        ("#### 1\n#### 2\nand more", "2"),
        (r"#### 3 but \boxed{4}", "4"),
        (r"\boxed{}", ""),
        (r"\boxed{0}", "0"),
        (r"\boxed{5", None),
        ("72", None),
        ("####", None),
        ("", None),
    ],
)
def test_the_last_marked_answer_counts(text: str, answer: str | None):
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1,200", 1200),
        ("$1,200.50", Fraction(2401, 2)),
        (r"\$18", 18),
        ("2400/2", 1200),
        (r"-\frac{3}{4}", Fraction(-3, 4)),
        (r"\dfrac{10}{4}", Fraction(5, 2)),
        ("12 apples", 12),
        (r"12\text{ apples}", 12),
        ("x = 1200.", 1200),
        ("50%", 50),
        ("- 5", -5),
        ("−5", -5),
        (".5", Fraction(1, 2)),
        ("0", 0),
        *((text, None) for text in ("", "ten", "1 or 2", "5-7", "1,2", "1/0", "1e9", "9" * 201)),
    ],
)
def test_numbers_are_read_by_value(text: str, number: Fraction | None):
    assert parse_number(text) == number


def test_answers_are_compared_by_value_and_words_by_spelling():
    assert same_answer("0.5", "1/2")
    assert same_answer("3.3333333", "10/3")
    assert not same_answer("3.33", "10/3")
    assert not same_answer("1200", "1201")
    assert not same_answer("1e0", "1")
    assert same_answer(r"\text{North}  East", "north east")
    assert not same_answer("north", "south")


def test_grading_ends_the_episode_and_tells_invalid_from_wrong():
    assert grade(r"\boxed{7}", "7") == ("Correct.", 1.0, True, False, {"success": True, "parsed_action": "7"})
    wrong = grade(r"\boxed{8}", "7")
    assert wrong == ("Wrong: the answer is 7.", 0.0, True, False, {"success": False, "parsed_action": "8"})
    missing = grade("seven", "7")
    assert missing[1:] == (0.0, True, False, {"success": False, "valid": False})
    assert grade(r"\boxed{0}", "0")[1] == 1.0


@given(st.text(st.sampled_from("\\boxed{}#0123456789,./-=$ frac\0\ud800"), max_size=80))
def test_grading_never_raises(action: str):
    assert grade(action, "7")[1] in (0.0, 1.0)


@pytest.mark.parametrize("piece", ["\\boxed{", "{", "}", "#### ", "9", "1,", "\\frac{1}{1}", "\x00", "- "])
def test_a_megabyte_is_graded_in_no_time(piece: str):
    text = piece * (10**6 // len(piece))
    start = time.thread_time()
    assert grade(text, "7")[1] == 0.0
    assert grade(f"\\boxed{{{text}}}", "7")[1] == 0.0
    assert time.thread_time() - start < 3.0


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("terms", [2, 4])
def test_the_arithmetic_oracle_is_right_on_200_seeds(split: str, terms: int):
    env = make("math/arithmetic", split=split, terms=terms)
    for seed in range(200):
        _, task = begin(env, seed)
        assert int(task["answer"]) == eval(task["question"])
        assert settle(env.step(env.oracle()))[1] == 1.0


def test_no_arithmetic_question_is_in_two_splits():
    questions = {
        split: {begin(make("math/arithmetic", split=split), seed)[1]["question"] for seed in range(500)}
        for split in SPLITS
    }
    assert min(map(len, questions.values())) > 400
    assert not questions["train"] & questions["validation"]
    assert not questions["train"] & questions["test"]
    assert not questions["validation"] & questions["test"]


def test_equal_seeds_and_given_tasks_repeat_an_episode():
    first, second = make("math/arithmetic"), make("math/arithmetic")
    observation, task = begin(first, 3)
    assert begin(second, 3) == (observation, task)
    assert second.reset(seed=8, task=task) == (observation, {"task": task})


def test_random_guesses_are_well_formed():
    env = make("math/arithmetic")
    begin(env, 0)
    assert all(settle(env.step(env.sample_random_action()))[4].get("valid", True) for _ in range(20))


def test_arithmetic_refuses_settings_that_make_no_task():
    with pytest.raises(ValueError, match="terms >= 2"):
        make("math/arithmetic", terms=1)


def write(path: Path, rows: list[object]) -> str:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return str(path)


def problems(count: int) -> list[object]:
    return [
        {"question": f"What is {n} twice?", "answer": f"{n}*2 = <<{n}*2={2 * n}>>\n#### {2 * n}"} for n in range(count)
    ]


def test_one_file_is_divided_into_disjoint_splits(tmp_path: Path):
    path = write(tmp_path / "all.jsonl", problems(300))
    found = [{question for question, _ in make("math/gsm8k", questions=path, split=split).problems} for split in SPLITS]  # pyright: ignore[reportAttributeAccessIssue]
    assert sum(map(len, found)) == len(set().union(*found)) == 300
    assert [len(part) > 10 for part in found] == [True] * 3


def test_a_file_per_split_is_used_whole(tmp_path: Path):
    write(tmp_path / "train.jsonl", problems(5))
    write(tmp_path / "test.jsonl", [{"question": "Which way?", "answer": "North"}])
    pattern = str(tmp_path / "{split}.jsonl")
    assert len(make("math/gsm8k", questions=pattern).problems) == 5  # pyright: ignore[reportAttributeAccessIssue]
    env = make("math/gsm8k", questions=pattern, split="test")
    assert begin(env, 0)[1] == {"question": "Which way?", "answer": "North"}
    assert settle(env.step(r"\boxed{\text{north}}"))[1] == 1.0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no problem"),
        ('{"question": "a", "answer": "#### 1"}\n\n{"question": "b"}\n', 'line 3: needs the text field "answer"'),
        ('{"answer": "1"}', 'line 1: needs the text field "question"'),
        ('{"question": "a", "answer": 1}', 'needs the text field "answer"'),
        ("[1]", 'needs the text field "question"'),
        ("nonsense", "line 1: not JSON"),
    ],
)
def test_a_wrong_file_is_one_message_that_names_line_and_field(tmp_path: Path, content: str, message: str):
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        make("math/gsm8k", questions=str(path))


def test_a_missing_file_or_argument_is_refused_with_the_fix(tmp_path: Path):
    with pytest.raises(ValueError, match="no such file"):
        make("math/gsm8k", questions=str(tmp_path / "none.jsonl"))
    with pytest.raises(ValueError, match="reads its problems from a file"):
        make("math/gsm8k")


@needs_bubblewrap
def test_the_python_tool_helps_and_the_answer_still_counts(tmp_path: Path):
    env = make("math/gsm8k", questions=write(tmp_path / "p.jsonl", problems(40)), python=True, max_tool_uses=1)
    observation, task = begin(env, 0)
    assert observation.endswith(f"{task['question']}\nGive the final answer as \\boxed{{answer}}.")
    tool_turn = settle(env.step("<python>print(2 * 21)</python>"))
    assert tool_turn[:4] == ("<result>\n42\n</result>", 0.0, False, False)
    assert settle(env.step("```python\nprint(1)\n```"))[0] == "<result>\nno tool uses left; answer now\n</result>"
    assert settle(env.step(env.oracle()))[1:4] == (1.0, True, False)


@pytest.mark.skipif(not GSM8K.exists(), reason="the GSM8K file is not beside the repository")
def test_every_gold_answer_of_the_real_file_is_a_number_and_wins():
    sizes = {split: len(make("math/gsm8k", questions=str(GSM8K), split=split).problems) for split in SPLITS}  # pyright: ignore[reportAttributeAccessIssue]
    assert sizes == {"train": 5995, "validation": 773, "test": 705}
    env = make("math/gsm8k", questions=str(GSM8K), split="validation")
    for question, answer in env.problems:  # pyright: ignore[reportAttributeAccessIssue]
        assert parse_number(answer) is not None
        env.reset(task={"question": question, "answer": answer})
        assert settle(env.step(env.oracle()))[1] == 1.0


def test_tasks_and_tools_import_without_torch():
    code = "import sys, turnwise.envs.tasks.gsm8k, turnwise.tools.calculator; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
