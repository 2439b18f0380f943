"""The source interface: it provides the groups of each step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from turnwise.types import Group


class Source(ABC):
    """Where the groups of each step come from, steps counting from 1.

    A step's groups depend on the recipe, its seed, the step, the policy, and what the source measured in earlier steps.
    These measurements are in `state_dict`: every checkpoint keeps it, and a resumed source starts from it.
    """

    @abstractmethod
    def groups(self, step: int) -> list[Group]:
        """The groups to learn from at this step."""

    @abstractmethod
    def publish(self, version: int) -> None:
        """The policy has changed: `version` steps are done."""

    def metrics(self) -> dict[str, float]:
        """The `source/…` metrics of the step that was given out last."""
        return {}

    def held_out(self) -> list[Group]:
        """Groups that are measured at every evaluation and never learned from."""
        return []

    def ahead(self) -> dict[int, list[Group]]:
        """Groups of later steps that are already played, for a checkpoint."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What it has measured, as plain data."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Stop playing."""
