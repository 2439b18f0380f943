"""`turnwise eval URL` and `turnwise chat`, against a served model and in place of one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.serve.local_model import NAME, LocalModel, local_model
from turnwise.chat_endpoint import ChatEndpoint
from turnwise.cli import app
from turnwise.cli.model_serving import loaded
from turnwise.dialects.server_thread import ServerThread
from turnwise.recipe.loading import at_step
from turnwise.serve.chatting import Chat

ENV = ["--env", "search/geo-1hop", "--episodes", "12", "--tries", "2", "--temperature", "0", "--json"]


@pytest.fixture(scope="module")
def local() -> Iterator[LocalModel]:
    with local_model(key="secret") as server:
        yield server


@contextmanager
def served_nano() -> Iterator[str]:
    with loaded("nano", {"device": "cpu"}) as (server, about):
        assert about == "nano on cpu, 512 tokens a conversation,"
        thread = ServerThread(server, name="nano")
        try:
            yield f"{thread.origin}/v1"
        finally:
            thread.stop()


def run(*arguments: str, said: str = "") -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments), input=said)
    return result.exit_code, result.stdout, result.stderr


def test_a_served_model_scores_as_it_does_here() -> None:
    code, here, problem = run("eval", "nano", *ENV)
    assert code == 0, problem
    with served_nano() as url:
        code, there, problem = run("eval", url, *ENV)
        assert code == 0, problem
    own, served = json.loads(here), json.loads(there)
    assert own["eval/success"] > 0
    assert {name: value for name, value in own.items() if name != "eval/tokens"} == pytest.approx(served)


def test_what_an_address_needs_is_said_before_anything_is_played(
    local: LocalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_KEY", "secret")
    assert "say where to play" in run("eval", local.url)[2]
    assert "status 401" in run("eval", local.url, "--env", "search/geo-1hop")[2]
    refused = run("eval", local.url, "--env", "search/geo-1hop", "--api-key-env", "NO_KEY")
    assert refused[0] == 2
    assert "NO_KEY is not set" in refused[2]
    other = run("eval", local.url, *ENV, "--api-key-env", "THE_KEY", "--model", "other")
    assert other[0] == 2
    assert "there is no model 'other' here" in other[2]


def test_an_answer_that_a_limit_cut_is_no_action(local: LocalModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", "secret")
    code, printed, problem = run(
        "eval", local.url, *ENV, "rollout.max_tokens=3", "--api-key-env", "THE_KEY", "--show", "1"
    )
    assert code == 0, problem
    row = json.loads(printed)
    assert (row["eval/success"], row["eval/turns"], row["eval/faults"]) == (0, 1, 0)
    assert "max_tokens" in problem


def test_a_chat_remembers_until_it_is_told_to_forget(local: LocalModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", "secret")
    asked = ["--api-key-env", "THE_KEY", "--seed", "3", "--max-tokens", "6", "--system", "the user"]
    code, printed, problem = run("chat", local.url, *asked, said="the river\n\n/reset\nthe river\n/what\n/quit\nmore\n")
    assert code == 0, problem
    first, forgotten, again = printed.partition("(forgotten)\n")
    assert forgotten
    assert first
    assert again == first + "/reset forgets the conversation, /quit ends it\n"


def test_a_chat_sends_the_conversation_so_far(local: LocalModel) -> None:
    endpoint = ChatEndpoint(local.url, key="secret", options={"max_tokens": 4, "seed": 1})
    assert endpoint.model == NAME
    shown: list[str] = []
    chat = Chat(endpoint=endpoint, write=shown.append, remark=shown.append, system="the user")
    chat.run(["the river", "the city"])
    assert [message["role"] for message in chat.messages] == ["system", "user", "assistant", "user", "assistant"]
    assert "".join(shown) == "".join(f"{message['content']}\n" for message in chat.messages[2::2])
    chat.run(["the river " * 1000])
    assert "maximum context length" in shown[-1]
    assert [message["role"] for message in chat.messages] == ["system"]


def test_an_empty_answer_is_told(local: LocalModel) -> None:
    endpoint = ChatEndpoint(local.url, key="secret", options={"max_tokens": 4, "seed": 1})
    said: list[str] = []
    remarks: list[str] = []
    chat = Chat(endpoint=endpoint, write=said.append, remark=remarks.append)
    chat.run(["the river"])
    assert remarks == []
    endpoint.options["stop"] = [said[0][0]]  # ends the same answer before its first letter
    chat.run(["the river"])
    assert remarks == ["(the model said nothing)\n"]


def test_a_public_address_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TURNWISE_API_KEY", raising=False)
    code, _, problem = run("serve", "nano", "--host", "0.0.0.0")
    assert code == 2
    assert "set TURNWISE_API_KEY" in problem


def test_steps_are_those_of_a_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a run folder, so it has no steps"):
        at_step(str(tmp_path), "3")
