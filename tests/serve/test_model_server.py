"""The server speaks with the real clients, answers many at once, and bears those who break off or talk rubbish."""

from __future__ import annotations

import asyncio
import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import typer

from tests.engine.local_servers import eventually
from tests.serve.local_model import CAPACITY, NAME, LocalModel, chat, local_model, raw_request
from turnwise import doorkeeping
from turnwise.cli.engines import answer
from turnwise.serve.model_server import ModelServer

uvicorn: Any = pytest.importorskip("uvicorn", reason="needs turnwise[serve]")
openai = pytest.importorskip("openai", reason="needs the openai client")
CHAT = "/v1/chat/completions"
SEARCH = {
    "type": "function",
    "function": {"name": "look_up", "description": "looks it up", "parameters": {"type": "object", "properties": {}}},
}


@pytest.fixture(scope="module")
def local() -> Iterator[LocalModel]:
    with local_model() as server:
        yield server


@pytest.fixture(scope="module")
def client(local: LocalModel) -> Any:
    return openai.OpenAI(base_url=local.url, api_key="unused", max_retries=0, timeout=60)


# The real clients.


def test_a_seed_gives_the_same_tokens_whole_streamed_and_by_the_token_route(local: LocalModel, client: Any) -> None:
    asked = chat(seed=7, logprobs=True, top_logprobs=3, extra_body={"return_token_ids": True})
    whole = client.chat.completions.create(**asked)
    choice = whole.choices[0]
    assert choice.finish_reason == "length"
    assert len(choice.token_ids) == whole.usage.completion_tokens == 24
    assert [each.token_id for each in choice.logprobs.content] == choice.token_ids
    assert all(len(each.top_logprobs) == 3 for each in choice.logprobs.content)
    ids, text, chunks = list[int](), "", 0
    for event in client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        if event.choices:
            ids += getattr(event.choices[0], "token_ids", None) or []
            text += event.choices[0].delta.content or ""
            chunks += 1
        else:
            assert event.usage.completion_tokens == 24
    assert (ids, text) == (choice.token_ids, choice.message.content)
    assert chunks > 3  # tokens are sent as they are sampled
    sampling = {"seed": 7, "max_tokens": 24}
    status, answer = local.ask(
        "/inference/v1/generate", {"token_ids": whole.prompt_token_ids, "sampling_params": sampling}
    )
    assert (status, answer["choices"][0]["token_ids"]) == (200, choice.token_ids)


def test_several_answers_share_a_seed_and_the_first_is_the_only_one(client: Any) -> None:
    one = client.chat.completions.create(**chat(seed=5))
    three = client.chat.completions.create(**chat(seed=5, n=3))
    again = client.chat.completions.create(**chat(seed=5, n=3))
    texts = [choice.message.content for choice in three.choices]
    assert texts == [choice.message.content for choice in again.choices]
    assert texts[0] == one.choices[0].message.content
    assert len(set(texts)) == 3
    streamed = ["", "", ""]
    for event in client.chat.completions.create(**chat(seed=5, n=3), stream=True):
        streamed[event.choices[0].index] += event.choices[0].delta.content or ""
    assert streamed == texts


def test_stop_strings_end_an_answer_and_are_not_part_of_it(client: Any) -> None:
    whole = client.chat.completions.create(**chat(seed=1)).choices[0].message.content
    stop = whole[8:11]
    cut = client.chat.completions.create(**chat(seed=1, stop=[stop]))
    assert cut.choices[0].finish_reason == "stop"
    assert cut.choices[0].message.content == whole[: whole.index(stop)]
    events = client.chat.completions.create(**chat(seed=1, stop=[stop]), stream=True)
    assert "".join(event.choices[0].delta.content or "" for event in events) == whole[: whole.index(stop)]


def test_texts_and_tokens_are_continued_as_they_are(local: LocalModel, client: Any) -> None:
    ids = local.renderer.encode("the river")
    text = client.completions.create(model=NAME, prompt="the river", seed=2, logprobs=2)
    tokens = client.completions.create(model=NAME, prompt=[ids, ids], seed=2)
    assert text.usage.prompt_tokens == len(ids)
    assert text.choices[0].text == tokens.choices[0].text
    assert len(tokens.choices) == 2
    assert len(text.choices[0].logprobs.token_logprobs) == text.usage.completion_tokens == 16
    events = list(client.completions.create(model=NAME, prompt="the river", seed=2, stream=True))
    assert "".join(event.choices[0].text for event in events) == text.choices[0].text


def test_the_responses_format(client: Any) -> None:
    asked = {"model": NAME, "input": "the river", "max_output_tokens": 24, "extra_body": {"seed": 3}}
    whole = client.responses.create(**asked)
    assert whole.status == "incomplete"
    *_, last = client.responses.create(**asked, stream=True)
    assert last.response.output_text == whole.output_text != ""


def test_anthropics_format(local: LocalModel) -> None:
    anthropic = pytest.importorskip("anthropic", reason="needs the anthropic client")
    client = anthropic.Anthropic(base_url=local.origin, api_key="unused", max_retries=0, timeout=60)
    asked = {"model": NAME, "messages": [{"role": "user", "content": "the river"}], "max_tokens": 24}
    whole = client.messages.create(**asked, extra_body={"seed": 3})
    assert whole.stop_reason == "max_tokens"
    with client.messages.stream(**asked, extra_body={"seed": 3}) as stream:
        assert "".join(stream.text_stream) == whole.content[0].text
    counted = client.messages.count_tokens(model=NAME, messages=asked["messages"])
    assert counted.input_tokens == whole.usage.input_tokens


def test_tools_are_described_where_the_template_shows_none(local: LocalModel, client: Any) -> None:
    asked = chat(tools=[SEARCH], max_tokens=2, extra_body={"return_token_ids": True})
    answer = client.chat.completions.create(**asked)
    prompt = local.renderer.decode(answer.prompt_token_ids)
    assert "look_up" in prompt
    assert "looks it up" in prompt
    result = {"role": "tool", "tool_call_id": "1", "content": "in the city"}
    call = {"id": "1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    asked["messages"] = [*asked["messages"], said, result]
    prompt = local.renderer.decode(client.chat.completions.create(**asked).prompt_token_ids)
    assert prompt.index('<tool_call>{"name": "look_up"') < prompt.index("in the city")


def test_it_says_what_it_is_and_does(local: LocalModel, client: Any) -> None:
    assert [model.id for model in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).id == NAME
    assert local.ask("/health") == (200, {"status": "ok"})
    import urllib.request

    with urllib.request.urlopen(f"{local.origin}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    numbers = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(numbers["turnwise_engine_slots"]) > 0
    assert int(numbers["turnwise_request_seconds_count"]) == sum(
        int(value) for name, value in numbers.items() if name.startswith("turnwise_requests_total")
    )


# Mistakes.


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "not JSON"),
        (b"\xff\xfe", 400, "not JSON"),
        (b"[]", 400, "must be a JSON object"),
        (b"[" * 100_000, 400, "nested too deeply"),
        (b"x" * 10_000_001, 413, "more than 10,000,000 bytes"),
        (chat(model="other"), 404, "there is no model 'other' here; this server has 'tiny'"),
        (chat(messages=[]), 400, "messages is empty"),
        (chat(temprature=1), 400, "unknown parameter 'temprature', did you mean 'temperature'?"),
        (chat(temperature=3), 400, "must be from 0 to 2"),
        (chat(response_format={"type": "json_object"}), 400, "response_format: not supported here"),
        (
            chat(tools=[SEARCH], tool_choice="required"),
            400,
            "tool_choice is 'required', and nothing here can make the model call a tool: send auto",
        ),
        (chat("the river " * 500), 400, "maximum context length is 768 tokens"),
        (chat("the river " * 100_000), 400, "maximum context length is 768 tokens"),
    ],
)
def test_a_mistake_gets_one_clear_status_in_openais_form(
    local: LocalModel, body: Any, status: int, message: str
) -> None:
    got, answer = local.ask(CHAT, body)
    assert got == status
    assert message in answer["error"]["message"]
    assert local.ask(CHAT, chat(max_tokens=2))[0] == 200


def test_codes_that_programs_look_for(local: LocalModel) -> None:
    assert local.ask(CHAT, chat("the river " * 500))[1]["error"]["code"] == "context_length_exceeded"
    assert local.ask(CHAT, chat(model="other"))[1]["error"]["code"] == "model_not_found"
    assert local.ask("/v1/nothing", {})[0] == 404
    assert local.ask("/v1/completions", {"model": NAME, "prompt": [100_000]})[0] == 400
    status, answer = local.ask("/v1/completions", {"model": NAME, "prompt": ["the"] * 9, "n": 128})
    assert (status, "1152 answers" in answer["error"]["message"]) == (400, True)  # waiting would not help


def test_a_prompt_that_leaves_little_room_gets_a_short_answer(local: LocalModel) -> None:
    status, answer = local.ask("/v1/completions", {"model": NAME, "prompt": [5] * (CAPACITY - 3), "max_tokens": 50})
    assert status == 200
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] <= 3


def test_without_a_key_only_this_machine_is_answered_and_no_web_page(local: LocalModel) -> None:
    assert local.ask(CHAT, chat(), Host="example.org:80")[0] == 403
    assert local.ask(CHAT, chat(), Origin="http://example.org")[0] == 403


def test_with_a_key_nobody_is_answered_without_it() -> None:
    with local_model(key="secret") as local:
        assert local.ask("/health")[0] == 200
        for path, body in ((CHAT, chat()), ("/v1/models", None), ("/inference/v1/generate", {"token_ids": [1]})):
            assert local.ask(path, body)[0] == 401
            assert local.ask(path, body, Authorization="Bearer other")[0] == 401
            assert local.ask(path, body, Authorization="Bearer secret")[0] == 200
        assert local.ask(CHAT, chat(), x_api_key="secret", Host="example.org:80")[0] == 200


# Many clients, and those who leave.


def test_many_clients_are_sampled_together(local: LocalModel) -> None:
    client = openai.AsyncOpenAI(base_url=local.url, api_key="unused", max_retries=0, timeout=120)
    engine, count = local.server.model.engine, 24

    async def ask_all() -> list[Any]:
        asked = [client.chat.completions.create(**chat(seed=seed)) for seed in range(count)]
        tasks = [asyncio.create_task(each) for each in asked]
        await asyncio.to_thread(eventually, lambda: local.load()["sessions"] == count)
        await asyncio.to_thread(engine.hold, False)
        return await asyncio.gather(*tasks)

    engine.hold(True)
    before = local.server.metrics.completion_tokens
    answers = asyncio.run(ask_all())
    assert len({answer.choices[0].message.content for answer in answers}) == count
    assert local.server.metrics.completion_tokens - before == sum(each.usage.completion_tokens for each in answers)
    eventually(lambda: local.load()["sessions"] == 0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, "/inference/v1/generate"])
def test_a_client_that_leaves_frees_its_place(local: LocalModel, path: str, stream: bool) -> None:
    engine = local.server.model.engine
    body = chat(stream=stream, n=3) if path == CHAT else {"token_ids": [5, 6], "sampling_params": {"max_tokens": 200}}
    engine.hold(True)
    try:
        with raw_request(local, path, body):
            eventually(lambda: local.load()["sessions"] >= 1)
        eventually(lambda: local.load()["sessions"] == 0)
    finally:
        engine.hold(False)
    assert local.ask(CHAT, chat(max_tokens=2))[0] == 200


def test_a_client_that_never_reads_keeps_no_place_and_nobody_waits_for_it(local: LocalModel) -> None:
    body = chat(stream=True, n=48, logprobs=True, top_logprobs=20, max_tokens=200)
    with raw_request(local, CHAT, body, buffer=4096):
        assert local.ask(CHAT, chat(max_tokens=2))[0] == 200
        eventually(lambda: local.load()["sessions"] == 0)
        assert local.server.metrics.open_requests == 1  # its answer is larger than all buffers, so it still waits
        assert local.ask(CHAT, chat(max_tokens=2))[0] == 200
    eventually(lambda: local.server.metrics.open_requests == 0)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="needs Linux")
def test_a_client_that_never_reads_is_cut_off_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorkeeping, "_UNREAD_SECONDS", 1)
    body = chat(stream=True, n=48, logprobs=True, top_logprobs=20, max_tokens=200)
    with local_model(listening=as_the_command_does) as local, raw_request(local, CHAT, body, buffer=4096) as connection:
        eventually(lambda: local.server.metrics.left == 1)
        assert local.server.metrics.open_requests == 0
        assert local.ask(CHAT, chat(max_tokens=2))[0] == 200
        connection.settimeout(60)
        with pytest.raises(ConnectionResetError):
            read_all(connection)


@pytest.mark.parametrize(
    "rubbish", [b"\x00\xff\r\n\r\n", b"GET\r\n\r\n", b"POST /v1/chat/completions HTTP/9.9\r\n\r\n"]
)
def test_rubbish_is_refused_and_others_are_answered(local: LocalModel, rubbish: bytes) -> None:
    with socket.create_connection(("127.0.0.1", int(local.origin.rpartition(":")[2])), timeout=60) as connection:
        connection.sendall(rubbish)
        connection.shutdown(socket.SHUT_WR)
        answer = connection.recv(4096)
        assert not answer or answer.startswith(b"HTTP/1.1 4")
    assert local.ask(CHAT, chat(max_tokens=2))[0] == 200


def test_a_body_that_breaks_off_ends_alone(local: LocalModel) -> None:
    with socket.create_connection(("127.0.0.1", int(local.origin.rpartition(":")[2])), timeout=60) as connection:
        connection.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1:1\r\nContent-Length: 500\r\n\r\n{{".encode())
    eventually(lambda: local.server.metrics.open_requests == 0)
    assert local.ask(CHAT, chat(max_tokens=2))[0] == 200


def read_all(connection: socket.socket) -> bytes:
    """Until the other side has no more to say."""
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


@contextmanager
def as_the_command_does(server: ModelServer) -> Iterator[str]:
    """Listen and answer with the code of `turnwise serve`, in a thread."""
    said, started = queue.Queue[str](), list[Any]()

    class Kept(uvicorn.Server):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            started.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uvicorn, "Server", Kept)
        patch.setattr(typer, "echo", said.put)
        thread = threading.Thread(target=answer, args=(server, NAME), kwargs={"host": "127.0.0.1", "port": 0})
        thread.start()
        try:
            yield said.get(timeout=60).split()[-1]
        finally:
            started[0].should_exit = True
            thread.join(60)
