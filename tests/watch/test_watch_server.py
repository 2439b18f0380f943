"""The server over HTTP: who is answered, what a stream brings, and that nothing ends it."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.report.runs import write_run
from tests.watch.browsers import Memory, Stream, fresh
from tests.watch.test_live_view import append
from turnwise.cli import watching
from turnwise.watch import WatchServer, live_run, live_view, watch_server


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_view, "SCAN_SECONDS", 0.0)
    monkeypatch.setattr(live_run, "_SHARE", 1e9)
    monkeypatch.setattr(watch_server, "LOOK_SECONDS", 0.05)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write_run(tmp_path / "runs" / "a", steps=3, recorded=(2,), episodes=4)
    return tmp_path / "runs"


@pytest.fixture
def server(runs: Path) -> Iterator[WatchServer]:
    with WatchServer([runs]) as started:
        yield started


def ask(address: str, path: str = "/", method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    parts = urlsplit(address)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


def until(stream: Stream, memory: Memory, runs: Path) -> None:
    """Take messages until the memory is what the folders say; a server that never says so runs into the time limit."""
    while memory.content != fresh([runs]):
        memory.take(stream.next())


def test_a_stream_moves_with_the_run_and_is_taken_up_where_it_broke_off(runs: Path) -> None:
    memory = Memory()
    with WatchServer([runs]) as server:
        stream = Stream(server.address)
        memory.take(stream.next())
        append(runs / "a" / "metrics.jsonl", {"step": 4, "rollout/success": 0.5})
        until(stream, memory, runs)
        stream.close()
        append(runs / "a" / "metrics.jsonl", {"step": 5, "rollout/success": 0.75})
        stream = Stream(server.address, memory.tags)
        until(stream, memory, runs)
        stream.close()
    os.truncate(runs / "a" / "metrics.jsonl", (runs / "a" / "metrics.jsonl").stat().st_size // 2)
    append(runs / "a" / "events.jsonl", {"step": 4, "kind": "guard", "signal": "kl", "text": "far"})
    with WatchServer([runs]) as server:  # another server, which has never heard of this browser
        stream = Stream(server.address, memory.tags, in_address=True)
        identity, text = stream.next()
        sent = next(iter(json.loads(text)["parts"].values()))
        assert set(sent) == {"curves", "events", "state"}  # what changed while nobody was there
        memory.take((identity, text))
        until(stream, memory, runs)
        stream.close()


def test_runs_that_come_and_go_under_an_open_stream(server: WatchServer, runs: Path) -> None:
    stream, memory = Stream(server.address), Memory()
    memory.take(stream.next())
    write_run(runs / "later" / "b", algorithm="ppo", steps=2)
    until(stream, memory, runs)
    assert {run["about"]["name"] for run in memory.runs.values()} == {"a", "later/b"}
    shutil.rmtree(runs / "a")
    until(stream, memory, runs)
    (runs / "later" / "b").rename(runs / "later" / "old")  # rotated
    write_run(runs / "later" / "b", algorithm="ppo", steps=1)
    until(stream, memory, runs)
    shutil.rmtree(runs)
    until(stream, memory, runs)
    assert memory.runs == {}
    stream.close()


def test_fifty_streams_get_the_same_and_a_reader_that_stops_hinders_nobody(server: WatchServer, runs: Path) -> None:
    parts = urlsplit(server.address)
    stuck = socket.create_connection((parts.hostname, parts.port or 0))
    stuck.sendall(f"GET /events HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
    streams = [Stream(server.address) for _ in range(50)]
    memories = [Memory() for _ in streams]
    append(runs / "a" / "metrics.jsonl", *({"step": step, "rollout/success": 0.5} for step in range(4, 200)))
    expected = fresh([runs])
    for stream, memory in zip(streams, memories, strict=True):
        while memory.content != expected:
            memory.take(stream.next())
        stream.close()
    stuck.close()
    assert ask(server.address)[0] == 200


def test_only_this_machine_is_answered_by_its_own_name(server: WatchServer) -> None:
    assert server.address.startswith("http://127.0.0.1:")
    name = urlsplit(server.address).netloc
    port = name.rpartition(":")[2]
    assert ask(server.address, Host=f"localhost:{port}")[0] == 200
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "", "[::1", "0.0.0.0"):
        assert ask(server.address, Host=host)[0] == 403, host
    assert ask(server.address, "/events", Origin="http://evil.example")[0] == 403
    assert ask(server.address, Origin=f"http://{name}")[0] == 200
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", int(port)), timeout=5)


def test_a_token_is_asked_for_and_kept_out_of_the_address(runs: Path) -> None:
    with WatchServer([runs], token="secret") as server:
        assert ask(server.address)[0] == 401
        assert ask(server.address, "/?token=wrong")[0] == 401
        assert ask(server.address, "/", Authorization="Bearer secret")[0] == 200
        status, headers, _ = ask(server.address, "/?token=secret")
        assert (status, headers["Location"]) == (303, "/")
        assert {"HttpOnly", "SameSite=Strict"} <= set(headers["Set-Cookie"].split("; "))
        kept = headers["Set-Cookie"].partition(";")[0]
        assert ask(server.address, "/", Cookie=kept, Host="my-machine:80")[0] == 200
        assert ask(server.address, "/", Cookie=f"{kept}x")[0] == 401


def test_every_answer_has_a_strict_policy_and_nothing_is_written(server: WatchServer, runs: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in runs.rglob("*")}
    key = server.view.runs[0].key if server.view.runs else ""
    for path in ("/", "/worker.js", "/nothing", f"/episodes?run={key}&step=2"):
        _, headers, _ = ask(server.address, path)
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
    assert "script-src 'sha256-" in ask(server.address)[1]["Content-Security-Policy"]
    assert {path: path.stat().st_mtime_ns for path in runs.rglob("*")} == before


def test_garbage_gets_a_clear_answer_and_others_go_on(server: WatchServer) -> None:
    for method, path, status in (
        ("POST", "/", 501),
        ("GET", "/../../etc/passwd", 404),
        ("GET", "/episodes?run=none&step=1", 404),
        ("GET", "/episodes?run=none&step=99999999999999999999", 404),
        ("GET", "/episodes?run=none&step=-1&kind=../meta", 404),
        ("GET", "/" + "x" * 70_000, 414),
        ("HEAD", "/", 200),
    ):
        assert ask(server.address, path, method)[0] == status, path
    for tags in (";;:=,", "all:shared", "x:curves=1.2.3.4", "\x7f" * 50_000):
        stream, memory = Stream(server.address, tags), Memory()
        memory.take(stream.next())
        assert len(memory.runs) == 1
        stream.close()
    parts = urlsplit(server.address)
    for garbage in (b"\x00\xff\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", b""):
        with socket.create_connection((parts.hostname, parts.port or 0)) as raw:
            raw.sendall(garbage)
    assert ask(server.address)[0] == 200


def test_episodes_of_a_step_come_with_their_tokens(server: WatchServer) -> None:
    stream, memory = Stream(server.address), Memory()
    memory.take(stream.next())
    stream.close()
    (key,) = memory.runs
    status, _, text = ask(server.address, f"/episodes?run={key}&kind=step&step=2")
    content = json.loads(text)
    assert (status, len(content["episodes"])) == (200, 4)
    assert content["texts"]
    assert ask(server.address, f"/episodes?run={key}&kind=step&step=3")[0] == 404


def turnwise(*words: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "turnwise", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def test_the_command_says_where_it_is_and_ends_with_ctrl_c(runs: Path) -> None:
    process = turnwise("watch", str(runs), "--port", "0", "--no-open")
    assert process.stdout is not None
    address = process.stdout.readline().split()[-1]
    stream, memory = Stream(address), Memory()
    memory.take(stream.next())
    stream.close()
    assert [run["about"]["name"] for run in memory.runs.values()] == ["a"]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_other_addresses_get_a_token_by_themselves(runs: Path) -> None:
    process = turnwise(
        "watch", str(runs), "--host", "0.0.0.0", "--port", "0", "--no-open", "--attached", stdin=subprocess.PIPE
    )
    assert process.stdout is not None
    said = process.stdout.readline()
    link = urlsplit(next(word for word in said.split() if word.startswith("http")))
    here = f"http://127.0.0.1:{link.port}"
    assert f"{here}/" in said  # one that can be opened
    assert "from elsewhere with this machine's name in place of 127.0.0.1" in said
    assert ask(here)[0] == 401
    assert ask(here, f"/?{link.query}")[0] == 303
    process.communicate(timeout=60)  # whoever started it has ended
    assert process.returncode == 0


def test_beside_a_command_the_page_lives_as_long_and_never_fails_it(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with watching.watched(runs, True):
        address = capsys.readouterr().out.split()[-1]
        assert ask(address)[0] == 200
    with pytest.raises(ConnectionRefusedError):
        ask(address)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with watching.watched(runs, True):
        assert "did not start" in capsys.readouterr().err
    with watching.watched(runs, False):
        assert capsys.readouterr() == ("", "")


def test_at_the_end_every_stream_gets_what_is_new_and_then_the_end(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with watching.watched(runs, True):
        address = capsys.readouterr().out.split()[-1]
        streams, memories = [Stream(address) for _ in range(3)], [Memory() for _ in range(3)]
        for stream, memory in zip(streams, memories, strict=True):
            memory.take(stream.next())
        write_run(runs / "b", steps=2)
    for stream, memory in zip(streams, memories, strict=True):
        while "event" not in (fields := stream.fields()):
            memory.take((fields["id"], fields["data"]))
        assert fields["event"] == "ended"
        assert memory.content == fresh([runs])
        with pytest.raises(EOFError):
            stream.fields()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1"])
def test_nobody_is_let_in_from_elsewhere_without_a_token(runs: Path, host: str) -> None:
    with pytest.raises(ValueError, match="pass token="):
        WatchServer([runs], host=host)


def test_a_wrong_file_of_an_evaluation_is_told_before_anything_is_served(runs: Path) -> None:
    process = turnwise("watch", str(runs), "--eval", str(runs / "a/meta.json"), "--port", "0", "--no-open")
    said, told = process.communicate(timeout=120)
    assert (process.returncode, said) == (2, "")
    assert "meta.json is not a saved evaluation" in told


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_cannot_be_is_refused_in_words(runs: Path, port: int) -> None:
    with pytest.raises(ValueError, match="from 0 to 65535"):
        WatchServer([runs], port=port)


def test_streams_end_with_the_server(runs: Path) -> None:
    with WatchServer([runs]) as server:
        stream = Stream(server.address)
        stream.next()
        before = threading.active_count()
    assert threading.active_count() < before
    with pytest.raises((ConnectionError, http.client.HTTPException, OSError)):
        Stream(server.address)
