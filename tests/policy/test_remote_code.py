"""A model is data: its folder may bring code and pickles, and neither is ever run."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import turnwise
from turnwise.policy.models import resolve_model
from turnwise.policy.text import TextPolicy

PACKAGE = Path(turnwise.__file__).parent
_LOADERS = ("from_pretrained", "from_config")
_CODE = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\n"
_MARK = "code_of_the_folder"
LOAD = """
import sys
from turnwise.policy.text import TextPolicy
for folder in sys.argv[1:]:
    try:
        TextPolicy.load(folder)
    except ValueError as error:
        print(folder, "refused:", error)
    print(folder, "done")
"""


def _transformers_calls(file: Path) -> list[ast.Call]:
    """Calls that may load a model's own code: `from_pretrained` of anything but a LoRA's JSON, and `from_config`."""
    nodes = list(ast.walk(ast.parse(file.read_text())))
    named = [node for node in nodes if isinstance(node, ast.Attribute) and node.attr in _LOADERS]
    calls = [node for node in nodes if isinstance(node, ast.Call) and node.func in named]
    assert len(named) == len(calls), f"{file} gives {' or '.join(_LOADERS)} another name, which hides its calls"
    return [call for call in calls if "LoraConfig" not in ast.unparse(call.func)]


def _says(call: ast.Call, option: str, value: bool) -> bool:
    return any(
        keyword.arg == option and isinstance(keyword.value, ast.Constant) and keyword.value.value is value
        for keyword in call.keywords
    )


def test_every_call_of_transformers_forbids_remote_code_and_pickled_weights() -> None:
    found = [(file, call) for file in sorted(PACKAGE.rglob("*.py")) for call in _transformers_calls(file)]
    assert len(found) >= 7
    for file, call in found:
        place = f"{file.relative_to(PACKAGE)}:{call.lineno}"
        assert _says(call, "trust_remote_code", False), f"{place} does not say trust_remote_code=False"
        assert isinstance(call.func, ast.Attribute)
        loads_weights = call.func.attr == "from_pretrained" and "LM" in ast.unparse(call.func.value)
        assert not loads_weights or _says(call, "use_safetensors", True), f"{place} does not say use_safetensors=True"


def _with_code(folder: Path, model_type: str) -> Path:
    """A model whose folder brings code of its own."""
    TextPolicy.load("pico").save(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": model_type, "auto_map": {"AutoConfig": f"{_MARK}.C", "AutoModelForCausalLM": f"{_MARK}.M"}}
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    tokenizer |= {"tokenizer_class": "Odd", "auto_map": {"AutoTokenizer": [f"{_MARK}.T", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    (folder / f"{_MARK}.py").write_text(_CODE)
    return folder


def test_a_model_that_brings_code_asks_nothing_and_runs_nothing(tmp_path: Path) -> None:
    folders = [_with_code(tmp_path / model_type, model_type) for model_type in ("of_its_own", "llama")]
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *map(str, folders)],
        input="y\n" * 9,  # what a user would type to allow it
        capture_output=True,
        text=True,
        env=environment,
        timeout=600,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "[y/N]" not in said
    assert not list(tmp_path.rglob("ran"))
    assert not (tmp_path / "modules").exists()
    assert f"{folders[0]} refused:" in said
    assert f"{folders[1]} done" in said


def test_pickled_weights_are_refused_with_the_way_to_convert_them(tmp_path: Path) -> None:
    policy = TextPolicy.load("pico")
    policy.save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(policy.model.state_dict(), tmp_path / "pytorch_model.bin")
    assert AutoModelForCausalLM.from_pretrained(tmp_path) is not None  # transformers itself takes them
    with pytest.raises(ValueError, match=r"no weights in safetensors.*save_pretrained"):
        TextPolicy.load(str(tmp_path))


def test_our_own_models_are_safetensors() -> None:
    assert (Path(resolve_model("nano")) / "model.safetensors").is_file()
