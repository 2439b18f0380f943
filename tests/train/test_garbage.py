"""What the garbage collector looks at while a run trains."""

import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.train.small_runs import ENVS, Screen, run


class Counting(Screen):
    """Notes at each step how many objects are set aside."""

    def __init__(self) -> None:
        super().__init__()
        self.aside = list[int]()

    def step(self, row: Mapping[str, Any], *, guard: str = "") -> None:
        super().step(row, guard=guard)
        self.aside.append(gc.get_freeze_count())


def test_loaded_objects_are_set_aside_while_a_run_trains_and_no_longer(tmp_path: Path) -> None:
    before, screen = gc.get_freeze_count(), Counting()
    run(tmp_path / "run", {"env": {"id": f"{ENVS}:Say", "check": False}, "train": {"steps": 1}}, console=screen)
    assert min(screen.aside) > before + 10_000
    assert gc.get_freeze_count() <= before
