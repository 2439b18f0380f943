"""Messages of a chat as turns: the assistant's are learned, in the tokens that a model would have sampled."""

from __future__ import annotations

import copy
import json
from typing import Any

from jinja2 import TemplateError

from turnwise.dialects.chat_messages import ChatMessage
from turnwise.policy.rendering import Conversation, Renderer
from turnwise.sources.demonstrations import end_turn, spell
from turnwise.tools.formats import write_call
from turnwise.types import StopReason, Trajectory, Turn


def finished(turns: list[Turn], *, reward: float | None = None) -> Trajectory:
    """The messages as a whole episode; a reward belongs to its last turn."""
    if reward is not None:
        turns[-1].reward = reward
    return Trajectory(id="", turns=turns, stop=StopReason.DONE, terminated=True)


def prompt_messages(messages: list[ChatMessage], renderer: Renderer) -> list[dict[str, Any]]:
    """What the template is shown of messages that the assistant answers next."""
    system = [] if messages[0].role == "system" else renderer.open().messages
    return [*system, *(_shielded(message, renderer) for message in messages)]


def turns_of(messages: list[ChatMessage], renderer: Renderer, *, context: int = 0) -> list[Turn]:
    """One turn for each message of the assistant after the first `context` messages, which are only read.

    What comes after the last of them is left out.
    """
    conversation, turns = renderer.open(), list[Turn]()
    if messages[0].role == "system":
        conversation.messages = [_shielded(messages[0], renderer)]
    waiting = list[ChatMessage]()
    for place, message in enumerate(messages):
        if message.role in ("user", "tool"):
            waiting.append(message)
        elif message.role == "assistant" and place < context:
            conversation.messages += [_shielded(one, renderer) for one in (*waiting, message)]
            waiting.clear()
        elif message.role == "assistant":
            *earlier, last = waiting
            conversation.messages += [_shielded(one, renderer) for one in earlier]
            conversation.renderer = _observing_as(last.role, renderer)
            turns.append(_turn(conversation, last, message))
            waiting.clear()
    return turns


def _turn(conversation: Conversation, observed: ChatMessage, said: ChatMessage) -> Turn:
    prompt = conversation.observe(observed.content, observed.fields)
    sampled_ids = _spoken_ids(conversation, said)
    action = conversation.record(sampled_ids)
    return Turn(
        observation=observed.content,
        action=action,
        prompt_ids=prompt.ids,
        restarts=prompt.restarts,
        sampled_ids=sampled_ids,
    )


def _spoken_ids(conversation: Conversation, said: ChatMessage) -> list[int]:
    """The tokens of what the assistant says; calls of tools in the template's own form if it has one, else in ours."""
    renderer = conversation.renderer
    if not said.calls:
        return spell(renderer, said.content)
    for as_text in (False, True):  # templates differ in how they want a call's arguments
        reply = renderer.shield_all(_reply(said, arguments_as_text=as_text))
        if written := _written_by_template(conversation, reply):
            return end_turn(renderer, written)
    calls = "\n".join(map(write_call, said.calls))
    return spell(renderer, f"{said.content}\n{calls}" if said.content else calls)


def _reply(said: ChatMessage, *, arguments_as_text: bool) -> dict[str, Any]:
    """The message as templates know it."""
    calls = list[dict[str, Any]]()
    for number, call in enumerate(said.calls):
        arguments = dict(call.arguments)
        written = json.dumps(arguments, ensure_ascii=False) if arguments_as_text else arguments
        call_id = said.call_ids[number] if number < len(said.call_ids) else str(number)
        calls.append({"id": call_id, "type": "function", "function": {"name": call.name, "arguments": written}})
    return {"role": "assistant", "content": said.content, "tool_calls": calls}


def _written_by_template(conversation: Conversation, reply: dict[str, Any]) -> str:
    """What the template writes for a reply, up to the end token; nothing where it leaves out a call or other words."""
    renderer, calls = conversation.renderer, reply["tool_calls"]
    results = [
        {"role": "tool", "content": "?", "name": call["function"]["name"], "tool_call_id": call["id"]} for call in calls
    ]
    try:
        before = renderer.render(conversation.messages).removesuffix(renderer.opening)
        # Results follow, because some templates treat the last message differently.
        whole = renderer.render([*conversation.messages, reply, *results])
    except (TemplateError, TypeError):  # TypeError: a template that adds texts to what is not one
        return ""
    if not renderer.end_text or not whole.startswith(before):
        return ""
    written = whole.removeprefix(before).partition(renderer.end_text)[0]
    words = [reply["content"].strip(), *(call["function"]["name"] for call in calls)]
    return written if all(word in written for word in words) else ""


def _observing_as(role: str, renderer: Renderer) -> Renderer:
    """The same renderer for observations in another role; statistics stay common."""
    if renderer.observation_role == role:
        return renderer
    other = copy.copy(renderer)
    other.observation_role = role
    return other


def _shielded(message: ChatMessage, renderer: Renderer) -> dict[str, Any]:
    if message.calls:
        return renderer.shield_all(_reply(message, arguments_as_text=False))
    return {"role": message.role, "content": renderer.shield(message.content), **renderer.shield_all(message.fields)}
