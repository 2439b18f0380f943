"""Which judge a recipe names: one of ours, imported when it is needed, or a class from outside."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import Any, Literal, cast, get_args

from turnwise.call_options import mistake_in_options
from turnwise.judges.judge import Judge
from turnwise.outside import load, load_class

Gives = Literal["wins", "reward", "turn-reward"]
"""What a judge's opinion becomes: win probabilities next to the reward, or the reward itself."""
GIVES: tuple[Gives, ...] = get_args(Gives)
_KINDS: Mapping[str, str] = {
    "reward": "turnwise.judges.reward_judge:RewardJudge",
    "reward-model": "turnwise.reward_models.model_judge:RewardModelJudge",
    "chat": "turnwise.judges.chat_judge:ChatJudge",
    "chat-score": "turnwise.judges.chat_judge:ChatScoreJudge",
    "table": "turnwise.judges.table_judge:TableJudge",
}


def check_judge(kind: str, options: Mapping[str, Any]) -> None:
    """Refuse an unknown kind or option without making the judge; the message names the fix."""
    if options.get("gives", "wins") not in GIVES:
        raise ValueError(f"judge.gives is {options['gives']!r}; choose {', '.join(GIVES)}")
    if options.get("weight") is not None:
        _check_weight(options)
    made, own = _find(kind), _own(options)
    if mistake := mistake_in_options(made, own):
        raise ValueError(f"judge: {kind}: {mistake}")
    if options.get("gives") == "turn-reward" and not hasattr(made, "score"):
        raise ValueError(f"judge: gives=turn-reward needs a judge that scores turns, and {kind} only compares answers")


def only_compares(kind: str) -> bool:
    """Whether a judge needs two answers to say anything."""
    return not hasattr(_find(kind), "score")


def make_judge(kind: str, options: Mapping[str, Any]) -> Judge:
    """The judge of this kind, or a user-defined `package.module:Class`; ValueError names the fix."""
    check_judge(kind, options)
    return _find(kind)(**_own(options))


def gives_of(options: Mapping[str, Any]) -> Gives:
    """What the opinion becomes."""
    return cast(Gives, options.get("gives", "wins"))


def _check_weight(options: Mapping[str, Any]) -> None:
    weight = options["weight"]
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
        raise ValueError(f"judge.weight is {weight!r}; it must be a finite number")
    if gives_of(options) == "wins":
        raise ValueError("judge.weight is for a judge that gives a reward; set judge.gives=reward, or remove it")


def _own(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the judge itself."""
    return {name: value for name, value in options.items() if name not in ("gives", "weight")}


def _find(kind: str) -> type[Any]:
    if kind in _KINDS:
        return load(_KINDS[kind])
    if ":" in kind:
        return load_class(kind, key="judge", methods=("prefer",))
    close = difflib.get_close_matches(kind, _KINDS, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise ValueError(
        f"judge: unknown kind {kind!r}; {hint}There are {', '.join(_KINDS)}, and package.module:Class is yours."
    )
