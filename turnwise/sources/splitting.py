"""A share of the examples, set apart by their prompts: measured and never learned from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from turnwise.types import Group

_DIGITS = 2**64


def split_held_out(groups: Sequence[Group], share: float, *, name: str) -> tuple[list[Group], list[Group]]:
    """The groups to learn from, and about `share` of them that are held out. Equal prompts are never in both.

    A prompt is in the same part whatever else the file has. ValueError if a part is empty.
    """
    learned, held = list[Group](), list[Group]()
    for group in groups:
        prompt = group.trajectories[0].task
        if prompt is None:  # the seed alone decides the task
            prompt = group.trajectories[0].seed
        digest = hashlib.sha256(repr(prompt).encode("utf-8", "surrogatepass")).digest()
        (held if int.from_bytes(digest[:8]) / _DIGITS < share else learned).append(group)
    if not learned or not held:
        raise ValueError(
            f"held_out={share:g} of the prompts of {name} leaves {len(learned)} groups to learn from and "
            f"{len(held)} to measure; change the share, or name a file to measure"
        )
    return learned, held
