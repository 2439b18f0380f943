"""A user who is a chat model behind a real HTTP server."""

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from turnwise import chat_endpoint
from turnwise.chat_endpoint import ChatEndpoint
from turnwise.envs import check_env, make


class Server(ThreadingHTTPServer):
    """Says what it counts; fails as often as it is told to."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.failures: list[int] = []
        self.last = "[end]"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, Server)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if server.failures:
            self._answer(server.failures.pop(), {"error": {"message": "not now"}})
            return
        server.asked.append(body)
        server.keys.append(self.headers["Authorization"])
        answers = sum(message["role"] == "user" for message in body["messages"])
        text = server.last if answers > 2 else f"more, please ({answers})"
        self._answer(200, {"choices": [{"message": {"role": "assistant", "content": text}}]})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(chat_endpoint, "_PAUSE", 0.01)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def prompts(folder: Path) -> str:
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"question {number}"}) + "\n" for number in range(40)))
    return str(file)


def test_the_user_reads_the_answers_and_ends_the_chat(server: Server, tmp_path: Path) -> None:
    user = {"url": server.url, "model": "small", "persona": "You are hungry."}
    env = make("chat/prompts", path=prompts(tmp_path), turns=8, user=user)
    reset, said, over = env.reset(seed=0), list[str](), False
    assert isinstance(reset, tuple)
    while not over:
        step = env.step(f"answer {len(said)}")
        assert isinstance(step, tuple)
        said.append(step[0])
        over = step[2]
    assert said == ["more, please (1)", "more, please (2)", ""]
    asked = server.asked[-1]
    assert (asked["model"], asked["temperature"]) == ("small", 0)
    assert asked["messages"][0]["content"].startswith("You are hungry.\n")
    assert [(message["role"], message["content"]) for message in asked["messages"][1:4]] == [
        ("assistant", reset[0]),
        ("user", "answer 0"),
        ("assistant", "more, please (1)"),
    ]


def test_the_doctor_finds_nothing(server: Server, tmp_path: Path) -> None:
    user = {"url": server.url, "model": "small"}
    assert check_env("chat/prompts", kwargs={"path": prompts(tmp_path), "turns": 3, "user": user}, seeds=1).ok


def test_a_busy_server_is_asked_again_and_a_refusal_is_told(server: Server) -> None:
    endpoint, chat = ChatEndpoint(server.url, model="small"), [{"role": "user", "content": "a"}]
    server.failures = [503, 429]
    assert endpoint.reply(chat) == "more, please (1)"
    server.failures = [404]
    with pytest.raises(
        ConnectionError, match=r"gave no answer \(status 404: not now\); is the server up, and is 'small'"
    ):
        endpoint.reply(chat)
    server.failures = [400]
    with pytest.raises(ConnectionError, match=r"refused the request \(status 400: not now\)$"):
        endpoint.reply(chat)


def test_a_key_goes_only_to_the_server_it_is_for(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint, chat = ChatEndpoint(server.url, model="small"), [{"role": "user", "content": "a"}]
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    endpoint.reply(chat)
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    endpoint.reply(chat)
    assert server.keys == [None, "Bearer secret"]


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ({"url": "http://127.0.0.1:1"}, "user: 'model' is missing or unknown; it has url and model"),
        ({"url": "http://127.0.0.1:1", "model": "m", "name": "x"}, "user: 'name' is missing or unknown"),
        ({"url": "localhost:8000", "model": "m"}, "'localhost:8000' is not an address such as"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, user: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        make("chat/prompts", path=prompts(tmp_path), user=user)
    with pytest.raises(ValueError, match="reviews have a scripted user"):
        make("chat/prompts", user=user)
