"""The player: the policy as it is now, in episodes whose bits no timing changes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from tests.train.small_runs import ENVS, small_recipe, trajectories
from turnwise.policy.rendering import Renderer
from turnwise.policy.text import TextPolicy
from turnwise.rollout.episode import EpisodeSpec
from turnwise.sources.cast import Cast
from turnwise.sources.player import Player
from turnwise.types import Group, StopReason


@contextmanager
def player(policy: TextPolicy | None = None, *, lockstep: bool = True, **rollout: Any) -> Iterator[Player]:
    policy = policy or TextPolicy.load("pico")
    recipe = small_recipe({"rollout": rollout})
    made = Player(Cast.alone(policy, Renderer(policy.tokenizer)), rollout=recipe.rollout, seed=3, lockstep=lockstep)
    try:
        yield made
    finally:
        made.close()


def specs(env: str, count: int = 16, **kwargs: Any) -> list[EpisodeSpec]:
    return [EpisodeSpec(env=f"{ENVS}:{env}", kwargs=kwargs, seed=seed, group=f"task-{seed}") for seed in range(count)]


def sampled(groups: list[Group]) -> list[list[tuple[list[int], list[float]]]]:
    """Ids and log-probs of every turn, to the bit."""
    return [
        [(list(turn.sampled_ids), list(turn.logprobs or ())) for turn in trajectory.turns]
        for trajectory in trajectories(groups)
    ]


def test_in_lockstep_no_timing_changes_a_bit() -> None:
    outcomes: list[Any] = []
    for jitter in (0.0, 0.02, 0.02):  # how long a step takes is drawn anew in each run
        with player(concurrency=6) as made:
            outcomes.append(sampled(made.play(specs("Slow", turns=3, jitter=jitter))))
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert sum(len(turns) for turns in outcomes[0]) > 16


def test_without_lockstep_the_same_tokens_are_sampled_and_log_probs_agree() -> None:
    outcomes: list[Any] = []
    for jitter, concurrency in ((0.0, 16), (0.02, 5)):
        with player(lockstep=False, concurrency=concurrency) as made:
            outcomes.append(sampled(made.play(specs("Slow", turns=3, jitter=jitter))))
    for first, second in zip(*outcomes, strict=True):
        assert [ids for ids, _ in first] == [ids for ids, _ in second]
        for (_, logprobs), (_, others) in zip(first, second, strict=True):
            assert logprobs == pytest.approx(others, abs=1e-5)


def test_groups_come_in_the_order_of_their_specs_whoever_ends_first() -> None:
    with player(concurrency=4) as made:
        groups = made.play(specs("Slow", count=12, jitter=0.02))
    assert [group.id for group in groups] == [f"task-{seed}" for seed in range(12)]


def test_temperature_zero_is_greedy_and_the_recipes_own_comes_back_after_it() -> None:
    with player() as made:
        first, greedy, again, second = (
            sampled(made.play(specs("Say", count=8), temperature=temperature)) for temperature in (None, 0.0, 0.0, None)
        )
    assert greedy == again != first
    assert first == second


def test_turns_carry_the_version_that_was_published_and_its_weights() -> None:
    policy = TextPolicy.load("pico")
    with player(policy) as made:
        before = made.play(specs("Say", count=8))
        with made.paused(), torch.no_grad():
            for weight in policy.trainable().values():
                weight.mul_(1.5)
        made.publish(4)
        after = made.play(specs("Say", count=8))
    assert {turn.policy_version for each in trajectories(before) for turn in each.turns} == {0}
    assert {turn.policy_version for each in trajectories(after) for turn in each.turns} == {4}
    assert sampled(before) != sampled(after)


def test_limits_of_the_recipe_end_episodes() -> None:
    with player(max_turns=2, max_tokens=1) as made:
        cut = trajectories(made.play(specs("Say", turns=9, count=8)))
    assert {each.stop for each in cut} <= {StopReason.MAX_TOKENS, StopReason.MAX_TURNS}
    assert all(len(turn.sampled_ids) == 1 for each in cut for turn in each.turns)
    assert all(each.truncated and not each.terminated for each in cut)
