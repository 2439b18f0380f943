"""What is written is what the real clients' own types accept, whole and streamed, and both say the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import TypeAdapter

from tests.dialects.wires import ANSWER, CHAT, MESSAGES, RESPONSES, events
from turnwise.dialects.anthropic_messages import anthropic_messages
from turnwise.dialects.dialect import Answered, Dialect, StreamWriter
from turnwise.dialects.openai_chat import openai_chat
from turnwise.dialects.openai_responses import openai_responses
from turnwise.dialects.replies import ReplyParts, read_reply
from turnwise.tools.formats import ToolCall

NAMED = {"id": "x1", "created": 1700000000}
PLAIN = Answered(text="Grüße 🙂 \n", prompt_tokens=3, completion_tokens=2)
CUT = Answered(text="", reasoning="so lon", finish="length", prompt_tokens=3, completion_tokens=1)
STOPPED = Answered(text="a", stopped_by="END", prompt_tokens=3, completion_tokens=2)
ANSWERS = [ANSWER, PLAIN, CUT, STOPPED, Answered()]


def streamed(writer: StreamWriter, answer: Answered) -> str:
    """The reasoning and most of the text by two deltas each, the rest at its end."""
    half = len(answer.text) // 2
    parts = [writer.begin(), writer.delta(reasoning=answer.reasoning[:3]), writer.delta(reasoning=answer.reasoning[3:])]
    parts += [writer.delta(part) for part in (answer.text[:half], answer.text[half:-1])]
    return "".join([*parts, writer.end(answer)])


def replayed(writer: StreamWriter, answer: Answered) -> str:
    return writer.begin() + writer.end(answer)


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("way", [streamed, replayed])
def test_chat_bodies_are_those_of_the_client(answer: Answered, way: Any) -> None:
    types = pytest.importorskip("openai.types.chat", reason="needs the openai client (turnwise[dev])")
    asked = openai_chat.read({**CHAT, "logprobs": True, "return_token_ids": True})
    body = types.ChatCompletion.model_validate(openai_chat.write(asked, answer, **NAMED), strict=True)
    (choice,) = body.choices
    assert (choice.message.content or "", choice.finish_reason) == (answer.text, answer.finish)
    assert [json.loads(call.function.arguments) for call in choice.message.tool_calls or []] == [
        dict(call.arguments) for call in answer.calls
    ]
    assert body.usage.total_tokens == answer.prompt_tokens + answer.completion_tokens
    assert [token.logprob for token in choice.logprobs.content] == [scored.logprob for scored in answer.logprobs]
    assert choice.token_ids == list(answer.ids)

    *chunks, (_, done) = events(way(openai_chat.stream(asked, **NAMED), answer))
    read = [types.ChatCompletionChunk.model_validate(content) for _, content in chunks]
    deltas = [chunk.choices[0].delta for chunk in read]
    assert done == "[DONE]"
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == answer.text
    assert "".join(getattr(delta, "reasoning_content", "") for delta in deltas) == answer.reasoning
    calls = [call for delta in deltas for call in delta.tool_calls or []]
    assert [(call.index, call.function.name) for call in calls] == [
        (number, call.name) for number, call in enumerate(answer.calls)
    ]
    assert [chunk.choices[0].finish_reason for chunk in read if chunk.choices[0].finish_reason] == [answer.finish]
    sent = [id for chunk in read for id in getattr(chunk.choices[0], "token_ids", [])]
    assert sent == list(answer.ids)


def test_several_answers_share_a_stream_whose_last_chunk_has_the_usage() -> None:
    asked = openai_chat.read({**CHAT, "n": 2, "stream_options": {"include_usage": True}})
    writer = openai_chat.stream(asked, **NAMED)
    stream = writer.begin() + writer.delta("a", choice=1) + writer.delta("Gr", choice=0) + writer.end(PLAIN, STOPPED)
    *chunks, last, _ = [content for _, content in events(stream)]
    said = ["", ""]
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        said[choice["index"]] += choice["delta"].get("content") or ""
    assert said == [PLAIN.text, STOPPED.text]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 4
    body = openai_chat.write(asked, PLAIN, STOPPED, **NAMED)
    assert [choice["index"] for choice in body["choices"]] == [0, 1]


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("way", [streamed, replayed])
def test_responses_are_those_of_the_client(answer: Answered, way: Any) -> None:
    types = pytest.importorskip("openai.types.responses", reason="needs the openai client (turnwise[dev])")
    asked = openai_responses.read({**RESPONSES, "include": ["message.output_text.logprobs"]})
    body = openai_responses.write(asked, answer, **NAMED)
    response = types.Response.model_validate(body)
    assert response.output_text == answer.text
    assert response.status == ("incomplete" if answer.finish == "length" else "completed")
    called = [item for item in response.output if item.type == "function_call"]
    assert [json.loads(item.arguments) for item in called] == [dict(call.arguments) for call in answer.calls]

    read = events(way(openai_responses.stream(asked, **NAMED), answer))
    adapter = TypeAdapter(types.ResponseStreamEvent)
    parsed: list[Any] = [adapter.validate_python(content) for _, content in read]
    assert [name for name, _ in read] == [each.type for each in parsed]
    assert [each.sequence_number for each in parsed] == list(range(len(parsed)))
    assert "".join(each.delta for each in parsed if each.type == "response.output_text.delta") == answer.text
    thought = [each.delta for each in parsed if each.type == "response.reasoning_text.delta"]
    assert "".join(thought) == answer.reasoning
    assert read[-1][1]["response"] == body
    finished = [content["item"] for name, content in read if name == "response.output_item.done"]
    assert finished == body["output"]


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("way", [streamed, replayed])
def test_messages_are_those_of_the_client(answer: Answered, way: Any) -> None:
    types = pytest.importorskip("anthropic.types", reason="needs the anthropic client (turnwise[dev])")
    asked = anthropic_messages.read(MESSAGES)
    body = anthropic_messages.write(asked, answer, **NAMED)
    message = types.Message.model_validate(body)
    assert "".join(block.text for block in message.content if block.type == "text") == answer.text
    assert [block.input for block in message.content if block.type == "tool_use"] == [
        dict(call.arguments) for call in answer.calls
    ]
    reasons = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
    assert message.stop_reason == ("stop_sequence" if answer.stopped_by else reasons[answer.finish])

    read = events(way(anthropic_messages.stream(asked, **NAMED), answer))
    adapter = TypeAdapter(types.RawMessageStreamEvent)
    parsed: list[Any] = [adapter.validate_python(content) for _, content in read]
    assert [name for name, _ in read] == [each.type for each in parsed]
    blocks = list[dict[str, Any]]()
    for each in parsed:
        if each.type == "content_block_start":
            assert each.index == len(blocks)
            blocks.append(each.content_block.model_dump(exclude_none=True) | {"json": ""})
        elif each.type == "content_block_delta":
            delta, block = each.delta, blocks[each.index]
            if delta.type == "input_json_delta":
                block["json"] += delta.partial_json
            else:
                block[block["type"]] += getattr(delta, block["type"])
    for block in blocks:
        spelt = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(spelt)
            block.pop("caller", None)
    assert blocks == body["content"]
    assert parsed[-2].usage.output_tokens == answer.completion_tokens


@pytest.mark.parametrize("dialect", [openai_chat, openai_responses, anthropic_messages])
def test_a_problem_has_its_message_whole_and_streamed(dialect: Dialect) -> None:
    asked = dialect.read({openai_chat: CHAT, openai_responses: RESPONSES, anthropic_messages: MESSAGES}[dialect])  # pyright: ignore
    assert dialect.problem(401, "no key")["error"]["message"] == "no key"
    assert dialect.problem(401, "no key")["error"]["type"] == "authentication_error"
    name, content = events(dialect.stream(asked, **NAMED).fail(503, "it broke"))[0]
    assert "it broke" in json.dumps(content)
    assert name == ("" if dialect is openai_chat else "error")


BODY = '{"name": "f", "arguments": {"a": "</x>"}}'
GOOD, BAD = f"<tool_call>\n{BODY}\n</tool_call>", "<tool_call>{oops}</tool_call>"
CALL = ToolCall(name="f", arguments={"a": "</x>"})
RAW = [
    ("plain ", "plain ", "", ()),
    ("<think>\nhm\n</think>\n\nLyon", "Lyon", "hm", ()),
    ("<think>never ends ", "", "never ends ", ()),
    ("\n<think></think>x<think>y", "x<think>y", "", ()),
    (f"I look. {GOOD}\n{GOOD}\n", "I look.", "", (CALL, CALL)),
    (f"{GOOD} and {BAD}", f" and {BAD}", "", (CALL,)),
    (BAD, BAD, "", ()),
    (f"a {GOOD[:-3]}", f"a {GOOD[:-3]}", "", ()),
    ("a <tool_", "a <tool_", "", ()),
    (f"<think>{GOOD}</think> {GOOD}", "", GOOD, (CALL,)),
    ("<thin", "<thin", "", ()),
    ("<tool_call><function=f><parameter=a></x></parameter></function></tool_call> so", " so", "", (CALL,)),
    (f"I look [TOOL_CALLS] [{BODY}, {BODY}]", "I look", "", (CALL, CALL)),
    ('[TOOL_CALLS]f[ARGS]{"a": "</x>"}', "", "", (CALL,)),
    ("a [TOOL_CALLS] [{oops", "a [TOOL_CALLS] [{oops", "", ()),
    (f"<think>hm</think>\n{BODY}", "", "hm", (CALL,)),
    (f"<|python_tag|>{BODY}; {BODY}", "", "", (CALL, CALL)),
    (f"so</think> {BODY}", "so</think>", "", (CALL,)),
    (f"{BODY} it is", f"{BODY} it is", "", ()),
    ('{"answer": 42} ', '{"answer": 42} ', "", ()),
    ("a [TOOL <|python", "a [TOOL <|python", "", ()),
]


@pytest.mark.parametrize(("raw", "text", "reasoning", "calls"), RAW)
def test_raw_text_is_taken_apart_and_nothing_is_lost(raw: str, text: str, reasoning: str, calls: Any) -> None:
    reply = read_reply(raw, tools=True)
    assert (reply.text, reply.reasoning, reply.calls) == (text, reasoning, calls)
    without = read_reply(raw, tools=False)
    assert without.calls == ()
    if "<think>" not in raw:
        assert without.text == raw


@pytest.mark.parametrize("tools", [True, False])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("raw", [raw for raw, *_ in RAW])
def test_what_is_streamed_is_a_prefix_of_the_whole(raw: str, size: int, tools: bool) -> None:
    reply, parts = read_reply(raw, tools=tools), ReplyParts(tools=tools)
    said = thought = ""
    for start in range(0, len(raw), size):
        new, reasoning = parts.push(raw[start : start + size])
        said, thought = said + new, thought + reasoning
        assert reply.text.startswith(said)
        assert reply.reasoning.startswith(thought)
    if not tools and raw != "<thin":
        assert (said.rstrip(), thought.rstrip()) == (reply.text.rstrip(), reply.reasoning.rstrip())
