"""New weights for servers: whole folders, versions per token, and a probe that no wrong weight passes."""

from __future__ import annotations

import asyncio
import json
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.engine.local_servers import Local, eventually, learner, local_server, remote_engine
from turnwise.engine.contract import SamplingParams
from turnwise.engine.probing import logprobs_of
from turnwise.engine.published import write_model
from turnwise.engine.remote import RemoteEngine
from turnwise.engine.wires import VllmWire
from turnwise.policy.text_lora import LoraSettings, attach_lora
from turnwise.runs.checkpoints import find_fault

PARAMS = SamplingParams(max_tokens=12)


def train_a_little(model: PreTrainedModel, by: float = 0.01) -> None:
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.add_(by * torch.cos(torch.arange(parameter.numel()) + number).view_as(parameter))


def spied(server: Local, load: Callable[[Path, Callable[[Path], None]], None]) -> None:
    """Let something else happen when the server is told to load weights."""
    reloader = server.served._reloader
    real = reloader.load
    reloader.load = lambda folder: load(folder, real)


def test_a_published_folder_is_whole_with_its_head_written_out_and_old_ones_go(tmp_path: Path) -> None:
    seen: list[str] = []

    def look(folder: Path, load: Callable[[Path], None]) -> None:
        assert not find_fault(folder)
        with safe_open(folder / "model.safetensors", framework="pt") as file:
            head, words = file.get_tensor("lm_head.weight"), file.get_tensor("model.embed_tokens.weight")
        assert torch.equal(head, words)
        assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is False
        seen.append(folder.name)
        load(folder)

    with local_server(tmp_path) as server, remote_engine(tmp_path / "published", server.url) as engine:
        spied(server, look)
        for version in range(4):
            engine.publish(None, version)
        assert sorted(path.name for path in (tmp_path / "published" / "policy").iterdir()) == seen[-2:]
    assert len(set(seen)) == 4
    assert not (tmp_path / "published").exists()


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "published" / "policy" / "step_000001.draft").mkdir(parents=True)
    with local_server(tmp_path) as server, remote_engine(tmp_path / "published", server.url) as engine:
        engine.publish(None, 0)
        assert [path.name for path in (tmp_path / "published" / "policy").iterdir()] == ["step_000001"]


@pytest.mark.parametrize("kept", ["all of them", "the head", "one layer"])
def test_a_server_that_keeps_old_weights_and_reports_the_new_version_is_refused_by_name(
    tmp_path: Path, kept: str
) -> None:
    """vLLM's CPU build keeps the head of a tied model and says that it has the new version."""
    model, notes = learner(), list[str]()
    folder = tmp_path / "untied"
    folder.mkdir()
    write_model(folder, model, iter(model.state_dict().items()))
    untied: Any = AutoModelForCausalLM.from_pretrained(folder)  # starts from the learner's own weights
    with (
        local_server(tmp_path, untied.eval()) as server,
        remote_engine(tmp_path / "published", server.url, model=model, notes=notes) as engine,
    ):
        engine.publish(None, 0)

        def keep(folder: Path, load: Callable[[Path], None]) -> None:
            parameters = dict(untied.named_parameters())
            held = {
                "all of them": list(parameters),
                "the head": ["lm_head.weight"],
                "one layer": ["model.layers.1.mlp.up_proj.weight"],
            }[kept]
            before = {name: parameters[name].detach().clone() for name in held}
            load(folder)
            with torch.no_grad():
                for name, tensor in before.items():
                    parameters[name].copy_(tensor)

        spied(server, keep)
        train_a_little(model, by=3e-4)
        with pytest.raises(ValueError, match=rf"no engine server can be used: {server.url}: its log-probs differ"):
            engine.publish(None, 1)
        assert server.served._version == "1"
    assert notes[-1].startswith(f"engine server {server.url} is refused: its log-probs differ from the learner's by up")


def test_a_refused_server_is_not_used_again_and_the_others_go_on(tmp_path: Path) -> None:
    model, notes = learner(), list[str]()
    with (
        local_server(tmp_path) as good,
        local_server(tmp_path) as bad,
        remote_engine(tmp_path / "published", good.url, bad.url, model=model, notes=notes) as engine,
    ):
        spied(bad, lambda folder, load: None)
        for version in range(2):
            engine.publish(None, version)
            for number in range(6):
                answer = asyncio.run(engine.generate(f"{version}/{number}", [1, 2], PARAMS))
                assert answer.logprobs == pytest.approx(logprobs_of(model, [1, 2, *answer.ids], start=2), abs=1e-4)
        assert len(bad.unruly.requests) == 1  # the first probe
    assert [note.partition(": its")[0] for note in notes] == [f"engine server {bad.url} is refused"]


def test_rounding_in_the_precision_of_the_server_is_forgiven(tmp_path: Path) -> None:
    model: Any = learner()
    half = model.to(torch.bfloat16)
    with local_server(tmp_path, half) as server:
        with remote_engine(tmp_path / "a", server.url) as engine, pytest.raises(ValueError, match="rounding explains"):
            engine.publish(None, 0)
        with remote_engine(tmp_path / "b", server.url, dtype="bf16") as engine:
            engine.publish(None, 0)


def test_a_server_with_less_room_than_an_episode_needs_is_left_out(tmp_path: Path) -> None:
    with (
        local_server(tmp_path, capacity=64) as server,
        remote_engine(tmp_path / "published", server.url) as engine,
        pytest.raises(ValueError, match=r"it has room for 64 tokens; rollout\.context is 160"),
    ):
        engine.publish(None, 0)


def test_a_disk_that_is_full_ends_publishing_with_one_sentence_and_nothing_half_written(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with local_server(tmp_path) as server, remote_engine(tmp_path / "published", server.url) as engine:
        engine.publish(None, 0)
        loads = server.unruly.paths.count("/collective_rpc")
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
        try:
            with pytest.raises(ValueError, match=r"^cannot write .*step_000002: File too large; raise the limit"):
                engine.publish(None, 1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert [path.name for path in (tmp_path / "published" / "policy").iterdir()] == ["step_000001"]
        assert server.unruly.paths.count("/collective_rpc") == loads
        engine.publish(None, 1)


def slow(server: Local) -> None:
    """Let the server take its time for every token."""
    engine = server.served._engine
    step = engine.step

    def dawdle() -> bool:
        time.sleep(0.01)
        return step()

    engine.step = dawdle


def test_a_publish_in_the_middle_of_a_long_generation_gives_every_token_its_version(tmp_path: Path) -> None:
    old, model = learner(), learner()
    prompt, params = [1, 2, 3], SamplingParams(max_tokens=140)

    async def run(engine: RemoteEngine) -> Any:
        answer = asyncio.create_task(engine.generate("long", prompt, params))
        await asyncio.to_thread(eventually, lambda: server.served._engine._engine.counts["sampled"] > 50)
        train_a_little(model)
        await asyncio.to_thread(engine.publish, None, 8)
        return await answer

    # Like vLLM, this wire asks for keys and values to be computed again, so every token's log-prob is known exactly.
    with (
        local_server(tmp_path) as server,
        remote_engine(tmp_path / "published", server.url, model=model, wire=VllmWire()) as engine,
    ):
        engine.publish(None, 7)
        slow(server)
        answer = asyncio.run(run(engine))
    border = list(answer.versions).index(8)
    assert list(answer.versions) == [7] * border + [8] * (140 - border)
    assert border > 30
    whole = [*prompt, *answer.ids]
    first, second = (logprobs_of(each, whole, start=len(prompt)) for each in (old, model))
    assert answer.logprobs[:border] == pytest.approx(first[:border], abs=1e-4)
    assert answer.logprobs[border:] == pytest.approx(second[border:], abs=1e-4)
    assert answer.policy_version == 7


def test_tokens_that_a_server_sampled_before_it_was_refused_reach_nobody(tmp_path: Path) -> None:
    model = learner()

    async def run(engine: RemoteEngine) -> Any:
        answers = [
            asyncio.create_task(engine.generate(f"e{n}", [1, 2], SamplingParams(max_tokens=100))) for n in range(24)
        ]
        await asyncio.to_thread(eventually, lambda: bad.served._engine._engine.counts["sampled"] > 30)
        train_a_little(model)
        await asyncio.to_thread(engine.publish, None, 1)
        return await asyncio.gather(*answers)

    with (
        local_server(tmp_path) as good,
        local_server(tmp_path) as bad,
        remote_engine(tmp_path / "published", good.url, bad.url, model=model) as engine,
    ):
        engine.publish(None, 0)
        slow(bad)
        spied(bad, lambda folder, load: None)  # it goes on with version 0 and says 1
        answers = asyncio.run(run(engine))
        posted = [request["token_ids"] for request in good.unruly.requests]
    assert len(bad.unruly.requests) > 2
    moved = [answer for answer in answers if set(answer.versions) == {1}]
    assert moved
    for answer in moved:
        assert answer.logprobs == pytest.approx(logprobs_of(model, [1, 2, *answer.ids], start=2), abs=1e-4)
    assert posted.count([1, 2]) == 24


def adapted(*, shift: float = 0.0) -> PreTrainedModel:
    pytest.importorskip("peft", reason="needs the lora extra")
    model = learner(shift=shift)
    attach_lora(model, LoraSettings(rank=4, alpha=8))
    return model


def turn_adapter(model: PreTrainedModel, by: float) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.copy_(by * torch.sin(torch.arange(parameter.numel())).view_as(parameter))


@pytest.mark.parametrize("wire", ["turnwise", "vllm"])
def test_an_adapter_is_loaded_while_the_server_runs_under_a_new_name_each_time(tmp_path: Path, wire: str) -> None:
    model = adapted()
    options: dict[str, Any] = {"wire": VllmWire()} if wire == "vllm" else {}
    with (
        local_server(tmp_path, learner()) as server,
        remote_engine(tmp_path / "published", server.url, model=model, **options) as engine,
    ):
        for version, by in enumerate((0.0, 0.1, 0.2)):
            turn_adapter(model, by)
            engine.publish(None, version)
            answer = asyncio.run(engine.generate(f"a{version}", [1, 2], PARAMS))
            assert set(answer.versions) == {version}
            assert answer.logprobs == pytest.approx(logprobs_of(model, [1, 2, *answer.ids], start=2), abs=1e-4)
        names = {request["model"] for request in server.unruly.requests}
        assert len(names) == 3
        assert "/collective_rpc" not in server.unruly.paths
        assert sorted(path.name for path in (tmp_path / "published" / "policy" / "step_000003").iterdir()) == [
            "adapter_config.json",
            "adapter_model.safetensors",
            "manifest.json",
        ]


def test_a_server_with_another_base_gets_merged_weights_instead_of_the_adapter(tmp_path: Path) -> None:
    from turnwise.engine.contract import Weights
    from turnwise.policy.text_lora import merged_weights

    model, notes = adapted(), list[str]()
    turn_adapter(model, 0.1)
    with (
        local_server(tmp_path) as server,
        remote_engine(tmp_path / "published", server.url, model=model, notes=notes) as engine,
    ):
        for version in range(2):
            engine.publish(Weights(named=lambda: merged_weights(model)), version)
            answer = asyncio.run(engine.generate(f"a{version}", [1, 2], PARAMS))
            assert answer.logprobs == pytest.approx(logprobs_of(model, [1, 2, *answer.ids], start=2), abs=1e-4)
        assert server.unruly.paths.count("/v1/load_lora_adapter") == 1
    assert notes == ["no engine server samples with the adapter like the learner; merged weights are published"]
