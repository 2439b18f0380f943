"""The trainer: play, pack, score, credit, step, publish, guard, record; and what makes a run safe to leave.

recipe = load_recipe("recipes/search-nano.yaml", {"train": {"steps": 4}})
train(recipe, "runs/mine")
"""

from importlib import import_module
from typing import Any

# They load on first use: reading a recipe needs no torch.
_HOME_OF = {
    "Recipe": "turnwise.train.config",
    "load_recipe": "turnwise.train.recipes",
    "dump_recipe": "turnwise.train.recipes",
    "RunConsole": "turnwise.train.console",
    "train": "turnwise.train.stages",
    "imitate": "turnwise.train.stages",
    "resume": "turnwise.train.stages",
    "evaluate_model": "turnwise.train.stages",
}
__all__ = list(_HOME_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'turnwise.train' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)
