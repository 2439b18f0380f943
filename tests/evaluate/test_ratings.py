"""Ratings say who would win, how surely, and stay finite."""

from __future__ import annotations

from random import Random

import pytest

from turnwise.evaluate.ratings import MEAN, Result, rate


def test_two_players_get_the_odds_of_their_games():
    best, worst = rate([Result("a", "b", won=10_000, lost=1_000)])
    assert (best.player, worst.player) == ("a", "b")
    assert best.value - worst.value == pytest.approx(400, abs=1)
    assert best.value + worst.value == pytest.approx(2 * MEAN)
    assert best.score == pytest.approx(10 / 11)


def test_a_draw_is_half_a_win_and_half_a_loss():
    drawn = rate([Result("a", "b", won=5, drawn=10, lost=1), Result("b", "c", drawn=4)])
    split = rate([Result("a", "b", won=10, lost=6), Result("b", "c", won=2, lost=2)])
    assert [(each.player, each.value) for each in drawn] == [(each.player, pytest.approx(each.value)) for each in split]


def test_who_sees_a_game_does_not_matter():
    forth = rate([Result("a", "b", won=7, drawn=1, lost=2), Result("b", "c", won=3, lost=3)])
    back = rate([Result("b", "a", won=2, drawn=1, lost=7), Result("c", "b", won=3, lost=3)])
    assert forth == back


def test_a_player_who_never_lost_has_a_finite_rating_and_a_wide_interval():
    best, worst = rate([Result("a", "b", won=8)])
    assert 1500 < best.value < 2500
    assert best.interval.low < best.value < best.interval.high
    assert best.interval.high - best.interval.low > 200
    assert worst.score == 0


def test_players_who_never_met_are_compared_through_others():
    ratings = {
        each.player: each.value for each in rate([Result("a", "b", won=75, lost=25), Result("b", "c", won=75, lost=25)])
    }
    assert ratings["a"] - ratings["c"] == pytest.approx(2 * (ratings["a"] - ratings["b"]), rel=1e-6)


def test_intervals_hold_the_true_distance_about_as_often_as_they_say():
    random, held = Random(0), 0
    for _ in range(200):
        won = sum(random.random() < 0.64 for _ in range(200))  # 100 points ahead
        best = next(each for each in rate([Result("a", "b", won=won, lost=200 - won)]) if each.player == "a")
        held += best.interval.low <= MEAN + 50 <= best.interval.high
    assert 180 <= held <= 199


def test_more_games_narrow_the_interval():
    few, many = rate([Result("a", "b", won=6, lost=4)])[0], rate([Result("a", "b", won=600, lost=400)])[0]
    width = [each.interval.high - each.interval.low for each in (few, many)]
    assert width[0] / width[1] == pytest.approx(10, rel=0.2)


def test_nobody_played_nobody_is_rated():
    assert rate([]) == []
    assert rate([Result("a", "a", won=3), Result("a", "b")]) == []
