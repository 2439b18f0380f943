import random

import numpy as np
import pytest

from turnwise.envs.adapters.isolated_random import IsolatedRandom


def draw() -> tuple[float, float]:
    return random.random(), float(np.random.rand())


def test_a_swap_leaves_the_process_generators_where_they_were():
    random.seed(5)
    np.random.seed(5)
    expected = [draw(), draw()]
    random.seed(5)
    np.random.seed(5)
    isolated = IsolatedRandom(1)
    first = draw()
    with isolated.swapped_in():
        random.seed(99)
        draw()
    assert [first, draw()] == expected


def test_interleaved_streams_equal_streams_drawn_alone():
    alone = IsolatedRandom(1)
    with alone.swapped_in():
        expected = [draw() for _ in range(4)]
    one, other = IsolatedRandom(1), IsolatedRandom(2)
    drawn = []
    for _ in range(4):
        with one.swapped_in():
            drawn.append(draw())
        with other.swapped_in():
            draw()
        draw()
    assert drawn == expected


def test_the_process_generators_come_back_after_an_exception():
    before = random.getstate()
    isolated = IsolatedRandom(3)

    def fail() -> None:
        with isolated.swapped_in():
            draw()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert random.getstate() == before
