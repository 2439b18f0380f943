"""Messages of a chat as turns: the assistant's are learned, in the tokens that a model would have sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from turnwise.dialects.chat_messages import ChatMessage
from turnwise.policy.rendering import Conversation, Renderer
from turnwise.rollout.calling_conversation import CallingConversation, call_message, find_calls_as, tell_template
from turnwise.sources.demonstrations import end_turn, spell
from turnwise.tools.formats import write_call
from turnwise.tools.native_calls import call_id
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
    if any(message.calls for message in messages) and find_calls_as(renderer) == "data":
        conversation = CallingConversation(renderer=renderer, messages=conversation.messages)
        messages = _renumbered(messages)
    if messages[0].role == "system":
        conversation.messages = [_shielded(messages[0], renderer)]
    waiting = list[ChatMessage]()
    for place, message in enumerate(messages):
        if message.role in ("user", "tool"):
            waiting.append(message)
        elif message.role == "assistant" and place < context:
            conversation.messages += [_shielded(one, renderer) for one in waiting]
            conversation.messages.append(_heard(message, renderer, conversation.messages))
            waiting.clear()
        elif message.role == "assistant":
            *earlier, last = waiting
            conversation.messages += [_shielded(one, renderer) for one in earlier]
            turns.append(_turn(conversation, last, message))
            waiting.clear()
    return turns


def _renumbered(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The same calls with ids that every template accepts; results without an id answer the calls in order."""
    known, waiting, made, chat = dict[str, str](), list[str](), 0, list[ChatMessage]()
    for message in messages:
        if message.calls:
            waiting = [call_id(made + number) for number in range(len(message.calls))]
            known = dict(zip(message.call_ids, waiting, strict=False))
            made, message = made + len(waiting), replace(message, call_ids=tuple(waiting))
        elif message.role == "tool" and waiting:
            answered = known.get(message.fields.get("tool_call_id", ""), waiting[0])
            waiting = [each for each in waiting if each != answered] or [answered]
            message = replace(message, fields={**message.fields, "tool_call_id": answered})
        chat.append(message)
    return chat


def _turn(conversation: Conversation, observed: ChatMessage, said: ChatMessage) -> Turn:
    prompt = conversation.extend([{"role": observed.role, "content": observed.content, **observed.fields}])
    sampled_ids = _spoken_ids(conversation, said)
    if isinstance(conversation, CallingConversation):
        action = conversation.record_calls(sampled_ids, said.content, said.calls, said.call_ids)
    else:
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
    told = tell_template(renderer, conversation.messages, said.content, said.calls, said.call_ids)
    if told is not None:
        return end_turn(renderer, told[1])
    return spell(renderer, _in_our_form(said))


def _heard(message: ChatMessage, renderer: Renderer, before: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A message of the assistant that is only read, with its calls as `_spoken_ids` would say them."""
    if not message.calls:
        return _shielded(message, renderer)
    told = tell_template(renderer, before, message.content, message.calls, message.call_ids)
    return told[0] if told is not None else {"role": message.role, "content": renderer.shield(_in_our_form(message))}


def _in_our_form(said: ChatMessage) -> str:
    return "\n".join(filter(None, [said.content, *map(write_call, said.calls)]))


def _shielded(message: ChatMessage, renderer: Renderer) -> dict[str, Any]:
    if message.calls:
        return renderer.shield_all(call_message(message.content, message.calls, message.call_ids))
    return {"role": message.role, "content": renderer.shield(message.content), **renderer.shield_all(message.fields)}
