"""Messages in roles that a chat template knows: what it refuses becomes the user's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from turnwise.policy.rendering import Renderer


@dataclass(frozen=True, kw_only=True)
class Roles:
    """What a template accepts besides turns of user and assistant."""

    system: bool
    """A system message that comes first."""
    late_system: bool
    tool: bool
    repeats: bool
    """Two messages of the user in a row."""

    @classmethod
    def of(cls, renderer: Renderer) -> Roles:
        """Find out by rendering small chats."""
        return cls(
            system=_accepts(renderer, "system", "user"),
            late_system=_accepts(renderer, "user", "assistant", "system"),
            tool=_accepts(renderer, "user", "assistant", "tool"),
            repeats=_accepts(renderer, "user", "user"),
        )

    def fit(self, messages: Sequence[Mapping[str, Any]], *, opens: bool) -> list[dict[str, Any]]:
        """The messages, those in a refused role as the user's; `opens`: they begin a conversation.

        A message that had to change joins its neighbours of the user, because to the model they are one.
        """
        fitted, joins = list[dict[str, Any]](), False
        for place, message in enumerate(messages):
            role = message["role"]
            refused = not self._admits(role, first=opens and place == 0)
            if refused:
                message = {"role": "user", "content": message["content"]}
            follows = bool(fitted) and fitted[-1]["role"] == message["role"] == "user"
            if follows and (refused or joins or not self.repeats):
                fitted[-1]["content"] += "\n" + message["content"]
            else:
                fitted.append(dict(message))
            joins = refused
        return fitted

    def _admits(self, role: str, *, first: bool) -> bool:
        if role == "system":
            return self.system if first else self.late_system
        return role != "tool" or self.tool


def _accepts(renderer: Renderer, *roles: str) -> bool:
    """Whether the template renders a chat of these roles, and shows what each said."""
    said = [f"word{place}" for place in range(len(roles))]
    messages = [{"role": role, "content": word} for role, word in zip(roles, said, strict=True)]
    try:
        text = renderer.render(messages)
    except (TemplateError, TypeError):  # TypeError: a template that adds texts to what is not one
        return False
    return all(word in text for word in said)
