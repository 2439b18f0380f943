"""Names for models that need no download: `nano` ships in the package, `smollm2-135m` comes from an installed one."""

from pathlib import Path

from turnwise.policy.smollm2 import SMOLLM2, smollm2_folder

NANO = "nano"


def resolve_model(name: str) -> str:
    """What `from_pretrained` takes: a folder for our own names; other folders and hub names pass through."""
    if name == NANO:
        return str(Path(__file__).parent / "nano" / "weights")
    return str(smollm2_folder()) if name == SMOLLM2 else name
