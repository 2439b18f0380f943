"""A language-model loss on words of the policy's own episodes: others' words, or its own successes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.learn.small_learners import SETTINGS, make_policy, row, weights
from tests.train.small_runs import played, rows, run, trajectories
from turnwise.algorithm import Algorithm, resolve
from turnwise.audit.replay import replay_step
from turnwise.audit.verify import verify_run
from turnwise.batch import POLICY as OWN
from turnwise.learn.learner import Learner
from turnwise.learn.spoken_words import others_words, successes
from turnwise.reproduce.mask_off import all_tokens
from turnwise.rollout.packing import pack
from turnwise.sources.imitation import IMITATION
from turnwise.types import POLICY, Group, StopReason, Trajectory, Turn


def lesson(*, reward: float = 0.0, stop: StopReason = StopReason.DONE) -> Group:
    turns = [
        Turn(prompt_ids=[1, 5, 6], sampled_ids=[7, 2], logprobs=[-0.5, -0.5]),
        Turn(prompt_ids=[1, 8, 9, 10, 4], heard=[(1, 3)], sampled_ids=[11, 2], logprobs=[-0.5, -0.5], reward=reward),
    ]
    return Group(id="g", trajectories=[Trajectory(id="t", turns=turns, stop=stop, terminated=True)])


def sampled(group: Group, policy: str = POLICY) -> list[int]:
    batch = pack([group], policy=policy)
    return batch.ids_T[batch.sampled_T].tolist()


def test_others_words_are_the_only_ones_imitated_and_all_else_is_context() -> None:
    text = others_words(lesson(), POLICY)
    batch = pack([text], policy=POLICY)
    assert batch.ids_T.tolist() == [1, 5, 6, 7, 2, 1, 8, 9]
    assert sampled(text) == [8, 9]
    assert not others_words(lesson(stop=StopReason.ENV_ERROR), POLICY).trajectories


def test_a_rewritten_history_begins_another_sequence() -> None:
    group = lesson()
    group.trajectories[0].turns[1].restarts = True
    batch = pack([others_words(group, POLICY)], policy=POLICY)
    assert batch.ids_T.tolist() == [1, 8, 9]


def test_successes_are_ones_own_words_where_they_won() -> None:
    assert sampled(successes(lesson(reward=1.0), POLICY)) == [7, 2, 11, 2]
    assert not successes(lesson(), POLICY).trajectories
    assert not successes(lesson(reward=1.0), "another").trajectories


def learn(algorithm: Algorithm, groups: Sequence[Group]) -> dict[str, torch.Tensor]:
    learner = Learner(make_policy(), algorithm, SETTINGS)
    batch = learner.prepare(groups)
    assert batch is not None
    learner.learn(batch, 1)
    return weights(learner)


@pytest.mark.parametrize("of", ["others", "successes"])
def test_where_nothing_is_won_it_is_imitation_of_those_words(of: str) -> None:
    group = lesson()
    group.trajectories[0].info = {"success": True}
    found = learn(row("reinforce", {"regularizers": [{"kind": "lm", "of": of, "coef": 1.0}]}), [group])
    text = (others_words if of == "others" else successes)(group, POLICY)
    expected = learn(IMITATION, [text])
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-6, msg=name)


def test_the_environments_tokens_get_neither_loss() -> None:
    algorithm = row("ppo", {"regularizers": [{"kind": "lm", "coef": 0.5}]})
    learner = Learner(make_policy(), algorithm, SETTINGS)
    batch = learner.prepare([lesson(reward=1.0)])
    assert batch is not None
    assert batch.texts is not None
    trained = {*batch.ids_T[batch.sampled_T].tolist(), *batch.texts.ids_T[batch.texts.sampled_T].tolist()}
    assert trained == {7, 2, 11, 8, 9}


def test_a_step_without_such_words_learns_from_the_rest() -> None:
    silent = lesson(reward=1.0)
    silent.trajectories[0].turns[1].heard = ()
    learner = Learner(make_policy(), row("reinforce", {"regularizers": ["lm"]}), SETTINGS)
    batch = learner.prepare([silent])
    assert batch is not None
    assert batch.texts is None
    assert "loss/ptx" not in learner.learn(batch, 1).metrics


def test_a_row_imitates_one_kind_of_text() -> None:
    with pytest.raises(ValueError, match="regularizers has ptx and lm, and a step has one kind of text"):
        resolve(row("ppo", {"regularizers": ["ptx", "lm"]}))


def test_with_the_mask_off_every_token_but_the_first_is_trained_on() -> None:
    batch = pack([all_tokens(lesson(reward=1.0))], policy=POLICY)
    assert batch.ids_T.tolist() == pack([lesson()], policy=POLICY).ids_T.tolist()
    assert batch.sampled_T.tolist() == [False] + [True] * 11
    assert (batch.source_T == OWN).sum() == 11
    assert float(batch.reward_T[-1]) == 1.0


LESSONS = {
    "env": {"id": "ltc/teacher-student", "kwargs": {"rounds": 2}, "check": False},
    "algorithm": {"preset": "ppo", "regularizers": [{"kind": "lm", "coef": 0.5}]},
    "rollout": {"max_tokens": 8, "context": 96},
    "train": {"steps": 2},
    "seats": {"student": "policy", "teacher": {"agent": "oracle"}},
}


def test_a_run_with_a_teacher_hears_its_words_and_can_be_replayed(tmp_path: Path) -> None:
    run(tmp_path / "run", LESSONS)
    taught = [one for one in trajectories(played(tmp_path / "run", 2)) if one.seat == "student" and len(one.turns) > 1]
    row = rows(tmp_path / "run")[-1]
    assert ("loss/ptx" in row) == bool(taught)
    assert all(one.turns[1].heard for one in taught)
    assert all(check.ok for check in verify_run(tmp_path / "run"))
    assert replay_step(tmp_path / "run", 2).same


def test_the_words_of_a_run_are_those_of_the_teacher(tmp_path: Path) -> None:
    run(tmp_path / "run", {**LESSONS, "seats": {"student": {"agent": "oracle"}, "teacher": "policy"}})
    for one in trajectories(played(tmp_path / "run", 1)):
        if one.seat == "teacher" and one.turns:
            assert len(one.turns[0].heard) == 1
            assert replace(one.turns[0], heard=()).prompt_ids == one.turns[0].prompt_ids


def test_of_two_policies_that_learn_only_the_one_that_hears_learns_the_others_words(tmp_path: Path) -> None:
    changes = {
        **LESSONS,
        "env": {"id": "ltc/dialogue", "kwargs": {"hops": [1]}, "check": False},
        "rollout": {"max_tokens": 40, "context": 96},
        "train": {"steps": 1},
        "policies": {"thinker": {}, "actor": {"model": "pico-7"}},
        "seats": {"thinker": "thinker", "actor": "actor"},
    }
    run(tmp_path / "run", changes)
    (row,) = rows(tmp_path / "run")
    assert row["actor/loss/ptx"] > 0
    assert row["actor/loss/lm_term"] > 0
    assert "thinker/loss/ptx" not in row
    assert row["thinker/train/gradient_norm"] >= 0
    groups = played(tmp_path / "run", 1)
    acting = [one for one in trajectories(groups) if one.seat == "actor"]
    spoken = [turn for one in acting for turn in one.turns]
    assert {turn.policy for turn in spoken} == {"actor"}
    thoughts = [turn.prompt_ids[start:end] for turn in spoken for start, end in turn.heard]
    texts = [others_words(group, "actor") for group in groups if group.trajectories[0].seat == "actor"]
    learned = [token for text in texts if text.trajectories for token in sampled(text, "actor")]
    assert learned == [token for thought in thoughts for token in thought]
    assert len(learned) > 4
    assert all(check.ok for check in verify_run(tmp_path / "run"))
    assert replay_step(tmp_path / "run", 1).same
