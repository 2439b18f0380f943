import asyncio
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

import pytest

from tests.engine.local_servers import eventually
from turnwise.envs import make
from turnwise.envs.check import check_env
from turnwise.envs.faults import EpisodeError

openenv: Any = pytest.importorskip(
    "turnwise.envs.adapters.openenv", reason="needs turnwise[openenv]", exc_type=ImportError
)

WIRE, PACKAGE = "openenv_wire_server.py", "openenv_server.py"
"""The same environments behind the protocol alone, and behind the package that defines it."""


@pytest.fixture(
    scope="module",
    params=[
        WIRE,
        pytest.param(
            PACKAGE,
            marks=pytest.mark.skipif(find_spec("openenv") is None, reason="needs a real server: pip install openenv"),
        ),
    ],
)
def program(request):
    return request.param


@contextmanager
def served(kind, program=WIRE, port=0):
    command = [sys.executable, str(Path(__file__).parent / program), kind, *([str(port)] if port else [])]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        assert address, "the server did not start"
        yield address
    finally:
        process.stdin.close()
        process.stdout.close()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=30)


@pytest.fixture(scope="module")
def echo(program):
    with served("echo", program) as address:
        yield address


def play(env, *actions, **start):
    """The first observation and the answers to the actions."""

    async def main():
        try:
            first, _ = await env.reset(**start)
            return [first, *[await env.step(action) for action in actions]]
        finally:
            await env.close()

    return asyncio.run(main())


def test_reset_and_step_over_a_websocket(echo):
    env = make(f"openenv/{echo}")
    first, second, third = play(env, "200", "302", seed=103)
    assert first == "say 203 backwards"
    assert second == ("you said 200", 0.0, False, False, {"valid": True})
    assert third == ("you said 302", 1.0, True, False, {"valid": True})
    assert play(env, task={"number": 7})[0] == "say 7 backwards"


def test_the_doctor_finds_the_server_fit(echo):
    report = check_env(f"openenv/{echo}", seeds=1, turns=4, deadline=60.0)
    assert report.ok, report.findings


def test_what_breaks_at_the_server_ends_the_episode_with_its_words(echo):
    with pytest.raises(EpisodeError, match="says EXECUTION_ERROR: out of paper"):
        play(make(f"openenv/{echo}"), "crash", seed=0)


def test_an_action_of_several_fields_is_json_and_a_wrong_one_changes_nothing(program):
    with served("move", program) as address:
        env = make(f"openenv/{address}")
        _, words, wrong, right = play(
            env, "go north", '{"steps": "many"}', '{"direction": "north", "steps": 2}', seed=0
        )
    assert words[0] == "invalid action : write a JSON object with direction (string), steps (integer)"
    assert (wrong[0].startswith("invalid action : "), wrong[4]) == (True, {"valid": False})
    assert right[:3] == ("you said north 2", 1.0, True)


def test_a_server_that_is_full_names_both_ways_out(program):
    async def main(address):
        first: Any = make(f"openenv/{address}")
        second: Any = make(f"openenv/{address}")
        try:
            await first.reset(seed=0)
            await second.reset(seed=0)
        finally:
            await first.close()
            await second.close()

    with (
        served("one", program) as address,
        pytest.raises(EpisodeError, match=r"max_concurrent_envs or lower rollout\.concurrency"),
    ):
        asyncio.run(main(address))


# What servers do that they should not; the protocol alone misbehaves as it is told.


@pytest.fixture(scope="module")
def wire():
    with served("echo") as address:
        yield address


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("not json", "does not answer: Expecting property name"),
        ("too deep", "does not answer: maximum recursion depth"),
        ("no object", r"answers with \[\]"),
        ("no observation", r"answers with \{\"reward\": 1.0\}"),
        ("no number", "pays much, which is no number"),
        ("too long", "does not answer: .*message too big"),
    ],
)
def test_an_answer_that_cannot_be_is_one_clear_message_and_the_next_episode_is_played(wire, action, message):
    env: Any = make(f"openenv/{wire}")

    async def main():
        await env.reset(seed=0)
        with pytest.raises(EpisodeError, match=rf"the OpenEnv server at {wire} {message}"):
            await env.step(action)
        again, _ = await env.reset(seed=1)
        await env.close()
        return again

    assert asyncio.run(main()) == "say 101 backwards"


def test_a_server_that_dies_ends_the_episode_and_one_in_its_place_plays_the_next():
    async def main():
        with served("echo") as address:
            env: Any = make(f"openenv/{address}")
            await env.reset(seed=0)
            with pytest.raises(EpisodeError, match=rf"the OpenEnv server at {address} does not answer"):
                await env.step("die")
            with pytest.raises(EpisodeError, match=rf"the OpenEnv server at {address} does not answer"):
                await env.reset(seed=0)
        with served("echo", port=int(address.rpartition(":")[2])):
            first, _ = await env.reset(seed=5)
            await env.close()
        return first

    assert asyncio.run(main()) == "say 105 backwards"


def test_an_answer_that_comes_too_late_does_not_answer_the_next_question(wire):
    async def main():
        env: Any = make(f"openenv/{wire}")
        await env.reset(seed=0)
        await env.step("a word")  # so that the schema is known
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(env.step("slowly"), 0.2)
        first, _ = await env.reset(seed=7)
        await env.close()
        return first

    assert asyncio.run(main()) == "say 107 backwards"


def test_a_closed_environment_leaves_no_session_and_opens_another_one(wire):
    env: Any = make(f"openenv/{wire}")
    asyncio.run(env.close())  # before anything is open

    async def main():
        await env.reset(seed=0)
        during = sessions(wire)
        await env.close()
        return during

    for _ in range(2):
        eventually(lambda: sessions(wire) == 0)  # a server takes a moment to see that a client is gone
        assert asyncio.run(main()) == 1
    eventually(lambda: sessions(wire) == 0)


def sessions(address):
    """How many the server has."""
    return int(build_opener(ProxyHandler({})).open(f"http://{address}/sessions", timeout=60).read())


def test_the_schema_is_asked_for_without_a_proxy(monkeypatch):
    class Schema(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"action": {"properties": {"text": {"type": "string"}}}}')

        def log_message(self, format, *args):
            pass

    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # where nobody listens
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with HTTPServer(("127.0.0.1", 0), Schema) as server:
        answering = threading.Thread(target=server.handle_request)
        answering.start()
        assert openenv._only_text_field(f"127.0.0.1:{server.server_port}", False) == "text"
        answering.join(60)


def test_no_server_is_one_clear_message():
    with pytest.raises(EpisodeError, match=r"the OpenEnv server at 127\.0\.0\.1:9 does not answer"):
        play(make("openenv/127.0.0.1:9"), seed=0)


def test_a_task_that_is_no_mapping_is_refused():
    with pytest.raises(ValueError, match="a task is what reset"):
        play(make("openenv/127.0.0.1:9"), task=3)
