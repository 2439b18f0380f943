"""Earlier calls of a client: each result answers its own call, and no call is lost in a prompt."""

from __future__ import annotations

import copy
import json

from tests.policy.tool_templates import QWEN, tool_tokenizer
from tests.serve.local_model import chat, local_model
from turnwise.dialects.dialect import Said
from turnwise.serve.told_calls import told_calls
from turnwise.tools.formats import ToolCall
from turnwise.tools.native_calls import call_id

_TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("one", "two")]


def said_call(name: str) -> Said:
    return Said(role="assistant", calls=(ToolCall(name=name, arguments={}),), call_ids=(f"id of {name}",))


def test_results_find_their_calls_when_two_messages_call_before_the_first_result():
    results = [Said(role="tool", text=f"of {name}", call_id=f"id of {name}") for name in ("one", "two")]
    *calls, first, second = told_calls([said_call("one"), said_call("two"), *results], "data")
    assert [call["tool_calls"][0]["id"] for call in calls] == [call_id(0), call_id(1)]
    assert (first["name"], first["tool_call_id"], first["content"]) == ("one", call_id(0), "of one")
    assert (second["name"], second["tool_call_id"], second["content"]) == ("two", call_id(1), "of two")


def test_a_template_that_writes_the_first_of_two_calls_loses_none():
    tokenizer = copy.deepcopy(tool_tokenizer("qwen"))
    tokenizer.chat_template = QWEN.replace("in message.tool_calls or []", "in (message.tool_calls or [])[:1]")
    assert tokenizer.chat_template != QWEN
    with local_model(tokenizer=tokenizer) as local:

        def prompt(*names: str) -> str:
            calls = [
                {"id": name, "type": "function", "function": {"name": name, "arguments": json.dumps({"of": name})}}
                for name in names
            ]
            results = [{"role": "tool", "tool_call_id": name, "content": f'"{name}"\nis done'} for name in names]
            messages = [{"role": "user", "content": "?"}, {"role": "assistant", "tool_calls": calls}, *results]
            asked = chat(messages=messages, tools=_TOOLS, max_tokens=1, return_token_ids=True)
            status, answer = local.ask("/v1/chat/completions", asked)
            assert status == 200, answer
            return local.renderer.decode(answer["prompt_token_ids"])

        own, both = prompt("one"), prompt("one", "two")
    assert '<tool_call>\n{"name": "one", "arguments": {"of": "one"}}\n</tool_call>' in own  # as the template writes it
    texts = ('{"of": "one"}', '{"of": "two"}', '"one"\nis done', '"two"\nis done')
    places = [both.index(text) for text in texts]
    assert places == sorted(places)
