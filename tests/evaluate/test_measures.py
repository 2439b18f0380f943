"""Measures of texts: diversity, length and perplexity of held-out answers."""

import math
from typing import get_args

import pytest

from turnwise.evaluate.evaluation import summarize
from turnwise.evaluate.measures import MEASURES, measure_texts
from turnwise.evaluate.meteor import meteor
from turnwise.recipe.schema import Evaluate, Measure
from turnwise.types import Group, StopReason, Trajectory, Turn


def task(prompt: str, *answers: str, stop: StopReason = StopReason.DONE) -> Group:
    turns = [Turn(observation=prompt, action=answer, sampled_ids=[1], logprobs=[-1.0]) for answer in answers]
    return Group(id=prompt, trajectories=[Trajectory(id=prompt, turns=[turn], stop=stop) for turn in turns])


def test_similarity_is_that_of_answers_to_different_prompts_only():
    groups = [task("a", "red green blue", "red green blue"), task("b", "one two three")]
    assert measure_texts(groups, ["meteor"]) == {"eval/meteor": 0.0}
    groups = [task("a", "red green blue"), task("b", "red green blue")]
    alike = meteor(["red", "green", "blue"], ["red", "green", "blue"])
    assert measure_texts(groups, ["meteor"])["eval/meteor"] == pytest.approx(alike)
    assert measure_texts([task("a", "red", "green")], ["meteor"]) == {}


def test_self_similarity_is_that_of_tries_at_one_task():
    groups = [task("a", "red green blue", "red green blue"), task("b", "one two three")]
    alike = meteor(["red", "green", "blue"], ["red", "green", "blue"])
    assert measure_texts(groups, ["self-similarity"])["eval/self_similarity"] == pytest.approx(alike)
    assert measure_texts(groups[1:], ["self-similarity"]) == {}


def test_distinct_words_and_pairs_length_and_perplexity_by_hand():
    groups = [task("a", "good good good ."), task("b", "good film")]
    found = measure_texts(groups, ["distinct", "length", "perplexity"])
    # Pairs: "good good" twice, "good .", "good film".
    expected = {"distinct_1": 3 / 6, "distinct_2": 3 / 4, "length": 3.0, "perplexity": math.e}
    assert found == pytest.approx({f"eval/{name}": value for name, value in expected.items()})


def test_failed_episodes_are_not_measured():
    groups = [task("a", "red"), task("b", "red", stop=StopReason.ENV_ERROR)]
    assert measure_texts(groups, ["length", "meteor"]) == {"eval/length": 1.0}
    assert measure_texts(groups[1:], list(MEASURES)) == {}


def test_a_summary_has_the_measures_that_were_asked_for():
    groups = [task("a", "red"), task("b", "blue")]
    assert "eval/length" not in summarize(groups)
    assert summarize(groups, measures=("length",))["eval/length"] == 1.0


def test_a_recipe_may_name_every_measure_and_no_other():
    assert {*get_args(Measure)} == {*MEASURES, "kl"}
    with pytest.raises(ValueError, match="meteor"):
        Evaluate.model_validate({"measures": ["beauty"]})
