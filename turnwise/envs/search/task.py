"""What a search episode asks, and how entities are divided among the splits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from string import ascii_uppercase
from typing import Any

from turnwise.envs.base import SPLITS

_TRAIN_SHARE, _VALIDATION_SHARE = 0.6, 0.2


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchTask:
    """One question, and everything needed to ask it again.

    Example: `SearchTask(id="geo-2hop/capital/0/mahis", question="what is the capital of the country of mahis ?",
    answers=("amman",), hops=2, split="train", queries=("mahis", "country jordan capital"))`.
    """

    question: str
    answers: tuple[str, ...]
    id: str
    hops: int
    split: str
    queries: tuple[str, ...] = ()
    """The searches that lead the scripted expert to the answer."""

    def as_dict(self) -> dict[str, Any]:
        """The plain form that `info["task"]` has and `reset(task=...)` takes."""
        return asdict(self)

    @classmethod
    def from_dict(cls, task: Mapping[str, Any]) -> SearchTask:
        """Rebuild a task from its plain form, even after a round trip through JSON."""
        known = {entry.name for entry in fields(cls)}
        if not isinstance(task, Mapping) or set(task) | {"queries"} != known or not _is_texts(task["answers"]):
            raise ValueError(
                f"task= must be a dict with the keys {', '.join(sorted(known))}, as in info['task']; "
                "answers is a list of texts"
            )
        return cls(**{**task, "answers": tuple(task["answers"]), "queries": tuple(task.get("queries", ()))})


def _is_texts(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > 0 and all(isinstance(text, str) for text in value)


def assign_splits(keys: Iterable[str]) -> dict[str, str]:
    """Give 60 / 20 / 20 percent of the keys to train / validation / test, always in the same way."""
    # Ranked by hash, not drawn: the shares are exact, and no generator is involved.
    ordered = sorted(set(keys), key=lambda key: sha256(key.encode("utf-8", "replace")).digest())
    first = round(_TRAIN_SHARE * len(ordered))
    second = round((_TRAIN_SHARE + _VALIDATION_SHARE) * len(ordered))
    parts = (ordered[:first], ordered[first:second], ordered[second:])
    return {key: split for split, part in zip(SPLITS, parts, strict=True) for key in part}


def multiple_choice(question: str, options: Sequence[str], right: int) -> tuple[str, tuple[str, ...]]:
    """The question with lettered options below it, and the accepted answers: letter, option text, or both."""
    letters = ascii_uppercase[: len(options)]
    lines = [f"{letter}. {option}" for letter, option in zip(letters, options, strict=True)]
    letter, text = letters[right], options[right]
    return "\n".join([question, *lines]), (letter, text, f"{letter}. {text}")
