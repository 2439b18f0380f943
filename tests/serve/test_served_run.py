"""`turnwise serve RUN` and `turnwise chat RUN` as processes, on a run that trained an adapter."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.train.small_runs import run
from turnwise.policy.models import resolve_model

openai = pytest.importorskip("openai", reason="needs the openai client")
peft = pytest.importorskip("peft", reason="needs turnwise[lora]")
pytest.importorskip("uvicorn", reason="needs turnwise[serve]")
pytest.importorskip("starlette", reason="needs turnwise[serve]")

ROOT = Path(__file__).parents[2]
QUESTION = "from e 1"
TOKENS = 12
BEST, LAST = 1, 3
"""Steps of the run: the only one that was evaluated, and the newest."""
_LOCAL = ["--device", "cpu", "--trust"]
"""The run's environment is code of the tests."""
_ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "TURNWISE_API_KEY"}
_OPTIONS: dict[str, Any] = {
    "cwd": ROOT,
    "env": {**_ENVIRONMENT, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    "stdout": subprocess.PIPE,
    "stderr": subprocess.PIPE,
    "text": True,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "my-run"
    changes: dict[str, Any] = {
        "model": {"name": "pico", "lora": {"rank": 4}},
        "rollout": {"episodes": 48},
        "train": {"steps": LAST, "learning_rate": 0.05},  # so that every step says something else
        "eval": {"episodes": 2, "every": 1},
        "checkpoint": {"every": 1, "keep": 9},
    }
    run(folder, changes)
    evals = folder / "evals.jsonl"
    evals.write_text("".join(line for line in evals.open() if f'"step": {BEST},' in line))
    return folder


@pytest.fixture(scope="module")
def address(trained: Path) -> Iterator[str]:
    """Of the server of this run; Ctrl-C ends it in the end."""
    command = [sys.executable, "-m", "turnwise", "serve", str(trained), "--port", "0", *_LOCAL]
    process = subprocess.Popen(command, **_OPTIONS)
    assert process.stdout is not None
    try:
        said = process.stdout.readline()
        assert said.startswith("serving my-run on cpu"), said
        yield said.split()[-1]
        process.send_signal(signal.SIGINT)
        _, problem = process.communicate(timeout=120)
        assert "Traceback" not in problem
    finally:
        process.kill()
        process.communicate(timeout=60)


def adapted(trained: Path, step: int) -> Any:
    """The base with the adapter of a step, as peft itself puts them together."""
    base = AutoModelForCausalLM.from_pretrained(resolve_model("pico"))
    return peft.PeftModel.from_pretrained(base, trained / "checkpoints" / f"step_{step:06d}" / "adapter").eval()


@torch.no_grad()
def scored(model: Any, prompt: list[int], answer: list[int]) -> list[float]:
    """The log-prob of every token of an answer."""
    log_TV = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    return log_TV.gather(1, torch.tensor(answer)[:, None]).squeeze(1).tolist()


def likeliest(trained: Path, step: int) -> str:
    """What the model of a step answers if every token is the likeliest."""
    tokenizer = AutoTokenizer.from_pretrained(trained / "checkpoints" / f"step_{step:06d}")
    asked = [{"role": "user", "content": QUESTION}]
    prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=True, return_tensors="pt")
    said = adapted(trained, step).generate(**prompt, do_sample=False, max_new_tokens=TOKENS)[0]
    return tokenizer.decode(said[prompt["input_ids"].shape[1] :], skip_special_tokens=True)


def test_a_run_is_served_with_its_adapter_merged_in(trained: Path, address: str) -> None:
    client = openai.OpenAI(base_url=address, api_key="unused", max_retries=0, timeout=120)
    assert [model.id for model in client.models.list()] == ["my-run"]
    asked = {"model": "my-run", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": TOKENS, "seed": 4}
    whole = client.chat.completions.create(**asked, logprobs=True, extra_body={"return_token_ids": True})
    [choice] = whole.choices
    told = [each.logprob for each in choice.logprobs.content]
    prompt, answer = whole.prompt_token_ids, choice.token_ids
    assert scored(adapted(trained, LAST), prompt, answer) == pytest.approx(told, abs=1e-3)
    base = AutoModelForCausalLM.from_pretrained(resolve_model("pico"))
    assert scored(base, prompt, answer) != pytest.approx(told, abs=0.1)
    events = client.chat.completions.create(**asked, stream=True)
    assert "".join(event.choices[0].delta.content or "" for event in events) == choice.message.content


def test_by_default_only_this_machine_can_connect(address: str) -> None:
    parts = urlsplit(address)
    assert parts.hostname == "127.0.0.1"
    socket.create_connection(("127.0.0.1", parts.port or 0), timeout=60).close()
    with pytest.raises(ConnectionRefusedError):  # also an address of this machine, but another one
        socket.create_connection(("127.0.0.2", parts.port or 0), timeout=60)


def test_lines_of_a_pipe_are_answered_by_the_best_checkpoint(trained: Path) -> None:
    command = [sys.executable, "-m", "turnwise", "chat", str(trained), "--step", "best", *_LOCAL]
    options = ["--temperature", "0", "--max-tokens", str(TOKENS)]
    with subprocess.Popen([*command, *options], stdin=subprocess.PIPE, **_OPTIONS) as process:
        said, problem = process.communicate(f"{QUESTION}\n", timeout=300)
    assert process.returncode == 0, problem
    assert said.rstrip("\n") == likeliest(trained, BEST)
    assert likeliest(trained, BEST) != likeliest(trained, LAST)
