"""The documentation says what the code does."""

import re
from pathlib import Path

from turnwise.ops.diagnostics import TURN_METRICS

ROOT = Path(__file__).parent.parent


def test_the_metrics_page_lists_exactly_the_metrics_there_are() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| (.+) \|$", (ROOT / "docs/metrics.md").read_text(), flags=re.MULTILINE)
    assert dict(rows) == dict(TURN_METRICS)


def test_the_python_examples_of_the_readme_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
