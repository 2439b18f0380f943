"""`turnwise push`: what goes to a hub and what stays, the card from the run, and one message where it cannot go."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from tests.hub_server import a_hub
from tests.train.small_runs import run
from turnwise.hub.pushing import prepare

ROOT = Path(__file__).parent.parent
pytest.importorskip("peft", reason="needs turnwise[lora]")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "say"
    choices = {
        "model": {"name": "pico", "lora": {"rank": 2}},
        "eval": {"episodes": 8},
        "checkpoint": {"every": 2, "keep": 9},
    }
    run(folder, {**choices, "train": {"steps": 4}, "seed": 7})
    return folder


def turnwise(*words: str, home: Path, hub: str, token: str | None = "hf_secret") -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, with no account but the given one."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    environment = {**kept, "HF_ENDPOINT": hub, "HF_HOME": str(home), "PYTHONPATH": str(ROOT)}
    environment |= {} if token is None else {"HF_TOKEN": token}
    command = [sys.executable, "-m", "turnwise", "push", *words]
    return subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, timeout=240, check=False)


def test_the_card_says_what_the_run_says(trained: Path) -> None:
    package = prepare(trained, "me/say")
    assert package.step == 4
    head, rest = package.card.split("---\n")[1:]
    assert yaml.safe_load(head)["library_name"] == "transformers"
    assert "base_model" not in yaml.safe_load(head)  # pico is not on a hub
    last = [json.loads(line) for line in (trained / "evals.jsonl").read_text().splitlines()][-1]
    interval = f"{last['eval/success']:.3f} [{last['eval/success_low']:.3f}, {last['eval/success_high']:.3f}]"
    assert re.search(rf"\| success \| .* \| {re.escape(interval)} \|", rest)
    assert "- seed: 7" in rest
    assert "checkpoint after step 4 of 4 steps" in rest
    assert "seed: 7" in rest.split("```yaml")[1]
    assert 'from_pretrained("me/say")' in rest


def test_only_the_model_goes_and_not_what_is_for_resuming(trained: Path) -> None:
    names = set(prepare(trained, "me/say", step=2).files)
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= names
    assert not {"manifest.json", "journals.json"} & names
    assert not any("/" in name or "optimizer" in name for name in names)


def test_an_adapter_goes_with_a_base_that_others_have(trained: Path) -> None:
    with pytest.raises(ValueError, match=r"a folder of this machine that nobody else has; say which .* with --base"):
        prepare(trained, "me/say", adapter=True)
    package = prepare(trained, "me/say", adapter=True, base="them/pico")
    assert set(package.files) == {"README.md", "adapter_config.json", "adapter_model.safetensors"}
    config = package.files["adapter_config.json"]
    assert isinstance(config, bytes)
    assert json.loads(config)["base_model_name_or_path"] == "them/pico"
    assert yaml.safe_load(package.card.split("---\n")[1])["base_model"] == "them/pico"
    assert 'PeftModel.from_pretrained(base, "me/say")' in package.card


def test_mistakes_are_named_with_the_fix(trained: Path, tmp_path: Path) -> None:
    for choices, message in (
        ({"step": 3}, "there is no such checkpoint; other checkpoints here: 0, 2, 4"),
        ({"policy": "white"}, "has one policy without a name; leave out --policy"),
    ):
        with pytest.raises(ValueError, match=message):
            prepare(trained, "me/say", **cast("dict[str, Any]", choices))
    with pytest.raises(ValueError, match="is no name of a repository"):
        prepare(trained, "me/say/what")
    damaged = tmp_path / "damaged"
    shutil.copytree(trained, damaged)
    (damaged / "checkpoints/step_000004/model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=r"model\.safetensors has changed since it was written"):
        prepare(damaged, "me/say", step=4)


def test_a_checkpoint_arrives_byte_by_byte_in_a_private_repository(trained: Path, tmp_path: Path) -> None:
    with a_hub() as hub:
        done = turnwise(str(trained), "me/say", home=tmp_path, hub=hub.address)
        assert done.returncode == 0, done.stderr
        assert f"are at {hub.address}/me/say" in done.stdout
        (created,) = hub.created
        assert (created["organization"], created["name"], created["visibility"]) == ("me", "say", "private")
        assert hub.commits == ["Checkpoint of step 4"]
        files = hub.files["me/say"]
        checkpoint = trained / "checkpoints/step_000004"
        assert files["model.safetensors"] == (checkpoint / "model.safetensors").read_bytes()
        assert files["tokenizer.json"] == (checkpoint / "tokenizer.json").read_bytes()
        assert files["README.md"].decode() == prepare(trained, "me/say").card


def test_without_token_hub_or_right_there_is_one_message_and_a_dry_run_needs_none(
    trained: Path, tmp_path: Path
) -> None:
    nowhere = "http://127.0.0.1:9"
    shown = turnwise(str(trained), "me/say", "--dry-run", home=tmp_path, hub=nowhere, token=None)
    assert shown.returncode == 0, shown.stderr
    assert "would go to me/say (private if it is new)" in shown.stdout
    assert prepare(trained, "me/say").card in shown.stdout
    with a_hub() as hub:
        refused = turnwise(str(trained), "me/say", home=tmp_path, hub=hub.address, token="hf_wrong")
        assert not hub.files
    for done, message in (
        (
            turnwise(str(trained), "me/say", home=tmp_path, hub=nowhere, token=None),
            "there is no token for the hub; make",
        ),
        (turnwise(str(trained), "me/say", home=tmp_path, hub=nowhere), f"the hub at {nowhere} cannot be reached"),
        (refused, "the hub refused me/say (status 401"),
    ):
        assert done.returncode == 2
        assert done.stderr.startswith(f"turnwise: {message}"), done.stderr
        assert "Traceback" not in done.stderr
