"""Plain text for a language-model loss: every token but the first of a piece is learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from turnwise.policy.rendering import Renderer
from turnwise.recipe.schema import CONTEXT
from turnwise.sources.chat_turns import finished
from turnwise.sources.lines import read_groups_of, read_text
from turnwise.types import Group, Trajectory, Turn

_FORM = '{"text": "..."}'
_KEY = "the path in source.mix"


def text_groups(
    path: str | Path, renderer: Renderer, *, limit: int | None = None, room: int | None = None
) -> list[Group]:
    """Pieces of text of at most `room` tokens, one to a group.

    A .jsonl has a `text` in each line, and `limit` counts lines. Any other file is one text, and `limit` counts pieces.
    """
    path, tokens = Path(path), min(room or CONTEXT, CONTEXT)
    if path.suffix == ".jsonl":
        read = read_groups_of(
            path, lambda row: _pieces(_text(row), renderer, tokens), form=_FORM, key=_KEY, limit=limit
        )
        pieces = [trajectory for group in read for trajectory in group.trajectories]
    else:
        pieces = _pieces(read_text(path, _KEY), renderer, tokens)[:limit]
        for number, piece in enumerate(pieces):
            piece.id = f"{path.name}:{number}"
    if not pieces:
        raise ValueError(f"{path} has no text of two tokens or more; fill it, or remove it from source.mix")
    return [Group(id=piece.id, trajectories=[piece]) for piece in pieces]


def _pieces(text: str, renderer: Renderer, tokens: int) -> list[Trajectory]:
    ids = renderer.encode(renderer.shield(text))
    cut = [ids[start : start + tokens] for start in range(0, len(ids), tokens)]
    # No context precedes a piece's first token, so the model cannot predict it.
    turns = [Turn(prompt_ids=piece[:1], sampled_ids=piece[1:]) for piece in cut if len(piece) > 1]
    return [finished([turn]) for turn in turns]


def _text(row: Any) -> str:
    if not isinstance(row, dict) or not isinstance(row.get("text"), str):
        raise ValueError(f"there is no text; write {_FORM}")
    return row["text"]
