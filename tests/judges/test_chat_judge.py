"""A chat model as a judge: both orders, one question once, and clear words when the endpoint fails."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.train.small_runs import run, small_recipe
from turnwise import chat_endpoint
from turnwise.judges.chat_judge import ChatJudge, ChatScoreJudge
from turnwise.judges.judge import judge_matrices
from turnwise.runs.reading import read_whole_run
from turnwise.types import StopReason, Trajectory, Turn

Reply = Callable[[dict[str, Any]], str | int | bytes]


def said(*texts: str) -> Trajectory:
    turns = [Turn(observation=f"question {place}", action=text) for place, text in enumerate(texts)]
    return Trajectory(id=texts[0], turns=turns, stop=StopReason.DONE)


class Endpoint:
    """A real server that speaks the API; `reply` makes a verdict, a status or raw bytes of each request."""

    def __init__(self, reply: Reply) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                endpoint.requests.append({"path": self.path, **body})
                endpoint.headers.append({name.lower(): value for name, value in self.headers.items()})
                answer = reply(body)
                status = answer if isinstance(answer, int) else 200
                content = answer if isinstance(answer, bytes) else b"overloaded"
                if isinstance(answer, str):
                    content = json.dumps({"choices": [{"message": {"role": "assistant", "content": answer}}]}).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Reply], Endpoint]]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(chat_endpoint, "_PAUSE", 0.001)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    open_ones: list[Endpoint] = []

    def start(reply: Reply) -> Endpoint:
        open_ones.append(Endpoint(reply))
        return open_ones[-1]

    yield start
    for endpoint in open_ones:
        endpoint.close()


def first_of(body: dict[str, Any]) -> str:
    """What is shown as answer A."""
    return body["messages"][0]["content"].partition("Answer A:\n")[2].partition("\n")[0]


def test_the_better_answer_wins_in_either_order(serve: Callable[[Reply], Endpoint]) -> None:
    endpoint = serve(lambda body: "A" if first_of(body) == "good" else "The answer is B.")
    judge = ChatJudge(url=endpoint.url, model="judge-1")
    assert judge.prefer(None, said("good"), said("bad")) == 1.0
    assert judge.prefer(None, said("bad"), said("good")) == 0.0
    assert {request["path"] for request in endpoint.requests} == {"/v1/chat/completions"}
    assert {(request["model"], request["temperature"]) for request in endpoint.requests} == {("judge-1", 0)}
    assert "question 0" in endpoint.requests[0]["messages"][0]["content"]


def test_a_liking_for_a_place_is_a_tie_and_equal_questions_are_asked_once(serve: Callable[[Reply], Endpoint]) -> None:
    endpoint = serve(lambda body: "A")
    judge = ChatJudge(url=f"{endpoint.url}/chat/completions", model="m")
    assert [judge.prefer(None, said("x"), said("y")) for _ in range(3)] == [0.5] * 3
    assert len(endpoint.requests) == 2


def test_several_turns_are_shown_with_what_was_said_between(serve: Callable[[Reply], Endpoint]) -> None:
    endpoint = serve(lambda body: "C")
    ChatJudge(url=endpoint.url, model="m").prefer(None, said("which ?", "{second}"), said("no"))
    shown = endpoint.requests[0]["messages"][0]["content"]
    assert "Assistant: which ?\nUser: question 1\nAssistant: {second}\n" in shown


def test_many_groups_are_judged_together_in_order(serve: Callable[[Reply], Endpoint]) -> None:
    endpoint = serve(lambda body: "A" if first_of(body) > body["messages"][0]["content"].partition("B:\n")[2] else "B")
    judge = ChatJudge(url=endpoint.url, model="m", concurrency=4)
    matrices = judge_matrices(judge, [(None, [said(f"{place}"), said("5")]) for place in range(10) if place != 5])
    assert [matrix[0][1] for matrix in matrices] == [0.0] * 5 + [1.0] * 4


def test_a_busy_endpoint_is_asked_again(serve: Callable[[Reply], Endpoint]) -> None:
    answers = iter([503, b"not json", 429, "A", "B"])
    endpoint = serve(lambda body: next(answers))
    assert ChatJudge(url=endpoint.url, model="m").prefer(None, said("x"), said("y")) == 1.0
    assert len(endpoint.requests) == 5


@pytest.mark.parametrize(
    ("reply", "asked", "message"),
    [
        (401, 1, r"gave no answer \(status 401: overloaded\).* Check judge.url and judge.model"),
        (500, 3, r"gave no answer \(status 500: .* raise judge.seconds \(60\) and judge.retries \(2\), then resume"),
        (b'{"error": 1}', 3, r"answered in another form .*: b'\{\"error\": 1\}'"),
    ],
)
def test_an_endpoint_that_fails_is_named_with_what_to_check(
    serve: Callable[[Reply], Endpoint], reply: int | bytes, asked: int, message: str
) -> None:
    endpoint = serve(lambda body: reply)
    with pytest.raises(ValueError, match=message):
        ChatJudge(url=endpoint.url, model="m", retries=2).prefer(None, said("x"), said("y"))
    assert len(endpoint.requests) == asked


def test_an_endpoint_that_is_not_there_is_named(serve: Callable[[Reply], Endpoint]) -> None:
    endpoint = serve(lambda body: "A")
    endpoint.close()
    with pytest.raises(ValueError, match=r"gave no answer .*refused"):
        ChatJudge(url=endpoint.url, model="m", retries=1).prefer(None, said("x"), said("y"))


def test_words_without_a_verdict_are_a_tie_until_there_is_nothing_else(serve: Callable[[Reply], Endpoint]) -> None:
    endpoint = serve(lambda body: "both are fine")
    judge = ChatJudge(url=endpoint.url, model="m")
    assert judge.prefer(None, said("a"), said("b")) == 0.5
    for place in range(2):
        judge.prefer(None, said(str(place)), said("x"))
    with pytest.raises(ValueError, match="judge: m names no better answer, it says 'both are fine'; ask for A, B or C"):
        judge.prefer(None, said("3"), said("x"))


def test_a_key_goes_only_to_the_server_it_is_for(
    serve: Callable[[Reply], Endpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = serve(lambda body: "A")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    ChatJudge(url=endpoint.url, model="m").prefer(None, said("x"), said("y"))
    assert "authorization" not in endpoint.headers[0]
    monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url)
    ChatJudge(url=endpoint.url, model="m").prefer(None, said("x"), said("y"))
    assert endpoint.headers[-1]["authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "127.0.0.1"}, "judge.url: '127.0.0.1' is not an address"),
        ({"prompt": "{task} {first}"}, "judge.prompt has no {second}"),
        ({"concurrency": 0}, "must be above 0"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ChatJudge(**{"url": "http://127.0.0.1:1/v1", "model": "m", **options})


def test_a_reply_that_names_both_letters_is_no_verdict(serve: Callable[[Reply], Endpoint]) -> None:
    endpoint = serve(lambda body: "A close call, but B")
    assert ChatJudge(url=endpoint.url, model="m").prefer(None, said("x"), said("y")) == 0.5


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("7", 0.7),
        ("7/10", 0.7),
        ("I would say 7 out of 10.", 0.7),
        ("Grade: 8.5", 0.85),
        ("10", 1.0),
        ("0", 0.0),
        ("11", 0.0),
        ("between 3 and 5", 0.0),
        ("GPT4 likes it", 0.0),
        ("", 0.0),
    ],
)
def test_a_grade_is_read_as_a_score_and_anything_else_is_none(
    serve: Callable[[Reply], Endpoint], reply: str, score: float
) -> None:
    endpoint = serve(lambda body: reply)
    judge = ChatScoreJudge(url=endpoint.url, model="m")
    assert judge.score([said("x")], per="episode") == [[pytest.approx(score)]]
    assert "question 0" in endpoint.requests[0]["messages"][0]["content"]


def test_episodes_and_turns_are_graded_in_order_and_equal_ones_once(serve: Callable[[Reply], Endpoint]) -> None:
    endpoint = serve(lambda body: str(body["messages"][0]["content"].count("good")))
    judge = ChatScoreJudge(url=endpoint.url, model="m", best=4, prompt="{task} {answer}")
    answers = [said("good", "good good"), said("bad"), said("good", "good good")]
    assert judge.score(answers, per="episode") == [[0.75], [0.0], [0.75]]
    assert judge.score(answers[:1], per="turn") == [[0.25, 0.75]]
    assert len(endpoint.requests) <= 4
    assert judge.prefer(None, answers[0], answers[1]) > 0.5


def test_a_model_that_gives_no_grades_is_given_up_with_the_fix(serve: Callable[[Reply], Endpoint]) -> None:
    judge = ChatScoreJudge(url=serve(lambda body: "fine").url, model="m", concurrency=1)
    with pytest.raises(ValueError, match="judge: m gives no grade from 0 to 10, it says 'fine'; ask for one number in"):
        judge.score([said(str(place)) for place in range(8)], per="episode")


def test_one_line_of_a_recipe_pays_episodes_by_a_chat_model(serve: Callable[[Reply], Endpoint], tmp_path: Path) -> None:
    endpoint = serve(lambda body: "3")
    judge = {"kind": "chat-score", "gives": "reward", "url": endpoint.url, "model": "m"}
    run(tmp_path / "run", {"judge": judge, "train": {"steps": 1}, "eval": {"episodes": 2}})
    data = read_whole_run(tmp_path / "run")
    assert data.metrics[0]["rollout/reward"] == pytest.approx(0.3)
    assert "rollout/env_reward" in data.metrics[0]
    assert data.evals[-1]["eval/reward"] == pytest.approx(0.3)


def test_a_chat_model_pays_answers_from_memories(serve: Callable[[Reply], Endpoint], tmp_path: Path) -> None:
    endpoint = serve(lambda body: "3")
    judge = {"kind": "chat-score", "gives": "reward", "url": endpoint.url, "model": "m"}
    env = {"id": "memory/answer", "kwargs": {"prompt": "terse", "memories": 5}}
    run(tmp_path / "run", {"model": "pico-memory", "env": env, "judge": judge, "train": {"steps": 1}})
    metrics = read_whole_run(tmp_path / "run").metrics[0]
    assert metrics["rollout/reward"] == pytest.approx(0.3)
    assert {"rollout/env_reward", "rollout/score_em", "rollout/score_bleu1"} <= metrics.keys()
    assert " : " in endpoint.requests[0]["messages"][0]["content"]  # the question with its memories


def test_a_judge_that_only_compares_is_refused_where_there_is_nothing_to_compare() -> None:
    judge = {"kind": "chat", "gives": "reward", "url": "http://127.0.0.1:1/v1", "model": "m"}
    with pytest.raises(ValueError, match=r"judge=chat only compares answers, and ppo makes one try .*chat-score"):
        small_recipe({"algorithm": "ppo", "judge": judge})
    small_recipe({"algorithm": "grpo", "judge": judge})
    small_recipe({"algorithm": "ppo", "judge": {**judge, "gives": "wins"}})
