"""Multiple-choice questions over ICD-10-CM."""

from itertools import combinations
from typing import Any

import pytest

pytest.importorskip("tantivy", reason="needs turnwise[search]")
pytest.importorskip("simple_icd_10_cm", reason="needs turnwise[search]")

from turnwise.envs import make
from turnwise.envs.base import SPLITS
from turnwise.envs.search.env import SearchEnv
from turnwise.envs.search.medical import catalogues, retriever


def medical(**options: Any) -> SearchEnv:
    env = make("search/medical-mcq", **options)
    assert isinstance(env, SearchEnv)
    return env


def options_of(question: str) -> dict[str, str]:
    return {line[0]: line[3:] for line in question.split("\n") if line[1:3] == ". "}


@pytest.mark.parametrize("split", SPLITS)
def test_the_expert_is_always_right_after_one_search(split: str) -> None:
    env = medical(split=split)
    kinds = set()
    for seed in range(200):
        _, info = env.reset(seed=seed)
        task = info["task"]
        kinds.add(task["id"].split("/")[1])
        observation, *_ = env.step(env.oracle())
        letter, text, _ = task["answers"]
        assert text in observation  # the document found is about the right option
        assert options_of(task["question"])[letter] == text
        _, reward, terminated, _, last = env.step(env.oracle())
        assert (reward, terminated, last["success"]) == (1.0, True, True)
    assert kinds == {"code", "synonym", "member"}


def test_four_different_options_and_letters_equally_often() -> None:
    env = medical()
    letters = dict.fromkeys("ABCD", 0)
    for seed in range(400):
        task = env.reset(seed=seed)[1]["task"]
        options = options_of(task["question"])
        assert list(options) == list("ABCD")
        assert len(set(options.values())) == 4
        letters[task["answers"][0]] += 1
    assert min(letters.values()) > 70  # 100 expected, standard deviation 8.7


def test_only_the_right_option_is_classified_under_the_heading() -> None:
    env = medical(split="test")
    parents = {d.text.split(" : ")[0]: d.text.split(" ; under ")[1].split(" ; also ")[0] for d in retriever().documents}
    checked = 0
    for seed in range(200):
        task = env.reset(seed=seed)[1]["task"]
        _, kind, names, _ = task["id"].split("/", 3)
        if kind == "member":
            heading = task["question"].split("\n")[0].removeprefix("Which of these is classified under ")[:-1]
            fitting = [parents[name] == heading for name in names.split("+")]
            assert fitting.index(True) == "ABCD".index(task["answers"][0])
            assert sum(fitting) == 1
            checked += 1
    assert checked > 20


@pytest.mark.parametrize("form", ["{0}", "{0}.", "({0})", "{1}", "{0}. {1}", "{0}) {1}"])
def test_letter_option_text_or_both_are_accepted(form: str) -> None:
    env = medical()
    for seed in range(20):
        letter, text, _ = env.reset(seed=seed)[1]["task"]["answers"]
        assert env.step(f"<answer>{form.format(letter, text)}</answer>")[1] == 1.0


def test_another_letter_is_wrong() -> None:
    env = medical()
    for seed in range(20):
        right = env.reset(seed=seed)[1]["task"]["answers"][0]
        wrong = "ABCD"["ABCD".index(right) - 1]
        assert env.step(f"<answer>{wrong}</answer>")[1] == 0.0


def test_splits_share_no_code() -> None:
    names = {
        split: {code.name for family in catalogues()[split].siblings for code in family}
        | {code.name for block in catalogues()[split].blocks for _, family in block for code in family}
        for split in SPLITS
    }
    assert all(names[left].isdisjoint(names[right]) for left, right in combinations(SPLITS, 2))
    assert min(map(len, names.values())) > 3000


def test_documents_are_the_descriptions_of_the_codes() -> None:
    assert len(retriever().documents) > 25_000
    best = retriever().search("Cholera due to Vibrio cholerae 01, biovar eltor", 1)[0]
    assert best.text == (
        "A00.1 : Cholera due to Vibrio cholerae 01, biovar eltor ; under Cholera (A00) ; also Cholera eltor"
    )


def test_an_unknown_split_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="train, validation, test"):
        make("search/medical-mcq", split="dev")
