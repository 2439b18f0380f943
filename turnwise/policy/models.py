"""Names for models that need no download: `nano` ships with us, `pico` is made, `smollm2-135m` is a package's."""

from pathlib import Path

from turnwise.policy.pico import pico_folder, pico_seed
from turnwise.policy.smollm2 import SMOLLM2, smollm2_folder

NANO = "nano"


def resolve_model(name: str) -> str:
    """What `from_pretrained` takes: a folder for our own names; other folders and hub names pass through."""
    if name == NANO:
        return str(Path(__file__).parent / "nano" / "weights")
    if (seed := pico_seed(name)) is not None:
        return str(pico_folder(seed))
    return str(smollm2_folder()) if name == SMOLLM2 else name
