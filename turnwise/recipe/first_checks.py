"""What a recipe names and nobody would find, and a task that nobody would pay for: said before torch is imported.

Files of Python are read here, not run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from inspect import isclass
from typing import Any

from pydantic import ValidationError

from turnwise.envs.places import require_place
from turnwise.envs.registry import entry_of, find, is_place
from turnwise.envs.task_lists import TaskEnv, require_file
from turnwise.outside import is_file_place
from turnwise.recipe.ingredients import SourceChoice
from turnwise.recipe.schema import EnvChoice, Evaluate
from turnwise.trust import outside_names
from turnwise.types import ENVIRONMENT

_UNPAID = (0.0, 0.0)


def check_envs(choices: Mapping[str, Any], *, files: bool) -> None:
    """ValueError for an unknown environment; with `files` also for a file or a function in one that does not exist.

    `choices` are those of all layers, as they are written; wrong types are reported later.
    """
    for place in filter(is_file_place, outside_names(choices) if files else ()):
        require_place(place)
    for key, env in _envs(choices):
        _check_env_name(env.id, key)
        if files:
            _require_task_files(env, key)


def check_pay(choices: Mapping[str, Any]) -> None:
    """ValueError for an environment that is played for a reward and gives none."""
    read = _played_for_reward(choices)
    for key, env in _envs(choices):
        if key in read:
            _require_pay(env, key)


def _check_env_name(env_id: str, key: str) -> None:
    """Reject an unknown environment; the user's own is looked up when it is built."""
    try:
        find(env_id)
    except ValueError as error:
        if not (is_place(env_id) and isinstance(error.__cause__, ImportError | AttributeError)):
            raise ValueError(f"{key}.id: {error}") from None


def _envs(choices: Mapping[str, Any]) -> Iterator[tuple[str, EnvChoice]]:
    evaluate = choices.get("eval")
    written = {"env": choices.get("env"), "eval.env": evaluate.get("env") if isinstance(evaluate, Mapping) else None}
    for key, env in written.items():
        with suppress(ValidationError):
            if env is not None:
                yield key, EnvChoice.model_validate(env)


def _require_task_files(env: EnvChoice, key: str) -> None:
    for name in ("tasks", "held_out"):
        if isinstance(source := env.kwargs.get(name), str) and _lists_tasks(env.id):
            try:
                require_file(source, name)
            except ValueError as error:
                raise ValueError(f"{key}.kwargs: {error}") from None


def _lists_tasks(env_id: str) -> bool:
    entry = _entry(env_id)
    return entry is not None and (find(env_id)[0].runs_program or (isclass(entry) and issubclass(entry, TaskEnv)))


def _played_for_reward(choices: Mapping[str, Any]) -> list[str]:
    """The environments whose rewards somebody will read: to learn from them, or as the measure of an evaluation."""
    if choices.get("judge") is not None:
        return []
    with suppress(ValidationError):
        evaluate = Evaluate.model_validate(choices.get("eval") or {})
        learns = choices.get("stage") != "imitation" and SourceChoice.model_validate(choices.get("source") or {}).plays
        measured = [] if not evaluate.episodes or evaluate.measures else ["env" if evaluate.env is None else "eval.env"]
        return list(dict.fromkeys([*(["env"] if learns else []), *measured]))
    return []


def _require_pay(env: EnvChoice, key: str) -> None:
    """ValueError if nothing could ever pay: the environment says that it does not, and no reward is listed."""
    paid = any(
        choice.function != ENVIRONMENT and (choice.weight or choice.success is not None) for choice in env.rewards
    )
    may_pay = paid or any(wrapper["kind"] == "rewards" or ":" in wrapper["kind"] for wrapper in env.wrappers)
    if may_pay or getattr(_entry(env.id), "reward_range", None) != _UNPAID:
        return
    said = "is empty" if not env.rewards else "adds nothing"
    raise ValueError(
        f"{key}.rewards {said}, and {env.id} pays nothing by itself, so every reward would be 0; add for example "
        f"'{key}.rewards=[{{function: exact, success: 1}}]', which compares with each row's answer, or a function of "
        "your own: {function: my_rewards.py:right, success: 1}"
    )


def _entry(env_id: str) -> Any:
    """What builds an environment, if it can be loaded now."""
    with suppress(ImportError, AttributeError, ValueError):
        return entry_of(find(env_id)[0])
    return None
