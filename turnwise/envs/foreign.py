"""The user's own environments written for another library: recognised, and wrapped in an adapter."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from turnwise.envs.base import Env

_ADAPTERS = {
    "gymnasium.core:Env": "turnwise.envs.adapters.own_gymnasium:OwnGymnasium",
    "gem.core:Env": "turnwise.envs.adapters.own_gem:OwnGem",
    "textworld.core:Environment": "turnwise.envs.adapters.own_textworld:OwnTextWorld",
    "textworld.core:Wrapper": "turnwise.envs.adapters.own_textworld:OwnTextWorld",
    "textworld.gym.envs.textworld:TextworldGymEnv": "turnwise.envs.adapters.own_textworld:OwnTextWorld",
}
"""The base classes of other libraries, and the adapters for them."""


def foreign_classes() -> dict[type, str]:
    """The base classes of the libraries already loaded, with their adapters; imports nothing."""
    loaded = {_loaded(place): adapter for place, adapter in _ADAPTERS.items()}
    return {kind: adapter for kind, adapter in loaded.items() if kind is not None}


def adapted(env: Any) -> Any:
    """The environment itself, or its adapter if it was written for another library."""
    if isinstance(env, Env):
        return env
    for kind, adapter in foreign_classes().items():
        if isinstance(env, kind):
            module, _, name = adapter.partition(":")
            return getattr(import_module(module), name)(env)
    return env


def _loaded(place: str) -> type | None:
    module, _, name = place.partition(":")
    return getattr(sys.modules.get(module), name, None)
