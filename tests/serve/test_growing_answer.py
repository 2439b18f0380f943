"""What a stream has said is always the beginning of the whole answer, and all of it together is the whole."""

from __future__ import annotations

from random import Random

import pytest

from tests.policy.tokenizers_for_chat import by_letters, chat_tokenizer
from turnwise.dialects.dialect import Asked, Said, Scored
from turnwise.engine.contract import Completion, Finish
from turnwise.policy.rendering import Renderer
from turnwise.serve.growing_answer import GrowingAnswer

TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {}}}
CALL = '<tool_call>{"name": "look_up", "arguments": {"query": "Zürich"}}</tool_call>'
TEXTS = [
    "the river lies in Zürich 🙂 and ends",
    "<think>the user\nasks</think>\n\nin the city",
    f"<think>hm</think>I look.\n{CALL}\n{CALL}",
    f"{CALL} STOP and more",
    "the STO and the STOP and the rest",
    "<think>never closed STOP",
    "no call: <tool_call>{</tool_call> at all",
    "",
]


def asked(*, tools: bool, stop: tuple[str, ...], prompts: tuple[str, ...] = ()) -> Asked:
    messages = () if prompts else (Said(role="user", text="?"),)
    return Asked(model="m", messages=messages, tools=(TOOL,) if tools else (), stop=stop, prompts=prompts)


@pytest.mark.parametrize("prompts", [(), ("the",)])
@pytest.mark.parametrize("stop", [(), ("STOP", "TOP and")])
@pytest.mark.parametrize("tools", [False, True])
@pytest.mark.parametrize("text", TEXTS)
def test_parts_add_up_to_the_whole(text: str, tools: bool, stop: tuple[str, ...], prompts: tuple[str, ...]) -> None:
    tokenizer = chat_tokenizer("chatml")
    renderer = Renderer(tokenizer)
    assert renderer.end_id is not None
    ids = [*by_letters(tokenizer, text), renderer.end_id] if text else [renderer.end_id]
    rng, request = Random(text), asked(tools=tools, stop=stop, prompts=prompts)
    growing, said, thought, sent, place = GrowingAnswer(request, renderer), "", "", list[int](), 0
    while place < len(ids):
        size = rng.randint(1, 3)
        part = growing.push([Scored(id=id, text="", logprob=0.0) for id in ids[place : place + size]])
        said, thought, sent, place = said + part.text, thought + part.reasoning, [*sent, *part.ids], place + size
    zeros = [0] * len(ids)
    completion = Completion(ids=ids, logprobs=[0.0] * len(ids), versions=zeros, finish=Finish.STOP)
    whole = growing.whole(completion, [1], [])
    assert sent == ids
    assert whole.text.startswith(said)
    assert whole.reasoning.startswith(thought)
    if not tools:  # with tools the last words may wait: they could be before a call
        assert said == whole.text
    if tools and not prompts and text.startswith("<think>hm"):
        assert [call.arguments["query"] for call in whole.calls] == ["Zürich", "Zürich"]
        assert (whole.text, whole.reasoning, whole.finish) == ("I look.", "hm", "tool_calls")
