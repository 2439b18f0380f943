"""Configs as dotted keys: how two runs differ, and which runs belong together."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.runs.reading import RunData

INDIFFERENT = ("name", "seed", "device", "log.", "checkpoint.")
"""Keys that do not make a run a different experiment."""
_BETWEEN = " · "
"""Separates the parts of a label."""
_LONGEST_VALUE = 16
"""Maximum characters of a value in a legend."""


def flatten(config: Any, prefix: str = "") -> dict[str, str]:
    """`{"train": {"steps": 5}}` as `{"train.steps": "5"}`: leaves are JSON, list items are numbered."""
    if isinstance(config, Mapping) and config:
        pairs = [(str(key), value) for key, value in config.items()]
    elif isinstance(config, list) and config and any(isinstance(item, Mapping | list) for item in config):
        pairs = [(str(place), value) for place, value in enumerate(config)]
    else:
        return {prefix: config if isinstance(config, str) else json.dumps(config, default=str, ensure_ascii=False)}
    return {
        key: leaf
        for name, value in pairs
        for key, leaf in flatten(value, f"{prefix}.{name}" if prefix else name).items()
    }


def differing(configs: Sequence[Mapping[str, str]]) -> list[str]:
    """Dotted keys whose values differ between configs, in the order of the configs."""
    keys = dict.fromkeys(key for config in configs for key in config)
    return [key for key in keys if len({config.get(key) for config in configs}) > 1]


def group_labels(runs: Sequence[RunData]) -> list[str]:
    """For each run the name of its group: the algorithm, and what distinguishes it from others of that name."""
    flat = [{key: _without_seed(value, run) for key, value in flatten(run.config).items()} for run in runs]
    return [_label(run, mine, _siblings(run, runs, flat)) for run, mine in zip(runs, flat, strict=True)]


def short_labels(labels: Sequence[str]) -> list[str]:
    """The labels short enough for a legend: last names of keys, long values cut, and only as many settings as needed
    to tell the groups apart; the full labels if that is not enough."""
    most = max((label.count(_BETWEEN) for label in labels), default=0)
    for settings in range(1, most + 1):
        shorts = {label: _shortened(label, settings) for label in labels}
        if len(set(shorts.values())) == len(shorts):
            return [shorts[label] for label in labels]
    return list(labels)


def _shortened(label: str, most: int) -> str:
    algorithm, *settings = label.split(_BETWEEN)
    pairs = (each.partition("=") for each in settings[:most])
    return _BETWEEN.join([algorithm, *(f"{key.rpartition('.')[2]}={_cut(value)}" for key, _, value in pairs)])


def _cut(value: str) -> str:
    return value if len(value) <= _LONGEST_VALUE else f"…{value[1 - _LONGEST_VALUE :]}"


def _siblings(run: RunData, runs: Sequence[RunData], flat: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    return [config for other, config in zip(runs, flat, strict=True) if other.algorithm == run.algorithm]


def _without_seed(value: str, run: RunData) -> str:
    """A path may contain the run's seed, as that of a common start does: that does not make another experiment."""
    return value.replace(f"seed-{run.config.get('seed')}/", "seed-*/")


def _label(run: RunData, mine: dict[str, str], siblings: list[dict[str, str]]) -> str:
    apart = [key for key in differing(siblings) if not key.startswith(INDIFFERENT)]
    return _BETWEEN.join([run.algorithm, *(f"{key}={mine.get(key, 'absent')}" for key in apart)])
