"""What a source is: it gives the groups of each step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from turnwise.types import Group


class Source(ABC):
    """Where the groups of each step come from, steps counting from 1.

    A step's groups follow from the recipe, its seed, the step and the policy; what a source measured in earlier steps
    and needs for that is in `state_dict`, which every checkpoint keeps and a source that goes on is made with.
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

    def ahead(self) -> dict[int, list[Group]]:
        """Groups of later steps that are already played: what a checkpoint keeps."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What it has measured, as plain data."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Stop playing."""
