"""Whoever does not learn stays as it was, to the bit: a frozen policy, a checkpoint, a snapshot, and a shared base."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.small_runs import ENVS, Screen, run, small_recipe
from turnwise.policy.text import TextPolicy
from turnwise.sources.cast import Cast, Voice
from turnwise.train import trainer
from turnwise.train.stages import train

DUEL: dict[str, Any] = {
    "env": {"id": f"{ENVS}:Duel", "check": False},
    "rollout": {"max_tokens": 40},
    "train": {"steps": 3},
    "checkpoint": {"every": 1},
}
LORA: dict[str, Any] = {"name": "pico", "lora": {"rank": 2}}


def digest(policy: TextPolicy, *, base: bool = False) -> str:
    """Of every parameter and buffer, in order; of the `base` without what learns."""
    found = hashlib.sha256()
    for name, tensor in [*policy.model.named_parameters(), *policy.model.named_buffers()]:
        if base and tensor.requires_grad:
            continue
        found.update(name.encode())
        found.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


class Watching(Screen):
    """Takes the digest of every voice of the live cast before the first step and after each."""

    cast: Cast

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.seen: list[dict[str, str]] = []
        """By what voices are called at that time: a place of a pool is called after its snapshot."""
        self.bases: list[str] = []
        make_cast = trainer.make_cast

        def made(*arguments: Any, **options: Any) -> Cast:
            self.cast = make_cast(*arguments, **options)
            self.look()
            return self.cast

        monkeypatch.setattr(trainer, "make_cast", made)

    def step(self, row: Mapping[str, Any], *, guard: str = "") -> None:
        super().step(row, guard=guard)
        self.look()

    def look(self) -> None:
        pooled = [place for pool in self.cast.pools.values() for place in pool.places]
        held = [voice for pool in self.cast.pools.values() for voice in pool.held.values()]
        voices = [voice for voice in self.cast.voices if _plays(voice, pooled, held)]
        self.seen.append({voice.label: digest(voice.policy) for voice in voices})
        self.bases += [digest(voice.policy, base=True) for voice in voices]

    def over_time(self, label: str) -> list[str]:
        """The digests of one voice, as long as it was there."""
        return [seen[label] for seen in self.seen if label in seen]


def _plays(voice: Voice, pooled: list[Voice], held: list[Voice]) -> bool:
    """Places of a pool that hold nothing yet have no name of their own."""
    return not any(voice is each for each in pooled) or any(voice is each for each in held)


@pytest.mark.parametrize("rival", ["whole", "adapter"])
def test_a_frozen_policy_keeps_every_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rival: str) -> None:
    if rival == "adapter":
        pytest.importorskip("peft", reason="needs turnwise[lora]")
    model = LORA if rival == "adapter" else "pico-7"
    policies = {"mine": {"model": LORA} if rival == "adapter" else {}, "rival": {"model": model, "frozen": True}}
    watching = Watching(monkeypatch)
    recipe = small_recipe({**DUEL, "policies": policies, "seats": {"left": "mine", "right": "rival"}})
    train(recipe, tmp_path / "run", console=watching)
    assert len(watching.over_time("rival")) == 4
    assert len(set(watching.over_time("rival"))) == 1
    assert len(set(watching.over_time("mine"))) == 4


def test_a_checkpoint_keeps_every_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path / "first", {**DUEL, "train": {"steps": 1}})
    seats = {"left": "policy", "right": {"checkpoint": str(tmp_path / "first")}}
    watching = Watching(monkeypatch)
    train(small_recipe({**DUEL, "seats": seats}), tmp_path / "second", console=watching)
    digests = watching.over_time(str(tmp_path / "first"))
    assert len(digests) == 4
    assert set(digests) == {digest(TextPolicy.load(tmp_path / "first" / "checkpoints" / "step_000001"))}
    assert len(set(watching.over_time("policy"))) == 4


def test_a_snapshot_is_what_the_policy_was_and_keeps_every_bit_while_the_pool_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watching = Watching(monkeypatch)
    seats = {"left": "policy", "right": {"pool": "policy", "every": 1, "keep": 3}}
    train(small_recipe({**DUEL, "train": {"steps": 4}, "seats": seats}), tmp_path / "run", console=watching)
    was = watching.over_time("policy")
    assert len(set(was)) == 5
    for step in range(3):
        digests = watching.over_time(f"policy@{step}")
        assert len(digests) >= 2
        assert set(digests) == {was[step]}


def test_the_base_of_two_adapters_that_learn_keeps_every_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("peft", reason="needs turnwise[lora]")
    watching = Watching(monkeypatch)
    changes = {"model": LORA, "policies": {"white": {}, "black": {}}, "seats": {"left": "white", "right": "black"}}
    train(small_recipe({**DUEL, **changes}), tmp_path / "run", console=watching)
    white, black = (dict(voice.policy.model.named_parameters()) for voice in watching.cast.voices)
    shared = [name for name, each in white.items() if each.data_ptr() == black[name].data_ptr()]
    assert shared == [name for name, each in white.items() if not each.requires_grad]
    assert len(watching.bases) == 8
    assert len(set(watching.bases)) == 1
    assert watching.over_time("white")[0] == watching.over_time("black")[0]
    assert len(set(watching.over_time("white") + watching.over_time("black"))) == 7
