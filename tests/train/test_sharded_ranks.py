"""Ranks that each hold a part of every weight learn, save and resume what one rank does alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from tests.train.sharded_work import CASES, RESUMED, SIZES
from turnwise.policy.text import TextPolicy

Found = dict[int, list[dict[str, Any]]]
SHARDED = [size for size in SIZES if size > 1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all ranks have done their work: one launch, because imports take longest."""
    folder = tmp_path_factory.mktemp("sharded")
    command = [sys.executable, "-m", "tests.train.sharded_work", str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == [[0] * size for size in SIZES], ended.stderr
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> Found:
    return {size: [json.loads((folder / f"{size}-{rank}.json").read_text()) for rank in range(size)] for size in SIZES}


def near(expected: dict[str, float], *, half: bool) -> dict[str, Any]:
    """Single precision: the last digits. Half precision: gradients that are added up in another order."""
    return {
        key: pytest.approx(x, rel=2e-2 if half else 1e-5, abs=1e-3 if half else 1e-6) for key, x in expected.items()
    }


@pytest.mark.parametrize("name", CASES)
def test_sharded_ranks_learn_what_one_learns(found: Found, name: str) -> None:
    (alone,) = found[1]
    for size in SHARDED:
        for rank in found[size]:
            for expected, row in zip(alone["cases"][name], rank["cases"][name], strict=True):
                assert row == near(expected, half="half" in name), f"{size} ranks"


@pytest.mark.parametrize("name", RESUMED)
def test_the_same_number_of_ranks_resumes_to_the_bit(found: Found, name: str) -> None:
    assert [rank["same bits"][name] for size in SIZES for rank in found[size]] == [True] * sum(SIZES)


@pytest.mark.parametrize("name", RESUMED)
def test_another_number_of_ranks_goes_on(found: Found, name: str) -> None:
    (alone,) = found[1]
    expected = alone["cases"][name][1]
    for size, other in ((3, 2), (1, 2), (1, 3)):
        for rank in found[size]:
            assert rank["goes on"][f"{name} from {other}"] == near(expected, half="half" in name)


@pytest.mark.parametrize("kind", ["replicas", "sharded"])
def test_policies_on_two_ranks_exchange_exactly_and_learn_on(found: Found, kind: str) -> None:
    assert [rank["exchanges"][kind] for rank in found[2]] == [[True, True, True]] * 2


def test_each_rank_holds_its_part_of_weights_gradients_and_moments(found: Found) -> None:
    (alone,) = found[1]
    for size in SHARDED:
        for kind, total in alone["bytes"].items():
            held = [rank["bytes"][kind] for rank in found[size]]
            assert max(held) < 1.02 * total / size, kind
            assert sum(held) == pytest.approx(total, rel=0.01), kind  # only the critic's head is on all of them


def test_transformers_loads_what_several_ranks_saved(folder: Path) -> None:
    saved, alone = (folder / f"a tied head from {size}" / "step_000001" for size in (3, 1))
    assert len(list(saved.glob("model-*.safetensors"))) == 3
    assert (saved / "config.json").read_bytes() == (alone / "config.json").read_bytes()
    whole, expected = (dict(TextPolicy.load(each).named_weights()) for each in (saved, alone))
    for name, weight in expected.items():
        torch.testing.assert_close(whole[name], weight, rtol=0, atol=1e-6)
    names = [name for file in saved.glob("model-*.safetensors") for name in safe_open(file, "pt").keys()]  # noqa: SIM118
    with safe_open(alone / "model.safetensors", "pt") as file:
        assert sorted(names) == sorted(file.keys())


def test_one_rank_writes_the_plain_layout(folder: Path) -> None:
    saved = folder / "LoRA and a critic from 1" / "step_000001"
    names = {path.relative_to(saved).as_posix() for path in saved.rglob("*.safetensors")}
    kept = ("adapter", "critic", "critic_optimizer", "optimizer")
    assert names == {
        "model.safetensors",
        "adapter/adapter_model.safetensors",
        *(f"resume/{name}.safetensors" for name in kept),
    }


def test_a_full_disk_on_one_rank_leaves_the_last_checkpoint_and_tells_all(found: Found) -> None:
    for rank in found[SHARDED[0]]:
        assert "step_000002: File too large; raise the limit on file sizes" in rank["full"]["text"]
        assert rank["full"]["left"] == ["step_000001"]


def test_numbers_that_are_not_finite_on_one_rank_end_the_step_on_all(found: Found) -> None:
    said = [rank["breaks"] for rank in found[SHARDED[0]]]
    assert "log-prob 'ref' is nan at trajectory" in said[0][0]
    assert said[0] == said[1]


def test_a_renewed_reference_is_the_policy_of_that_step(found: Found) -> None:
    for rank in found[SHARDED[0]]:
        first, later = rank["reference"]
        assert abs(first) < 1e-7 < later


def test_what_cannot_be_sharded_is_refused_with_the_fix(found: Found) -> None:
    exact, eight, compiled = found[SHARDED[0]][0]["refusals"]
    assert exact.startswith("scale=clip-bias needs the whole gradient of every weight, and sharded ranks have only")
    assert eight == "train.moments=int8 does not work with train.ranks=sharded; use bf16"
    assert compiled == "compiled layers cannot be sharded; set model.compile=false or train.ranks=replicas"
