"""The ledger gives back every trajectory exactly, and what it can of a damaged file."""

import json
import math
import tracemalloc
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.runs import RunFolderError, ledger, read_groups, read_rows, write_groups
from turnwise.types import Group, StopReason, Trajectory, Turn


def make_group(number: int, **changes: Any) -> Group:
    """Two tries at a task, with a value in every field that is not its default."""
    turns = [
        Turn(
            prompt_ids=[1, 5, 6],
            sampled_ids=[40, 41, 2],
            logprobs=[-0.1, -1 / 3, -5e-324],
            policy="teacher",
            policy_version=7,
            reward=0.1 + 0.2,
            reward_parts={"format": 0.1},
            observation="Wo liegt Mahis? \ud800",
            call={"number": 3, "after": 1, "messages": [{"role": "user", "content": "Wo?"}], "tools": []},
            action="<search>\n",
            valid=False,
            state_key="start",
            restarts=True,
            heard=[[0, 2]],
            streams={"features": [0.5, -1.0]},
            sample_seconds=0.25,
            env_seconds=1e-9,
        ),
        Turn(),
    ]
    first = Trajectory(
        id=f"{number}/0",
        turns=turns,
        stop=StopReason.MAX_TURNS,
        terminated=True,
        truncated=True,
        task={"question": "where", "hops": 2},
        seed=2**70,
        seat="teacher",
        episode=f"{number}",
        final_ids=[7, 8],
        final_observation="end",
        final_streams={"features": [0.25, 2.0]},
        bootstrap=-0.7,
        kwargs={"hops": 2},
        info={"success": True, "score": 0.5},
    )
    second = Trajectory(id=f"{number}/1", turns=[], stop=StopReason.ENV_ERROR, **changes)
    return Group(id=str(number), trajectories=[first, second])


def listed(groups: list[Group]) -> list[Group]:
    """The groups as the ledger returns them: with lists where there were other sequences."""
    for trajectory in (trajectory for group in groups for trajectory in group.trajectories):
        trajectory.final_ids = list(trajectory.final_ids)
        for turn in trajectory.turns:
            turn.prompt_ids, turn.sampled_ids = list(turn.prompt_ids), list(turn.sampled_ids)
    return groups


def round_trip(folder: Path, groups: list[Group]) -> list[Group]:
    write_groups(folder / "step.jsonl.zst", groups)
    return read_groups(folder / "step.jsonl.zst")


def test_every_field_comes_back_exactly(tmp_path: Path):
    groups = [make_group(1), make_group(2)]
    example, turn = groups[0].trajectories[0], groups[0].trajectories[0].turns[0]
    plain_turn, plain_trajectory = Turn(), Trajectory(id="", turns=[], stop=StopReason.DONE)
    assert all(getattr(turn, item.name) != getattr(plain_turn, item.name) for item in fields(Turn))
    assert all(getattr(example, item.name) != getattr(plain_trajectory, item.name) for item in fields(Trajectory))
    assert round_trip(tmp_path, groups) == listed(groups)


def test_neighbours_with_one_name_stay_two_groups(tmp_path: Path):
    groups = [make_group(1), make_group(1)]
    assert round_trip(tmp_path, groups) == listed(groups)


def test_numbers_that_are_not_finite_survive_in_strict_json(tmp_path: Path):
    group = make_group(1, bootstrap=math.inf, info={"loss": [math.nan, 1.0]}, task=-math.inf)
    group.trajectories[0].turns[0].logprobs = [-math.inf, math.nan, -0.5]
    (read,) = round_trip(tmp_path, [group])
    assert repr(read) == repr(listed([group])[0])  # NaN is unequal to itself, its repr is not
    for line in zstandard.decompress((tmp_path / "step.jsonl.zst").read_bytes(), 10**6).splitlines():
        json.loads(line, parse_constant=pytest.fail)


def test_arrays_become_lists_with_the_same_numbers(tmp_path: Path):
    arrays: dict[str, Any] = {
        "sampled_ids": np.array([40, 41, 2]),
        "logprobs": np.array([-0.1, -0.2, -0.3], np.float32),
    }
    group = make_group(1, info={"success": np.bool_(False), "grid": np.arange(4).reshape(2, 2)})
    group.trajectories[0].turns[0] = Turn(**arrays)
    (read,) = round_trip(tmp_path, [group])
    back = read.trajectories[0].turns[0]
    assert back.sampled_ids == [40, 41, 2]
    assert back.logprobs == [float(np.float32(x)) for x in (-0.1, -0.2, -0.3)]
    assert read.trajectories[1].info == {"success": False, "grid": [[0, 1], [2, 3]]}
    assert not read.trajectories[1].success


def test_what_is_not_json_becomes_its_repr_without_addresses(tmp_path: Path):
    loop: list[Any] = [1]
    loop.append(loop)
    info = {"set": {3}, "object": object(), "keys": {1: 2}, "loop": loop, 5: (1, b"x")}
    (read,) = round_trip(tmp_path, [make_group(1, info=info, task=complex(1, 2))])
    assert read.trajectories[1].task == "(1+2j)"
    assert read.trajectories[1].info == {
        "set": "{3}",
        "object": "<object object>",
        "keys": "{1: 2}",
        "loop": "[1, [...]]",
        "5": [1, "b'x'"],
    }


class Odd:
    """Raises whenever anybody looks at it."""

    def __repr__(self) -> str:
        raise RuntimeError("do not look")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"do not ask for {name}")


def nested(depth: int) -> list[Any]:
    """A list in a list in a list."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def test_odd_objects_are_replaced_by_a_short_description(tmp_path: Path):
    info = {
        "odd": Odd(),
        "deep": nested(100_000),
        "digits": 10**5000,
        "inside": {"list": [Odd()]},
        "shallow": nested(50),
    }
    (read,) = round_trip(tmp_path, [make_group(1, info={**info, Odd(): 1}, task=nested(100_000))])
    assert read.trajectories[1].task == "<list that cannot be shown>"
    assert read.trajectories[1].info == {
        "odd": "<Odd that cannot be shown>",
        "deep": "<list that cannot be shown>",
        "digits": "<int that cannot be shown>",
        "inside": "<dict that cannot be shown>",
        "shallow": nested(50),
        "<Odd that cannot be shown>": 1,
    }


def test_equal_groups_give_equal_bytes(tmp_path: Path):
    for name in ("a", "b"):
        write_groups(tmp_path / name, [make_group(1, info={"env": object()})])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_file_cut_anywhere_yields_its_first_lines_but_no_groups(tmp_path: Path):
    path = tmp_path / "step.jsonl.zst"
    write_groups(path, [make_group(number) for number in range(40)])
    whole, rows = path.read_bytes(), list(read_rows(path))
    assert [row["group"] for row in rows] == [str(number) for number in range(40) for _ in range(2)]
    counts: list[int] = []
    for cut in range(0, len(whole), 7):
        path.write_bytes(whole[:cut])
        found = list(read_rows(path))
        assert found == rows[: len(found)]
        counts.append(len(found))
        with pytest.raises(RunFolderError, match=r"step\.jsonl\.zst is truncated"):
            read_groups(path)
    assert counts == sorted(counts)
    assert len(set(counts)) > 30  # group by group, not all or nothing


@pytest.mark.parametrize("block", [64, 65536])
def test_a_changed_byte_never_gives_other_groups(tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ledger, "_BLOCK", block)  # small ones: lines are read long before the checksum is
    path = tmp_path / "step.jsonl.zst"
    write_groups(path, [make_group(1)])
    whole, groups, found = path.read_bytes(), read_groups(path), 0
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            assert read_groups(path) == groups
        except RunFolderError as error:
            assert str(error).startswith((f"{path} is damaged (", f"{path} is truncated"))  # noqa: PT017
            found += 1
    assert found >= len(whole) - 1  # a header has a bit that says nothing about the content


def test_a_header_that_denies_its_checksum_is_damage(tmp_path: Path):
    path = tmp_path / "step.jsonl.zst"
    write_groups(path, [make_group(1)])
    whole = path.read_bytes()
    assert zstandard.get_frame_parameters(whole).has_checksum
    path.write_bytes(whole[:4] + bytes([whole[4] ^ 0b100]) + whole[5:])
    with pytest.raises(RunFolderError, match=r"step\.jsonl\.zst is damaged \(there is data after its end\)"):
        read_groups(path)


@pytest.mark.parametrize("lines", [False, True], ids=["one endless line", "endless lines"])
def test_a_small_file_that_expands_without_end_is_refused_early(
    tmp_path: Path, lines: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ledger, "_ROOM", 4 * 2**20)
    path = tmp_path / "step.jsonl.zst"
    block = (b'{"group": "a"}' + b" " * 10_000 + b"\n" if lines else b" " * 10_000) * 100
    compressor = zstandard.ZstdCompressor(level=3).compressobj()
    path.write_bytes(b"".join([*(compressor.compress(block) for _ in range(200)), compressor.flush()]))
    assert path.stat().st_size < 50_000
    for read in (read_groups, lambda path: [None for _ in read_rows(path)]):
        tracemalloc.start()
        with pytest.raises(
            RunFolderError, match=r"step\.jsonl\.zst expands to more than a ledger of its size can hold"
        ):
            read(path)
        assert tracemalloc.get_traced_memory()[1] < 150 * 2**20  # of 200
        tracemalloc.stop()


def test_a_line_that_is_nested_without_end_is_damage(tmp_path: Path):
    path = tmp_path / "step.jsonl.zst"
    path.write_bytes(zstandard.ZstdCompressor().compress(b"[" * 999_999 + b"\n"))
    with pytest.raises(RunFolderError, match=r"step\.jsonl\.zst is damaged"):
        list(read_rows(path))


def test_a_missing_ledger_is_named(tmp_path: Path):
    with pytest.raises(RunFolderError, match=r"cannot read .*step_000009\.jsonl\.zst: No such file"):
        read_groups(tmp_path / "step_000009.jsonl.zst")


TURNS = st.builds(
    Turn,
    prompt_ids=st.lists(st.integers(0, 2**31)),
    sampled_ids=st.lists(st.integers(0, 2**31)),
    logprobs=st.none() | st.lists(st.floats(allow_nan=False)),
    reward=st.floats(allow_nan=False),
    observation=st.text(st.characters()),
    action=st.text(st.characters()),
)


@settings(max_examples=30, deadline=None)
@given(turns=st.lists(TURNS, max_size=4))
def test_any_turns_survive_exactly(tmp_path_factory: pytest.TempPathFactory, turns: list[Turn]):
    group = Group(id="g", trajectories=[Trajectory(id="g/0", turns=turns, stop=StopReason.DONE)])
    assert round_trip(tmp_path_factory.mktemp("ledger"), [group]) == listed([group])
