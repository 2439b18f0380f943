"""Tournaments: who meets whom, that seats rotate, and what is shown."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from turnwise.cli import app
from turnwise.envs.process import EnvSource
from turnwise.evaluate.tournament import Tournament, _results, play_tournament, rotations
from turnwise.recipe.schema import Rollout
from turnwise.report.tournament_page import render_tournament
from turnwise.rollout.agents import Action, Agent, View
from turnwise.train.entrants import entering

ROLLOUT = Rollout(max_turns=8, max_tokens=8)


def held(env: str, players: dict[str, str], games: int = 12, *, stakes: bool = False, **options: int) -> Tournament:
    source = EnvSource(env=env, kwargs=options)
    with entering(players, rollout=ROLLOUT, temperature=1.0, seed=0, device="cpu") as entrants:
        return play_tournament(source, entrants.agents, entrants.play, games=games, stakes=stakes)


class Breaks(Agent):
    """An agent that cannot play."""

    async def act(self, view: View) -> Action:
        raise RuntimeError("out of order")


def test_everybody_meets_everybody_once_at_every_seat():
    tables = list(rotations(["a", "b", "c"], 2))
    assert tables == [("a", "b"), ("b", "a"), ("a", "c"), ("c", "a"), ("b", "c"), ("c", "b")]
    at = Counter((player, seat) for table in rotations("abcde", 4) for seat, player in enumerate(table))
    assert set(at.values()) == {4}


def test_the_expert_beats_random_moves_and_the_numbers_add_up():
    outcome = held("duel/nim", {"expert": "oracle", "any": "random", "other": "random"}, piles=3)
    assert outcome.standings[0].rating.player == "expert"
    assert outcome.standings[0].rating.value > 1600
    assert (outcome.games, outcome.faults) == (3 * 2 * 12, 0)
    assert sum(result.games for result in outcome.results) == outcome.games
    assert sum(each.reward for each in outcome.standings) == pytest.approx(0)


class Mute(Agent):
    """Says nothing, so that its first move loses."""

    async def act(self, view: View) -> Action:
        return Action(text="")


def test_by_stakes_a_game_for_less_is_partly_drawn():
    margins = {("a", "b"): [2.0, -1.0, -1.0]}
    assert _results(margins, stakes=False) == [("a", "b", 1, 0, 2)]
    assert _results(margins, stakes=True) == [("a", "b", 1, 1, 1)]
    players = {"expert": "oracle", "any": "random"}
    games, stakes = (held("duel/kuhn", players, stakes=stakes) for stakes in (False, True))
    assert sorted(each.reward for each in stakes.standings) == sorted(each.reward for each in games.standings)
    assert sum(result.games for result in stakes.results) == pytest.approx(stakes.games)
    assert stakes.results[0].drawn > games.results[0].drawn == 0


def test_a_seat_that_never_acts_still_wins_what_an_illegal_first_move_loses():
    outcome = held("duel/kuhn", {"mute": f"{__name__}:Mute", "any": "random"}, games=6)
    rewards = {each.rating.player: each.reward for each in outcome.standings}
    assert rewards["any"] == -rewards["mute"] > 0.5


def test_equal_seeds_give_equal_tournaments():
    players = {"expert": "oracle", "any": "random"}
    assert held("duel/kuhn", players) == held("duel/kuhn", players)


def test_a_player_that_fails_voids_its_games_and_is_reported():
    outcome = held("duel/rps", {"sound": "random", "other": "random", "broken": f"{__name__}:Breaks"}, games=2)
    assert (outcome.games, outcome.faults) == (4, 8)
    assert "out of order" in outcome.last_error
    assert {each.rating.player for each in outcome.standings} == {"sound", "other"}


def test_a_model_plays_and_illegal_moves_lose():
    outcome = held("duel/rps", {"model": "pico-duels", "any": "random"}, games=4)
    assert outcome.games == 8
    model = next(each for each in outcome.standings if each.rating.player == "model")
    assert model.valid is not None
    assert model.valid < 0.5
    assert model.rating.score < 0.5


def test_the_page_shows_names_as_text():
    outcome = held("duel/rps", {"a": "random", "b": "oracle"}, games=2)
    page = render_tournament(outcome.as_row(), {"a": "<script>alert(1)</script>", "b": "oracle"})
    assert "&lt;script&gt;" in page
    assert "<script" not in page
    assert "default-src 'none'" in page


def test_the_command_prints_a_table_or_json_and_writes_a_page(tmp_path: Path):
    players = ["--player", "expert=oracle", "--player", "any=random", "--games", "3"]
    table = CliRunner().invoke(app, ["tournament", "duel/kuhn", *players, "--html", str(tmp_path / "page.html")])
    assert table.exit_code == 0, table.output
    assert "duel/kuhn: 6 games" in table.output
    assert "Who beat whom" in (tmp_path / "page.html").read_text()
    stakes = CliRunner().invoke(app, ["tournament", "duel/kuhn", *players, "--stakes"])
    assert "duel/kuhn: 6 games, rated by stakes" in stakes.output
    plain = CliRunner().invoke(app, ["tournament", "duel/rps", "rounds=2", *players, "--json"])
    assert {row["player"] for row in json.loads(plain.stdout)["standings"]} == {"expert", "any"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["duel/kuhn", "--player", "a=random"], "a tournament needs at least two players"),
        (["duel/kuhn", "--player", "random", "--player", "b=random"], "write NAME=WHAT, such as expert=oracle"),
        (["duel/kuhn", "--player", "a=random", "--player", "a=oracle"], "two players are called a"),
        (["game/hanoi-easy", "--player", "a=random", "--player", "b=random"], "has one seat, so nobody can meet"),
        (["duel/kuhn", "--player", "a=http://127.0.0.1:1/v1", "--player", "b=random"], "name the model after the"),
        (["duel/kuhn", "--player", "a=runs/none", "--player", "b=random"], "there is no folder runs/none"),
        (["duel/kuhn", "seats=3", "--player", "a=random", "--player", "b=random"], "cannot build duel/kuhn"),
    ],
)
def test_mistakes_get_one_message(arguments: list[str], message: str):
    outcome = CliRunner().invoke(app, ["tournament", *arguments])
    assert outcome.exit_code == 2
    assert message in outcome.stderr
