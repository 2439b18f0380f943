"""What a step did to every token: before and after, in order, for each trajectory of the batch."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.learn.small_learners import SETTINGS, make_groups, make_learner, make_policy
from tests.train.recorded_runs import make_run
from turnwise.batch import TokenBatch
from turnwise.learn.learner import Learner
from turnwise.learn.token_ledger import write_tokens
from turnwise.runs import RunFolder, read_groups, read_rows
from turnwise.sources.imitation import IMITATION
from turnwise.types import Group


def write(folder: Path, learner: Learner, groups: list[Group]) -> tuple[TokenBatch, list[dict[str, Any]]]:
    """Learn from the groups, write the ledger, read it back."""
    batch = learner.prepare(groups)
    assert batch is not None
    learner.learn(batch, 1)
    write_tokens(folder / "tokens.jsonl.zst", learner, batch)
    return batch, list(read_rows(folder / "tokens.jsonl.zst"))


def joined(rows: list[dict[str, Any]], name: str) -> torch.Tensor:
    return torch.tensor([value for row in rows for value in row[name]], dtype=torch.float64)


def test_every_trajectory_has_a_line_over_its_sampled_tokens(tmp_path: Path) -> None:
    groups = make_groups()
    _, rows = write(tmp_path, make_learner("ppo", minibatches=2), groups)
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    assert [row["id"] for row in rows] == [trajectory.id for trajectory in trajectories]
    for row, trajectory in zip(rows, trajectories, strict=True):
        tokens = sum(len(turn.sampled_ids) for turn in trajectory.turns)
        assert {name: len(row[name]) for name in row if name not in ("id", "spans")} == dict.fromkeys(
            ("old", "ids", "new", "advantage", "ratio", "clipped"), tokens
        )
        assert row["ids"] == [token for turn in trajectory.turns for token in turn.sampled_ids]
        whole = [token for turn in trajectory.turns for token in [*turn.prompt_ids, *turn.sampled_ids]]
        assert row["ids"] == [token for start, end in row["spans"] for token in whole[start:end]]
    assert any(turn.restarts for trajectory in trajectories for turn in trajectory.turns)  # several sequences in one


def test_old_is_before_the_updates_and_new_after_them(tmp_path: Path) -> None:
    learner = make_learner("ppo", minibatches=2)
    batch, rows = write(tmp_path, learner, make_groups())
    assert batch.old_T is not None
    assert batch.advantage_T is not None
    torch.testing.assert_close(joined(rows, "old"), batch.old_T[batch.sampled_T].double(), rtol=1e-5, atol=0)
    torch.testing.assert_close(
        joined(rows, "advantage"), batch.advantage_T[batch.sampled_T].double(), rtol=1e-5, atol=0
    )
    with torch.no_grad():
        new_T = learner.policy.score(batch).logprob_T
    torch.testing.assert_close(joined(rows, "new"), new_T[batch.sampled_T].double(), rtol=1e-5, atol=0)
    moved = (joined(rows, "new") - joined(rows, "old")).abs()
    assert 1e-4 < float(moved.mean()) < 1
    torch.testing.assert_close(
        joined(rows, "ratio"), (joined(rows, "new") - joined(rows, "old")).exp(), rtol=1e-4, atol=0
    )


def test_clipped_are_the_tokens_that_went_too_far_in_their_own_direction(tmp_path: Path) -> None:
    surrogate = {"kind": "ppo-clip", "low": 0.001, "high": 0.001}
    _, rows = write(tmp_path, make_learner("ppo", surrogate=surrogate, minibatches=2), make_groups())
    ratio, advantage = joined(rows, "ratio"), joined(rows, "advantage")
    expected = ((ratio > 1.001) & (advantage > 0)) | ((ratio < 0.999) & (advantage < 0))
    assert torch.equal(joined(rows, "clipped").bool(), expected)
    assert 0 < int(expected.sum()) < expected.numel()


def test_the_tokens_of_a_turn_share_the_ratio_of_a_row_by_turns(tmp_path: Path) -> None:
    groups = make_groups()
    _, rows = write(tmp_path, make_learner("st-ppo", minibatches=2), groups)
    turns = groups[0].trajectories[0].turns
    start = 0
    for turn in turns:
        ratios = rows[0]["ratio"][start : start + len(turn.sampled_ids)]
        assert len(set(ratios)) == 1
        start += len(turn.sampled_ids)


def test_after_a_single_update_ratios_are_against_the_sampler_under_its_own_name(tmp_path: Path) -> None:
    batch, rows = write(tmp_path, make_learner("reinforce"), make_groups())
    assert batch.old_T is None
    assert batch.mu_T is not None
    assert "old" not in rows[0]
    torch.testing.assert_close(joined(rows, "mu"), batch.mu_T[batch.sampled_T].double(), rtol=1e-5, atol=0)


def test_demonstrations_have_no_old_policy(tmp_path: Path) -> None:
    groups = make_groups()
    for group in groups:
        for trajectory in group.trajectories:
            for turn in trajectory.turns:
                turn.logprobs = None
    _, rows = write(tmp_path, Learner(make_policy(), IMITATION, SETTINGS), groups)
    assert {tuple(row) for row in rows} == {("id", "spans", "ids", "new")}


def test_numbers_that_are_not_finite_are_written_as_null_and_stop_nothing(tmp_path: Path) -> None:
    learner = make_learner("ppo", minibatches=2)
    batch = learner.prepare(make_groups())
    assert batch is not None
    with torch.no_grad():
        next(iter(learner.policy.trainable().values())).fill_(torch.nan)
    write_tokens(tmp_path / "tokens.jsonl.zst", learner, batch)
    row = next(read_rows(tmp_path / "tokens.jsonl.zst"))
    assert set(row["new"]) == set(row["ratio"]) == {None}
    assert None not in row["old"]


def test_a_run_writes_one_at_checkpoints_and_rewinding_removes_later_ones(tmp_path: Path) -> None:
    train = {"steps": 4, "learning_rate": 5e-4}
    run = RunFolder.open(make_run(tmp_path / "run", train=train, checkpoint={"every": 2}))
    assert run.token_steps() == [2, 4]
    ids = [trajectory.id for group in read_groups(run.rollouts_file(4)) for trajectory in group.trajectories]
    assert [row["id"] for row in read_rows(run.tokens_file(4))] == ids
    run.rewind(2)
    assert run.token_steps() == [2]
    assert run.rollout_steps() == [1, 2]


@pytest.mark.parametrize("micro_tokens", [1, 64])
def test_micro_batches_do_not_change_it(tmp_path: Path, micro_tokens: int) -> None:
    train = SETTINGS.model_copy(update={"micro_tokens": micro_tokens})
    _, whole = write(tmp_path, make_learner("ppo", minibatches=2), make_groups())
    _, parts = write(tmp_path, make_learner("ppo", train=train, minibatches=2), make_groups())
    torch.testing.assert_close(joined(parts, "new"), joined(whole, "new"), rtol=0, atol=2e-4)
