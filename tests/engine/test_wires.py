"""What is said to vLLM and SGLang, field by field. SGLang itself was never run: this is its documented form."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from turnwise.engine.contract import Finish, SamplingParams
from turnwise.engine.wires import Ask, SglangWire, VllmWire, WireError

ASK = Ask(ids=[1, 2, 3], params=SamplingParams(max_tokens=3, stop_ids=(4,)), session="e/0", seed=7, vocabulary=10)


def test_vllm_is_asked_for_ids_logprobs_and_its_own_seed_in_every_turn() -> None:
    call = VllmWire().generate(replace(ASK, salt="run:3", adapter="lora-3"))
    assert call.path == "/inference/v1/generate"
    assert call.headers == {"x-session-id": "e/0"}
    body: Any = call.body
    assert (body["token_ids"], body["cache_salt"], body["model"]) == ([1, 2, 3], "run:3", "lora-3")
    sampling = body["sampling_params"]
    assert (sampling["max_tokens"], sampling["logprobs"], sampling["ignore_eos"]) == (3, 0, True)
    assert list(sampling["stop_token_ids"]) == [4]
    later: Any = VllmWire().generate(replace(ASK, ids=[1, 2, 3, 5])).body
    assert sampling["seed"] != later["sampling_params"]["seed"]
    assert 0 <= sampling["seed"] < 2**63
    assert "top_k" not in sampling
    limited: Any = VllmWire().generate(replace(ASK, params=SamplingParams(top_k=1, bad_ids=(9,)))).body
    assert limited["sampling_params"]["top_k"] == 1
    assert limited["sampling_params"]["logit_bias"] == {"9": -100.0}


def test_weights_are_given_to_vllm_while_it_is_paused() -> None:
    calls = VllmWire().publish(Path("/runs/a"), 5)
    assert [call.path for call in calls] == ["/pause?mode=keep", "/collective_rpc", "/update_weight_version"]
    assert calls[1].body == {"method": "reload_weights", "kwargs": {"weights_path": "/runs/a"}}
    assert VllmWire().resume().path == "/resume"
    assert [call.path for call in VllmWire().adapt("n", Path("/a"), 5)] == ["/v1/load_lora_adapter"]


def sglang_answer(**changes: Any) -> dict[str, Any]:
    about = {
        "output_token_logprobs": [[-0.5, 6, None], [-0.25, 4, None]],
        "input_token_logprobs": [[None, 1, None], [-1.0, 2, None], [-2.0, 3, None]],
        "finish_reason": {"type": "stop", "matched": 4},
        "weight_version": "5",
        **changes,
    }
    return {"output_ids": [6, 4], "meta_info": about}


def test_sglang_is_asked_and_read_in_its_form() -> None:
    body: Any = SglangWire().generate(replace(ASK, scores_prompt=True, salt="run:3")).body
    assert (body["input_ids"], body["return_logprob"], body["logprob_start_len"]) == ([1, 2, 3], True, 0)
    assert body["sampling_params"]["max_new_tokens"] == 3
    assert body["sampling_params"]["no_stop_trim"]
    answer = SglangWire().read(sglang_answer(), replace(ASK, scores_prompt=True))
    assert (answer.ids, answer.logprobs, answer.finish) == ([6, 4], [-0.5, -0.25], Finish.STOP)
    assert answer.versions == ["5", "5"]
    assert answer.prompt_logprobs == [-1.0, -2.0]
    spans = [{"version": "4", "start": 0, "end": 1}, {"version": "5", "start": 1, "end": 2}]
    assert SglangWire().read(sglang_answer(weight_versions=spans), ASK).versions == ["4", "5"]
    calls = SglangWire().publish(Path("/runs/a"), 5)
    assert [call.path for call in calls] == ["/pause_generation", "/update_weights_from_disk"]
    assert (calls[1].body or {})["weight_version"] == "5"


@pytest.mark.parametrize(
    "changes",
    [
        {"output_token_logprobs": [[-0.5, 6, None]]},
        {"output_token_logprobs": [[-0.5, 6, None], [-0.25, 5, None]]},
        {"output_token_logprobs": None},
        {"finish_reason": {"type": "odd"}},
        {"weight_versions": [{"version": "4", "start": 0, "end": 1}]},
    ],
)
def test_an_odd_answer_of_sglang_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        SglangWire().read(sglang_answer(**changes), ASK)


@pytest.mark.parametrize("limit", [{"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}, {"bad_ids": (3,)}])
def test_sglang_is_not_asked_for_what_its_logprobs_would_not_tell(limit: dict[str, Any]) -> None:
    assert "before top_p, top_k, min_p" in SglangWire().refusal(SamplingParams(**limit))
    assert SglangWire().refusal(SamplingParams(temperature=0.7)) == ""
