import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.sandboxes import needs_bubblewrap

pytest.importorskip("statsmodels", reason="needs turnwise[dev]")

from statsmodels.stats.proportion import proportion_confint

from tests.evaluate.episodes import episode, tasks
from turnwise.algorithm import preset
from turnwise.envs import make
from turnwise.evaluate.evaluation import evaluate, fewer_tasks, play_specs, summarize, trained_tasks
from turnwise.evaluate.statistics import wilson_interval
from turnwise.recipe.schema import EnvChoice, Recipe
from turnwise.rollout.episode import EpisodeSpec
from turnwise.types import Group, StopReason, Trajectory

RECIPE = {"algorithm": preset("ppo"), "env": {"id": "game/guess-number-easy", "kwargs": {"high": 10, "split": "train"}}}


def test_one_try_at_each_task_gets_the_usual_wilson_interval():
    metrics = summarize(tasks([1.0], [1.0], [0.0], [1.0]))
    low, high = proportion_confint(3, 4, method="wilson")
    assert metrics["eval/success"] == metrics["eval/pass@1"] == 0.75
    assert (metrics["eval/success_low"], metrics["eval/success_high"]) == pytest.approx((low, high), abs=1e-12)


def test_an_agent_that_never_fails_is_not_certain_to_succeed():
    metrics = summarize(tasks(*[[1.0]] * 20))
    assert metrics["eval/success_high"] == pytest.approx(1.0)
    assert metrics["eval/success_low"] == pytest.approx(proportion_confint(20, 20, method="wilson")[0])


def test_episodes_that_failed_count_as_faults_and_in_no_rate():
    broken = [episode(5.0, turns=4, valid=0, stop=stop) for stop in (StopReason.ENV_ERROR, StopReason.TIMEOUT)]
    groups = [Group(id="a", trajectories=[episode(1.0, turns=2), broken[0]]), Group(id="b", trajectories=[broken[1]])]
    metrics = summarize([*groups, *tasks([0.0])], tries=2)
    assert metrics["eval/episodes"] == 4
    assert metrics["eval/faults"] == 0.5
    assert metrics["eval/success"] == 0.5
    assert metrics["eval/reward"] == 0.5
    assert metrics["eval/turns"] == 1.5
    assert metrics["eval/tokens"] == 4.5
    assert metrics["eval/valid"] == 1.0
    assert "eval/pass@2" not in metrics  # no task kept two sound tries


def test_cut_episodes_count_as_the_agents_own_failures():
    groups = [Group(id="a", trajectories=[episode(0.0, stop=StopReason.MAX_TURNS), episode(1.0)])]
    assert summarize(groups, tries=2)["eval/success"] == 0.5


def test_valid_is_the_share_of_turns():
    group = Group(id="a", trajectories=[episode(1.0, turns=3, valid=1), episode(1.0, turns=1)])
    assert summarize([group], tries=2)["eval/valid"] == 0.5


def test_pass_at_k_by_hand():
    metrics = summarize(tasks([1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [0.0] * 4), tries=4)
    assert metrics["eval/pass@1"] == pytest.approx((1 / 4 + 2 / 4 + 0) / 3)
    assert metrics["eval/pass@2"] == pytest.approx((1 / 2 + 5 / 6 + 0) / 3)
    assert metrics["eval/pass@4"] == pytest.approx(2 / 3)
    assert {name for name in summarize(tasks([1.0] * 6), tries=6) if "pass" in name} == {
        "eval/pass@1",
        "eval/pass@2",
        "eval/pass@4",
        "eval/pass@6",
    }


def test_solutions_are_distinct_if_their_actions_differ_and_only_successes_count():
    def said(reward: float, *actions: str) -> Trajectory:
        tried = episode(reward, turns=len(actions))
        return replace(
            tried, turns=[replace(turn, action=text) for turn, text in zip(tried.turns, actions, strict=True)]
        )

    first = [said(1.0, "a", "b"), said(1.0, "a", "b"), said(1.0, "a b"), said(0.0, "c")]
    groups = [Group(id="a", trajectories=first), Group(id="b", trajectories=[said(0.0, "a")] * 4)]
    assert summarize(groups, tries=4)["eval/distinct_solutions"] == 1.0  # two and none
    assert "eval/distinct_solutions" not in summarize(groups, tries=1)


def test_tries_that_end_alike_are_no_more_evidence_than_one():
    alike = summarize(tasks(*([1.0] * 8 if task % 2 else [0.0] * 8 for task in range(20))), tries=8)
    low, high = proportion_confint(10, 20, method="wilson")
    assert (alike["eval/success_low"], alike["eval/success_high"]) == pytest.approx((low, high))


def test_interval_over_tasks_covers_the_truth_where_one_over_episodes_does_not():
    generator, truth, covered, naive = np.random.default_rng(0), 0.7, 0, 0
    ends = (episode(0.0), episode(1.0))
    for _ in range(200):
        rates = generator.beta(0.7, 0.3, size=40)  # tasks are mostly either easy or hopeless
        tries = generator.random((40, 8)) < rates[:, None]
        groups = [Group(id="", trajectories=[ends[int(won)] for won in task]) for task in tries]
        metrics = summarize(groups, tries=8)
        covered += metrics["eval/success_low"] <= truth <= metrics["eval/success_high"]
        low, high = wilson_interval(successes=int(tries.sum()), trials=tries.size)
        naive += low <= truth <= high
    assert 0.92 <= covered / 200 <= 0.98
    assert naive / 200 < 0.75


def test_no_sound_episode_leaves_only_the_count_of_faults():
    groups = [Group(id="a", trajectories=[episode(0.0, stop=StopReason.TIMEOUT)])]
    assert summarize(groups) == {"eval/episodes": 1.0, "eval/faults": 1.0}
    assert summarize([]) == {"eval/episodes": 0.0}


def test_one_task_has_a_reward_but_no_interval_of_it():
    metrics = summarize(tasks([1.0]))
    assert metrics["eval/reward"] == 1.0
    assert "eval/reward_low" not in metrics


def test_specs_are_held_out_tasks_that_never_change():
    recipe = Recipe.model_validate({**RECIPE, "eval": {"episodes": 3, "tries": 2}})
    specs = play_specs(recipe)
    assert specs == play_specs(recipe)
    assert [(spec.seed, spec.index) for spec in specs] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert all(spec.kwargs == {"high": 10, "split": "validation"} for spec in specs)
    assert len({spec.id for spec in specs}) == 6
    assert len({spec.group_id for spec in specs}) == 3


def _questions(path: Path, count: int) -> dict[str, Any]:
    rows = [{"question": f"what is {number} ?", "answer": str(number)} for number in range(count)]
    path.write_text("\n".join(json.dumps(row) for row in [*rows, *rows[:1]]))  # the first stands there twice
    corpus = path.with_name("corpus.jsonl")
    corpus.write_text('{"title": "numbers", "text": "0 1 2"}')
    return {"id": "search/qa", "kwargs": {"questions": str(path), "corpus": str(corpus), "divide": False}}


def test_each_question_of_a_small_file_is_one_held_out_task(tmp_path: Path):
    env = _questions(tmp_path / "three.jsonl", 3)
    recipe = Recipe.model_validate({**RECIPE, "env": env, "eval": {"episodes": 200, "tries": 2}})
    specs = play_specs(recipe)
    assert specs == play_specs(recipe)
    assert sorted(spec.task["question"] for spec in specs) == [f"what is {n} ?" for n in (0, 0, 1, 1, 2, 2)]
    assert len({spec.group_id for spec in specs}) == 3
    assert fewer_tasks(recipe, specs).startswith("search/qa has 3 different held-out tasks, fewer than eval.episodes=")


def test_a_large_file_of_questions_is_sampled_without_replacement(tmp_path: Path):
    recipe = Recipe.model_validate({**RECIPE, "env": _questions(tmp_path / "q.jsonl", 50), "eval": {"episodes": 20}})
    specs = play_specs(recipe)
    assert len({spec.task["question"] for spec in specs}) == 20
    assert fewer_tasks(recipe, specs) == ""


def test_tasks_that_are_known_by_their_place_may_belong_to_training_where_others_are_held_out(tmp_path: Path):
    file = tmp_path / "labelled.jsonl"
    file.write_text("\n".join(json.dumps({"text": f"text {n}", "label": "ab"[n % 2]}) for n in range(60)))

    def doubt(changes: dict[str, Any]) -> str:
        env = {"id": "classify/files", "kwargs": {"path": str(file), **changes}}
        return trained_tasks(Recipe.model_validate({**RECIPE, "env": env}), trained)

    trained = EnvChoice.model_validate({"id": "classify/files", "kwargs": {"path": str(file)}})
    assert doubt({}) == ""
    assert doubt({"shots": 2}) == ""
    assert "may belong to this run's training" in doubt({"held_out": 0.5})


def test_the_interval_of_few_questions_is_that_of_few_tasks():
    tries = [replace(episode(float(item > 0)), task={"question": item}) for item in range(3) for _ in range(64)]
    groups = [Group(id=str(item), trajectories=tries[64 * item : 64 * item + 64]) for item in range(3)]
    metrics = summarize(groups, tries=64)
    assert metrics["eval/tasks"] == 3
    low, high = wilson_interval(successes=2, trials=3)
    assert (metrics["eval/success_low"], metrics["eval/success_high"]) == pytest.approx((low, high))
    assert "eval/tasks" not in summarize(tasks([1.0]))  # where seeds deal tasks without end, their number says nothing


@pytest.mark.parametrize("wrapped", [False, pytest.param(True, marks=needs_bubblewrap)])
def test_word_problems_of_a_file_are_listed_through_wrappers_too(wrapped: bool, tmp_path: Path):
    rows = [{"question": f"1 + {number} ?", "answer": f"#### {number + 1}"} for number in range(4)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, [*rows, *rows])))
    listed = make("math/gsm8k", questions=str(tmp_path / "{split}.jsonl"), python=wrapped).list_tasks()
    assert listed == [{"question": f"1 + {number} ?", "answer": str(number + 1)} for number in range(4)]


class _Scripted:
    """Plays by rule: odd seeds succeed."""

    def play(
        self, specs: list[EpisodeSpec], temperature: float | None = None, *, alone: str | None = None
    ) -> list[Group]:
        self.temperature = temperature
        return [Group(id=spec.group_id, trajectories=[episode(float(spec.seed % 2))]) for spec in specs]


def test_evaluate_plays_at_the_evaluations_temperature():
    player = _Scripted()
    metrics = evaluate(player, Recipe.model_validate({**RECIPE, "eval": {"episodes": 5, "temperature": 0.3}}))
    assert player.temperature == 0.3
    assert metrics["eval/success"] == 0.4
    assert evaluate(player, Recipe.model_validate({**RECIPE, "eval": {"episodes": 0}})) == {}


def test_scores_that_the_environment_reports_become_means_over_the_episodes_that_have_them():
    groups = tasks([1.0, 0.0], [0.5])
    groups[0].trajectories[0].info = {"scores": {"true": 0.5, "length": 8, "note": "no number"}}
    groups[1].trajectories[0].info = {"scores": {"true": 0.1}}
    groups[0].trajectories[1].info = {"scores": [1, 2]}
    metrics = summarize(groups)
    assert {name: value for name, value in metrics.items() if "score" in name} == pytest.approx(
        {"eval/score_true": 0.3, "eval/score_length": 8.0}
    )
