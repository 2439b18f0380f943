"""Adapters as peft folders: a checkpoint has one that peft loads, and a run begins with one, ours or another's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.train.small_runs import ENVS, LostMachineError, Stopping, run, small_recipe
from turnwise.adapter_folders import read_adapter_config
from turnwise.policy.models import resolve_model
from turnwise.policy.text import TextPolicy
from turnwise.policy.text_lora import LoraSettings
from turnwise.recipe.loading import find_model
from turnwise.runs.reading import read_whole_run
from turnwise.train.setup import load_policy

peft = pytest.importorskip("peft", reason="needs turnwise[lora]")
IDS = torch.arange(12)[None]


def base() -> Any:
    return AutoModelForCausalLM.from_pretrained(resolve_model("pico")).eval()


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    return model(input_ids=IDS, use_cache=False).logits[0]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter that peft made: other layers in other sizes than ours, with rank-stabilised scaling."""
    config = peft.LoraConfig(
        r=3, lora_alpha=5, target_modules=["q_proj", "down_proj"], rank_pattern={"down_proj": 2}, use_rslora=True,
        lora_dropout=0.3, task_type="CAUSAL_LM",
    )  # fmt: skip
    model = peft.get_peft_model(base(), config)
    noise = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            parameter.data.copy_(torch.randn(parameter.shape, generator=noise) / 4)
    folder = tmp_path_factory.mktemp("theirs") / "adapter"
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, theirs: Path) -> Path:
    """A run that begins with their adapter and stays near it."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    run(folder, beginning_with(theirs))
    return folder


def beginning_with(folder: Path) -> dict[str, Any]:
    return {
        "model": {"name": "pico", "lora": {"adapter": str(folder)}},
        "algorithm": {"preset": "rebn", "regularizers": [{"kind": "kl", "coef": 0.1}], "epochs": 1, "minibatches": 1},
        "train": {"steps": 4, "learning_rate": 5e-2},
        "eval": {"episodes": 4, "measures": ["kl"], "every": 2},
    }


def test_peft_loads_the_adapter_of_a_checkpoint_to_the_logits_of_its_merged_weights(tmp_path: Path) -> None:
    run(tmp_path / "run", {"model": {"name": "pico", "lora": {"rank": 2, "alpha": 6}}, "train": {"steps": 2}})
    checkpoint = tmp_path / "run/checkpoints/step_000002"
    ours = logits(peft.PeftModel.from_pretrained(base(), checkpoint / "adapter").eval())
    merged = logits(AutoModelForCausalLM.from_pretrained(checkpoint).eval())
    assert torch.allclose(ours, merged, atol=1e-5)
    assert not torch.allclose(ours, logits(base()), atol=1e-3)
    config = read_adapter_config(checkpoint / "adapter")
    assert (config["r"], config["lora_alpha"]) == (2, 6)
    assert "q_proj" in config["target_modules"]


def test_a_policy_begins_with_an_adapter_that_peft_made(theirs: Path) -> None:
    expected = logits(peft.PeftModel.from_pretrained(base(), theirs).eval())
    policy = TextPolicy.load("pico", lora=LoraSettings(adapter=theirs))
    merged = base()
    merged.load_state_dict(dict(policy.named_weights()))
    assert torch.allclose(logits(merged), expected, atol=1e-5)
    assert all(".lora_" in name for name in policy.trainable())
    assert not torch.allclose(expected, logits(base()), atol=1e-2)


def test_the_reference_is_the_adapter_that_the_run_began_with(trained: Path, theirs: Path) -> None:
    data = read_whole_run(trained)
    first, *_, last = data.evals
    assert first["eval/kl"] == pytest.approx(0, abs=1e-6)
    assert last["eval/kl"] > 1e-3
    assert data.metrics[0]["loss/reference_kl"] == pytest.approx(0, abs=1e-6)
    assert data.config["model"]["lora"] == {"rank": 3, "alpha": 5.0, "adapter": str(theirs)}


def test_its_checkpoints_keep_the_settings_of_the_adapter(trained: Path, theirs: Path) -> None:
    checkpoint = trained / "checkpoints/step_000004"
    ours = logits(peft.PeftModel.from_pretrained(base(), checkpoint / "adapter").eval())
    assert torch.allclose(ours, logits(AutoModelForCausalLM.from_pretrained(checkpoint).eval()), atol=1e-5)
    before, after = read_adapter_config(theirs), read_adapter_config(checkpoint / "adapter")
    for name in ("r", "lora_alpha", "rank_pattern", "use_rslora"):
        assert before[name] == after[name]
    assert sorted(before["target_modules"]) == sorted(after["target_modules"])


def test_interrupted_and_resumed_it_ends_with_the_same_bits(trained: Path, theirs: Path, tmp_path: Path) -> None:
    with pytest.raises(LostMachineError):
        run(tmp_path / "run", beginning_with(theirs), console=Stopping(after=3))
    run(tmp_path / "run", beginning_with(theirs))
    for name in ("model.safetensors", "adapter/adapter_model.safetensors", "adapter/adapter_config.json"):
        straight, resumed = (each / "checkpoints/step_000004" / name for each in (trained, tmp_path / "run"))
        assert straight.read_bytes() == resumed.read_bytes()


def test_a_run_is_named_as_the_adapter_and_an_adapter_is_evaluated(trained: Path) -> None:
    recipe = small_recipe({"model": {"lora": {"adapter": str(trained)}}})
    assert recipe.model.lora is not None
    assert recipe.model.lora.adapter is not None
    assert recipe.model.lora.adapter == str(trained / "checkpoints/step_000004/adapter")
    assert recipe.model.lora.rank == 3
    assert recipe.model.name == resolve_model("pico")  # the adapter knows its base
    played, weights = find_model(recipe.model.lora.adapter, {"model": {"name": "pico"}})
    policy = load_policy(played, weights, frozen=True)
    whole = load_policy(small_recipe(), trained / "checkpoints/step_000004", frozen=True)
    merged = dict(policy.named_weights())
    assert not policy.trainable()
    for name, tensor in whole.named_weights():
        assert torch.allclose(tensor, merged[name], atol=1e-6), name


def test_every_policy_on_a_base_has_its_own_adapter(tmp_path: Path, theirs: Path) -> None:
    choices: dict[str, Any] = {
        "env": {"id": f"{ENVS}:Duel", "check": False},
        "policies": {"white": {"model": {"name": "pico", "lora": {"adapter": str(theirs)}}}, "black": {}},
        "seats": {"left": "white", "right": "black"},
        "model": {"name": "pico", "lora": {"rank": 2}},
        "train": {"steps": 1},
    }
    run(tmp_path / "run", choices)
    for name, rank in (("white", 3), ("black", 2)):
        folder = tmp_path / "run/checkpoints/step_000001" / name
        assert read_adapter_config(folder / "adapter")["r"] == rank
        ours = logits(peft.PeftModel.from_pretrained(base(), folder / "adapter").eval())
        assert torch.allclose(ours, logits(AutoModelForCausalLM.from_pretrained(folder).eval()), atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"peft_type": "IA3"}, "is of type IA3; only LORA can be trained further: merge it first"),
        ({"use_dora": True}, "has use_dora=True, which changes more than the adapted layers; merge it"),
        ({"modules_to_save": ["lm_head"]}, "has modules_to_save="),
        ({"bias": "all"}, "has bias='all'"),
        ({"init_lora_weights": "pissa"}, "has init_lora_weights='pissa'"),
        ({"r": None}, "has no r or no lora_alpha"),
        ({"target_modules": ["moon"], "rank_pattern": {}}, "does not fit .* It was made for"),
        ({"target_modules": ["q_proj"], "rank_pattern": {}}, r"does not fit .* \(at .*down_proj.*it was made for"),
        ({"r": 4}, r"does not fit .* \(at .*q_proj"),
    ],
)
def test_an_adapter_that_cannot_be_trained_is_refused_with_the_fix(
    theirs: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    folder = tmp_path / "adapter"
    shutil.copytree(theirs, folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(ValueError, match=message):
        load_policy(small_recipe({"model": {"name": "pico", "lora": {"adapter": str(folder)}}}))


def test_another_rank_and_a_missing_folder_are_named(theirs: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"model\.lora\.rank is 8, but the adapter in .* has 3; leave it out"):
        load_policy(small_recipe({"model": {"name": "pico", "lora": {"adapter": str(theirs), "rank": 8}}}))
    with pytest.raises(ValueError, match="is not the folder of an adapter"):
        small_recipe({"model": {"name": "pico", "lora": {"adapter": str(tmp_path)}}})
    folder = tmp_path / "adapter"
    shutil.copytree(theirs, folder)
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"cannot read .*adapter_model\.safetensors"):
        load_policy(small_recipe({"model": {"name": "pico", "lora": {"adapter": str(folder)}}}))
