"""A private substitute for the process-global random generators, for packages that draw from them.

TextArena and GEM call `random.choice` and `random.seed` on the module itself. Around every call into such a package
the adapter swaps in its own state of `random` and `numpy.random` and restores the process's state afterwards: equal
seeds give equal episodes however episodes interleave, and nobody else's draws change. One lock serialises the swaps of
all threads. A thread that draws from the global generators *during* a swap would still disturb it, which is why these
adapters also ask for `execution = "process"`.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np

_SWAP = threading.RLock()


class IsolatedRandom:
    """The generator states of one environment: `with isolated.swapped_in(): game.reset()`."""

    def __init__(self, seed: int) -> None:
        self.states: tuple[Any, Any] = (
            random.Random(seed).getstate(),
            np.random.RandomState(seed % 2**32).get_state(),
        )

    @contextmanager
    def swapped_in(self) -> Generator[None]:
        """Run the block with these states instead of the process's; both continue where they were."""
        with _SWAP:
            outer = _get()
            _set(self.states)
            try:
                yield
            finally:
                self.states = _get()
                _set(outer)


def _get() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()


def _set(states: tuple[Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
