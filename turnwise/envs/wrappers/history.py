"""How much of the past an observation shows."""

from __future__ import annotations

import re
from typing import Literal, get_args

from turnwise.envs.base import Env, Reset, Step
from turnwise.envs.wrappers.wrapper import Wrapper

Mode = Literal["latest", "concat", "chat"]

_ROLE_LINE = re.compile(r"^(?=\[(?:user|assistant)\])", re.MULTILINE)


class History(Wrapper):
    """Shows the latest observation, or all so far: `History(env, mode="chat")`.

    | mode | observation after one turn |
    |---|---|
    | latest | `second` |
    | concat | `first`, `action`, `second`, one below the other |
    | chat | the same under `[user]` and `[assistant]` lines; such lines inside a text are escaped |

    `max_turns` keeps only the newest turns, and always the first observation, which states the task.
    """

    def __init__(self, env: Env, *, mode: Mode = "concat", max_turns: int | None = None) -> None:
        super().__init__(env)
        if mode not in get_args(Mode):
            raise ValueError(f"unknown history mode {mode!r}; choose one of {', '.join(get_args(Mode))}")
        if max_turns is not None and max_turns < 1:
            raise ValueError(f"max_turns must be at least 1, or None for all turns, not {max_turns}")
        self.mode = mode
        self.max_turns = max_turns
        self.first = ""
        self.turns: list[tuple[str, str]] = []

    def on_reset(self, reset: Reset) -> Reset:
        """Forget the last episode."""
        self.first, info = reset
        self.turns = []
        return self._show(), info

    def on_step(self, action: str, step: Step) -> Step:
        """Remember the turn."""
        observation, reward, terminated, truncated, info = step
        self.turns.append((action, observation))
        return self._show(), reward, terminated, truncated, info

    def _show(self) -> str:
        if self.mode == "latest":
            return self.turns[-1][1] if self.turns else self.first
        kept = self.turns[-self.max_turns :] if self.max_turns else self.turns
        texts = [self.first, *(text for turn in kept for text in turn)]
        if self.mode == "concat":
            return "\n".join(texts)
        # Observations and actions alternate, so a text's place gives its role.
        roles = ("[user]", "[assistant]")
        return "\n".join(f"{roles[place % 2]}\n{_escape(text)}" for place, text in enumerate(texts))


def _escape(text: str) -> str:
    return _ROLE_LINE.sub(r"\\", text)
