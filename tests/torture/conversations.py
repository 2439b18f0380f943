"""Random programs behind lossy clients: the ids that are trained are exactly the ids that were sampled."""

from __future__ import annotations

from tests.gateway.client_wires import CLIENTS
from tests.gateway.lossy_clients import KINDS, Played, defect_of, play
from tests.torture.tally import Tally

COUNT = 10_000


def campaign(*, count: int, seed: int) -> Tally:
    """Play conversations in every format and with every template, and compare what would be trained."""
    tally = Tally()
    for number in range(seed * COUNT, seed * COUNT + count):
        played = play(number)
        defect = defect_of(played)
        if defect:
            tally.fail(f"conversation {number}: {defect}")
        else:
            tally.note(_kind(number, played))
    return tally


def _kind(number: int, played: Played) -> str:
    client = type(CLIENTS[number % len(CLIENTS)]).__name__
    form = "rewritten" if any(turn.restarts for turn in played.trajectory.turns) else "append-only"
    return f"{client} {KINDS[number // len(CLIENTS) % len(KINDS)]} {form}"
