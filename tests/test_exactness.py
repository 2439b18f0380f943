"""The last bits of a run depend on its numbers, not on where they lie in memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from tests.train.small_runs import LostMachineError, Screen, Stopping, run, small_recipe
from turnwise.engine.contract import SamplingParams
from turnwise.engine.torch_engine import TorchEngine
from turnwise.exactness import ALIGNMENT, describe_arithmetic
from turnwise.policy.critics import Critic
from turnwise.policy.text import Reference, TextPolicy
from turnwise.train.stages import resume, train

ROOT = Path(__file__).parent.parent
OFFSET = 56
"""Where a file's weights begin, modulo 64: a place at which some matrix libraries choose other kernels."""


def misaligned(tensor: Tensor) -> Tensor:
    room = torch.empty(tensor.numel() + ALIGNMENT, dtype=tensor.dtype)
    first = OFFSET // tensor.element_size()
    return room[first : first + tensor.numel()].view(tensor.shape).copy_(tensor)


def misalign(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.data = misaligned(parameter.data)


def offsets(module: nn.Module) -> set[int]:
    return {parameter.data_ptr() % ALIGNMENT for parameter in module.parameters()}


def save_misaligned(policy: TextPolicy, folder: Path) -> None:
    """Save a model so that its weights, read in place, lie at the bad offset."""
    policy.save(folder)
    file = folder / "model.safetensors"
    weights = load_file(file)
    for padding in range(ALIGNMENT):
        save_file(weights, file, metadata={"format": "pt", "padding": "x" * padding})
        header = int.from_bytes(file.read_bytes()[:8], "little")
        if (8 + header) % ALIGNMENT == OFFSET:
            return
    raise AssertionError("no header of the wanted length")


def in_new_process(script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


PRODUCTS = """
import turnwise, torch
from tests.test_exactness import misaligned
for rows in (1, 2, 3, 5, 8):
    for shape in ((192, 192), (512, 192), (1024, 704), (100, 77)):
        weight, states = torch.randn(shape), torch.randn(rows, shape[1])
        product = states @ weight.T
        assert torch.equal(states @ misaligned(weight).T, product), (rows, shape)
        assert torch.equal(misaligned(states) @ weight.T, product), (rows, shape)
"""


@pytest.mark.skipif("mkl" not in describe_arithmetic()["blas"], reason="this build of torch does not use MKL")
def test_products_do_not_depend_on_where_their_operands_lie() -> None:
    environment = {} if os.environ["MKL_CBWR"] == "AUTO,STRICT" else {"MKL_CBWR": "AUTO,STRICT"}
    done = in_new_process(PRODUCTS, **environment)
    assert done.returncode == 0, done.stderr


def test_the_users_own_choice_of_kernels_is_kept() -> None:
    script = "import turnwise, os; print(os.environ['MKL_CBWR'])"
    assert in_new_process(script, MKL_CBWR="COMPATIBLE").stdout == "COMPATIBLE\n"


def test_weights_read_from_a_file_lie_where_fresh_ones_lie(tmp_path: Path) -> None:
    policy = TextPolicy.load("pico")
    save_misaligned(policy, tmp_path)
    loaded = TextPolicy.load(tmp_path)
    assert offsets(policy.model) == offsets(loaded.model) == {0}
    assert offsets(Reference.of_folder(tmp_path, like=policy)._policy.model) == {0}
    assert offsets(Critic.separate(loaded.model)) == {0}


def test_weights_of_a_users_own_model_are_moved_where_fresh_ones_lie() -> None:
    model = TextPolicy.load("pico").model
    misalign(model)
    assert offsets(model) == {OFFSET}
    assert offsets(TextPolicy(model).model) == {0}
    misalign(model)
    assert offsets(Critic.separate(model)) == {0}


ALONE = """
from tests.test_exactness import decode_alone, misalign
from turnwise.policy.text import TextPolicy
aligned, other = TextPolicy.load("nano"), TextPolicy.load("nano").model
misalign(other)
assert decode_alone(aligned.model) == decode_alone(TextPolicy(other).model)
"""


def decode_alone(model: PreTrainedModel) -> list[float]:
    """Sampler log-probs of an episode without company, as the last one of a step is."""
    engine = TorchEngine(model, capacity=64, memory_bytes=2**24)
    (result,) = engine.run([("alone", [5, 6, 7], SamplingParams(max_tokens=40, temperature=3.0))])
    return list(result.logprobs)


def test_an_episode_that_decodes_alone_has_the_same_bits_wherever_its_weights_came_from() -> None:
    done = in_new_process(ALONE, MKL_CBWR="")  # what the library does by itself
    assert done.returncode == 0, done.stderr


CUT_SHORT = """
import os, sys, torch
from turnwise.policy.text import TextPolicy
policy = TextPolicy.load(sys.argv[1])
os.truncate(sys.argv[1] + "/model.safetensors", 100)
assert all(bool(parameter.isfinite().all()) for parameter in policy.model.parameters())
"""


def test_a_loaded_model_outlives_its_file(tmp_path: Path) -> None:
    save_misaligned(TextPolicy.load("pico"), tmp_path)
    done = in_new_process(CUT_SHORT, str(tmp_path))
    assert done.returncode == 0, (done.returncode, done.stderr)


def test_a_run_keeps_what_its_last_bits_depend_on_and_a_resume_says_what_changed(tmp_path: Path) -> None:
    with pytest.raises(LostMachineError):
        train(small_recipe(), tmp_path / "run", console=Stopping(after=3))
    meta = json.loads((tmp_path / "run" / "meta.json").read_text())
    assert {key: meta[key] for key in ("cpu", "blas")} == describe_arithmetic()
    (tmp_path / "run" / "meta.json").write_text(json.dumps({**meta, "cpu": "another one"}))
    screen = Screen()
    resume(tmp_path / "run", console=screen)
    assert f"cpu was another one, now {meta['cpu']}: the last bits may differ" in screen.text


def test_a_resume_on_the_same_machine_says_nothing_of_bits(tmp_path: Path) -> None:
    with pytest.raises(LostMachineError):
        train(small_recipe(), tmp_path / "run", console=Stopping(after=3))
    screen = Screen()
    run(tmp_path / "run", console=screen)
    assert "last bits" not in screen.text
