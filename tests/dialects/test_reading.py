"""One conversation reads equally in every dialect, and what cannot be read is told why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.dialects.wires import CALL, CHAT, MESSAGES, RESPONSES, SEARCH
from turnwise.dialects.anthropic_messages import anthropic_messages
from turnwise.dialects.dialect import Dialect, Said, canonical
from turnwise.dialects.openai_chat import openai_chat
from turnwise.dialects.openai_responses import openai_responses
from turnwise.tools.formats import ToolCall

EACH: list[Any] = [(openai_chat, CHAT), (openai_responses, RESPONSES), (anthropic_messages, MESSAGES)]


@pytest.mark.parametrize(("dialect", "body"), EACH)
def test_the_same_conversation_is_the_same_in_every_dialect(dialect: Dialect, body: Any) -> None:
    asked = dialect.read(body)
    system, user, assistant, tool = asked.messages
    assert (system.role, system.text) == ("system", "Be brief.")
    assert (user.role, user.text) == ("user", "where is mahis ?")
    assert (assistant.text, assistant.reasoning, assistant.call_ids) == ("", "hm", ("c1",))
    assert assistant.calls == (CALL,)
    assert (tool.role, tool.text, tool.call_id) == ("tool", "in Lyon", "c1")
    assert asked.tools == (SEARCH,)
    assert (asked.max_tokens, asked.temperature, asked.top_p, asked.tool_choice) == (7, 0.5, None, "auto")
    assert not asked.unmet
    assert [canonical(said) for said in asked.messages] == [canonical(said) for said in openai_chat.read(CHAT).messages]


def test_every_field_of_a_chat_request_is_read() -> None:
    more = {
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "stop": "END",
        "seed": -3,
        "n": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
        "logprobs": True,
        "top_logprobs": 4,
        "return_token_ids": True,
        "tool_choice": {"type": "function", "function": {"name": "search"}},
        "max_tokens": 3,
        "frequency_penalty": 0.0,
        "response_format": {"type": "json_object"},
        "user": "someone",
    }
    asked = openai_chat.read({**CHAT, **more})
    assert (asked.top_p, asked.top_k, asked.min_p, asked.stop, asked.seed, asked.n) == (0.9, 5, 0.1, ("END",), -3, 2)
    assert (asked.stream, asked.stream_usage, asked.logprobs, asked.return_token_ids) == (True, True, 4, True)
    assert (asked.tool_choice, asked.max_tokens) == ("search", 7)
    assert asked.unmet == ("response_format",)


def test_what_clients_send_back_of_an_answer_without_words_is_read() -> None:
    empty = [
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": None, "tool_calls": None},
        {"role": "assistant", "content": [], "refusal": None},
        {"role": "assistant"},
    ]
    said = openai_chat.read({"model": "m", "messages": empty}).messages
    assert {canonical(each) for each in said} == {canonical(Said(role="assistant"))}
    silent = {"id": "c", "type": "function", "function": {"name": "now", "arguments": ""}}
    (called,) = openai_chat.read({"model": "m", "messages": [{"role": "assistant", "tool_calls": [silent]}]}).messages
    assert called.calls == (ToolCall(name="now", arguments={}),)


def test_items_of_one_response_are_one_message_and_those_of_two_are_two() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    words = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]}
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    body = {"model": "m", "input": [thought, words, call, call, thought, words, words]}
    first, second, third = openai_responses.read(body).messages
    assert (first.reasoning, first.text, len(first.calls)) == ("hm", "so", 2)
    assert (second.reasoning, second.text, second.calls) == ("hm", "so", ())
    assert (third.reasoning, third.text) == ("", "so")


def test_results_and_words_of_one_message_are_separate() -> None:
    results = [
        {"type": "tool_result", "tool_use_id": str(n), "content": [{"type": "text", "text": "r"}]} for n in (1, 2)
    ]
    body = {**MESSAGES, "messages": [{"role": "user", "content": [*results, {"type": "text", "text": "go on"}]}]}
    said = anthropic_messages.read(body).messages[1:]
    assert [(each.role, each.text, each.call_id) for each in said] == [
        ("tool", "r", "1"),
        ("tool", "r", "2"),
        ("user", "go on", ""),
    ]


def without(body: Any, name: str) -> Any:
    return {key: value for key, value in body.items() if key != name}


IMAGE = {"type": "image", "source": {"type": "base64", "data": ""}}


@pytest.mark.parametrize(
    ("dialect", "body", "message"),
    [
        (openai_chat, [], "must be a JSON object"),
        (openai_chat, without(CHAT, "model"), "model is missing"),
        (openai_chat, without(CHAT, "messages"), "messages is empty"),
        (openai_chat, {**CHAT, "messages": "hi"}, "messages is of type str; send a list"),
        (openai_chat, {**CHAT, "messages": [None]}, "message 0 is not a message"),
        (openai_chat, {**CHAT, "messages": [{"role": "king", "content": ""}]}, "unknown role 'king'"),
        (openai_chat, {**CHAT, "messages": [{"role": "user", "content": [IMAGE]}]}, "content of type image"),
        (openai_chat, {**CHAT, "messages": [{"role": "user", "content": "\ud800"}]}, "surrogate"),
        (openai_chat, {**CHAT, "temperature": float("nan")}, "temperature is nan; send a number from 0 to 2"),
        (openai_chat, {**CHAT, "temperature": 9}, "must be from 0 to 2"),
        (openai_chat, {**CHAT, "max_completion_tokens": 0}, "must be from 1"),
        (openai_chat, {**CHAT, "n": True}, "n is True; send a whole number"),
        (openai_chat, {**CHAT, "seed": 2**63}, "seed is"),
        (openai_chat, {**CHAT, "stop": [""]}, "stop must be texts"),
        (openai_chat, {**CHAT, "stream": "yes"}, "send true or false"),
        (openai_chat, {**CHAT, "top_logprobs": 2}, "needs logprobs"),
        (openai_chat, {**CHAT, "tools": [{"type": "function"}]}, "tool 0 has no function"),
        (openai_chat, {**CHAT, "tool_choice": 7}, "tool_choice must be"),
        (openai_responses, without(RESPONSES, "input") | {"instructions": None}, "input is empty"),
        (openai_responses, {**RESPONSES, "previous_response_id": "resp_1"}, "send the whole input"),
        (openai_responses, {**RESPONSES, "background": True}, "leave background out"),
        (openai_responses, {**RESPONSES, "input": [{"type": "item_reference"}]}, "send the item itself"),
        (openai_responses, {**RESPONSES, "input": [{"type": "function_call"}]}, "cannot be read"),
        (openai_responses, {**RESPONSES, "input": [7]}, "input 0 is of type int"),
        (anthropic_messages, without(MESSAGES, "max_tokens"), "max_tokens is missing"),
        (anthropic_messages, {**MESSAGES, "messages": [{"role": "tool", "content": ""}]}, "unknown role 'tool'"),
        (anthropic_messages, {**MESSAGES, "messages": [{"role": "user", "content": [IMAGE]}]}, "a block of type image"),
        (anthropic_messages, {**MESSAGES, "messages": [{"role": "user", "content": [1]}]}, "block without a type"),
        (anthropic_messages, {**MESSAGES, "tool_choice": {"type": "tool"}}, "tool with a name"),
        (anthropic_messages, {**MESSAGES, "tools": [{"name": "f", "input_schema": 3}]}, "no JSON schema"),
    ],
)
def test_a_body_that_cannot_be_read_is_told_why(dialect: Dialect, body: Any, message: str) -> None:
    with pytest.raises(ValueError, match=r".") as raised:
        dialect.read(body)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("dialect", "body", "unmet"),
    [
        (openai_chat, {**CHAT, "presence_penalty": 0.5}, ("presence_penalty",)),
        (openai_chat, {**CHAT, "tools": [{"type": "custom", "custom": {}}]}, ("tools of type custom",)),
        (openai_responses, {**RESPONSES, "tools": [{"type": "web_search"}]}, ("tools of type web_search",)),
        (openai_responses, {**RESPONSES, "text": {"format": {"type": "json"}}}, ("text.format of type json",)),
        (anthropic_messages, {**MESSAGES, "tools": [{"type": "bash", "name": "b"}]}, ("tools of type bash",)),
    ],
)
def test_what_cannot_be_honoured_is_named(dialect: Dialect, body: Any, unmet: tuple[str, ...]) -> None:
    assert dialect.read(body).unmet == unmet


def test_an_echo_is_equal_to_what_was_said_and_anything_else_is_not() -> None:
    said = Said(role="assistant", text="Lyon", reasoning="hm", calls=(CALL,), call_ids=("c1",))
    echo = ToolCall(name="search", arguments={"top": 1.0, "query": "mahis"})
    assert canonical(said) == canonical(Said(role="assistant", text=" Lyon\n", calls=(echo,), call_ids=("other",)))
    true = ToolCall(name="search", arguments={"top": True, "query": "mahis"})
    others = [
        replace(said, text="lyon"),
        replace(said, role="user"),
        replace(said, calls=()),
        replace(said, calls=(true,)),
        replace(said, calls=(CALL, CALL)),
        replace(said, calls=(ToolCall(name="find", arguments=CALL.arguments),)),
    ]
    assert canonical(said) not in {canonical(other) for other in others}
    assert len({canonical(other) for other in others}) == len(others)
