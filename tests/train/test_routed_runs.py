"""Whole runs of mixtures of experts: what the ledger keeps, what replaying is worth, resuming to the bit, refusals."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pytest
import yaml

from tests.train.small_runs import (
    LostMachineError,
    Screen,
    Stopping,
    last_tensors,
    played,
    rows,
    run,
    small_recipe,
    timeless,
    trajectories,
)
from turnwise.audit.verify import verify_run
from turnwise.policy.text import TextPolicy
from turnwise.rollout.packing import pack
from turnwise.train.stages import imitate
from turnwise.types import ANY_EXPERT

LOOKUP: dict[str, Any] = {
    "model": "pico-moe-3",
    "env": {"id": "lookup/mixed", "check": False},
    "algorithm": {"preset": "minirl-r3", "sampling": {"size": 4}},
    "rollout": {"episodes": 16, "max_turns": 4, "max_tokens": 8, "context": 96},
    "engine": {"memory_gib": 0.05, "precision": "int8"},
}


def with_(**changes: Any) -> dict[str, Any]:
    return {**LOOKUP, **changes}


@pytest.fixture(scope="module", params=["pico-moe-3", "pico-mixtral-3"])
def replayed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replayed") / "run"
    run(folder, with_(model=request.param))
    return folder


def test_the_ledger_has_the_experts_of_every_token_but_the_last(replayed: Path) -> None:
    groups = played(replayed, 1)
    assert all("routing" in turn.streams for each in trajectories(groups) for turn in each.turns)
    batch = pack(groups)
    unknown_T = (batch.extra_T["routing"] == ANY_EXPERT).any(1)
    last = (batch.length_S.cumsum(0) - 1).tolist()
    after = sum(len(each.final_ids) for each in trajectories(groups))
    assert set(last) <= set(unknown_T.nonzero().flatten().tolist())
    assert int(unknown_T.sum()) <= len(last) + after


def test_verify_measures_a_rounded_sampler_and_does_not_judge_it(replayed: Path) -> None:
    (check,) = verify_run(replayed, steps=[1])
    assert check.ok
    assert check.gap is not None
    assert check.gap.mean > 1e-4
    assert "not judged: the sampler's weights are rounded (engine.precision=int8)" in check.findings[3].text


def gap_of(preset: str, model: str, folder: Path, *, precision: str) -> float:
    """The KL from the sampler to the policy before its first update."""
    changes = with_(
        model=model,
        algorithm={**LOOKUP["algorithm"], "preset": preset},
        rollout={**LOOKUP["rollout"], "episodes": 64},
        engine={"memory_gib": 0.05, "precision": precision},
        train={"steps": 1},
    )
    run(folder, changes)
    return rows(folder)[0]["train/sampler_gap"]


@pytest.mark.parametrize("model", ["pico-moe-3", "pico-mixtral-3"])
def test_replaying_the_samplers_experts_leaves_a_third_of_the_gap_or_less(model: str, tmp_path: Path) -> None:
    presets = ("minirl", "minirl-r2", "minirl-r3")
    found = {preset: gap_of(preset, model, tmp_path / preset, precision="bf16") for preset in presets}
    assert found["minirl-r3"] < found["minirl"] / 3
    assert found["minirl-r2"] == found["minirl"]  # the experts of the old policy are those of the first update anyway


@pytest.mark.parametrize("family", ["pico-moe", "pico-mixtral"])
def test_after_imitation_too_replay_leaves_a_third_of_the_gap_in_the_median_of_seeds(
    family: str, tmp_path: Path
) -> None:
    shrunk: list[float] = []
    for seed in (3, 4, 5):
        folder = tmp_path / str(seed)
        learnt = {"demonstrations": 1024, "epochs": 1, "batch": 32, "learning_rate": 6e-3, "warmup": 10}
        recipe = small_recipe(with_(model=f"{family}-{seed}", sft=learnt, seed=seed))
        imitate(recipe, folder / "sft", console=Screen())
        losses = [row["loss/policy"] for row in rows(folder / "sft")]
        assert losses[-1] < losses[0] / 4
        model = str(max((folder / "sft" / "checkpoints").glob("step_*")))
        none, r3 = (gap_of(preset, model, folder / preset, precision="int8") for preset in ("minirl", "minirl-r3"))
        shrunk.append(none / r3)
    assert median(shrunk) > 3


@pytest.mark.parametrize("preset", ["minirl-r3", "minirl-r2"])
def test_a_lost_run_is_resumed_to_the_bit(preset: str, replayed: Path, tmp_path: Path) -> None:
    model = yaml.safe_load((replayed / "config.yaml").read_text())["model"]["name"]
    changes = with_(model=model, algorithm={**LOOKUP["algorithm"], "preset": preset})
    whole = replayed if preset == "minirl-r3" else tmp_path / "whole"
    if whole is not replayed:
        run(whole, changes)
    with pytest.raises(LostMachineError):
        run(tmp_path / "lost", changes, console=Stopping(after=3))
    run(tmp_path / "lost")
    assert len(rows(whole)) == 4
    assert timeless(tmp_path / "lost") == timeless(whole)
    assert last_tensors(tmp_path / "lost") == last_tensors(whole)


def test_a_checkpoint_loads_as_the_model_that_was_saved(replayed: Path) -> None:
    policy = TextPolicy.load(max((replayed / "checkpoints").glob("step_*")))
    assert type(policy.model).__name__ in {"Qwen3MoeForCausalLM", "MixtralForCausalLM"}
    assert policy.tokenizer.decode(policy.tokenizer.encode("get a b")) == "get a b"


@pytest.mark.parametrize("preset", ["minirl-r3", "minirl-r2"])
def test_a_dense_model_is_refused_with_the_fix(preset: str, tmp_path: Path) -> None:
    changes = with_(model="pico-3", algorithm={**LOOKUP["algorithm"], "preset": preset})
    with pytest.raises(ValueError, match=r"has no experts.*pico-moe"):
        run(tmp_path / "run", changes)


def test_an_engine_that_does_not_report_experts_is_refused_with_the_fix() -> None:
    with pytest.raises(
        ValueError, match=r"engine\.kind=vllm does not report; set engine\.kind=torch, or .*routing=old"
    ):
        small_recipe(with_(engine={"kind": "vllm", "urls": ["http://127.0.0.1:8100"]}))


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_a_dense_sampler_in_other_precision_reports_its_own_log_probs(precision: str, tmp_path: Path) -> None:
    changes = with_(
        model="pico-3",
        algorithm={**LOOKUP["algorithm"], "preset": "minirl"},
        engine={"memory_gib": 0.05, "precision": precision},
        train={"steps": 1},
    )
    run(tmp_path / "run", changes)
    assert 1e-6 < rows(tmp_path / "run")[0]["train/sampler_gap"] < 1e-2


def test_a_precision_belongs_to_the_engine_in_the_process() -> None:
    with pytest.raises(ValueError, match=r"precision=int8 is for kind torch; set the precision of vllm"):
        small_recipe({"engine": {"kind": "vllm", "urls": ["http://127.0.0.1:8100"], "precision": "int8"}})
    with pytest.raises(ValueError, match=r"extrapolate=logits .* set engine\.precision=same"):
        small_recipe({"algorithm": {"extrapolate": "logits"}, "engine": {"precision": "bf16"}})
