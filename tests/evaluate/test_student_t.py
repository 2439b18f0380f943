import math

import pytest

pytest.importorskip("scipy", reason="needs turnwise[dev]")

from scipy import stats

from turnwise.evaluate.student_t import student_t_quantile, student_t_tail

FREEDOMS = [0.3, 1, 1.5, 2, 3, 7.3, 30, 999, 1999.5, 2001, 1e5]


@pytest.mark.parametrize("freedom", FREEDOMS)
def test_tail_is_that_of_scipy(freedom: float):
    for t in (0.0, 1e-3, 0.1, 0.5, 1.0, 1.96, 3.0, 6.0, 40.0, 1e3):
        expected = float(stats.t.sf(t, freedom))
        assert student_t_tail(t, freedom) == pytest.approx(expected, rel=1e-10, abs=1e-250)
        assert student_t_tail(-t, freedom) == pytest.approx(1 - expected, abs=1e-10)


def test_tail_of_one_degree_of_freedom_is_cauchys_also_where_squares_round_away():
    for t in (1e-8, 1e-3, 1.0, 1e8):
        assert student_t_tail(t, 1) == pytest.approx(math.atan2(1, t) / math.pi, rel=1e-13)


@pytest.mark.parametrize("freedom", [1, 2, 3.3, 10, 100, 1e4, 1e6])
def test_quantile_is_that_of_scipy(freedom: float):
    for probability in (1e-6, 0.001, 0.025, 0.3, 0.5, 0.6, 0.9, 0.975, 0.9999):
        expected = stats.t.ppf(probability, freedom)
        assert student_t_quantile(probability, freedom) == pytest.approx(expected, rel=1e-10, abs=1e-12)


def test_ends_of_the_line():
    assert student_t_tail(math.inf, 5) == 0.0
    assert student_t_tail(-math.inf, 5) == 1.0
    assert student_t_tail(1e200, 5) == 0.0
    with pytest.raises(ValueError, match="above zero"):
        student_t_tail(1.0, 0)
    with pytest.raises(ValueError, match="strictly between"):
        student_t_quantile(1.0, 5)
