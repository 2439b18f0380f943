"""Prompts from a file with a user who is a chat model: it reads each answer and goes on with the conversation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from turnwise.chat_endpoint import ChatEndpoint
from turnwise.envs.base import Execution
from turnwise.envs.chat.answered_prompts import AnsweredPrompts

_END = "[end]"
_PERSONA = (
    "You are a person who talks with an assistant. Go on with the conversation in one short message, in your own words."
)
_RULE = f"If you have nothing more to ask, reply with {_END} and nothing else."


class ModelUserPrompts(AnsweredPrompts):
    """`make("chat/prompts", path="prompts.jsonl", turns=4, user={"url": "http://127.0.0.1:8000/v1", "model": "m"})`.

    `user` may also have `persona` (who the user is, in words), `seconds` (for an answer) and `options` of every
    request; the temperature is 0 unless they say otherwise.
    """

    execution: ClassVar[Execution] = "thread"
    shared: ClassVar[frozenset[str]] = AnsweredPrompts.shared | {"endpoint"}

    def __init__(self, *, user: Mapping[str, Any], **options: Any) -> None:
        super().__init__(**options)
        said = {"persona": _PERSONA, "seconds": 60.0, "options": {}, **user}
        if wrong := {"url", "model"} - said.keys() or said.keys() - {"url", "model", "persona", "seconds", "options"}:
            keys = "url and model, and may have persona, seconds and options"
            raise ValueError(f"user: {min(wrong)!r} is missing or unknown; it has {keys}")
        self.endpoint = ChatEndpoint(
            said["url"], model=said["model"], seconds=said["seconds"], options={"temperature": 0, **said["options"]}
        )
        self.persona = said["persona"]

    def _reply(self, answered: int) -> str:
        turned = {"user": "assistant", "assistant": "user"}  # for the model, its own words are the assistant's
        chat = [{"role": turned[each["role"]], "content": each["content"]} for each in self.messages]
        said = self.endpoint.reply([{"role": "system", "content": f"{self.persona}\n{_RULE}"}, *chat])
        return "" if _END in said else said.strip()
