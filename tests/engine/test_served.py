"""Who may ask a served engine for what: nobody from a web page, nothing too long, no weights from elsewhere."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.engine.local_servers import GENERATE, Local, local_server, remote_engine
from turnwise.cli import app
from turnwise.engine.connections import Connections
from turnwise.engine.contract import SamplingParams


def ask(server: Local, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    connections = Connections(server.url, {name.replace("_", "-"): value for name, value in headers.items()})

    async def send() -> tuple[int, bytes]:
        try:
            return await connections.send("GET" if body is None else "POST", path, content)
        finally:
            connections.close()

    status, answer = asyncio.run(send())
    return status, json.loads(answer)


def test_it_speaks_vllms_form(tmp_path: Path) -> None:
    with local_server(tmp_path) as server:
        assert ask(server, "/health") == (200, {"status": "ok"})
        assert ask(server, "/v1/models")[1]["data"][0]["max_model_len"] == 160
        sampling = {"max_tokens": 3, "seed": 5, "logprobs": 1, "prompt_logprobs": 0, "temperature": 0.0}
        status, answer = ask(server, GENERATE, {"token_ids": [1, 2, 3], "sampling_params": sampling, "cache_salt": "x"})
        assert status == 200
        (choice,) = answer["choices"]
        assert [entry["token_id"] for entry in choice["logprobs"]["content"]] == choice["token_ids"]
        assert choice["weight_versions"] == [{"version": "-1", "start": 0, "end": 3}]
        assert choice["finish_reason"] == "length"
        assert answer["prompt_logprobs"][0] is None
        assert list(answer["prompt_logprobs"][1]) == ["2"]
        assert ask(server, "/pause?mode=keep", {})[0] == 200
        assert ask(server, "/is_paused") == (200, {"is_paused": True})
        assert ask(server, "/resume", {})[0] == 200
        assert ask(server, "/update_weight_version", {"new_version": "4"})[0] == 200
        assert ask(server, "/weight_info") == (200, {"weight_version": "4"})
        assert not server.served._sessions  # a request without a session leaves none


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        (GENERATE, b"{", "Invalid JSON"),
        (GENERATE, {"token_ids": []}, "at least 1"),
        (GENERATE, {"token_ids": [97]}, "outside the vocabulary of 97"),
        (GENERATE, {"token_ids": [97], "sampling_params": {"prompt_logprobs": 0}}, "outside the vocabulary"),
        (GENERATE, {"token_ids": [1], "sampling_params": {"temperature": -1}}, "temperature must be"),
        (GENERATE, {"token_ids": [1], "sampling_params": {"logit_bias": {"3": 2.0}}}, "can only ban tokens"),
        (GENERATE, {"token_ids": [1], "model": "other"}, "there is no model 'other' here"),
        ("/pause?mode=abort", {}, "can only keep requests"),
        ("/collective_rpc", {"method": "exec"}, "this server knows reload_weights"),
        ("/update_weight_version", {"new_version": "newest"}, "invalid literal"),
    ],
)
def test_a_request_that_cannot_be_served_is_told_why(tmp_path: Path, path: str, body: Any, message: str) -> None:
    with local_server(tmp_path) as server:
        status, answer = ask(server, path, body)
    assert status == 400
    assert message in answer["error"]["message"]


def test_lockstep_with_a_trainer_that_has_not_begun_is_a_conflict(tmp_path: Path) -> None:
    with local_server(tmp_path) as server:
        for path, body in ((GENERATE, {"token_ids": [1], "run": "x"}), ("/turnwise/expect", {"run": "x"})):
            status, answer = ask(server, path, body)
            assert status == 409
            assert "it must be published to first" in answer["error"]["message"]


def test_weights_come_from_whole_folders_below_the_root_only(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "link").symlink_to(tmp_path)
    (tmp_path / "root" / "step_000001").mkdir()
    with local_server(tmp_path / "root") as server:
        for path in (tmp_path, tmp_path / "root" / ".." / "root2", tmp_path / "root" / "link", "/etc"):
            body = {"method": "reload_weights", "kwargs": {"weights_path": str(path)}}
            status, answer = ask(server, "/collective_rpc", body)
            assert status == 400
            assert "is not a folder below the server's --root" in answer["error"]["message"]
            adapter = {"lora_name": "a", "lora_path": str(path)}
            assert ask(server, "/v1/load_lora_adapter", adapter)[0] == 400
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(tmp_path / "root" / "step_000001")}}
        assert "manifest.json is missing" in ask(server, "/collective_rpc", body)[1]["error"]["message"]


def test_a_body_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwise.engine.served.MAX_BODY", 1000)
    with local_server(tmp_path) as server:
        assert ask(server, "/pause", b" " * 2000)[0] == 413


def test_web_pages_and_other_names_of_this_machine_are_not_answered(tmp_path: Path) -> None:
    with local_server(tmp_path) as server:
        assert ask(server, "/health", origin="http://evil.example")[0] == 403
        assert ask(server, "/health", host="evil.example:80")[0] == 403


def test_a_server_with_a_token_answers_those_who_know_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with local_server(tmp_path, token="secret") as server:
        assert ask(server, "/health")[0] == 401
        assert ask(server, "/health", authorization="Bearer wrong")[0] == 401
        assert ask(server, "/health", authorization="Bearer secret", host="trainer.example:80")[0] == 200
        with (
            remote_engine(tmp_path / "a", server.url) as engine,
            pytest.raises(ValueError, match="answered 401: give the server's token"),
        ):
            engine.publish(None, 0)
        monkeypatch.setenv("TURNWISE_ENGINE_TOKEN", "secret")
        with remote_engine(tmp_path / "b", server.url) as engine:
            engine.publish(None, 0)
            assert asyncio.run(engine.generate("a", [1], SamplingParams(max_tokens=1))).ids


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "pico", "--host", "0.0.0.0"], "can be reached from other machines; set TURNWISE_ENGINE_TOKEN"),
        (["serve", "pico", "batch=3"], "torch has no option 'batch'"),
        (["serve", "pico", "--root", "no-such-folder"], "--root no-such-folder is not a folder"),
        (["export", "pico", "."], "exists already"),
    ],
)
def test_mistakes_in_the_command_are_one_message(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["engine", *arguments])
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_an_exported_model_has_its_head_apart_and_loads_equal(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    from turnwise.engine.probing import logprobs_of
    from turnwise.policy.text_loading import load_model

    result = CliRunner().invoke(app, ["engine", "export", "pico", str(tmp_path / "pico")])
    assert result.exit_code == 0, result.output
    untied: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "pico")
    assert untied.lm_head.weight.data_ptr() != untied.model.embed_tokens.weight.data_ptr()
    tied, tokenizer = load_model(tmp_path / "pico", dtype="fp32", device="cpu")
    assert logprobs_of(untied, [1, 2, 3, 4]) == logprobs_of(
        load_model("pico", dtype="fp32", device="cpu")[0], [1, 2, 3, 4]
    )
    assert tokenizer is not None
    assert tied is not None
