"""The environment `cards/dhumbal`: words for every decision, one seat's knowledge at a time, coins as rewards."""

from itertools import chain

import pytest

from turnwise.envs import make
from turnwise.envs.cards.dhumbal import Dhumbal, read, write
from turnwise.envs.cards.dhumbal_cards import ALL_MELDS, NAMES, VALUES
from turnwise.envs.cards.dhumbal_rules import CALL, DECK, PASS, PILE


def dhumbal(**options) -> Dhumbal:
    env = make("cards/dhumbal", **options)
    assert isinstance(env, Dhumbal)
    return env


@pytest.mark.parametrize("decision", [CALL, PASS, PILE, DECK, *ALL_MELDS[::20]])
def test_a_decision_is_read_as_it_was_written(decision):
    assert read(f"I think so. {write(decision)}") == decision


@pytest.mark.parametrize("text", ["", "call", r"\boxed{}", r"\boxed{discard}", r"\boxed{discard 1C}", r"\boxed{7H}"])
def test_what_is_not_a_decision_is_not_read(text):
    assert read(text) is None


def test_a_seat_sees_its_own_hand_and_no_other():
    env = dhumbal(players=3)
    observation, info = env.reset(seed=4)
    for _ in range(60):
        mover = env.round.mover
        others = {card for seat, hand in enumerate(env.round.hands) for card in hand if seat != mover}
        public = set(chain(*env.round.taken))
        said = {card for card, name in enumerate(NAMES) if name in observation.replace(r"7H 8H 9H", "")}
        assert not said & (others - public)
        assert not set(info["known"]["hand"]) & others
        assert info["seat"] == f"player_{mover}"
        assert info["known"]["seat"] == mover
        observation, _, over, _, info = env.step(env.sample_random_action())
        if over:
            observation, info = env.reset()


def test_a_cut_turn_costs_what_the_hand_is_worth():
    env = dhumbal(players=3)
    _, info = env.reset(seed=4)
    for _ in range(200):
        owed = sum(VALUES[card] for card in env.round.hands[env.round.mover])
        assert info["cut_reward"] == -max(owed, 1) / 100
        _, _, over, _, info = env.step(env.sample_random_action())
        if over:
            assert "cut_reward" not in info
            _, info = env.reset()


def test_rewards_sum_to_zero_and_success_is_the_winners():
    env = dhumbal(players=4, rounds=3)
    env.reset(seed=0)
    total = dict.fromkeys(env.seats, 0.0)
    paid = 0
    while True:
        actor = env.seats[env.round.mover]
        _, reward, over, _, info = env.step(env.oracle())
        rewards = info.get("rewards", {})
        paid += bool(rewards)
        assert sum(rewards.values()) == pytest.approx(0)
        assert reward == rewards.get(actor, 0.0)
        total = {seat: total[seat] + rewards.get(seat, 0.0) for seat in total}
        if over:
            break
    assert paid == 3
    best = max(total.values())
    assert info["success"] == {seat: value == best for seat, value in total.items()}
    assert "known" not in info


@pytest.mark.parametrize("action", ["", "nonsense", r"\boxed{discard 2C 9H}", r"\boxed{call}"])
def test_an_action_that_is_not_legal_counts_as_the_weakest_one(action):
    env = dhumbal(players=2)
    env.reset(seed=1)
    hand = list(env.round.hands[env.round.mover])
    _, reward, _, _, info = env.step(action)
    assert not info["valid"]
    assert reward == 0
    (gone,) = set(hand) - set(env.round.hands[env.round.mover])
    assert gone % 13 == min(card % 13 for card in hand)


def test_rotation_lets_every_seat_begin_and_a_fixed_seat_is_the_first():
    first = {dhumbal(players=4).reset(seed=seed)[1]["seat"] for seed in range(30)}
    assert first == {"player_0", "player_1", "player_2", "player_3"}
    assert {dhumbal(rotate=False).reset(seed=seed)[1]["seat"] for seed in range(5)} == {"player_0"}


def test_news_is_told_once_and_only_to_others():
    env = dhumbal(players=2, rotate=False)
    env.reset(seed=2)
    discarded = write((env.round.hands[0][0],))
    observation = env.step(discarded)[0]
    assert "player_0 discards" not in observation
    observation = env.step(write(DECK))[0]
    assert observation.count("player_0 discards") == 1
    assert "player_0 draws from the deck." in observation
    observation = env.step(write((env.round.hands[1][0],)))[0]
    assert "player_0 discards" not in observation


@pytest.mark.parametrize("options", [{"rounds": 0}, {"players": 1}, {"pickup": "none"}])
def test_options_are_checked(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        dhumbal(**options)
