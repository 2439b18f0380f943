"""Servers that fail, hang, lie or vanish: no wrong token gets through, and nothing waits for ever."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests.engine.local_servers import Spoil, learner, local_server, remote_engine
from turnwise.engine.contract import Completion, EngineError, SamplingParams
from turnwise.engine.probing import logprobs_of
from turnwise.engine.remote import RemoteEngine
from turnwise.engine.serving import EngineServer
from turnwise.engine.torch_engine import TorchEngine

PARAMS = SamplingParams(max_tokens=6, stop_ids=(3, 4))


def choice(content: dict[str, Any]) -> dict[str, Any]:
    return content["choices"][0]


def entries(content: dict[str, Any]) -> list[dict[str, Any]]:
    return choice(content)["logprobs"]["content"]


def go_on(content: dict[str, Any]) -> None:
    if len(entries(content)) > 1:  # a single token may well be a stop
        choice(content)["token_ids"][0] = entries(content)[0]["token_id"] = 3


SHORT = 4.0
"""Seconds that a server has which never answers. A good one beside it may be slow on a busy machine."""


def deadline(fault: str) -> float:
    return SHORT if fault == "hangs" else 60.0


FAULTS: dict[str, tuple[Spoil, str]] = {
    "answers 500": (lambda content: 500, "answered 500"),
    "hangs": (lambda content: 120.0, f"no answer from /inference/v1/generate within {SHORT:g} s"),
    "cuts its body": (lambda content: b'{"choices": [', "it closed the connection after"),
    "sends no JSON": (lambda content: b"<html>" + b" " * 10_000, "that are not JSON"),
    "sends no choice": (lambda content: content.pop("choices") and None, "has another form"),
    "loses a token": (lambda content: choice(content)["token_ids"].pop() and None, "not those of its"),
    "sends too many tokens": (
        lambda content: choice(content).update(
            token_ids=[7] * 9,
            logprobs={"content": [{"token_id": 7, "logprob": -1.0}] * 9},
            weight_versions=[{"version": "0", "start": 0, "end": 9}],
            finish_reason="stop",
        ),
        "it sent 9 tokens; 1 to 6 were asked for",
    ),
    "loses a log-prob": (lambda content: entries(content).pop() and None, "not those of its"),
    "has no log-probs": (lambda content: choice(content).update(logprobs=None), "has another form"),
    "gives -9999": (lambda content: entries(content)[0].update(logprob=-9999.0), "the log-prob -9999"),
    "gives NaN": (lambda content: entries(content)[0].update(logprob=float("nan")), "the log-prob nan"),
    "gives no number": (lambda content: entries(content)[0].update(logprob=None), "the log-prob None"),
    "leaves the vocabulary": (
        lambda content: (choice(content)["token_ids"].__setitem__(0, 97), entries(content)[0].update(token_id=97))[1],
        "the id 97, which is outside the vocabulary of 97",
    ),
    "goes on after a stop": (
        lambda content: go_on(content),
        "it went on after a stop token",
    ),
    "has another version": (
        lambda content: choice(content)["weight_versions"][0].update(version="8"),
        "its tokens are of version '8', which is not the one that it was given",
    ),
    "covers half its tokens": (
        lambda content: choice(content).update(weight_versions=[{"version": "0", "start": 0, "end": 1}]),
        "its version spans cover 1 of its",
    ),
}


async def play(engine: RemoteEngine | EngineServer, count: int) -> list[Completion | BaseException]:
    async def one(name: str) -> Completion:
        await engine.generate(name, [1, 2, len(name)], PARAMS)
        return await engine.generate(name, [5], PARAMS)

    return await asyncio.gather(*(one(f"e{number}") for number in range(count)), return_exceptions=True)


@pytest.mark.parametrize("fault", FAULTS)
def test_episodes_of_a_server_that_fails_are_continued_on_another(tmp_path: Path, fault: str) -> None:
    spoil, message = FAULTS[fault]
    notes: list[str] = []
    with (
        local_server(tmp_path) as good,
        local_server(tmp_path, spoil=spoil) as bad,
        remote_engine(tmp_path / "published", good.url, bad.url, notes=notes, seconds=deadline(fault)) as engine,
    ):
        engine.publish(None, 0)
        found = asyncio.run(play(engine, 24))
        assert len(bad.unruly.requests) > 1
    with EngineServer(TorchEngine(learner(), memory_bytes=2**24)) as engine:
        expected = asyncio.run(play(engine, 24))
    for one, other in zip(found, expected, strict=True):
        assert isinstance(one, Completion)
        assert isinstance(other, Completion)
        assert one.ids == other.ids  # a retry has the same seed
    assert len(notes) == 1
    assert notes[0].startswith(f"engine server {bad.url} is left out until the next publish: ")
    assert message in notes[0]


@pytest.mark.parametrize("fault", ["answers 500", "hangs", "leaves the vocabulary"])
def test_without_another_server_each_episode_fails_with_the_reason(tmp_path: Path, fault: str) -> None:
    spoil, message = FAULTS[fault]
    with (
        local_server(tmp_path, spoil=spoil) as bad,
        remote_engine(tmp_path / "published", bad.url, seconds=deadline(fault)) as engine,
    ):
        engine.publish(None, 0)
        started = time.monotonic()
        found = asyncio.run(play(engine, 20))
        assert time.monotonic() - started < 60
    assert all(isinstance(error, EngineError) and message in str(error) and bad.url in str(error) for error in found)


def test_a_single_failure_costs_nothing(tmp_path: Path) -> None:
    failed: list[int] = []

    def once(content: dict[str, Any]) -> int | None:
        if len(failed) < 2:
            failed.append(1)
            return 500
        return None

    notes: list[str] = []
    model = learner()
    with (
        local_server(tmp_path, spoil=once) as server,
        remote_engine(tmp_path / "published", server.url, model=model, notes=notes) as engine,
    ):
        engine.publish(None, 0)
        answer = asyncio.run(engine.generate("a", [1, 2], PARAMS))
    assert answer.logprobs == pytest.approx(logprobs_of(model, [1, 2, *answer.ids], start=2), abs=1e-4)
    assert not notes


def test_a_server_that_comes_back_gets_the_weights_before_it_is_used(tmp_path: Path) -> None:
    model, notes = learner(), list[str]()
    with local_server(tmp_path) as good, local_server(tmp_path) as first:
        port = int(first.url.rpartition(":")[2])
        with remote_engine(tmp_path / "published", good.url, first.url, model=model, notes=notes) as engine:
            engine.publish(None, 0)
            assert all(isinstance(each, Completion) for each in asyncio.run(play(engine, 24)))
            first.stop()
            assert all(isinstance(each, Completion) for each in asyncio.run(play(engine, 24)))
            with local_server(tmp_path, port=port) as second:
                assert all(isinstance(each, Completion) for each in asyncio.run(play(engine, 24)))
                assert not second.unruly.requests  # it is left out until somebody gives it weights
                engine.publish(None, 1)
                answers = asyncio.run(play(engine, 24))
                assert len(second.unruly.requests) > 2
                assert all(isinstance(each, Completion) and set(each.versions) == {1} for each in answers)
    assert notes[-1] == f"engine server {first.url} is back"


@pytest.mark.parametrize(
    ("lockstep", "message"),
    [(True, "it must be published to first"), (False, "its tokens are of version '-1', which is not the one")],
)
def test_a_server_that_was_restarted_between_two_requests_is_noticed(
    tmp_path: Path, lockstep: bool, message: str
) -> None:
    """It answers, but with the weights that it was started with."""
    notes: list[str] = []
    with local_server(tmp_path) as first:
        port = int(first.url.rpartition(":")[2])
        with remote_engine(tmp_path / "published", first.url, notes=notes) as engine:
            engine.publish(None, 0)
            if lockstep:
                engine.expect(1)
            asyncio.run(engine.generate("a", [1, 2], PARAMS))
            first.stop()
            with local_server(tmp_path, port=port):
                with pytest.raises(EngineError, match=message):
                    asyncio.run(engine.generate("b", [1, 2], PARAMS))
                engine.publish(None, 1)
                assert set(asyncio.run(engine.generate("c", [1, 2], PARAMS)).versions) == {1}


def test_nobody_at_the_address_is_one_message(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with (
        remote_engine(tmp_path / "published", f"http://127.0.0.1:{port}") as engine,
        pytest.raises(ValueError, match=rf"no engine server can be used: http://127.0.0.1:{port}: connection refused"),
    ):
        engine.publish(None, 0)


def test_a_server_that_accepts_and_never_speaks_does_not_hold_up_a_publish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnwise.engine.publishing._MEET_SECONDS", 0.5)
    with (
        socket.create_server(("127.0.0.1", 0)) as mute,
        local_server(tmp_path) as good,
        remote_engine(tmp_path / "published", good.url, f"http://127.0.0.1:{mute.getsockname()[1]}") as engine,
    ):
        engine.publish(None, 0)
        assert all(isinstance(each, Completion) for each in asyncio.run(play(engine, 4)))


def test_sampling_stays_on_one_server_for_a_session_and_uses_all(tmp_path: Path) -> None:
    with (
        local_server(tmp_path) as one,
        local_server(tmp_path) as two,
        remote_engine(tmp_path / "published", one.url, two.url) as engine,
    ):
        engine.publish(None, 0)
        asyncio.run(play(engine, 24))
        served = [set(server.served._sessions) for server in (one, two)]
    assert min(map(len, served)) > 1
    assert not served[0] & served[1]
    assert len(served[0] | served[1]) == 24
