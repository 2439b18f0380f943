"""Which tokens the policy wrote, by the recorded texts, and whether a step trained on exactly those.

`pack` decides what is trained on, so this check does not use `pack`: the chat template renders every observation
again, and the policy wrote what follows it in a turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from turnwise.batch import TokenBatch
from turnwise.learn.token_ledger import sampled_spans
from turnwise.policy.rendering import Renderer
from turnwise.rollout.rereading import Rereader, as_made
from turnwise.runs.disk import RunFolderError
from turnwise.types import Trajectory, Turn

Tokens = Mapping[int, int]
"""The policy's tokens of a trajectory: ids by position in the trajectory."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The tokens counted as the policy's: `Trained(who="the step trained on", tokens={"geo-17/0": {3: 40}})`."""

    who: str
    tokens: Mapping[str, Tokens]


def trained_by_batch(batch: TokenBatch) -> Trained:
    """What a packed batch would train on."""
    owner = batch.trajectory_S[batch.sequence_T][batch.sampled_T]
    ids = batch.ids_T[batch.sampled_T]
    tokens = {
        name: dict(zip(_places(spans), ids[owner == number].tolist(), strict=True))
        for number, (name, spans) in enumerate(zip(batch.trajectory_names, sampled_spans(batch), strict=True))
    }
    return Trained(who="the packed batch trains on", tokens=tokens)


def trained_by_rows(rows: Iterable[Mapping[str, Any]]) -> Trained | None:
    """What a step trained on, by its token ledger; None if the ledger does not say."""
    tokens: dict[str, Tokens] = {}
    for row in rows:
        if "spans" not in row:
            return None
        try:
            tokens[str(row["id"])] = dict(zip(_places(row["spans"]), row["ids"], strict=True))
        except (KeyError, TypeError, ValueError) as error:
            raise RunFolderError(f"a line of the token ledger has no valid spans and ids ({error})") from error
    return Trained(who="the step trained on", tokens=tokens)


def check_masks(trajectories: Sequence[Trajectory], renderer: Renderer, trained: Sequence[Trained]) -> None:
    """Raise ValueError at the first token that the ledger or a `Trained` assigns to the wrong speaker."""
    sound = {each.id: each for each in trajectories if not each.stop.is_failure}
    for each in trained:
        for name in each.tokens.keys() - sound.keys():
            raise ValueError(f"{each.who} trajectory {name!r}, which is not among the episodes to learn from")
    for name, trajectory in sound.items():
        spoken = dict(_spoken(trajectory, renderer))
        own = Trained(who="the ledger counts as sampled", tokens={name: dict(_recorded(trajectory))})
        for each in (own, *trained):
            if name in each.tokens:  # a filter may have left it out
                _require_same(trajectory, spoken, each.tokens[name], each.who)


def _spoken(trajectory: Trajectory, renderer: Renderer) -> Iterator[tuple[int, int]]:
    """The policy's tokens by the texts: those after each rendered observation."""
    reader, starts = Rereader(renderer), list(_starts(trajectory))
    for start, turn in (starts[place] for place in as_made(trajectory.turns)):
        tokens = [*turn.prompt_ids, *turn.sampled_ids]
        prompt = reader.prompt(turn).ids
        # If the prompt differs from the texts, they cannot tell; the token check reports it.
        length = len(prompt) if tokens[: len(prompt)] == prompt else len(turn.prompt_ids)
        reader.record(turn, tokens[length:])
        yield from enumerate(tokens[length:], start=start + length)


def _recorded(trajectory: Trajectory) -> Iterator[tuple[int, int]]:
    for start, turn in _starts(trajectory):
        yield from enumerate(turn.sampled_ids, start=start + len(turn.prompt_ids))


def _starts(trajectory: Trajectory) -> Iterator[tuple[int, Turn]]:
    """Every turn with the position of its first token in the trajectory."""
    start = 0
    for turn in trajectory.turns:
        yield start, turn
        start += len(turn.prompt_ids) + len(turn.sampled_ids)


def _places(spans: Iterable[tuple[int, int]]) -> Iterator[int]:
    return chain.from_iterable(range(start, end) for start, end in spans)


def _require_same(trajectory: Trajectory, spoken: Tokens, trained: Tokens, who: str) -> None:
    wrong = sorted(place for place in spoken.keys() | trained.keys() if spoken.get(place) != trained.get(place))
    if not wrong:
        return
    first, places = wrong[0], [start for start, _ in _starts(trajectory)]
    turn = sum(start <= first for start in places) - 1
    where = f"trajectory {trajectory.id!r}, turn {turn}, token {first - places[turn]}"
    if first not in spoken:
        text = f"{who} a token that the environment wrote"
    elif first not in trained:
        text = f"the policy sampled this token, and it is not among those that {who}"
    else:
        text = f"{who} id {trained[first]}, and the policy sampled id {spoken[first]}"
    raise ValueError(f"{where}: {text} ({len(wrong)} wrong tokens in this trajectory)")
