"""The command that lets agents play against each other."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column
from rich.text import Text

from turnwise.cli.common import Trust, bare_table, console, one_message, parse_settings
from turnwise.trust import trusting
from turnwise.untrusted import printable
from turnwise.words import counted

if TYPE_CHECKING:
    from turnwise.evaluate.tournament import Tournament

_NAME = re.compile(r"[\w.@-]+")
_RAISED_BY = {"max_turns": "--max-turns", "max_tokens": "--max-tokens", "context_full": "--context"}
"""The option that raises each limit."""


def tournament(
    env: Annotated[str, typer.Argument(metavar="ENV", help="A game of several seats, such as duel/kuhn.")],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Arguments of the environment: rounds=3")
    ] = None,
    player: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=WHAT, repeated: random, oracle, a player of the game such as cards/dhumbal:ismcts, "
            "package.module:Class (either with options: 'cards/dhumbal:ismcts?iterations=20&seconds=1'), a run or "
            "model folder, a card player's .safetensors, or http://HOST/v1#MODEL.",
        ),
    ] = None,
    games: Annotated[int, typer.Option(min=1, help="Games of every table in each rotation of its players.")] = 64,
    stakes: Annotated[
        bool, typer.Option("--stakes", help="Rate by how much was won, not by games: poker is played for stakes.")
    ] = False,
    temperature: Annotated[float, typer.Option(min=0.0, help="Sampling temperature of models; 0 is greedy.")] = 1.0,
    max_turns: Annotated[
        int, typer.Option(min=1, help="Maximum turns of a seat; a game that needs more is not rated.")
    ] = 1024,
    max_tokens: Annotated[int, typer.Option(min=1, help="Maximum tokens of a model's turn.")] = 256,
    context: Annotated[
        int | None, typer.Option(min=2, help="Maximum tokens of a game; by default the model's own, at most 2048.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides what models and mixed agents draw.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1.")] = "auto",
    html: Annotated[Path | None, typer.Option(help="Write the tables to this HTML file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
    trust: Trust = False,
) -> None:
    """Let agents meet in a round robin with rotated seats, and rate them on Elo's scale with 95% intervals."""
    with one_message(), trusting(trust):
        written = _read_players(player or [])
        players, options = _split_options(written)
        from turnwise.envs.process import EnvSource
        from turnwise.evaluate.tournament import play_tournament
        from turnwise.recipe.schema import Rollout
        from turnwise.train.entrants import entering

        source = EnvSource(env=env, kwargs=parse_settings(settings))
        source.check()
        rollout = Rollout(max_turns=max_turns, max_tokens=max_tokens, context=context)
        with entering(
            players, options=options, rollout=rollout, temperature=temperature, seed=seed, device=device
        ) as entrants:
            outcome = play_tournament(source, entrants.agents, entrants.play, games=games, stakes=stakes)
        if not outcome.games:
            raise ValueError(f"no game of {env} has a result: {_left_out(outcome)}")
        if html is not None:
            from turnwise.report.tournament_page import write_tournament

            write_tournament(outcome.as_row(), written, html)
    if as_json:
        typer.echo(json.dumps(outcome.as_row()))
        return
    _show(outcome)
    if html is not None:
        typer.echo(f"{html}; open it in a browser")


def _read_players(given: list[str]) -> dict[str, str]:
    """What is written behind each name."""
    players: dict[str, str] = {}
    for each in given:
        name, equals, what = each.partition("=")
        if not equals or not what or not _NAME.fullmatch(name):
            raise ValueError(f"cannot read --player {each!r}; write NAME=WHAT, such as expert=oracle")
        if name in players:
            raise ValueError(f"two players are called {name}; give one of them another name")
        players[name] = what
    if len(players) < 2:
        raise ValueError("a tournament needs at least two players, such as --player a=random --player b=oracle")
    return players


def _split_options(written: dict[str, str]) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    """What plays under each name, and with which options."""
    players: dict[str, str] = {}
    options: dict[str, dict[str, Any]] = {}
    for name, whole in written.items():
        players[name], mark, said = (whole, "", "") if "://" in whole else whole.partition("?")
        options[name] = parse_settings(said.split("&")) if mark else {}
    return players, options


def _show(outcome: Tournament) -> None:
    numbers = ("rating", "95% interval", "points", "reward", "legal", "forfeits", "games")
    table = bare_table("player", *(Column(name, justify="right") for name in numbers))
    for each in outcome.standings:
        rating = each.rating
        table.add_row(
            Text(printable(rating.player)),
            f"{rating.value:.0f}",
            f"{rating.interval.low:.0f} to {rating.interval.high:.0f}",
            f"{rating.score:.1%}",
            f"{each.reward:+.3f}",
            "" if each.valid is None else f"{each.valid:.1%}",
            str(each.forfeits),
            f"{rating.games:.0f}",
        )
    for player in outcome.unrated:
        table.add_row(Text(printable(player)), *[""] * (len(numbers) - 1), "0")
    console().print(table)
    by = ", rated by stakes" if outcome.stakes else ""
    left_out = _left_out(outcome)
    typer.echo(f"{outcome.env}: {counted(outcome.games, 'game')}{by}{f'; {left_out}' if left_out else ''}")


def _left_out(outcome: Tournament) -> str:
    """The games that do not count, and why."""
    cut = [f"{count} cut, not rated; raise {_RAISED_BY[limit]}" for limit, count in outcome.unfinished.items()]
    failed = [f"{outcome.faults} failed ({printable(outcome.last_error)})"] if outcome.faults else []
    return "; ".join([*cut, *failed])
