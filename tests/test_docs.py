"""The documentation says what the code does."""

import re
import subprocess
import sys
from pathlib import Path
from runpy import run_path

import pytest

from turnwise.metrics import METRICS
from turnwise.ops.diagnostics import TURN_METRICS
from turnwise.recipe.loading import DEFAULT_ALGORITHM

ROOT = Path(__file__).parent.parent


def test_the_metrics_page_lists_exactly_the_metrics_there_are() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| (.+) \|$", (ROOT / "docs/metrics.md").read_text(), flags=re.MULTILINE)
    assert dict(rows) == {**METRICS, **TURN_METRICS}


@pytest.mark.parametrize("page", ["README.md", "docs/guide.md"])
def test_the_python_examples_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    assert blocks
    if any("import gymnasium" in block for block in blocks):
        pytest.importorskip("gymnasium", reason="needs turnwise[gymnasium]")
    for block in blocks:
        if file := re.match(r"# (\w+\.py)\n", block):  # a module that a later example names
            (tmp_path / file[1]).write_text(block)
        exec(compile(block, page, "exec"), {"__name__": "example"})


SHOWN = (
    "A loss on pairs",
    "A regulariser that needs a reference",
    "A new environment, and a wrapper named in the recipe",
    "Where a step's tasks and data come from",
    "An engine of your own",
    "Several policies in one game",
)


@pytest.mark.parametrize("title", SHOWN)
def test_every_extension_takes_at_most_sixty_lines(title: str) -> None:
    section = (ROOT / "docs/guide.md").read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    assert 0 < sum(len(block.splitlines()) for block in blocks) <= 60


LOOP = ROOT / "examples/loop_in_one_file.py"


def test_the_loop_in_one_file_stays_small() -> None:
    assert len(LOOP.read_text().splitlines()) < 250


def test_the_loop_in_one_file_runs_by_itself() -> None:
    pytest.importorskip("tantivy", reason="needs turnwise[search]")
    command = [sys.executable, str(LOOP), "--steps", "2", "--episodes", "16", "--held-out", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\nstep ") == 2
    assert "after:  held-out success" in done.stdout


@pytest.mark.parametrize("algorithm", [DEFAULT_ALGORITHM, "so-grpo", "dapo"])
def test_the_loop_in_one_file_runs_with_critics_references_groups_and_filters(
    algorithm: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tantivy", reason="needs turnwise[search]")
    sizes = ["--steps", "1", "--episodes", "32", "--held-out", "4"]
    monkeypatch.setattr(sys, "argv", [str(LOOP), "--algorithm", algorithm, *sizes])
    run_path(str(LOOP), run_name="__main__")
    printed = capsys.readouterr().out
    assert printed.count("\nstep ") == 1
    assert "after:  held-out success" in printed
