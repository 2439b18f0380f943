"""The rules of Dhumbal: nothing is lost, nothing is created, and every meld is legal exactly when the rules say so."""

import random
from itertools import chain, combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.envs.cards.dhumbal_cards import ALL_MELDS, CARD_OF, CARDS, legal_melds, value_of
from turnwise.envs.cards.dhumbal_rules import CALL, DECK, PASS, PILE, DhumbalRules, Known, Round, deal, settle

GAMES = st.builds(
    DhumbalRules,
    players=st.integers(2, 5),
    pickup=st.sampled_from(["previous", "own"]),
    max_turns=st.sampled_from([1, 7, 100]),
)


def cards(text: str) -> list[int]:
    return [CARD_OF[name] for name in text.split()]


def is_meld(chosen: tuple[int, ...]) -> bool:
    """The rule as a player would check it, without looking at the rest of the hand."""
    ranks, suits = sorted(card % 13 for card in chosen), {card // 13 for card in chosen}
    if len(chosen) == 1 or (len(set(ranks)) == 1 and len(chosen) <= 4):
        return True
    return len(chosen) >= 3 and len(suits) == 1 and ranks == list(range(ranks[0], ranks[0] + len(ranks)))


@given(st.sets(st.sampled_from(CARDS), min_size=1, max_size=5))
def test_legal_melds_are_those_that_brute_force_finds(hand):
    subsets = [tuple(sorted(each)) for size in range(1, 6) for each in combinations(hand, size)]
    found = legal_melds(sorted(hand))
    assert len(found) == len(set(found))
    assert set(found) == {each for each in subsets if is_meld(each)}
    assert set(found) <= set(ALL_MELDS)


def test_every_meld_is_counted_once():
    assert (len(ALL_MELDS), len(set(ALL_MELDS))) == (52 + 143 + 120, 315)


@pytest.mark.parametrize(
    ("hand", "run", "legal"),
    [("AC 2C 3C", "AC 2C 3C", True), ("QC KC AC", "QC KC AC", False), ("QC KC AD", "QC KC AD", False)],
)
def test_an_ace_is_low(hand, run, legal):
    assert (tuple(sorted(cards(run))) in legal_melds(cards(hand))) == legal


@given(GAMES, st.integers(0, 10**6), st.integers(0, 4))
@settings(deadline=None)
def test_no_card_is_lost_and_coins_sum_to_zero_after_every_step(rules, seed, first):
    rng = random.Random(seed)
    played = deal(rules, rng, first=first % rules.players)
    while played.phase != "over":
        assert sorted([*chain(*played.hands), *played.deck, *played.pile, *played.laid]) == list(CARDS)
        assert all(set(taken) <= set(hand) for taken, hand in zip(played.taken, played.hands, strict=True))
        assert played.pile
        assert played.legal()
        played.decide(rng.choice(played.legal()))
    assert sorted([*chain(*played.hands), *played.deck, *played.pile, *played.laid]) == list(CARDS)
    assert played.outcome is not None
    assert sum(played.outcome.coins) == 0
    assert played.outcome.coins[played.outcome.winner] > 0
    assert played.outcome.values[played.outcome.winner] == min(played.outcome.values)


def table(hands: list[str], pile: str, deck: str = "KS KH", **rules) -> Round:
    made = Round(
        rules=DhumbalRules(players=len(hands), **rules),
        rng=random.Random(0),
        hands=[cards(hand) for hand in hands],
        deck=cards(deck),
        pile=cards(pile),
        mover=0,
        taken=[[] for _ in hands],
    )
    made.begin_turn(0)
    return made


def test_only_ten_or_less_may_call_and_calling_ends_the_round():
    assert table(["AC 2C 8D", "KC"], "QC").phase == "discard"
    low = table(["AC 2C 7D", "KC"], "QC")
    assert low.legal() == [CALL, PASS]
    low.decide(CALL)
    assert low.outcome is not None
    assert (low.phase, low.outcome.winner, low.outcome.coins) == ("over", 0, [13, -13])


@pytest.mark.parametrize(("pickup", "offered", "below"), [("previous", "QC", "JD"), ("own", "JD", "QC")])
def test_what_may_be_drawn_is_the_previous_players_discard_or_ones_own(pickup, offered, below):
    played = table(["JD KD", "5C 5D"], "QC", pickup=pickup)
    played.decide(tuple(cards("JD")))
    assert played.known().offered == CARD_OF[offered]
    played.decide(PILE)
    assert played.hands[0] == cards(f"KD {offered}")
    assert played.pile == cards(below)
    assert played.taken[0] == cards(offered)
    assert played.mover == 1


def test_an_empty_deck_is_made_of_the_pile_without_its_top():
    played = table(["JD KD", "5C 5D"], "QC 2C 3C", deck="", pickup="own")
    played.decide(tuple(cards("JD")))
    played.decide(DECK)
    assert played.pile == cards("JD")
    assert sorted([*played.deck, played.hands[0][-1]]) == sorted(cards("QC 2C 3C"))


def test_an_empty_hand_calls_with_nothing():
    played = table(["5C 5D", "AC"], "QC")
    played.decide(PASS)
    played.decide(tuple(cards("5C 5D")))
    assert played.outcome is not None
    assert (played.outcome.caller, played.outcome.winner, played.outcome.coins) == (0, 0, [1, -1])


def test_the_turn_limit_makes_the_lowest_hand_call():
    played = table(["JD KD", "5C 5D", "5H KH"], "QC", max_turns=1)
    played.decide(tuple(cards("KD")))
    played.decide(DECK)
    assert played.outcome is not None
    assert (played.outcome.forced, played.outcome.caller, played.outcome.winner) == (True, 1, 1)


@pytest.mark.parametrize(
    ("values", "caller", "winner", "coins"),
    [
        ([5, 20, 65], 0, 0, [85, -20, -65]),
        ([5, 4, 30], 0, 1, [-39, 39, 0]),  # the caller pays for every hand, his own too
        ([5, 30, 5], 0, 2, [-40, 0, 40]),  # a tie goes against the caller
        ([9, 3, 3], 0, 1, [-15, 15, 0]),  # the first of the lowest wins
    ],
)
def test_who_wins_and_who_pays(values, caller, winner, coins):
    outcome = settle(values, caller)
    assert (outcome.winner, outcome.coins) == (winner, coins)


def test_what_a_seat_knows_survives_as_plain_data():
    played = deal(DhumbalRules(players=3), random.Random(1))
    known = played.known()
    plain = known.plain()
    again = Known.from_plain(plain)
    assert again.plain() == plain
    hidden = set(chain(*played.hands[1:]))
    assert not hidden & {*plain["hand"], *plain["pile"], *plain["laid"], *chain(*plain["taken"])}
    assert value_of(plain["hand"]) == value_of(played.hands[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"players": 6}, "2 to 5 players"),
        ({"pickup": "any"}, "choose one of previous, own"),
        ({"max_turns": 0}, "at least one"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        DhumbalRules(**options)
