"""Several sources in one step: how many groups each gives, in which order, and what is refused."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.train.small_runs import LostMachineError, Stopping, last_tensors, played, rows, run, small_recipe, timeless
from turnwise.audit.replay import replay_step
from turnwise.audit.verify import verify_run
from turnwise.sources.making import shares
from turnwise.sources.mixture import Shelf
from turnwise.types import Group

CHATS = [[{"role": "user", "content": f"from e {n}"}, {"role": "assistant", "content": "a b"}] for n in "1234"]
PAIRS = [{"prompt": f"from f {n}", "chosen": "a", "rejected": "1 2"} for n in "123"]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """A file of each kind, in the words of pico."""
    contents = {
        "chats": "\n".join(json.dumps({"messages": chat}) for chat in CHATS),
        "preferences": "\n".join(map(json.dumps, PAIRS)),
        "text": "a b c d " * 40,
    }
    for kind, content in contents.items():
        (tmp_path / f"{kind}.txt").write_text(content)
    return {kind: str(tmp_path / f"{kind}.txt") for kind in contents}


def mixed(*parts: Any, **changes: Any) -> dict[str, Any]:
    return {"source": {"mix": list(parts)}, "rollout": {"episodes": 16}, **changes}


NLL = {"preset": "reinforce", "surrogate": "nll", "weights": "token-mean"}


def test_counts_are_taken_as_they_are_and_weights_share_the_rest() -> None:
    def given(*parts: Any) -> list[int]:
        return shares(small_recipe(mixed(*parts)))

    chats, pairs = {"kind": "chats", "path": "x"}, {"kind": "preferences", "path": "x"}
    assert given("played") == [16]
    assert given("played", {**chats, "count": 3}) == [13, 3]
    assert given({"kind": "played", "weight": 3}, chats) == [12, 4]
    assert given("played", chats, pairs) == [6, 5, 5]
    assert given({**chats, "count": 40}) == [40]  # nothing is played, so rollout.episodes says nothing


def test_a_shelf_gives_every_group_once_an_epoch_in_an_order_that_follows_from_its_key() -> None:
    groups = [Group(id=name, trajectories=[]) for name in "abcde"]
    shelf = Shelf(groups, count=2, key="k")
    dealt = [[group.id for group in shelf.groups(step)] for step in range(1, 6)]
    assert [len(step) for step in dealt] == [2] * 5
    flat = [name for step in dealt for name in step]
    assert sorted(flat) == sorted(f"{name}/{epoch}" for name in "abcde" for epoch in (0, 1))
    assert [each[0] for each in flat[:5]] != [each[0] for each in flat[5:]]
    assert [group.id for group in Shelf(groups, count=2, key="k").groups(3)] == dealt[2]
    assert len({group.id for group in Shelf(groups, count=12, key="k").groups(1)}) == 12


def test_a_step_has_what_each_source_gives(tmp_path: Path, files: dict[str, str]) -> None:
    counts = {"chats": 2, "preferences": 3, "text": 1}
    parts = [{"kind": kind, "path": path, "count": counts[kind]} for kind, path in files.items()]
    demonstrations = {"kind": "demonstrations", "count": 2, "limit": 5}
    run(tmp_path / "run", mixed("played", *parts, demonstrations, algorithm=NLL, train={"steps": 2}))
    for step in (1, 2):
        groups = played(tmp_path / "run", step)
        kinds = Counter(group.id.split(":")[0].split("/")[0] for group in groups)
        assert kinds[f"step-{step}"] == 8
        assert (kinds["chats.txt"], kinds["preferences.txt"], kinds["text.txt"]) == (2, 3, 1)
        assert len(groups) == 16
    assert rows(tmp_path / "run")[0]["rollout/episodes"] == 8  # metrics are about what the policy plays
    findings = [finding for check in verify_run(tmp_path / "run") for finding in check.findings]
    assert not [finding for finding in findings if finding.verdict == "defect"]
    assert replay_step(tmp_path / "run", 2).same


def test_a_mixture_that_plays_nothing_trains_and_its_policy_is_still_evaluated(
    tmp_path: Path, files: dict[str, str]
) -> None:
    part = {"kind": "chats", "path": files["chats"], "count": 4}
    steps, learning_rate = 30, 5e-3
    choices = {"train": {"steps": steps, "learning_rate": learning_rate}, "eval": {"episodes": 16}}
    run(tmp_path / "run", mixed(part, algorithm=NLL, checkpoint={"every": 30}, **choices))
    before, *_, after = (row["eval/success"] for row in rows(tmp_path / "run", "evals"))
    assert before < 0.5 < after  # the chats say a wanted word, and the engine samples from the new weights


def test_a_mixture_that_is_cut_and_resumed_ends_with_the_same_bits(tmp_path: Path, files: dict[str, str]) -> None:
    changes = mixed("played", {"kind": "text", "path": files["text"], "count": 3}, algorithm=NLL, train={"steps": 4})
    run(tmp_path / "whole", changes)
    with pytest.raises(LostMachineError):
        run(tmp_path / "cut", changes, console=Stopping(after=3))
    run(tmp_path / "cut")
    assert timeless(tmp_path / "cut") == timeless(tmp_path / "whole")
    assert last_tensors(tmp_path / "cut") == last_tensors(tmp_path / "whole")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (["chats"], "source.mix.0 .* chats are read from a file; give its path"),
        ([{"kind": "played", "path": "x"}], "played is not a file; remove the path"),
        (["playd"], "source.mix.0.kind is 'playd'"),
        ([{"kind": "played", "wieght": 2}], "source.mix.0.wieght"),
        (["played", "played"], "source.mix has played more than once"),
        ([{"kind": "text", "path": "x", "count": 16}, "played"], "source.mix.1 .played. gets none of the 16 groups"),
    ],
)
def test_a_mixture_that_makes_no_sense_is_refused(parts: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small_recipe(mixed(*parts))


def test_tasks_without_anything_played_are_refused(files: dict[str, str]) -> None:
    source = {"mix": [{"kind": "chats", "path": files["chats"]}], "tasks": {"kind": "difficulty", "seeds": 4}}
    with pytest.raises(ValueError, match=r"source\.tasks is about tasks that are played, but source\.mix plays none"):
        small_recipe({"source": source})


def test_rows_that_compare_with_the_sampler_refuse_what_no_sampler_said(files: dict[str, str]) -> None:
    parts = ["played", {"kind": "chats", "path": files["chats"]}]
    with pytest.raises(ValueError, match=r"source\.mix adds tokens whose sampler is unknown, and minirl compares"):
        small_recipe(mixed(*parts, algorithm="minirl"))


def test_a_missing_file_leaves_no_run_behind(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot read .*nothing\.jsonl \(No such file"):
        run(tmp_path / "run", mixed({"kind": "chats", "path": str(tmp_path / "nothing.jsonl")}, algorithm=NLL))
    assert not (tmp_path / "run").exists()
