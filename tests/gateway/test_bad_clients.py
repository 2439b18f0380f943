"""Clients that misbehave: one clear status, and everybody else is served."""

import json
import socket
import threading
from urllib.parse import urlsplit

import pytest

from tests.gateway.raw_client import chat, post
from tests.gateway.served_agent import Sayer, play, play_with
from turnwise.gateway.gateway_server import gateway

pytest.importorskip("uvicorn", reason="needs a server: pip install 'turnwise[serve]'")

ASKED = {"model": "any", "messages": [{"role": "user", "content": "hello"}]}
GARBAGE = {
    b"": "not JSON",
    b"{": "not JSON",
    b"\xff\xfe": "not JSON",
    b"[1]": "must be a JSON object",
    b'{"model": "any"}': "messages is empty",
    b"[" * 200_000: "nested too deeply",
    json.dumps({**ASKED, "temperature": "warm"}).encode(): "temperature",
    json.dumps({**ASKED, "n": 4}).encode(): "call 4 times",
    json.dumps({**ASKED, "messages": [{"role": "user", "content": "\ud800"}]}).encode(): "surrogate",
}


def outcome_of(program):
    trajectory = play(program)
    return trajectory.reward, trajectory.info.get("error"), len(trajectory.turns)


def test_garbage_gets_one_clear_status_and_is_not_recorded():
    def run(task, base_url, api_key):
        for body, words in GARBAGE.items():
            status, answer = post(base_url, api_key, body)
            assert (status, words in answer["error"]["message"]) == (400, True), (body[:40], answer)
        status, answer = post(base_url, api_key, b"{", path="/messages")
        assert (status, answer["type"], answer["error"]["type"]) == (400, "error", "invalid_request_error")
        assert post(base_url, api_key, b"{}", path="/embeddings")[0] == 404
        chat(base_url, api_key, "hello")
        return 1.0

    assert outcome_of(run) == (1.0, None, 1)


def test_a_body_of_more_than_ten_megabytes_is_refused():
    def run(task, base_url, api_key):
        big = {**ASKED, "messages": [{"role": "user", "content": "x" * 12_000_000}]}
        status, answer = post(base_url, api_key, json.dumps(big).encode())
        assert (status, "10,000,000 bytes" in answer["error"]["message"]) == (413, True), answer
        chat(base_url, api_key, "hello")
        return 1.0

    assert outcome_of(run) == (1.0, None, 1)


def test_a_wrong_key_is_refused_and_so_is_the_key_of_an_episode_that_has_ended():
    kept = []

    def run(task, base_url, api_key):
        kept.append((base_url, api_key))
        status, answer = post(base_url, "sk-wrong", json.dumps(ASKED).encode())
        assert (status, "belongs to no running episode" in answer["error"]["message"]) == (401, True)
        assert post(base_url, "", json.dumps(ASKED).encode())[0] == 401
        chat(base_url, api_key, "hello")
        return 1.0

    assert outcome_of(run) == (1.0, None, 1)
    [(base_url, api_key)] = kept
    assert post(base_url, api_key, json.dumps(ASKED).encode())[0] == 401
    assert gateway()._sessions == {}


@pytest.mark.parametrize("how", ["half a request", "no reading", "a stream that is left"])
def test_a_client_that_goes_away_disturbs_nobody(how):
    def run(task, base_url, api_key):
        where = urlsplit(base_url)
        body = json.dumps({**ASKED, "stream": how == "a stream that is left"}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api_key}\r\n"
        with socket.create_connection((where.hostname, where.port), timeout=60) as connection:
            length = len(body) + (how == "half a request")
            connection.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode() + body)
            if how == "a stream that is left":
                connection.recv(10)
        return float(chat(base_url, api_key, "still there ?") == "yes")

    [*trajectories] = play_with(Sayer(["yes"]), run, seeds=range(3))
    assert [trajectory.reward for trajectory in trajectories] == [1.0] * 3


def test_two_hundred_and_fifty_six_sessions_at_once_get_their_own_answers():
    together = threading.Barrier(256)

    def run(task, base_url, api_key):
        together.wait(60)  # all of them are there before the first one calls
        first = chat(base_url, api_key, f"I am {task['seed']}")
        return float(chat(base_url, api_key, f"I am {task['seed']}", first, "again") == "yes")

    trajectories = play_with(Sayer(["yes"]), run, seeds=range(256))
    assert [trajectory.reward for trajectory in trajectories] == [1.0] * 256
    assert [trajectory.turns[0].observation for trajectory in trajectories] == [f"I am {n}" for n in range(256)]
    assert {len(trajectory.turns) for trajectory in trajectories} == {2}


def test_only_loopback_is_bound():
    where = urlsplit(gateway().origin)
    assert (where.scheme, where.hostname) == ("http", "127.0.0.1")
    socket.create_connection(("127.0.0.1", where.port), timeout=5).close()
    with pytest.raises(ConnectionRefusedError):  # one bound to all addresses would answer here
        socket.create_connection(("127.0.0.2", where.port), timeout=5)
