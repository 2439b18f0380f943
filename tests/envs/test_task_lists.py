"""Tasks of one's own: files and lists, splits, messages, and evaluation that plays each held-out row once."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from turnwise.envs import check_env
from turnwise.envs.base import Step
from turnwise.envs.task_lists import TaskEnv, TaskList
from turnwise.evaluate.evaluation import play_specs
from turnwise.train import load_recipe

ROWS = [{"question": f"{number} + 1", "answer": str(number + 1)} for number in range(400)]


class Sums(TaskEnv):
    """Adds one."""

    def begin(self, task: dict[str, Any]) -> str:
        return f"What is {task['question']}?"

    def step(self, action: str) -> Step:
        right = self.task["answer"] == action.strip()
        return "", float(right), True, False, {"success": right}

    def oracle(self) -> str:
        return self.task["answer"]

    def sample_random_action(self) -> str:
        return str(self.rng.randint(0, 500))


def write(path: Path, rows: list[Any]) -> str:
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return str(path)


def split(name: str, source: Any, held_out: Any = 0.1) -> list[dict[str, Any]]:
    return list(TaskList.of(source, split=name, held_out=held_out).rows)


def test_a_file_and_a_list_are_divided_alike_and_completely(tmp_path: Path):
    file = write(tmp_path / "tasks.jsonl", ROWS)
    train, held_out = split("train", file), split("validation", file)
    assert sorted(map(json.dumps, train + held_out)) == sorted(map(json.dumps, ROWS))
    assert (train, held_out) == (split("train", ROWS), split("validation", ROWS))


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
@pytest.mark.parametrize("count", [2, 10, 11, 37, 400])
def test_the_share_that_is_held_out_is_exact(count: int, share: float):
    held_out = split("validation", ROWS[:count], share)
    assert len(held_out) == max(1, round(count * share))
    assert len(split("train", ROWS[:count], share)) == count - len(held_out)


def test_the_order_of_rows_does_not_change_their_split():
    assert split("validation", ROWS[::-1]) == split("validation", ROWS)[::-1]


def test_a_row_that_is_added_moves_one_other_at_most():
    for count in range(2, 60):
        before, after = ({row["question"] for row in split("validation", ROWS[:n], 0.3)} for n in (count, count + 1))
        assert len((before ^ after) - {ROWS[count]["question"]}) <= 1


def test_a_rows_own_split_wins_and_is_not_part_of_the_task():
    rows = [{**row, "split": "test" if place < 3 else "train"} for place, row in enumerate(ROWS)]
    assert split("test", rows) == ROWS[:3]
    assert split("train", rows) == ROWS[3:]
    with pytest.raises(ValueError, match="no task for the split 'validation'; add rows, change held_out, or mark rows"):
        split("validation", rows)


def test_few_rows_still_have_one_held_out_and_one_to_train_on():
    assert [len(split(name, ROWS[:3], 0.01)) for name in ("train", "validation")] == [2, 1]
    assert [len(split(name, ROWS[:3], 0.99)) for name in ("train", "validation")] == [1, 2]
    with pytest.raises(ValueError, match="no task for the split 'validation'"):
        split("validation", ROWS[:1])


def test_held_out_may_be_a_file_and_none_of_it_is_trained(tmp_path: Path):
    others = write(tmp_path / "held_out.jsonl", ROWS[:5])
    assert split("validation", ROWS, others) == ROWS[:5]
    assert split("train", ROWS, others) == ROWS[5:]


def test_equal_rows_are_one_task():
    assert split("train", [*ROWS, *ROWS]) == split("train", ROWS)


def test_a_changed_file_is_read_again(tmp_path: Path):
    file = write(tmp_path / "tasks.jsonl", ROWS)
    before = len(split("train", file))
    Path(write(tmp_path / "tasks.jsonl", ROWS[:200])).touch()
    assert len(split("train", file)) < before


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{'question': 1}", "tasks.jsonl has 1 bad task: line 2: not JSON .* write one object per line"),
        ("[1, 2]", "line 2: not an object; write"),
        ('{"question": "x", "split": "dev"}', "line 2: its split is 'dev'; choose one of train, validation, test"),
        ("[" * 200 + "]" * 200, "line 2: lists or mappings are nested more than"),
    ],
)
def test_a_bad_line_is_named_with_its_fix(tmp_path: Path, line: str, message: str):
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"question": "a"}\n' + line + "\n")
    with pytest.raises(ValueError, match=message):
        TaskList.of(file)


@pytest.mark.parametrize("indent", [None, 1])
def test_a_file_that_is_one_list_is_named_as_such(tmp_path: Path, indent: int | None):
    (tmp_path / "tasks.json").write_text(json.dumps(ROWS, indent=indent))
    with pytest.raises(ValueError, match=r"tasks\.json is one JSON list; write its tasks one per line"):
        TaskList.of(tmp_path / "tasks.json")


@pytest.mark.parametrize(
    ("source", "held_out", "message"),
    [
        ("nowhere.jsonl", 0.1, "no such file: nowhere.jsonl; tasks= names a JSONL file"),
        ([], 0.1, "the list has no tasks; write rows such as"),
        (7, 0.1, "tasks is 7; write the path of a JSONL file"),
        ([{"a": object()}], 0.1, "rows are plain data"),
        (ROWS, 1.0, "held_out is 1.0; write a share between 0 and 1"),
        (ROWS, True, "held_out is True; write a share"),
        ([{"a": 1, "split": "train"}, {"a": 1, "split": "test"}], 0.1, "row 2: the same task is in the split 'train'"),
    ],
)
def test_a_bad_source_is_refused_with_its_fix(source: Any, held_out: Any, message: str):
    with pytest.raises(ValueError, match=message):
        TaskList.of(source, held_out=held_out)


def test_an_environment_with_tasks_passes_the_doctor(tmp_path: Path):
    report = check_env(Sums, kwargs={"tasks": write(tmp_path / "tasks.jsonl", ROWS)}, seeds=3)
    assert report.ok, str(report)


def test_evaluation_plays_every_held_out_row_once(tmp_path: Path):
    file = write(tmp_path / "tasks.jsonl", ROWS)
    choice = {"id": f"{__name__}:Sums", "kwargs": {"tasks": file, "held_out": 0.2}}
    recipe = load_recipe(None, {"env": choice, "eval": {"episodes": 1000}})
    played = Counter(json.dumps(spec.task) for spec in play_specs(recipe))
    assert played == Counter(map(json.dumps, split("validation", file, 0.2)))
    trained = [recipe.env.source().build().reset(seed=seed)[1]["task"] for seed in range(200)]
    assert not {json.dumps(task) for task in trained} & played.keys()
