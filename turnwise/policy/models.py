"""Names of models that need no download: `nano` is shipped, `pico` is generated, `smollm2-135m` is in a package."""

import difflib
from pathlib import Path

from turnwise.policy.pico import FAMILIES, pico_folder, pico_seed
from turnwise.policy.smollm2 import SMOLLM2, smollm2_folder

NANO = "nano"
OWN = (NANO, *FAMILIES, SMOLLM2)


def resolve_model(name: str) -> str:
    """What `from_pretrained` takes: a folder for our own names; other folders and hub names pass through."""
    if name == NANO:
        return str(Path(__file__).parent / "weights" / "nano")
    if pico_seed(name) is not None:
        return str(pico_folder(name))
    if name == SMOLLM2:
        return str(smollm2_folder())
    _require_sensible(name)
    return name


def is_small(name: str) -> bool:
    """Whether this is one of our models of a few million weights, which learn at higher rates than others."""
    return name == NANO or pico_seed(name) is not None


def _require_sensible(name: str) -> None:
    """ValueError for a typo that would otherwise be looked up on the hub, which is slow to say no."""
    if Path(name).exists():
        return
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ValueError(f"there is no folder {name}; a model is a folder, a name on the hub, or {', '.join(OWN)}")
    if "/" not in name and (close := difflib.get_close_matches(name, OWN, n=1, cutoff=0.7)):
        raise ValueError(f"there is no model {name!r}; did you mean {close[0]}?")
