"""Where things are kept that can be made again: converted models, compiled games, what the env doctor has found."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """`TURNWISE_CACHE`, or the user's own cache."""
    return Path(os.environ.get("TURNWISE_CACHE") or Path.home() / ".cache" / "turnwise")
