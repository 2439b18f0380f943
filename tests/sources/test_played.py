"""What the policy plays in a step: refilled batches, further tries, and the expert as a member of each group."""

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from tests.train.small_envs import WANTED
from tests.train.small_runs import ENVS, played, rows, run, small_recipe, trajectories
from turnwise.algorithm import apply_filters, compute_credit, explain, preset
from turnwise.policy.rendering import Renderer
from turnwise.policy.text import TextPolicy
from turnwise.rollout.packing import pack
from turnwise.sources.cast import Cast
from turnwise.sources.making import make_source
from turnwise.sources.player import Player
from turnwise.sources.rollout_metrics import read_rollout
from turnwise.sources.source import Source

GROUPS = {"algorithm": {"preset": "dapo", "sampling": {"size": 4, "refill": 3}}, "rollout": {"episodes": 16}}


@pytest.fixture
def sources() -> Iterator[Any]:
    """Makes the source of a recipe and closes it when the test is over."""
    opened = list[Source | Player]()

    def make(changes: dict[str, Any], model: str = "pico") -> Source:
        recipe, policy = small_recipe({"model": model, **changes}), TextPolicy.load(model)
        player = Player(Cast.alone(policy, Renderer(policy.tokenizer)), rollout=recipe.rollout, seed=recipe.seed)
        opened.extend([player, source := make_source(recipe, player)])
        return source

    yield make
    for each in reversed(opened):
        each.close()


def test_a_refilled_step_has_a_full_batch_and_not_one_group_more(sources: Any) -> None:
    row = preset("dapo").override({"sampling": {"size": 4}})
    source = sources({**GROUPS, "algorithm": {"preset": "dapo", "sampling": {"size": 4, "refill": 50}}})
    groups = source.groups(1)
    assert len(apply_filters(row, groups)) == 4
    assert len(groups) > 4
    assert source.metrics() == {"source/refilled": len(groups) - 4.0, "source/missing": 0.0}
    assert len({group.id for group in groups}) == len(groups)
    assert len({group.trajectories[0].seed for group in groups}) == len(groups)


def test_refilling_ends_at_its_limit(sources: Any) -> None:
    impossible = {"env": {"id": f"{ENVS}:Say", "kwargs": {"turns": 4}, "check": False}}
    source = sources({**GROUPS, **impossible, "rollout": {"episodes": 8, "max_turns": 1}})
    groups = source.groups(1)
    assert len(groups) == 2 * (1 + 3)
    assert source.metrics() == {"source/refilled": 6.0, "source/missing": 2.0}


def test_the_first_tasks_of_a_refilled_step_are_followed_by_new_ones_in_every_step(sources: Any) -> None:
    source = sources({**GROUPS, "rollout": {"episodes": 8, "max_turns": 1}})
    seeds = [group.trajectories[0].seed for step in (1, 2, 3) for group in source.groups(step)]
    assert len(set(seeds)) == len(seeds)


def test_hard_tasks_are_tried_again_in_their_own_group(sources: Any) -> None:
    source = sources({"algorithm": {"preset": "dars-et", "sampling": {"size": 4}}, "rollout": {"episodes": 32}})
    groups = source.groups(1)
    first = [sum(each.success for each in group.trajectories[:4]) for group in groups]
    assert {0, 1} <= set(first)
    assert [len(group.trajectories) for group in groups] == [4 + {0: 6, 1: 2}.get(count, 0) for count in first]
    assert source.metrics() == {"source/extra": float(sum(len(group.trajectories) - 4 for group in groups))}
    ids = [each.id for each in trajectories(groups)]
    assert len(set(ids)) == len(ids)
    assert all(each.id.startswith(f"{group.id}/") for group in groups for each in group.trajectories)


def test_further_tries_of_all_rounds_of_a_step_share_one_budget(sources: Any) -> None:
    sampling = {"size": 4, "budget": 30, "refill": 3}
    source = sources({"algorithm": {"preset": "dars-hw", "sampling": sampling}, "rollout": {"episodes": 16}})
    for step in (1, 2):
        groups = source.groups(step)
        assert len(groups) > 4
        assert source.metrics()["source/extra"] == 30.0 == sum(len(group.trajectories) - 4 for group in groups)


def test_the_expert_comes_after_all_further_tries(sources: Any) -> None:
    sampling = {"size": 4, "most": 8}
    changes = {"algorithm": {"preset": "dars-et", "sampling": sampling}, "source": {"expert": 1}}
    groups = sources({**changes, "rollout": {"episodes": 32}}).groups(1)
    assert {7, 9} <= {len(group.trajectories) for group in groups}
    for group in groups:
        assert [each.is_own for each in group.trajectories] == [True] * (len(group.trajectories) - 1) + [False]
    assert len({each.id for each in trajectories(groups)}) == len(trajectories(groups))


def test_a_pooled_group_is_credited_by_its_own_mean_and_dropped_if_all_its_tries_are_alike(sources: Any) -> None:
    row = preset("dars-et").override({"sampling": {"size": 4, "most": 8}})
    groups = sources({"algorithm": row.model_dump(), "rollout": {"episodes": 32}}).groups(1)
    kept = apply_filters(row, groups)
    assert 0 < len(kept) < len(groups)
    assert {len(group.trajectories) for group in kept} == {6, 8}
    batch = compute_credit(row, pack(kept))
    assert batch.advantage_T is not None
    for number, group in enumerate(kept):
        rewards = [each.reward for each in group.trajectories]
        own_T = (batch.group_S == number)[batch.sequence_T] & batch.sampled_T
        expected = {round(reward - fmean(rewards), 5) for reward in rewards}
        assert {round(float(each), 5) for each in batch.advantage_T[own_T]} == expected


def test_the_expert_joins_each_group_with_tokens_whose_sampler_is_unknown(sources: Any) -> None:
    source = sources({"algorithm": "grpo", "source": {"expert": 2}, "rollout": {"episodes": 16}})
    groups = source.groups(1)
    for group in groups:
        assert [each.is_own for each in group.trajectories] == [True] * 8 + [False] * 2
        assert all(each.success for each in group.trajectories[8:])
        assert all(each.turns[0].action.split(" ")[0] in WANTED for each in group.trajectories[8:])
    batch = pack(groups)
    assert batch.mu_T is not None
    unknown = {batch.trajectory_names[n] for n in batch.trajectory_S[batch.sequence_T[batch.mu_T.isnan()]].tolist()}
    assert unknown == {each.id for group in groups for each in group.trajectories[8:]}
    assert not batch.mu_T[~batch.sampled_T].isnan().any()


def test_metrics_are_about_the_policy_and_not_about_its_expert(sources: Any) -> None:
    changes = {"algorithm": "grpo", "rollout": {"episodes": 16}}
    alone, joined = (sources({**changes, "source": {"expert": members}}).groups(1) for members in (0, 3))
    assert read_rollout(joined, version=0) == read_rollout(alone, version=0)


def test_a_group_of_failures_has_variance_once_the_expert_has_joined(sources: Any) -> None:
    refilled = sources({**GROUPS, "source": {"expert": 1}})
    groups = refilled.groups(1)
    assert refilled.metrics()["source/missing"] == 0
    failed = [group for group in groups if not any(each.success for each in group.trajectories[:4])]
    assert {group.task_id for group in failed} <= {g.task_id for g in apply_filters(preset("dapo"), groups)}


def test_dapo_refills_and_explain_says_so() -> None:
    assert preset("dapo").sampling.options["refill"] == 4
    assert "refill: further tasks x until the filters leave a full batch" in explain(preset("dapo"))
    assert "refill" not in explain(preset("grpo"))


def test_a_refilled_run_records_what_it_played(tmp_path: Path) -> None:
    run(tmp_path / "run", {**GROUPS, "train": {"steps": 2}})
    for row in rows(tmp_path / "run"):
        assert row["rollout/tasks"] == 4 + row["source/refilled"] == len(played(tmp_path / "run", row["step"]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"algorithm": {"preset": "dapo", "max_lag": 1}},
            "sampling.refill looks at a step's episodes .* set algorithm.max_lag=0 or algorithm.sampling.refill=null",
        ),
        (
            {"algorithm": {"preset": "dars-et", "max_lag": 1}},
            "sampling looks at a step's episodes .* set algorithm.max_lag=0 or algorithm.sampling=group",
        ),
        ({"algorithm": "minirl", "source": {"expert": 1}}, "source.expert adds tokens whose sampler is unknown"),
        ({"source": {"experts": 1}}, "unknown key source.experts; did you mean source.expert?"),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_fix(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small_recipe(changes)


def test_an_expert_that_does_not_exist_is_refused(sources: Any) -> None:
    with pytest.raises(ValueError, match=r"Walk has no scripted expert to imitate; set source\.expert=0"):
        sources({"env": {"id": "tests.rollout.faulty:Walk", "check": False}, "source": {"expert": 1}})
