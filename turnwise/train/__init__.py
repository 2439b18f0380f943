"""The trainer: play, pack, score, credit, step, publish, guard, record; and checkpoints to resume from.

recipe = load_recipe("recipes/search-nano.yaml", {"train": {"steps": 4}})
train(recipe, "runs/mine")
"""

from importlib import import_module
from typing import Any

# They load on first use: reading a recipe needs no torch.
_HOME_OF = {
    "Recipe": "turnwise.recipe.schema",
    "load_recipe": "turnwise.recipe.loading",
    "dump_recipe": "turnwise.recipe.loading",
    "RunConsole": "turnwise.console.screen",
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
