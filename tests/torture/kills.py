"""The kills of `tests/train/kills.py` as a campaign: real commands that die at random moments and are resumed."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.torture.tally import Tally
from tests.train import kills

COUNT = 200


def campaign(*, count: int = COUNT, seed: int = 0) -> Tally:
    """Kill `count` processes; a run that differs from its twin, or that does not come back, is a failure."""
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="turnwise-kills-") as folder:
        try:
            done = kills.campaign(Path(folder), kills=count, seed=seed)
        except AssertionError as error:
            tally.fail(str(error))
            return tally
    tally.outcomes["killed and resumed"] = done.kills
    tally.failures += done.differences
    return tally
