"""A tournament as one HTML file that loads nothing and runs no script."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from turnwise import __version__
from turnwise.report.page import STYLES, digest, read_asset
from turnwise.words import counted


def write_tournament(outcome: Mapping[str, Any], players: Mapping[str, str], output: Path) -> Path:
    """Write the page of `Tournament.as_row()`; `players` says who plays under each name."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(render_tournament(outcome, players), encoding="utf-8")
    except OSError as error:
        raise ValueError(f"cannot write {output}: {error.strerror}; choose a file that you can write") from error
    return output


def render_tournament(outcome: Mapping[str, Any], players: Mapping[str, str]) -> str:
    """The whole page; every text from outside is escaped."""
    style = "\n".join(read_asset(name) for name in STYLES)
    by = ", rated by stakes: what was not at stake in a game counts as drawn" if outcome["stakes"] else ""
    failed = f", {outcome['faults']} failed and do not count" if outcome["faults"] else ""
    cut = "".join(f", {count} cut by {limit}, not rated" for limit, count in outcome["unfinished"].items())
    return Template(read_asset("tournament.html")).substitute(
        style=style,
        style_hash=digest(style),
        version=__version__,
        env=escape(outcome["env"]),
        summary=escape(f"{counted(outcome['games'], 'game')}{by}{cut}{failed}."),
        ratings=_ratings(outcome["standings"], outcome["unrated"]),
        pairs=_pairs([each["player"] for each in outcome["standings"]], outcome["results"]),
        players=_table(("player", "plays"), sorted(players.items())),
    )


def _ratings(standings: Iterable[Mapping[str, Any]], unrated: Iterable[str]) -> str:
    head = ("player", "rating", "95% interval", "points", "mean reward", "legal turns", "forfeits", "games")
    rows = [
        (
            each["player"],
            f"{each['rating']:.0f}",
            f"{each['low']:.0f} to {each['high']:.0f}",
            f"{each['score']:.1%}",
            f"{each['reward']:+.3f}",
            "" if each["valid"] is None else f"{each['valid']:.1%}",
            str(each["forfeits"]),
            f"{each['games']:.0f}",
        )
        for each in standings
    ]
    blank = ("",) * (len(head) - 2)
    return _table(head, [*rows, *((player, *blank, "0") for player in unrated)])


def _pairs(names: Sequence[str], results: Iterable[Mapping[str, Any]]) -> str:
    """The cross table, best player first."""
    counts: dict[tuple[str, str], str] = {}
    for each in results:
        won, drawn, lost = (f"{each[key]:.4g}" for key in ("won", "drawn", "lost"))
        counts[each["player"], each["other"]] = f"{won} / {drawn} / {lost}"
        counts[each["other"], each["player"]] = f"{lost} / {drawn} / {won}"
    return _table(("", *names), [(row, *(counts.get((row, column), "") for column in names)) for row in names])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    top = "".join(f'<th scope="col">{escape(each)}</th>' for each in head)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(each)}</td>" for each in rest)}</tr>'
        for first, *rest in rows
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
