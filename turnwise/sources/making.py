"""From a recipe to the source of its steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from turnwise.ranks import ALONE, Ranks, on_first
from turnwise.recipe.ingredients import Ingredient
from turnwise.recipe.schema import Recipe
from turnwise.sources.chats import chat_groups
from turnwise.sources.cursor import sampling_plan
from turnwise.sources.demonstrations import expert_groups
from turnwise.sources.imitation import Imitation
from turnwise.sources.judged import Jury
from turnwise.sources.mixture import Mixture, Shelf
from turnwise.sources.plain_text import text_groups
from turnwise.sources.played import Played
from turnwise.sources.played_ahead import PlayedAhead
from turnwise.sources.player import Playing
from turnwise.sources.preferences import preference_groups
from turnwise.sources.source import Source
from turnwise.sources.splitting import split_held_out
from turnwise.types import Group

_FILES: Mapping[str, Callable[..., list[Group]]] = {
    "chats": chat_groups,
    "preferences": preference_groups,
    "text": text_groups,
}
_DEMONSTRATIONS = 512
"""The default number of expert episodes."""


def make_source(
    recipe: Recipe,
    player: Playing,
    *,
    imitation: Imitation | None = None,
    first: int = 1,
    kept: dict[int, list[Group]] | None = None,
    state: Mapping[str, Any] | None = None,
    ranks: Ranks = ALONE,
    jury: Jury | None = None,
) -> Source:
    """The source of the steps from `first` on; `kept` and `state` are what a checkpoint has of it."""
    if imitation is not None:
        return Mixture(player, [imitation], held_out=imitation.held_out)
    if not recipe.source.mix:
        return _played(recipe, player, tasks=None, first=first, kept=kept, state=state, ranks=ranks, jury=jury)
    played, shelves, held_out = None, list[Shelf](), list[Group]()
    for number, (part, count) in enumerate(zip(recipe.source.mix, shares(recipe), strict=True)):
        if part.plays:
            played = _played(recipe, player, tasks=count, first=first, kept=kept, state=state, ranks=ranks, jury=jury)
        else:
            groups, held = on_first(ranks, partial(_read, part, recipe, player))
            shelves.append(Shelf(groups, count=count, key=f"source:{recipe.seed}:{number}"))
            held_out += held
    return Mixture(player, shelves, played=played, held_out=held_out)


def shares(recipe: Recipe) -> list[int]:
    """Groups of a step from each part of `source.mix`: its count, or its share of what the counts leave."""
    mix, whole = recipe.source.mix, recipe.rollout.episodes // sampling_plan(recipe.algorithm).tries
    weight = sum(part.weight for part in mix if part.count is None)
    left = whole - sum(part.count or 0 for part in mix)
    exact = [left * part.weight / weight if part.count is None else part.count for part in mix]
    given = [max(int(share), 0) for share in exact]
    # The remainder goes to the parts that rounding down reduced most.
    by_loss = sorted(range(len(mix)), key=lambda place: given[place] - exact[place])
    for place in by_loss[: max(left, 0) - sum(given[i] for i, part in enumerate(mix) if part.count is None)]:
        given[place] += 1
    for place, part in enumerate(mix):
        if not given[place]:
            raise ValueError(
                f"source.mix.{place} ({part.kind}) gets none of the {whole} groups of a step; raise rollout.episodes "
                "or its weight, or lower the counts of others"
            )
    return given


def _played(
    recipe: Recipe,
    player: Playing,
    *,
    tasks: int | None,
    first: int,
    kept: dict[int, list[Group]] | None,
    state: Mapping[str, Any] | None,
    ranks: Ranks,
    jury: Jury | None,
) -> Source:
    if recipe.algorithm.max_lag == 0:
        return Played(player, recipe, tasks=tasks, state=state, ranks=ranks, jury=jury)
    return PlayedAhead(player, recipe, first=first, kept=kept, tasks=tasks, state=state, ranks=ranks, jury=jury)


def _read(part: Ingredient, recipe: Recipe, player: Playing) -> tuple[list[Group], list[Group]]:
    """The groups of a part that are learned from, and those that are held out."""
    renderer, room = player.renderer, player.capacity
    if part.kind not in _FILES:
        count, turns = part.limit or _DEMONSTRATIONS, recipe.rollout.max_turns
        return expert_groups(recipe.env, renderer, count=count, max_turns=turns, seed=recipe.seed, room=room), []
    assert part.path is not None
    groups = _FILES[part.kind](part.path, renderer, limit=part.limit, room=room)
    if isinstance(part.held_out, str):
        return groups, _FILES[part.kind](part.held_out, renderer, room=room)
    if part.held_out is None:
        return groups, []
    return split_held_out(groups, part.held_out, name=part.path)
