"""A claim's study on a task of the user's own: settings on top of a scale, and one study to a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnwise.reproduce.claim import Claim, Scale
from turnwise.runs.disk import write_whole
from turnwise.train.recipe_layers import join, read_layers

_SETTINGS = "settings.json"


def adapted(claim: Claim, scale: Scale, settings: Mapping[str, Any]) -> Scale:
    """The scale with the settings on top, such as another environment; ValueError for what is not the user's to set."""
    own = join(read_layers(None, settings))
    for key in _keys(own):
        if reason := _refused(claim, scale).get(key) or _refused(claim, scale).get(key.partition(".")[0]):
            raise ValueError(f"{key} cannot be set: {reason}; take another --scale, or write a claim.yaml of your own")
    return scale.model_copy(update={"settings": join([*read_layers(None, scale.settings), *read_layers(None, own)])})


def _keys(settings: Mapping[str, Any]) -> list[str]:
    """`{"train": {"steps": 9}, "seed": 1}` as `["train.steps", "seed"]`."""
    return [
        f"{section}.{name}" if name else section
        for section, inner in settings.items()
        for name in (inner if isinstance(inner, Mapping) and inner else [""])
    ]


def _refused(claim: Claim, scale: Scale) -> dict[str, str]:
    """Keys and whole sections that the study sets itself, with the reason."""
    reason = "it is what the study varies"
    varied = {"algorithm": reason, "seed": reason, "train.learning_rate": reason}
    for arm, choice in claim.arms.items():
        for key in _keys(choice.settings):
            section = key.partition(".")[0]
            varied.setdefault(key if section == "train" else section, f"the arm {arm} has its own")
    if scale.start.model is not None:
        varied["model.name"] = f"this scale makes its models from seeds ({scale.start.model})"
    if scale.start.slips is not None:
        varied["sft.chats"] = "this scale writes its own demonstrations"
        if scale.start.slip == "word":
            varied["env"] = "this scale's expert slips in the words of its own environment"
    return varied


def require_same_study(folder: Path, settings: Mapping[str, Any]) -> None:
    """Note a study's settings in its folder; ValueError when what is there was run with others."""
    file, text = folder / _SETTINGS, json.dumps(settings, sort_keys=True)
    there = file.read_text() if file.is_file() else "{}" if (folder / "runs").is_dir() else text
    if there != text:
        raise ValueError(f"{folder} holds a study with other settings ({there}); choose another --output")
    if settings:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(file, text.encode())
