"""`make_nano`: from nothing to a model folder, in three stages that can run on different machines."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from turnwise.nano.model import NanoShape
from turnwise.nano.tokenizer import load_tokenizer
from turnwise.nano.train import NanoSettings, train

STAGES = ("data", "train", "evaluate")
WORLDS = 1_000
ROW_LENGTH = 512


def make_nano(
    output_folder: Path | str,
    *,
    seed: int = 0,
    device: str = "cpu",
    settings: NanoSettings | None = None,
    shape: NanoShape | None = None,
    worlds: int = WORLDS,
    processes: int = 1,
    episodes: int = 512,
    stages: tuple[str, ...] = STAGES,
) -> None:
    """Make the nano model: tokenizer and rows (`data`), the weights (`train`), the figures (`evaluate`).

    Every stage reads what the previous one left in the folder. `data` and `evaluate` need the `search` extra, `train`
    only torch and transformers. Equal arguments give an equal model, up to the arithmetic of the device.
    """
    folder = Path(output_folder)
    folder.mkdir(parents=True, exist_ok=True)
    if "data" in stages:
        make_data(folder, seed=seed, worlds=worlds, processes=processes)
    if "train" in stages:
        train(folder, seed=seed, device=device, settings=settings or NanoSettings(), shape=shape or NanoShape())
    if "evaluate" in stages:
        print_evaluation(folder, device=device, episodes=episodes)


def make_data(folder: Path, *, seed: int, worlds: int, processes: int) -> None:
    """Write tokenizer and rows into the folder."""
    from turnwise.nano.data import write_data  # here: a training machine may lack the environments' packages

    packed = write_data(folder, seed=seed, worlds=worlds, row_length=ROW_LENGTH, processes=processes)
    print(f"data: {len(packed.ids):,} rows of {packed.ids.shape[1]} tokens")


def print_evaluation(folder: Path, *, device: str, episodes: int) -> None:
    """Print the model's results in every environment it was made for, sampled and greedy, on validation entities."""
    from turnwise.envs import make  # here, for the same reason
    from turnwise.nano.evaluate import evaluate

    model = LlamaForCausalLM.from_pretrained(
        folder, dtype=torch.float32, trust_remote_code=False, use_safetensors=True
    ).eval()
    torch.nn.Module.to(model, device)
    tokenizer = load_tokenizer(folder)
    for env_id in ("search/geo-2hop", "search/geo-1hop", "search/geo-3hop", "game/guess-number-easy"):
        for temperature in (1.0, 0.0):
            build = partial(make, env_id, split="validation")
            report = evaluate(model, tokenizer, build, seeds=range(episodes), temperature=temperature)
            print(f"{env_id} at temperature {temperature:.0f}: {report}", flush=True)
