"""Turnwise: stable reinforcement learning for multi-turn language-model agents.

The names below are what a user meets first. They load on first use, so that `import turnwise` (and every worker process
that only runs an environment) stays free of torch.
"""

from importlib import import_module
from typing import Any

from turnwise.exactness import ask_for_steady_kernels

ask_for_steady_kernels()  # here, because it must come before the first matrix product

__version__ = "0.1.0"

_HOMES = {
    "turnwise.types": ("Group", "Message", "StopReason", "Trajectory", "Turn"),
    "turnwise.batch": ("TokenBatch",),
    "turnwise.envs": ("Env", "check_env", "make", "make_vec", "register"),
    "turnwise.rollout": ("EpisodeSpec", "Limits", "Scheduler", "pack"),
    "turnwise.algorithm": ("preset",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
__all__ = sorted(_HOME_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'turnwise' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME_OF])
