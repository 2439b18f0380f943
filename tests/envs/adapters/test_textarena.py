import random

import pytest

pytest.importorskip("textarena", reason="needs turnwise[textarena]")

from tests.envs.adapters.play import assert_contract, assert_snapshot_continues, assert_survives_hostile_actions, make

GAMES = {
    "GuessTheNumber-v0": 1,
    "Mastermind-v0": 1,
    "Bandit-v0": 1,
    "KuhnPoker-v0": 2,
    "LiarsDice-v0": 2,
    "QuantumTicTacToe-v0": 2,
    "ThreePlayerGOPS-v0": 3,
    "SecretMafia-v0": 6,
}


@pytest.mark.parametrize(("name", "players"), GAMES.items())
def test_seats_follow_the_number_of_players_and_hostile_actions_are_answered(name, players):
    env = make(f"textarena/{name}")
    assert len(env.seats) == players
    assert_survives_hostile_actions(env)
    assert_snapshot_continues(env)


@pytest.mark.parametrize("name", ["Mastermind-v0", "KuhnPoker-v0", "SecretMafia-v0"])
def test_games_that_draw_from_the_global_generator_are_deterministic(name):
    def build(split="train"):
        return make(f"textarena/{name}", split=split)

    first, second = build(), build()
    transcripts = ([first.reset(seed=9)], [second.reset(seed=9)])
    for _ in range(6):
        for env, transcript in zip((first, second), transcripts, strict=True):
            random.random()
            transcript.append(env.step(env.sample_random_action()))
        if transcripts[0][-1][2]:
            break
    assert transcripts[0] == transcripts[1]


def test_the_secret_depends_on_seed_and_split():
    secrets = set()
    for split in ("train", "validation", "test"):
        env = make("textarena/Mastermind-v0", split=split)
        for seed in range(5):
            env.reset(seed=seed)
            secrets.add(tuple(env.game.state.game_state["secret_code"]))
    assert len(secrets) >= 13
    assert_contract(lambda split="train": make("textarena/2048-v0-easy", split=split), turns=5)


def test_tic_tac_toe_alternates_seats_and_pays_the_winner_and_the_loser():
    env = make("textarena/TicTacToe-v0")
    observation, info = env.reset(seed=0)
    assert info == {"seat": "player_0"}
    assert "[4]" in observation
    seats = []
    for move in ("[0]", "[3]", "[1]", "[4]"):
        observation, reward, done, _, info = env.step(move)
        assert (reward, done, info["valid"]) == (0.0, False, True)
        seats.append(info["seat"])
    assert seats == ["player_1", "player_0", "player_1", "player_0"]
    assert observation.count("Current Board") == 2, "an observation holds what its seat has not read yet"
    _, reward, done, truncated, info = env.step("[2]")
    assert (reward, done, truncated) == (1.0, True, False)
    assert info["rewards"] == {"player_0": 1.0, "player_1": -1.0}


def test_an_invalid_move_keeps_the_turn_and_a_second_one_loses():
    env = make("textarena/TicTacToe-v0")
    env.reset(seed=0)
    _, _, done, _, info = env.step("nothing")
    assert (done, info["valid"], info["seat"]) == (False, False, "player_0")
    _, reward, done, _, info = env.step("[99]")
    assert (reward, done, info["valid"]) == (-1.0, True, False)
    assert info["rewards"] == {"player_0": -1.0, "player_1": 1.0}


def test_a_single_player_win_is_a_success():
    env = make("textarena/GuessTheNumber-v0")
    env.reset(seed=0)
    assert env.seats == ("agent",)
    _, reward, done, _, info = env.step(f"[{env.game.state.game_state['game_number']}]")
    assert (reward, done, info["success"]) == (1.0, True, True)


def test_a_game_that_names_its_penalty_badly_still_pays_a_number():
    env = make("textarena/Cryptarithm-v0")
    env.reset(seed=0)
    env.step("nothing")
    _, reward, done, _, info = env.step("nothing")
    assert (reward, done, info["valid"]) == (-1.0, True, False)


def test_unknown_and_unloadable_games_say_so():
    with pytest.raises(ValueError, match="did you mean TicTacToe-v0"):
        make("textarena/TicTacTo-v0")
    with pytest.raises(ValueError, match="cannot load 'UsedCarNegotiation-v0' here"):
        make("textarena/UsedCarNegotiation-v0")
