"""A claim's study on the user's own task: settings on top of a scale, one study per folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnwise.recipe.layers import join, read_layers
from turnwise.reproduce.claim import Claim, StudyScale
from turnwise.runs.disk import write_whole

_SETTINGS = "settings.json"


def adapted(claim: Claim, scale: StudyScale, settings: Mapping[str, Any]) -> StudyScale:
    """The scale with the settings on top, such as another environment; ValueError for fixed settings."""
    own = join(read_layers(None, settings))
    for key in _keys(own):
        if reason := _reason(key, claim, scale):
            others = [name for name, other in claim.scales.items() if not _reason(key, claim, other)]
            fix = f"--scale {' or '.join(others)} allows it" if others else "write your own claim.yaml"
            raise ValueError(f"{key} cannot be set: {reason}; {fix}")
    return scale.model_copy(update={"settings": join([*read_layers(None, scale.settings), *read_layers(None, own)])})


def _keys(settings: Mapping[str, Any]) -> list[str]:
    """`{"train": {"steps": 9}, "seed": 1}` as `["train.steps", "seed"]`."""
    return [
        f"{section}.{name}" if name else section
        for section, inner in settings.items()
        for name in (inner if isinstance(inner, Mapping) and inner else [""])
    ]


def _reason(key: str, claim: Claim, scale: StudyScale) -> str | None:
    """Why the user may not set a key; None if they may."""
    refused = _refused(claim, scale)
    return refused.get(key) or refused.get(key.partition(".")[0])


def _refused(claim: Claim, scale: StudyScale) -> dict[str, str]:
    """Keys and sections that the study sets itself, with the reason."""
    reason = "it is what the study varies"
    varied = {"algorithm": reason, "seed": reason, "train.learning_rate": reason}
    for arm, choice in claim.arms.items():
        for key in _keys(choice.settings):
            section = key.partition(".")[0]
            varied.setdefault(key if section == "train" else section, f"the arm {arm} has its own")
    for task, choice in scale.tasks.items():
        for key in _keys(choice.settings):
            varied.setdefault(key, f"the task {task} has its own")
    for start in (scale.on(task).start for task in scale.tasks or [""]):
        if start.model is not None:
            varied["model.name"] = f"this scale makes its models from seeds ({start.model})"
        if start.slips is not None:
            varied["sft.chats"] = "this scale writes its own demonstrations"
            if start.slip == "word":
                varied["env"] = "this scale's expert slips in the words of its own environment"
    return varied


def require_same_study(folder: Path, settings: Mapping[str, Any]) -> None:
    """ValueError if the folder holds a study with other settings."""
    file = folder / _SETTINGS
    there = json.loads(file.read_text()) if file.is_file() else {} if (folder / "runs").is_dir() else settings
    if there != settings:
        were, are = (json.dumps(said) if said else "none" for said in (there, settings))
        raise ValueError(f"{folder} holds a study with other settings ({were}, now {are}); choose another --output")


def note_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Record a study's settings when it begins."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / _SETTINGS, json.dumps(settings).encode())
