"""Real processes that meet over sockets learn what one learns alone, preset by preset."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.real_ranks import LONGER, RUNS
from turnwise.algorithm import PRESETS
from turnwise.ops.pairs import PAIR_METRICS

CANCELS = dict.fromkeys(("loss/policy", "loss/advantage_mean", "loss/reference_kl"), 1e-6) | dict.fromkeys(
    PAIR_METRICS, 1e-5
)
"""Sums of both signs, and small differences of numbers near one, which may come out near zero."""


def test_losses_and_gradient_norms_do_not_depend_on_the_number_of_ranks(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.real_ranks", str(tmp_path), "1"]
    ended = subprocess.run(command, check=True, capture_output=True, text=True, timeout=900)
    assert json.loads(ended.stdout) == [[0] * int(run[0]) for run in RUNS], ended.stderr
    alone, *others = [json.loads((tmp_path / f"{run}.json").read_text()) for run in RUNS]
    assert alone.keys() == PRESETS.keys()
    for found in others:
        for name in PRESETS:
            for step, (expected, row) in enumerate(zip(alone[name], found[name], strict=True)):
                near = {key: pytest.approx(x, rel=1e-5, abs=CANCELS.get(key, 0)) for key, x in expected.items()}
                assert row == near, f"{name}, step {step + 1}"
    for run in RUNS[1:]:
        for name in PRESETS:
            first, last = (load_file(tmp_path / f"{name}-{each}.safetensors") for each in (RUNS[0], run))
            worst = max(float((first[key] - last[key]).abs().max()) for key in first)
            assert worst < 1e-4, f"{name} on {run}"
            assert worst > 0 or name not in LONGER  # equal to the bit only at equal size
