"""A chat model as the person who is upset, behind a real HTTP server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from turnwise.envs.feelings.feeling_model_user import ModelTalk, Plan, differences_from_answers
from turnwise.envs.registry import make


class Server(ThreadingHTTPServer):
    """Judges by the reply's length, and says goodbye at a feeling of 100."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[dict[str, Any]] = []
        self.line = "And then it rained."
        self.plan = '```json\n{"content": "short", "inner": "I feel seen.", "change": %d}\n```'

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, Server)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.asked.append(body)
        system, last = body["messages"][0]["content"], body["messages"][-1]["content"]
        if "JSON" in system:
            text = server.plan % len(last) if "%d" in server.plan else server.plan
        else:
            text = "Thank you. Goodbye!" if "is 100 of 100" in system else server.line
        content = json.dumps({"choices": [{"message": {"content": text}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for proxy in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield server
        server.shutdown()


def test_the_model_judges_then_speaks_and_its_log_gives_the_scores_again(server: Server) -> None:
    env = make("feelings/talk", user={"url": server.url, "model": "m"})
    assert isinstance(env, ModelTalk)
    env.reset(seed=4)
    said, reward, over, _, info = env.step("x" * 20)
    assert (said, reward, over) == ("And then it rained.", 0.0, False)
    assert info["why"] == "short I feel seen.: +20"
    said, reward, over, _, info = env.step("y" * 60)
    assert (said, reward, over) == ("Thank you. Goodbye!", 1.0, True)
    log = json.loads(json.dumps(info["log"]))
    assert [each["feeling"] for each in log["reactions"]] == [50, 100]
    assert differences_from_answers(log) == []
    assert differences_from_answers({**log, "reward": 0.9}) == ["the log says a reward of 0.9, its replies give 1.0"]
    log["reactions"][0]["feeling"] = 60
    assert differences_from_answers(log) == ["turn 0: the log says 60, its replies give 50"]
    hope = str(env.user.profile.hope)
    assert all(hope in body["messages"][0]["content"] for body in server.asked)
    assert [each["role"] for each in server.asked[-1]["messages"]] == [
        "system",
        "assistant",
        "user",
        "assistant",
        "user",
    ]


def test_a_model_that_does_not_judge_is_one_message(server: Server) -> None:
    env = make("feelings/talk", user={"url": server.url, "model": "m"})
    env.reset(seed=0)
    server.plan = "I would rather not say."
    with pytest.raises(ValueError, match=r"must answer with JSON that has a change, got 'I would rather not say\.'"):
        env.step("Hello.")


def test_a_change_is_bounded_and_must_be_a_number() -> None:
    assert Plan.read('{"change": 99999}').change == 100
    bad = ('{"change": "much"}', "{", "[]", '{"changes": 3}', "", '{"change": 1e999}', '{"change": NaN}')
    deep = '{"change": 1, "inner": ' + "[" * 100_000 + "]" * 100_000 + "}"
    for answer in (*bad, deep, '{"change": ' * 50_000 + "1" + "}" * 50_000, '{"change": ' + "9" * 10_000 + "}"):
        with pytest.raises(ValueError, match="must answer with JSON"):
            Plan.read(answer)


def test_what_a_model_says_is_clean_text_without_its_thought(server: Server) -> None:
    env = make("feelings/talk", user={"url": server.url, "model": "m"}, think=True)
    assert isinstance(env, ModelTalk)
    env.reset(seed=0)
    server.line = "<think>I hope for advice.</think>\nIt \x1b[2Jrained\u202e. " + "x" * 1_000_000
    server.plan = '<think>{}</think>{"inner": "\\ud800\\u001b", "change": 5}'
    said, _, over, _, info = env.step("<think>a</think>" + "Hello. " * 100_000)
    assert said.startswith("It \\x1b[2Jrained\\u202e. xxx")
    assert (len(said) < 11_000, over, info["valid"]) == (True, False, True)
    assert info["why"] == "\\ud800\\x1b: +5"
    assert len(server.asked[-1]["messages"][-1]["content"]) <= 10_000
    json.dumps(env.user.log(), ensure_ascii=False).encode()


def test_a_user_without_an_address_is_one_message() -> None:
    with pytest.raises(ValueError, match="user: 'url' is missing or unknown"):
        make("feelings/talk", user={"model": "m"})
