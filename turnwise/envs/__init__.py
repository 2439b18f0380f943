"""Environments: the contract, the registry and the built-in environments."""

from importlib import import_module
from typing import Any

from turnwise.envs.base import Env, Info, Reset, Step
from turnwise.envs.registry import EnvSpec, find, make, register, specs
from turnwise.envs.task_lists import TaskEnv, TaskList

# These need the execution machinery, which listing environments does not: they load on first use.
_HOME_OF = {"check_env": "turnwise.envs.check", "make_vec": "turnwise.envs.vector"}
__all__ = [
    "Env",
    "EnvSpec",
    "Info",
    "Reset",
    "Step",
    "TaskEnv",
    "TaskList",
    "check_env",  # pyright: ignore[reportUnsupportedDunderAll]
    "find",
    "make",
    "make_vec",  # pyright: ignore[reportUnsupportedDunderAll]
    "register",
    "specs",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'turnwise.envs' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)
