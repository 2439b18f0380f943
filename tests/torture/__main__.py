"""Runs every campaign, prints what came of each, and ends with code 1 when anything came out as it must not.

python -m tests.torture                             # everything, which takes an hour or two
python -m tests.torture --only injections --scale 0.1 --seed 7
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from tests.torture import (
    actions,
    clients,
    conversations,
    corruptions,
    injections,
    kills,
    learning,
    payloads,
    plans,
    programs,
    public_tasks,
    terminals,
)
from tests.torture.tally import Tally

CAMPAIGNS: dict[str, tuple[Callable[..., Tally], int]] = {
    "kills": (kills.campaign, kills.COUNT),
    "corruptions": (corruptions.campaign, corruptions.COUNT),
    "injections": (injections.campaign, injections.COUNT),
    "conversations": (conversations.campaign, conversations.COUNT),
    "actions": (actions.campaign, actions.COUNT),
    "programs": (programs.campaign, programs.COUNT),
    "shells": (programs.shell_campaign, programs.SHELL_COUNT),
    "payloads": (payloads.campaign, payloads.COUNT),
    "plans": (plans.campaign, plans.COUNT),
    "terminals": (terminals.campaign, terminals.COUNT),
    "harbor": (public_tasks.campaign, public_tasks.COUNT),
    "learning": (learning.campaign, learning.COUNT),
    "clients": (clients.campaign, clients.COUNT),
}
"""Each with the attempts that it makes at scale 1."""


def run(names: list[str], *, scale: float, seed: int) -> bool:
    """Run the campaigns, print a table of them and then all failures; returns whether there are none."""
    print(f"{'campaign':<12} {'attempts':>8} {'failures':>8} {'seconds':>8}  outcomes", flush=True)
    failures: list[str] = []
    for name in names:
        campaign, count = CAMPAIGNS[name]
        started = time.monotonic()
        tally = campaign(count=max(1, round(count * scale)), seed=seed)
        print(row(name, tally, seconds=time.monotonic() - started), flush=True)
        failures += [f"{name}: {failure}" for failure in tally.failures]
    for failure in failures:
        print(failure)
    return not failures


def row(name: str, tally: Tally, *, seconds: float) -> str:
    """One line of the table."""
    outcomes = ", ".join(f"{kind} {count}" for kind, count in tally.outcomes.most_common())
    skipped = f"skipped: {tally.skipped}" if tally.skipped else ""
    return f"{name:<12} {tally.attempts:>8} {len(tally.failures):>8} {seconds:>8.0f}  {outcomes or skipped}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CAMPAIGNS, action="append", help="this campaign; may be given again")
    parser.add_argument("--scale", type=float, default=1.0, help="attempts as a share of the full size")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    sys.exit(not run(chosen.only or list(CAMPAIGNS), scale=chosen.scale, seed=chosen.seed))


if __name__ == "__main__":
    main()
