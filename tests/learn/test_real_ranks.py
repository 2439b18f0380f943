"""Real processes that meet over sockets learn what one learns alone, preset by preset.

All presets on ranks that share a process are in test_ranks.py; `python -m tests.real_ranks FOLDER 10` is the whole.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.real_ranks import FEW_RUNS, LONGER, few_presets
from turnwise.ops.pairs import PAIR_METRICS

CANCELS = dict.fromkeys(
    ("loss/policy", "loss/advantage_mean", "loss/reference_kl", "loss/kl_term"), 1e-6
) | dict.fromkeys(PAIR_METRICS, 1e-5)
"""Sums of both signs, and small differences of numbers near one, which may come out near zero."""


def test_losses_and_gradient_norms_do_not_depend_on_the_number_of_ranks(tmp_path: Path) -> None:
    presets = few_presets()
    command = [sys.executable, "-m", "tests.real_ranks", str(tmp_path), "1", "--few"]
    ended = subprocess.run(command, check=True, capture_output=True, text=True, timeout=900)
    assert json.loads(ended.stdout) == [[0] * int(run[0]) for run in FEW_RUNS], ended.stderr
    alone, *others = [json.loads((tmp_path / f"{run}.json").read_text()) for run in FEW_RUNS]
    assert list(alone) == presets
    for found in others:
        for name in presets:
            for step, (expected, row) in enumerate(zip(alone[name], found[name], strict=True)):
                near = {key: pytest.approx(x, rel=1e-5, abs=CANCELS.get(key, 0)) for key, x in expected.items()}
                assert row == near, f"{name}, step {step + 1}"
    for run in FEW_RUNS[1:]:
        for name in presets:
            first, last = (load_file(tmp_path / f"{name}-{each}.safetensors") for each in (FEW_RUNS[0], run))
            worst = max(float((first[key] - last[key]).abs().max()) for key in first)
            assert worst < 1e-4, f"{name} on {run}"
            assert worst > 0 or name not in LONGER  # equal to the bit only at equal size
