"""Tournaments: who meets whom, that seats rotate, and what is shown."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from turnwise.cli import app
from turnwise.envs.base import Env, Reset, Step
from turnwise.envs.cards.dhumbal_players import make_player
from turnwise.envs.cards.dhumbal_search import Ismcts
from turnwise.envs.process import EnvSource
from turnwise.evaluate.tournament import Tournament, _results, play_tournament, rotations
from turnwise.recipe.schema import Rollout
from turnwise.report.tournament_page import render_tournament
from turnwise.rollout.agents import Action, Agent, ScriptedAgent, View
from turnwise.rollout.card_agents import CardAgent
from turnwise.train.entrants import entering
from turnwise.types import StopReason

ROLLOUT = Rollout(max_turns=8, max_tokens=8)


def held(
    env: str,
    players: dict[str, str],
    /,
    games: int = 12,
    *,
    stakes: bool = False,
    rollout: Rollout = ROLLOUT,
    seed: int = 0,
    temperature: float = 1.0,
    **options: int,
) -> Tournament:
    source = EnvSource(env=env, kwargs=options)
    with entering(players, rollout=rollout, temperature=temperature, seed=seed, device="cpu") as entrants:
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
    assert outcome.unrated == outcome.as_row()["unrated"] == ["broken"]
    ratings = render_tournament(outcome.as_row(), {}).partition("Who beat whom")[0]
    assert f'<th scope="row">broken</th>{"<td></td>" * 6}<td>0</td>' in ratings


def test_a_model_plays_and_illegal_moves_lose():
    outcome = held("duel/rps", {"model": "pico-duels", "any": "random"}, games=4)
    assert outcome.games == 8
    model = next(each for each in outcome.standings if each.rating.player == "model")
    assert model.valid is not None
    assert model.valid < 0.5
    assert model.rating.score < 0.5


class Cut(Agent):
    """Never finishes a message."""

    async def act(self, view: View) -> Action:
        return Action(text="I think", stop=StopReason.MAX_TOKENS)


class CutAhead(CardAgent):
    """Calls where it can, and never finishes a message once it leads."""

    def __init__(self) -> None:
        super().__init__(make_player("cards/dhumbal:aggressive"))

    async def act(self, view: View) -> Action:
        known = view.info["known"]
        ahead = known["coins"][known["seat"]] > 0
        return Action(text="", stop=StopReason.CONTEXT_FULL) if ahead else await super().act(view)


class Mumbles(Env):
    """A game of two that has no rule for a cut turn."""

    seats = ("one", "two")

    def reset(self, seed: int | None = None, task: Any = None) -> Reset:
        super().reset(seed=seed)
        return "Say something.", {"seat": "one"}

    def step(self, action: str) -> Step:
        return "Over.", 1.0, True, False, {"rewards": {"one": 1.0, "two": -1.0}}


def test_games_that_run_out_of_turns_are_counted_apart_and_rate_nobody():
    players = {"a": "cards/dhumbal:random", "b": "cards/dhumbal:random"}
    outcome = held("cards/dhumbal", players, games=10, rollout=Rollout(max_turns=64), players=2)
    cut = outcome.unfinished["max_turns"]
    assert 0 < cut < 20
    assert outcome.games == 20 - cut
    assert sum(result.games for result in outcome.results) == outcome.games
    assert sum(result.drawn for result in outcome.results) == 0
    assert outcome.as_row()["unfinished"] == {"max_turns": cut}
    assert f"{outcome.games} games, {cut} cut by max_turns, not rated." in render_tournament(outcome.as_row(), players)


@pytest.mark.parametrize("count", [2, 3])
def test_who_never_finishes_a_turn_loses_to_all_and_the_others_share_nothing(count: int):
    sound = [f"sound_{number}" for number in range(count - 1)]
    players = {"cut": f"{__name__}:Cut", **dict.fromkeys(sound, "cards/dhumbal:aggressive")}
    outcome = held("cards/dhumbal", players, games=4, rollout=Rollout(max_turns=200), players=count)
    forfeits = {each.rating.player: each.forfeits for each in outcome.standings}
    assert 0 < forfeits["cut"] <= outcome.games == 4 * count
    assert all(forfeits[name] == 0 for name in sound)
    assert outcome.standings[-1].rating.player == "cut"
    for result in outcome.results:
        expected = outcome.games if "cut" in (result.player, result.other) else outcome.games - forfeits["cut"]
        assert result.games == expected
        assert result.drawn == 0
    assert f"<td>{forfeits['cut']}</td>" in render_tournament(outcome.as_row(), players)


def test_who_leads_and_does_not_finish_its_turn_has_lost():
    players = {"cut": f"{__name__}:CutAhead", "any": "cards/dhumbal:random"}
    outcome = held("cards/dhumbal", players, games=6, rollout=Rollout(max_turns=999), players=2, rounds=3)
    rows = {each.rating.player: each for each in outcome.standings}
    assert rows["cut"].forfeits == outcome.games == 12
    assert rows["cut"].reward > rows["any"].reward
    assert rows["any"].rating.score == 1


def test_a_cut_turn_is_no_result_where_the_game_has_no_rule_for_it():
    outcome = held(f"{__name__}:Mumbles", {"cut": f"{__name__}:Cut", "any": f"{__name__}:Mute"}, games=3)
    assert outcome.unfinished == {"max_tokens": 3}
    assert outcome.games == 3  # those in which the other began
    assert all(each.forfeits == 0 for each in outcome.standings)


def test_the_table_lists_a_player_without_a_rated_game():
    players = ["a=random", "b=random", f"broken={__name__}:Breaks"]
    given = [argument for player in players for argument in ("--player", player)]
    shown = CliRunner().invoke(app, ["tournament", "duel/rps", *given, "--games", "1"])
    assert shown.exit_code == 0, shown.output
    head, *rows = (line.split() for line in shown.stdout.splitlines() if line.strip())
    assert "forfeits" in head
    assert ["broken", "0"] in rows


def test_the_command_says_which_limit_to_raise():
    players = ["--player", "a=cards/dhumbal:random", "--player", "b=cards/dhumbal:random", "--games", "10"]
    some = CliRunner().invoke(app, ["tournament", "cards/dhumbal", "players=2", *players, "--max-turns", "64"])
    assert re.search(r"cards/dhumbal: \d+ games; \d+ cut, not rated; raise --max-turns", some.stdout), some.output
    none = CliRunner().invoke(app, ["tournament", "cards/dhumbal", "players=2", *players, "--max-turns", "1"])
    assert none.exit_code == 2
    assert "no game of cards/dhumbal has a result: 20 cut, not rated; raise --max-turns" in none.stderr
    whole = CliRunner().invoke(app, ["tournament", "cards/dhumbal", "players=2", *players])
    assert whole.stdout.splitlines()[-1] == "cards/dhumbal: 20 games"


def test_players_have_options():
    arguments = ["tournament", "cards/dhumbal", "players=2", "max_turns=6", "--games", "1", "--json"]
    quick = "quick=cards/dhumbal:ismcts?iterations=3&rollouts=aggressive"
    outcome = CliRunner().invoke(app, [*arguments, "--player", quick, "--player", "any=random"])
    assert outcome.exit_code == 0, outcome.output
    assert json.loads(outcome.stdout)["games"] == 2
    with entering(
        {"quick": "cards/dhumbal:ismcts", "any": "random"},
        options={"quick": {"iterations": 3}},
        rollout=ROLLOUT,
        temperature=1.0,
        seed=0,
        device="cpu",
    ) as entrants:
        quick = entrants.agents["quick"]
        assert isinstance(quick, ScriptedAgent)
        assert isinstance(quick.agent, CardAgent)
        assert isinstance(quick.agent.player, Ismcts)
        assert quick.agent.player.iterations == 3


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
        (["duel/kuhn", "--player", "a=cards/whist:north", "--player", "b=random"], "choose random, oracle, cards/"),
        (
            ["duel/kuhn", "--player", "a=cards/dhumbal:agressive", "--player", "b=random"],
            "mean cards/dhumbal:aggressive?",
        ),
        (["duel/kuhn", "--player", "a=dhumbal:agressive", "--player", "b=random"], "mean cards/dhumbal:aggressive?"),
        (["duel/kuhn", "--player", "a=ismcts", "--player", "b=random"], "did you mean cards/dhumbal:ismcts?"),
        (["duel/kuhn", "--player", "a=randm", "--player", "b=random"], "no player randm; did you mean random?"),
        (
            ["duel/kuhn", "--player", "a=cards/dhumbal:mcts?iteration=3", "--player", "b=random"],
            "unknown option 'iteration'; did you mean iterations? It takes iterations, seconds",
        ),
        (["duel/kuhn", "--player", "a=random?depth=3", "--player", "b=random"], "random: unknown option 'depth'; it"),
        (["duel/kuhn", "--player", "a=random?depth", "--player", "b=random"], "write arguments as key=value"),
        (["duel/kuhn", "--player", "a=pico-duels?depth=3", "--player", "b=random"], "is a model and takes no options"),
    ],
)
def test_mistakes_get_one_message(arguments: list[str], message: str):
    outcome = CliRunner().invoke(app, ["tournament", *arguments])
    assert outcome.exit_code == 2
    assert message in outcome.stderr
