"""Labelled texts from files: forms, errors, splits, choices, shots."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from turnwise.envs import Env, check_env, make
from turnwise.envs.base import Step
from turnwise.envs.classify.label_files import FileForm, Labelled, read_labelled

LABELS = ("bird", "fish", "tree")


def write(folder: Path, *rows: Any, name: str = "rows.jsonl") -> str:
    file = folder / name
    file.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return str(file)


def rows(count: int = 90, **more: Any) -> list[dict[str, Any]]:
    return [{"text": f"this is text {number}", "label": LABELS[number % 3], **more} for number in range(count)]


def ask(env: Env, **how: Any) -> str:
    reset = env.reset(**how)
    assert isinstance(reset, tuple)
    return reset[0]


def step(env: Env, action: str) -> Step:
    done = env.step(action)
    assert isinstance(done, tuple)
    return done


def texts(path: str, split: str, **how: Any) -> set[str]:
    env = make("classify/files", path=path, split=split, **how)
    return {ask(env, task=task).rsplit("\n\n", 1)[1] for task in env.list_tasks() or ()}


def test_a_share_of_the_lines_is_held_out_and_no_text_is_in_two_splits(tmp_path: Path):
    path = write(tmp_path, *rows(), *rows(9))
    found = {split: texts(path, split, held_out=0.4) for split in ("train", "validation", "test")}
    assert sum(map(len, found.values())) == len(set().union(*found.values())) == 90
    assert 40 < len(found["train"]) < 68


def test_another_file_may_be_held_out_and_its_texts_are_not_trained_on(tmp_path: Path):
    path, other = write(tmp_path, *rows()), write(tmp_path, *rows(30), name="other.jsonl")
    found = {split: texts(path, split, held_out=other) for split in ("train", "validation", "test")}
    assert found["validation"] | found["test"] == {f"this is text {number}" for number in range(30)}
    assert len(found["train"]) == 60
    assert not found["validation"] & found["test"]


def test_the_question_lists_the_labels_and_the_expert_answers_it(tmp_path: Path):
    env = make("classify/files", path=write(tmp_path, *rows()), task="What is it?")
    assert ask(env, seed=1).startswith("What is it? Answer with one of: bird, fish, tree. Write only <Judgement>")
    _, reward, over, _, info = step(env, env.oracle())
    assert (reward, over, info["success"], info["scores"]) == (1.0, True, True, {"parsable": 1.0})
    assert check_env("classify/files", kwargs={"path": write(tmp_path, *rows()), "shots": 3}, seeds=2).ok


def test_an_answer_that_a_limit_cuts_is_an_unparsable_one(tmp_path: Path):
    reset = make("classify/files", path=write(tmp_path, *rows()), unparsable=-2.0).reset(seed=1)
    assert isinstance(reset, tuple)
    assert reset[1] == {"cut_reward": -2.0, "scores": {"parsable": 0.0}}


def test_many_labels_are_listed_in_part_with_the_right_one_among_them_anywhere(tmp_path: Path):
    many = [{"text": f"text {number}", "label": f"kind_{number % 20}"} for number in range(200)]
    env = make("classify/files", path=write(tmp_path, *many), choices=4)
    places = Counter[int]()
    for seed in range(60):
        question = ask(env, seed=seed)
        listed = question.split("one of: ")[1].split(". Write")[0].split(", ")
        assert len(set(listed)) == 4
        places[listed.index(re.sub("<.*?>", "", env.oracle()))] += 1
    assert sorted(places) == [0, 1, 2, 3]


def test_shots_are_balanced_repeatable_examples_of_the_training_split(tmp_path: Path):
    path = write(tmp_path, *rows())
    training = texts(path, "train")
    env, again = (make("classify/files", path=path, shots=6, split="validation") for _ in range(2))
    for seed in range(5):
        question = ask(env, seed=seed)
        assert question == ask(again, seed=seed)
        _, *examples, own = question.split("\n\n")
        shown = [example.split("\n") for example in examples]
        assert {text for text, _ in shown} <= training - {own}
        assert Counter(label for _, label in shown) == {f"<Judgement>{label}</Judgement>": 2 for label in LABELS}


def test_a_training_text_is_never_its_own_example(tmp_path: Path):
    env = make("classify/files", path=write(tmp_path, *rows(12)), shots=12)
    for seed in range(20):
        *before, own = ask(env, seed=seed).split("\n\n")
        assert all(own not in example.split("\n") for example in before)


@pytest.mark.parametrize(
    ("line", "form", "text", "label"),
    [
        ({"premise": "A", "hypothesis": "B", "label": "no"}, FileForm(), "Premise: A\nHypothesis: B", "no"),
        ({"question": "q", "passage": "p", "label": "yes"}, FileForm(), "Passage: p\nQuestion: q", "yes"),
        ({"facts": ["f.", "g."], "label": "no"}, FileForm(fields=("facts",)), "f. g.", "no"),
        ({"text": "t", "answer": True}, FileForm(label="answer", names=(("true", "yes"),)), "t", "yes"),
        ({"text": "t", "label": 1}, FileForm(names=(("0", "bad"), ("1", "good"))), "t", "good"),
        ({"text": "t", "label": 0}, FileForm(), "t", "0"),
    ],
)
def test_usual_forms_of_files_are_read(tmp_path: Path, line: Any, form: FileForm, text: str, label: str):
    path, none = write(tmp_path, line), write(tmp_path, name="none.jsonl")
    assert read_labelled(path, "train", held_out=none, form=form) == (Labelled(text=text, label=label),)


def test_labels_may_be_renamed_by_what_yaml_reads(tmp_path: Path):
    truths = [{"text": f"text {number}", "label": number % 2 == 0} for number in range(40)]
    env = make("classify/files", path=write(tmp_path, *truths), labels={True: "yes", False: "no"})
    assert "one of: yes, no." in ask(env, seed=1)


def test_labels_that_an_answer_cannot_tell_apart_are_refused_with_the_fix(tmp_path: Path):
    same = [{"text": f"text {number}", "label": ("not spam", "Not_Spam")[number % 2]} for number in range(40)]
    with pytest.raises(ValueError, match=r"cannot name the label 'Not_Spam' alone: .*; rename it with labels="):
        make("classify/files", path=write(tmp_path, *same))
    renamed = make("classify/files", path=write(tmp_path, *same), labels={"not spam": " ham", "Not_Spam": 1})
    assert "one of: ham, 1." in ask(renamed, seed=1)
    assert step(renamed, renamed.oracle())[1] == 1.0


def test_numbers_are_estimated(tmp_path: Path):
    scored = [{"sentence1": f"a {n}", "sentence2": "b", "label": n / 20} for n in range(100)]
    env = make("classify/files", path=write(tmp_path, *scored), labels="number", shots=2)
    assert "Answer with a number." in ask(env, seed=3)
    assert step(env, env.oracle())[1] == 2.5
    ask(env, seed=3)
    assert step(env, "<Judgement>none</Judgement>")[1] == -2.5
    assert check_env("classify/files", kwargs={"path": write(tmp_path, *scored), "labels": "number"}, seeds=2).ok


@pytest.mark.parametrize(
    ("line", "options", "words"),
    [
        ("{", {}, "line 91: not JSON"),
        ("[1]", {}, "line 91: not an object, as in"),
        ({"text": "a"}, {}, "line 91: there is no label in the field 'label'; write it, or name another"),
        ({"label": "bird"}, {}, "line 91: there is none of passage, premise"),
        ({"text": " ", "label": "bird"}, {}, "line 91: the field 'text' must be a text that is not empty"),
        ({"text": "a", "label": 0.5}, {}, "the label must be a text or a whole number, not 0.5; labels=number"),
        (
            {"text": "a", "label": "rock"},
            {"labels": LABELS},
            "line 91: the label 'rock' is not one of bird, fish, tree",
        ),
        (
            {"words": "a", "label": "bird"},
            {"fields": ["text"]},
            "line 91: there is no field 'text'; it has words, label",
        ),
    ],
)
def test_a_bad_line_is_named_with_its_fault_and_the_fix(tmp_path: Path, line: Any, options: Any, words: str):
    path = write(tmp_path, *rows(), line)
    with pytest.raises(ValueError, match=re.escape(words)):
        make("classify/files", path=path, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"path": ""}, 'classify/files reads its texts from a file; pass path="train.jsonl"'),
        ({"path": "/nowhere.jsonl"}, "no such file: /nowhere.jsonl; path= names a JSONL file"),
        ({"held_out": "/nowhere.jsonl"}, "no such file: /nowhere.jsonl"),
        ({"held_out": 1.5}, "held_out is 1.5; write a share between 0 and 1, or the path of a file"),
        ({"choices": 1}, "shots=0 and choices=1: shots are at least 0 and choices at least 2"),
        ({"labels": "words"}, "labels is 'words'; write a list of labels, or number"),
        ({"labels": "number"}, "'bird' is not a number"),
        ({"label": "text"}, "there must be 2 to 200"),
    ],
)
def test_wrong_options_are_refused_with_the_fix(tmp_path: Path, options: dict[str, Any], words: str):
    with pytest.raises(ValueError, match=re.escape(words)):
        make("classify/files", **{"path": write(tmp_path, *rows(600)), **options})
