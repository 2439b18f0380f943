"""Players of Dhumbal: heuristics win as often as measured elsewhere, and searches know no more than their seat."""

import copy
import random
from itertools import chain, count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.envs.cards.dhumbal_cards import CARD_OF, CARDS
from turnwise.envs.cards.dhumbal_heuristics import keep_low, shed
from turnwise.envs.cards.dhumbal_players import PLAYERS, make_player
from turnwise.envs.cards.dhumbal_playout import play_out_at_random
from turnwise.envs.cards.dhumbal_rules import CALL, DhumbalRules, deal
from turnwise.envs.cards.dhumbal_search import Ismcts, Mcts, imagine
from turnwise.envs.cards.dhumbal_table import play_table

FOUR = ("aggressive", "conservative", "balanced", "opportunistic")


def seat(*names: str):
    return {f"{place} {name}": make_player(f"cards/dhumbal:{name}") for place, name in enumerate(names)}


def win_rates(*names: str, rounds: int = 1536, sittings: int = 4, **options) -> list[float]:
    """Over several sittings: the coins of one sitting decide what Opportunistic dares."""
    played = [play_table(seat(*names), rounds=rounds // sittings, seed=seed, **options) for seed in range(sittings)]
    return [sum(sum(each[name].won) for each in played) / rounds for name in played[0]]


@pytest.mark.parametrize(
    ("pickup", "rotate", "expected"),
    [  # an independent implementation, 4,096 rounds
        ("own", False, (0.317, 0.200, 0.250, 0.232)),
        ("previous", False, (0.363, 0.191, 0.237, 0.209)),
        ("own", True, (0.282, 0.190, 0.252, 0.276)),
        ("previous", True, (0.292, 0.192, 0.263, 0.253)),
    ],
)
def test_heuristics_win_as_often_as_in_another_implementation(pickup, rotate, expected):
    # Both are samples. Rates differ by about 0.015 between runs of so many rounds, and the bound is three times that.
    assert win_rates(*FOUR, pickup=pickup, rotate=rotate) == pytest.approx(expected, abs=0.045)


def test_aggressive_beats_three_random_players_and_one_conservative():
    assert win_rates("aggressive", "random", "random", "random", rounds=300)[0] == pytest.approx(0.945, abs=0.04)
    assert win_rates("aggressive", "conservative", rounds=800)[0] == pytest.approx(0.61, abs=0.05)


def test_a_table_is_a_function_of_its_seed():
    one, again, other = (play_table(seat(*FOUR), rounds=50, seed=seed) for seed in (3, 3, 4))
    assert [each.coins for each in one.values()] == [each.coins for each in again.values()]
    assert [each.coins for each in one.values()] != [each.coins for each in other.values()]


def test_a_record_counts_calls_cards_and_coins():
    records = play_table(seat("aggressive", "conservative"), rounds=200, seed=1)
    aggressive, conservative = (record.metrics() for record in records.values())
    assert aggressive["call_rate"] == 1.0
    assert conservative["call_rate"] < 0.9
    assert aggressive["call_success"] < conservative["call_success"]
    assert aggressive["coins"] == pytest.approx(-conservative["coins"])
    assert aggressive["discarded"] > 1
    assert aggressive["risk"] < 0  # a higher hand loses more often


def cards(text: str) -> list[int]:
    return [CARD_OF[name] for name in text.split()]


@pytest.mark.parametrize(
    ("hand", "discard"),
    [
        ("KC 9D 8H 3S AS", "KC"),
        ("KC 7D 7H 7S 2S", "7D 7H 7S"),  # it sheds more than the king
        ("4C 5C 6C 3D AD", "4C 5C 6C"),  # the rest may call
    ],
)
def test_a_heuristic_sheds_what_lightens_its_hand_most(hand, discard):
    held = cards(hand)
    assert shed(held, sum(card % 13 + 1 for card in held), 1.0) == tuple(sorted(cards(discard)))


def test_a_hand_that_could_call_keeps_room_for_a_draw():
    assert keep_low(cards("4C 3D 2H"), 9) == tuple(cards("4C"))
    assert keep_low(cards("3C 3D 3H"), 9) == tuple(cards("3C 3D 3H"))
    assert keep_low(cards("AC"), 1) == tuple(cards("AC"))


@given(st.integers(2, 5), st.integers(0, 10**6), st.sampled_from(["previous", "own"]), st.integers(0, 40))
@settings(deadline=None, max_examples=50)
def test_an_imagined_round_agrees_with_what_is_known_and_with_nothing_else(players, seed, pickup, steps):
    rng = random.Random(seed)
    real = deal(DhumbalRules(players=players, pickup=pickup), rng)
    for _ in range(steps):
        if real.phase != "over":
            real.decide(rng.choice(real.legal()))
    if real.phase == "over":
        return
    known = real.known()
    before = known.plain()
    made = imagine(known, random.Random(seed + 1))
    assert sorted([*chain(*made.hands), *made.deck, *made.pile, *made.laid]) == list(CARDS)
    assert made.known().plain() == before
    made.decide(made.legal()[0])
    assert known.plain() == before, "imagining must not change the round"


@given(
    players=st.integers(2, 5),
    seed=st.integers(0, 10**6),
    pickup=st.sampled_from(["own", "previous"]),
    steps=st.integers(0, 40),
    max_turns=st.sampled_from([3, 100]),
)
@settings(max_examples=200, deadline=None)
def test_a_round_ends_at_random_as_the_rules_would_end_it(players, seed, pickup, steps, max_turns):
    rng = random.Random(seed)
    state = deal(DhumbalRules(players=players, pickup=pickup, max_turns=max_turns), rng)
    for _ in range(steps):
        if state.phase != "over":
            state.decide(rng.choice(state.legal()))
    by_rules = copy.deepcopy(state)
    while by_rules.phase != "over":
        legal = by_rules.legal()
        by_rules.decide(legal[int(by_rules.rng.random() * len(legal))])
    assert by_rules.outcome is not None
    assert play_out_at_random(state, rng) == by_rules.outcome.coins
    assert rng.getstate() == by_rules.rng.getstate()


def test_hidden_cards_are_imagined_in_many_ways():
    known = deal(DhumbalRules(players=2), random.Random(5)).known()
    rng = random.Random(0)
    assert len({tuple(sorted(imagine(known, rng).hands[1])) for _ in range(20)}) == 20


@pytest.mark.parametrize("player", [Mcts(iterations=40), Ismcts(iterations=40)])
def test_a_search_calls_with_a_hand_that_cannot_lose(player):
    known = deal(DhumbalRules(players=2, max_turns=20), random.Random(7)).known()
    known.hand, known.phase, known.sizes = cards("AC AD"), "call", [2, 5]
    assert player.decide(known, random.Random(0)) == CALL


@pytest.mark.parametrize("kind", [Mcts, Ismcts])
def test_a_search_ends_when_its_time_is_over(kind):
    ticks = count()
    player = kind(iterations=10**9, seconds=8.0, clock=lambda: float(next(ticks)))
    known = deal(DhumbalRules(players=2, max_turns=20), random.Random(1)).known()
    assert player.decide(known, random.Random(0)) in known.legal()
    assert next(ticks) < 20


@pytest.mark.parametrize("kind", [Mcts, Ismcts])
def test_a_search_beats_random_players(kind):
    player = kind(iterations=20, rollouts="aggressive")
    players = {"search": player, "random": make_player("cards/dhumbal:random")}
    assert play_table(players, rounds=10, seed=0)["search"].metrics()["win_rate"] > 0.75


def test_players_have_names_and_mistakes_are_explained():
    assert all(make_player(name) for name in PLAYERS)
    with pytest.raises(ValueError, match="cards/dhumbal:ismcts: unknown option 'depth'; it takes iterations, seconds"):
        make_player("cards/dhumbal:ismcts", depth=3)
    with pytest.raises(ValueError, match=r"option 'iteration'; did you mean iterations\? It takes iterations, seconds"):
        make_player("cards/dhumbal:ismcts", iteration=3)
    with pytest.raises(ValueError, match="not iterations='many'"):
        make_player("cards/dhumbal:ismcts", iterations="many")
    with pytest.raises(ValueError, match="iterations of at least 1"):
        make_player("cards/dhumbal:ismcts", iterations=0)
