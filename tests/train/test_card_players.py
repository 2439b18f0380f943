"""Players that learn Dhumbal: equal seeds learn equally, decisions are legal, and calls are learnt."""

import random
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from turnwise.cli import app
from turnwise.envs.cards.dhumbal_features import MELDS, SLOTS, WIDTH, encode, slots
from turnwise.envs.cards.dhumbal_players import make_player
from turnwise.envs.cards.dhumbal_rules import DhumbalRules, deal
from turnwise.envs.cards.dhumbal_table import play_table
from turnwise.learn.learner import Learner
from turnwise.recipe.loading import load_recipe
from turnwise.recipe.schema import Recipe, Train
from turnwise.train.card_dqn import DqnPlayer, _loss, _Step
from turnwise.train.card_files import LearnedCards, new_network
from turnwise.train.card_ppo import PpoPlayer, _group, card_row
from turnwise.train.card_rollouts import Taken, play_rounds
from turnwise.train.casting import require_seats


def test_features_and_slots_describe_every_position():
    rng, most = random.Random(0), 0
    for _ in range(60):
        played = deal(DhumbalRules(players=rng.randint(2, 5)), rng)
        while played.phase != "over":
            known = played.known()
            vector, decisions = encode(known), slots(known)
            assert (len(vector), len(decisions)) == (WIDTH, SLOTS)
            assert all(0 <= number <= 1 for number in vector)
            assert {each for each in decisions if each is not None} == set(known.legal())
            most = max(most, sum(each is not None for each in decisions))
            played.decide(rng.choice(known.legal()))
    assert most <= MELDS


def test_a_seats_round_ends_with_its_coins_and_its_own_decisions():
    def first_legal(features_N, legal_NA):
        assert features_N.shape[1] == WIDTH
        return legal_NA.int().argmax(-1).tolist(), [0.0] * len(legal_NA)

    played = play_rounds(first_legal, count=20, rng=random.Random(1))
    assert len(played) >= 18  # a few rounds may end before the learner's first turn, others have it twice
    assert all(taken.legal[taken.slot] for each in played for taken in each.taken)
    assert any(each.reward > 0 for each in played)
    assert any(each.reward < 0 for each in played)


@pytest.mark.parametrize(("kind", "options"), [(PpoPlayer, {}), (DqnPlayer, {"updates": 4})])
def test_equal_seeds_learn_equally(kind, options):
    options = {"steps": 2, "rounds": 8, **options}
    one, again, other = (kind(seed=seed, **options) for seed in (3, 3, 4))
    assert one.rewards == again.rewards
    assert one.rewards != other.rewards


def test_ppo_learns_to_call_and_beats_random_heads_up():
    player = PpoPlayer(seed=0, steps=6, rounds=64, learning_rate=2e-3)
    table = {"ppo": player, "random": make_player("cards/dhumbal:random")}
    found = play_table(table, rounds=100, seed=0)["ppo"].metrics()
    assert found["call_rate"] > 0.5
    assert found["win_rate"] > 0.65


def test_for_ppo_a_round_ends_and_the_last_decision_earns_its_coins():
    learner = Learner(new_network("ppo", seed=0), card_row(), Train(steps=1), seed=0)
    assert learner.critic is not None

    def any_legal(features_N, legal_NA):
        return legal_NA.int().argmax(-1).tolist(), [-1.0] * len(legal_NA)

    played = play_rounds(any_legal, count=12, rng=random.Random(2))
    batch = learner.prepare([_group(str(place), each) for place, each in enumerate(played)])
    assert batch is not None
    assert batch.return_T is not None
    assert batch.value_T is not None
    ends = [end - 1 for end in accumulate(len(each.taken) for each in played)]
    coins = torch.tensor([each.reward for each in played])
    assert {float(sign) for sign in coins.sign()} == {-1.0, 0.0, 1.0}
    assert float(batch.value_T[ends].abs().min()) > 1e-4, "a value of what follows would show"
    assert torch.allclose(batch.return_T[ends], coins, atol=1e-6)
    assert torch.equal(batch.reward_T[ends], coins)
    assert float(batch.reward_T.abs().sum()) == pytest.approx(float(coins.abs().sum()))


def test_dqn_values_nothing_after_the_end():
    network = DqnPlayer(seed=0, steps=1, rounds=4, updates=1).network
    torch.nn.init.zeros_(network.head.weight)
    torch.nn.init.constant_(network.head.bias, 0.5)
    taken = Taken(features=[0.0] * WIDTH, legal=[True] * SLOTS, slot=0, logprob=0.0)
    end, middle = _Step(taken=taken, then=None, reward=0.5), _Step(taken=taken, then=taken, reward=0.0)
    with torch.no_grad():
        assert float(_loss(network, network, [end], 1.0)) == pytest.approx(0.0)  # the value is the reward
        assert float(_loss(network, network, [middle], 1.0)) == pytest.approx(0.0)  # the value is the next one's
        assert float(_loss(network, network, [middle], 0.5)) > 0


@pytest.mark.parametrize("kind", [PpoPlayer, DqnPlayer])
def test_a_saved_player_plays_from_its_file_with_the_seats_own_luck(tmp_path: Path, kind):
    player = kind(seed=0, steps=1, rounds=4)
    player.save(tmp_path / "player.safetensors")
    loaded = LearnedCards(tmp_path / "player.safetensors")
    rng, played = random.Random(0), deal(DhumbalRules(players=2), random.Random(0))
    while played.phase != "over":
        known = played.known()
        decided = {loaded.decide(known, random.Random(1)) for _ in range(3)}
        assert len(decided) == 1
        assert decided <= set(known.legal())
        if kind is DqnPlayer:
            assert decided == {player.decide(known, rng)}
        played.decide(rng.choice(known.legal()))


def test_a_saved_player_takes_part_in_a_tournament(tmp_path: Path):
    PpoPlayer(seed=0, steps=1, rounds=4).save(file := tmp_path / "ppo.safetensors")
    players = ["--player", f"ppo={file}", "--player", "any=cards/dhumbal:random"]
    outcome = CliRunner().invoke(app, ["tournament", "cards/dhumbal", "players=2", *players, "--games", "2"])
    assert outcome.exit_code == 0, outcome.output
    assert "cards/dhumbal: 4 games" in outcome.output
    assert "100.0%" in outcome.output  # its decisions are legal


def test_a_file_that_is_not_a_player_gets_one_message(tmp_path: Path):
    (tmp_path / "broken.safetensors").write_bytes(b"no tensors")
    save_file({"weight": torch.zeros(1)}, tmp_path / "other.safetensors")
    save_file({"weight": torch.zeros(1)}, tmp_path / "shape.safetensors", metadata={"cards/dhumbal": "ppo"})
    for name, message in {
        "none": "there is no file",
        "broken": "cannot read",
        "other": "is not a player of cards/dhumbal",
        "shape": "cannot read",
    }.items():
        with pytest.raises(ValueError, match=message):
            LearnedCards(tmp_path / f"{name}.safetensors")


def test_a_recipe_seats_a_saved_player(tmp_path: Path):
    def seated(path: str) -> Recipe:
        seats = {"player_0": "policy", "player_1": {"agent": "cards/dhumbal:learned", "options": {"path": path}}}
        return load_recipe(None, {"env": {"id": "cards/dhumbal", "kwargs": {"players": 2}}, "seats": seats})

    DqnPlayer(seed=0, steps=1, rounds=4, updates=1).save(tmp_path / "dqn.safetensors")
    require_seats(seated(str(tmp_path / "dqn.safetensors")))
    with pytest.raises(ValueError, match="there is no file elsewhere"):
        require_seats(seated("elsewhere"))
