"""The documentation says what the code does."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from turnwise.ops.diagnostics import TURN_METRICS
from turnwise.train.metrics import METRICS

ROOT = Path(__file__).parent.parent


def test_the_metrics_page_lists_exactly_the_metrics_there_are() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| (.+) \|$", (ROOT / "docs/metrics.md").read_text(), flags=re.MULTILINE)
    assert dict(rows) == {**METRICS, **TURN_METRICS}


@pytest.mark.parametrize("page", ["README.md", "docs/guide.md"])
def test_the_python_examples_run(page: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    assert blocks
    if any("import gymnasium" in block for block in blocks):
        pytest.importorskip("gymnasium", reason="needs turnwise[gymnasium]")
    for block in blocks:
        exec(compile(block, page, "exec"), {"__name__": "example"})


def test_the_loop_in_one_file_runs_and_stays_small() -> None:
    file = ROOT / "examples/loop_in_one_file.py"
    assert len(file.read_text().splitlines()) < 250
    command = [sys.executable, str(file), "--steps", "2", "--episodes", "32", "--held-out", "16"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\nstep ") == 2
    assert "after:  held-out success" in done.stdout
