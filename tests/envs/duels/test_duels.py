"""Duels: rules, payoffs, and that no seat reads what the other hides."""

from __future__ import annotations

from random import Random
from statistics import fmean
from typing import Any

import pytest

from turnwise.envs import make
from turnwise.envs.duels.duel import PLAYERS, Duel
from turnwise.envs.duels.kuhn import Hands, Kuhn
from turnwise.envs.duels.nim import Nim, Stones
from turnwise.policy.pico import FAMILIES, build_tokenizer

GAMES = ("duel/nim", "duel/kuhn", "duel/rps")


def duel(name: str, **options: Any) -> Duel:
    env = make(name, **options)
    assert isinstance(env, Duel)
    return env


def played(env: Duel, seed: int, *, expert: bool = False) -> list[tuple[str, str, dict[str, Any]]]:
    """What each mover read and knew: seat, observation, info; the last entry is the end."""
    observation, info = env.reset(seed=seed)
    seen = [(info["seat"], observation, info)]
    while True:
        action = env.oracle() if expert else env.sample_random_action()
        observation, _, over, _, info = env.step(action)
        seen.append((info.get("seat", ""), observation, info))
        if over:
            return seen


@pytest.mark.parametrize("name", GAMES)
def test_what_one_wins_the_other_loses(name: str):
    env = duel(name)
    for seed in range(50):
        rewards = played(env, seed)[-1][2]["rewards"]
        assert rewards.keys() == set(PLAYERS)
        assert sum(rewards.values()) == 0


@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize("reply", ["", "take two", "\\boxed{}", "\\boxed{A9}", "\\boxed{check} \\boxed{nothing}"])
def test_a_reply_that_is_not_a_legal_move_loses_at_once(name: str, reply: str):
    env = duel(name)
    _, info = env.reset(seed=1)
    _, reward, terminated, _, end = env.step(reply)
    assert (reward, terminated, end["valid"]) == (-1.0, True, False)
    assert end["rewards"][info["seat"]] == -1
    assert sum(end["rewards"].values()) == 0


def test_kuhns_second_seat_reads_nothing_of_the_first_ones_card():
    tree = Kuhn()
    for mine in "JQK":
        for played in ((), ("check",), ("bet",), ("check", "bet")):
            seat = len(played) % 2
            cards = [(mine, other) if seat == 0 else (other, mine) for other in "JQK" if other != mine]
            seen = {tree.sees(Hands(pair, played), seat) for pair in cards}
            assert len(seen) == 1


@pytest.mark.parametrize("rounds", [1, 3])
def test_the_second_mover_of_a_simultaneous_move_knows_nothing_of_the_first(rounds: int):
    env = duel("duel/rps", rounds=rounds)
    for before in ("rock", "paper", "scissors"):
        env.reset(seed=0)
        seen: list[Any] = []
        for choice in ("rock", "paper", "scissors"):
            env.reset(seed=0)
            for _ in range(rounds - 1):
                env.step(f"\\boxed{{{before}}}")
                env.step("\\boxed{rock}")
            seen.append(env.step(f"\\boxed{{{choice}}}"))
        assert seen[0] == seen[1] == seen[2]  # observation, reward and info


def test_after_a_round_both_read_both_choices_from_their_own_side():
    env = duel("duel/rps", rounds=2)
    env.reset(seed=0)
    env.step("\\boxed{rock}")
    assert env.step("\\boxed{paper}")[0] == "Last round: rock against paper."
    assert env.step("\\boxed{rock}")[0] == "Last round: paper against rock."


def test_payoffs_of_kuhns_poker_are_its_chips():
    tree = Kuhn()
    payoffs = {
        ("check", "check"): 0.5,
        ("check", "bet", "fold"): -0.5,
        ("check", "bet", "call"): 1.0,
        ("bet", "fold"): 0.5,
        ("bet", "call"): 1.0,
    }
    for moves, payoff in payoffs.items():
        state = Hands(("K", "Q"))
        for move in moves:
            assert move in tree.moves(state)
            assert tree.mover(state) is not None
            state = tree.play(state, move)
        assert tree.mover(state) is None
        assert tree.payoff(state) == payoff


def test_whoever_takes_the_last_stone_wins():
    tree = Nim(piles=2, largest=3)
    state = Stones((1, 2))
    assert tree.moves(state) == ["A1", "B1", "B2"]
    assert tree.solution(state) == [0, 1, 0]  # leaves two equal piles
    state = tree.play(tree.play(tree.play(state, "B1"), "A1"), "B1")
    assert tree.mover(state) is None
    assert tree.payoff(state) == 1.0


def test_experts_earn_the_value_of_kuhns_poker():
    env = duel("duel/kuhn")
    earned = [played(env, seed, expert=True)[-1][2]["rewards"]["player_0"] for seed in range(4000)]
    assert fmean(earned) == pytest.approx(-1 / 36, abs=0.035)  # three standard errors


def test_the_optimal_expert_wins_every_won_game_of_nim_against_random_moves():
    env, random = duel("duel/nim", piles=2), Random(0)
    for seed in range(60):
        _, info = env.reset(seed=seed)
        won = env.state.piles[0] != env.state.piles[1]
        over = False
        while not over:
            expert = (info["seat"] == "player_0") == won
            action = env.oracle() if expert else f"\\boxed{{{random.choice(env.tree.moves(env.state))}}}"
            _, _, over, _, info = env.step(action)
        assert info["rewards"]["player_0" if won else "player_1"] == 1


def test_a_rotated_game_lets_either_seat_begin_and_pays_the_same_part():
    env = duel("duel/nim", rotate=True, piles=1, largest=1)  # whoever begins wins
    starters: set[str] = set()
    for seed in range(20):
        (starter, _, _), (_, _, end) = played(env, seed)
        starters.add(starter)
        assert end["rewards"][starter] == 1
    assert starters == set(PLAYERS)
    assert env.tree.value == 0


def test_the_random_expert_plays_every_legal_move():
    env = duel("duel/kuhn", expert="random")
    moves: set[str] = set()
    for seed in range(30):
        env.reset(seed=seed)
        assert env.oracle() == env.oracle()
        moves.add(env.oracle())
    assert moves == {"\\boxed{check}", "\\boxed{bet}"}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("duel/nim", {"piles": 0}, "choose 1 to 5 piles"),
        ("duel/rps", {"rounds": 0}, "play at least one"),
        ("duel/kuhn", {"expert": "best"}, "choose optimal or random"),
    ],
)
def test_options_that_make_no_game_get_a_message(name: str, options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        make(name, **options)


@pytest.mark.parametrize("name", GAMES)
def test_pico_duels_reads_every_position_and_says_every_move_in_one_token(name: str):
    tokenizer = build_tokenizer(FAMILIES["pico-duels"])
    env = duel(name, **({"rounds": 3} if name == "duel/rps" else {}))
    for seed in range(20):
        for _, observation, info in played(env, seed)[:-1]:
            position = observation.removeprefix(env.tree.intro)
            ids = tokenizer.encode(position)
            assert tokenizer.unk_token_id not in ids
            assert tokenizer.decode(ids) == position
            assert info["seat"] in PLAYERS
        env.reset(seed=seed)
        for move in env.tree.moves(env.state):
            (token,) = tokenizer.encode(f"\\boxed{{{move}}}")
            assert token != tokenizer.unk_token_id
