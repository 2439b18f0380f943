"""Calls of tools reach the real `openai` client, whole and streamed, from templates that show tools.

The small model has learnt one call by heart, so the tokens of it are sampled like any others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from tests.policy.tool_templates import FAMILIES, tool_tokenizer
from tests.serve.local_model import LocalModel, chat, local_model
from turnwise.tools.native_calls import call_id

openai = pytest.importorskip("openai", reason="needs the openai client")

QUESTION = [{"role": "user", "content": "where is mahis ?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "looks it up",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
    },
}
CALL = '{"name": "look_up", "arguments": {"query": "mahis"}}'
SAID = {
    "qwen": f"I look.\n<tool_call>\n{CALL}\n</tool_call>",
    "llama": CALL.replace("arguments", "parameters"),
    "mistral": f"[TOOL_CALLS] [{CALL}]",
}
WORDS = {"qwen": "I look.", "llama": "", "mistral": ""}
"""What is said before the call."""
ASKED = chat(messages=QUESTION, tools=[TOOL], temperature=0, max_tokens=200)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def local(family: str) -> Iterator[LocalModel]:
    tokenizer = tool_tokenizer(family)
    answer = [*tokenizer.encode(SAID[family], add_special_tokens=False), tokenizer.eos_token_id]
    with local_model(tokenizer=tokenizer, taught=(templated(family, QUESTION), answer)) as server:
        yield server


@pytest.fixture(scope="module")
def client(local: LocalModel) -> Any:
    return openai.OpenAI(base_url=local.url, api_key="unused", max_retries=0, timeout=60)


def templated(family: str, messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """The tokens that the template itself makes."""
    tokenizer: Any = tool_tokenizer(family)
    rendered = tokenizer.apply_chat_template(messages, tools=[TOOL], add_generation_prompt=True, return_dict=True)
    return list(rendered["input_ids"])


def test_a_call_comes_back_whole(family: str, client: Any) -> None:
    answer = client.chat.completions.create(**ASKED, extra_body={"return_token_ids": True})
    [choice] = answer.choices
    assert answer.prompt_token_ids == templated(family, QUESTION)
    assert choice.finish_reason == "tool_calls"
    assert (choice.message.content or "") == WORDS[family]
    [call] = choice.message.tool_calls
    assert (call.type, call.function.name) == ("function", "look_up")
    assert json.loads(call.function.arguments) == {"query": "mahis"}


def test_a_streamed_call_adds_up_to_the_whole_one(family: str, client: Any) -> None:
    whole = client.chat.completions.create(**ASKED).choices[0].message.tool_calls[0]
    words, calls, finishes = "", dict[int, dict[str, str]](), list[str]()
    for event in client.chat.completions.create(**ASKED, stream=True):
        [choice] = event.choices
        words += choice.delta.content or ""
        finishes += [choice.finish_reason] if choice.finish_reason else []
        for part in choice.delta.tool_calls or []:
            call = calls.setdefault(part.index, {"id": "", "name": "", "arguments": ""})
            call["id"] += part.id or ""
            call["name"] += part.function.name or ""
            call["arguments"] += part.function.arguments or ""
    assert (words, finishes) == (WORDS[family], ["tool_calls"])
    assert list(calls) == [0]
    assert calls[0]["id"]
    assert (calls[0]["name"], calls[0]["arguments"]) == (whole.function.name, whole.function.arguments)


def test_an_echoed_call_and_its_result_are_written_by_the_template(family: str, client: Any) -> None:
    said = client.chat.completions.create(**ASKED).choices[0].message
    [call] = said.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": "in the city"}
    asked = {**ASKED, "messages": [*QUESTION, said.model_dump(exclude_none=True), result], "max_tokens": 1}
    answer = client.chat.completions.create(**asked, extra_body={"return_token_ids": True})
    known = call_id(0)  # some templates refuse ids of another form than this
    function = {"name": call.function.name, "arguments": json.loads(call.function.arguments)}
    own = {"id": known, "type": "function", "function": function}
    echoed = {"role": "assistant", "content": said.content or "", "tool_calls": [own]}
    assert answer.prompt_token_ids == templated(family, [*QUESTION, echoed, {**result, "tool_call_id": known}])


def test_calls_that_the_template_does_not_take_are_written_out(local: LocalModel, client: Any, family: str) -> None:
    calls = [
        {"id": str(place), "type": "function", "function": {"name": "look_up", "arguments": f'{{"query": "{place}"}}'}}
        for place in range(2)
    ]
    results = [{"role": "tool", "tool_call_id": str(place), "content": f"in city {place}"} for place in (1, 0)]
    asked = {**ASKED, "messages": [*QUESTION, {"role": "assistant", "tool_calls": calls}, *results], "max_tokens": 1}
    answer = client.chat.completions.create(**asked, extra_body={"return_token_ids": True})
    prompt = local.renderer.decode(answer.prompt_token_ids)
    places = [prompt.index(text) for text in ('{"query": "0"}', '{"query": "1"}', "in city 1", "in city 0")]
    assert places == sorted(places)
    foreign = '<tool_call>{"name": "look_up", "arguments": {"query": "0"}}</tool_call>' in prompt
    assert foreign == (family == "llama")  # which takes one call in a message


def test_without_a_choice_of_tools_a_call_stays_text(family: str, client: Any) -> None:
    answer = client.chat.completions.create(**ASKED, tool_choice="none").choices[0]
    assert (answer.finish_reason, answer.message.tool_calls) == ("stop", None)
    assert answer.message.content == SAID[family]
    events = client.chat.completions.create(**ASKED, tool_choice="none", stream=True)
    assert "".join(event.choices[0].delta.content or "" for event in events) == SAID[family]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look_up"}}])
def test_a_call_that_must_be_made_is_refused_with_the_way_out(client: Any, choice: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="send auto and ask for the call in a message") as refused:
        client.chat.completions.create(**ASKED, tool_choice=choice)
    assert refused.value.code == "unsupported"
