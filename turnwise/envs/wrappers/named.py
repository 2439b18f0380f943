"""Wrappers by name, as a recipe lists them: `[history, {kind: turn-limit, max_turns: 8}, my_package.module:Loud]`."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from turnwise.call_options import mistake_in_options
from turnwise.envs.base import Env
from turnwise.envs.wrappers.episode_statistics import EpisodeStatistics
from turnwise.envs.wrappers.history import History
from turnwise.envs.wrappers.limits import TimeLimit, TokenBudget, TurnLimit
from turnwise.envs.wrappers.tools import ToolEnv
from turnwise.envs.wrappers.weighted_rewards import Rewards
from turnwise.envs.wrappers.wrapper import Wrapper
from turnwise.outside import is_unread, load, load_class
from turnwise.tools.calculator import calculator
from turnwise.tools.formats import Format, JsonFormat, ReActFormat, TagFormat
from turnwise.tools.native_calls import describe_tools
from turnwise.tools.python import python_tool
from turnwise.tools.tool import Tool

Choice = Mapping[str, Any]
"""A wrapper's `kind` and its options: `{"kind": "turn-limit", "max_turns": 8}`."""
NATIVE = "native"
"""The format of calls that the chat template teaches."""
_FORMATS: Mapping[str, Callable[[], Format]] = {"tags": TagFormat, "json": JsonFormat, "react": ReActFormat}
_TOOLS: Mapping[str, Callable[[], Tool]] = {"calculator": lambda: calculator, "python": python_tool}


def read_choice(choice: Any) -> dict[str, Any]:
    """A wrapper as a recipe writes it, in full: `history` is short for `{kind: history}`."""
    if isinstance(choice, str):
        return {"kind": choice}
    if isinstance(choice, Mapping) and isinstance(choice.get("kind"), str):
        return dict(choice)
    raise ValueError(f"a wrapper is a kind, or a mapping with one such as {{kind: history}}, not {choice!r}")


def wrap(env: Env, choices: Iterable[Choice]) -> Env:
    """The environment inside these wrappers; the first one is the innermost."""
    for choice in choices:
        env = find_wrapper(choice["kind"])(env, **_options(choice))
    return env


def check_wrappers(choices: Iterable[Choice]) -> None:
    """ValueError for an unknown kind or wrong options; builds nothing."""
    for choice in choices:
        if is_unread(choice["kind"]):
            continue
        if mistake := mistake_in_options(find_wrapper(choice["kind"]), _options(choice), handed=1):
            raise ValueError(f"wrapper {choice['kind']}: {mistake}")


def find_wrapper(kind: str) -> Callable[..., Wrapper]:
    """What makes the wrapper of this kind; ValueError lists the known kinds."""
    if kind in WRAPPERS:
        return WRAPPERS[kind]
    if ":" not in kind:
        close = difflib.get_close_matches(kind, WRAPPERS, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ValueError(f"unknown wrapper {kind!r}; {hint}There are {', '.join(WRAPPERS)}, and module:Class is yours.")
    found = load_class(kind, key="wrapper", methods=("reset", "step"))
    if not issubclass(found, Wrapper):
        raise ValueError(f"{kind} is not a wrapper; derive it from turnwise.envs.wrappers.Wrapper")
    return found


def _options(choice: Choice) -> dict[str, Any]:
    return {name: value for name, value in choice.items() if name != "kind"}


def _with_tools(
    env: Env, *, tools: Sequence[str] = ("calculator",), max_tool_uses: int = 10, format: str | None = None
) -> ToolEnv:
    """The environment with tools by name, called in a format: tags, json, react, or native to the chat template.

    By default they are called with tags, those with several arguments with JSON.
    """
    found = [_find_tool(name) for name in tools]
    if format is not None and format not in (*_FORMATS, NATIVE):
        raise ValueError(f"unknown format {format!r} of tools; choose {', '.join(_FORMATS)} or {NATIVE}")
    tags = TagFormat()
    usual = (tags,) if all(map(tags.accepts, found)) else (tags, JsonFormat())
    formats = usual if format is None or format == NATIVE else (_FORMATS[format](),)
    return ToolEnv(env, found, formats=formats, native=format == NATIVE, max_tool_uses=max_tool_uses)


def native_tools(choices: Iterable[Choice]) -> list[dict[str, Any]]:
    """The tools, in OpenAI's form, that these wrappers leave to the chat template to show."""
    named = [choice for choice in choices if choice["kind"] == "tools" and choice.get("format") == NATIVE]
    return describe_tools(_find_tool(name) for choice in named for name in choice.get("tools", ("calculator",)))


def _find_tool(name: str) -> Tool:
    if name in _TOOLS:
        return _TOOLS[name]()
    try:
        found = load(name) if ":" in name else None
    except (ImportError, AttributeError) as error:
        raise ValueError(f"tools: {name} does not load: {error}") from error
    if not isinstance(found, Tool):
        raise ValueError(
            f"{name} is not a tool; choose one of {', '.join(_TOOLS)}, or module:name of one made by @tool"
        )
    return found


WRAPPERS: Mapping[str, Callable[..., Wrapper]] = {
    "history": History,
    "turn-limit": TurnLimit,
    "token-budget": TokenBudget,
    "time-limit": TimeLimit,
    "statistics": EpisodeStatistics,
    "tools": _with_tools,
    "rewards": Rewards,
}
