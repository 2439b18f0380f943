"""Every paper's page has the same shape, shows the equation as `explain` prints it, and names what exists."""

import re
from pathlib import Path

import pytest

from turnwise.algorithm import explain, preset
from turnwise.metrics import METRICS
from turnwise.reproduce.claim import load_claim
from turnwise.reproduce.table_claim import load_table_claim

PAGES = sorted((Path(__file__).parents[1] / "docs" / "recipes").glob("*.md"))
SHAPE = [
    "Overview",
    "The equation",
    "Use it",
    "Metrics to watch",
    "How it differs from the paper",
    "Results",
]
EQUATION = re.compile(r"`turnwise explain ([\w-]+)`:\n\n```\n(.*?)\n```", re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_the_common_shape_and_a_claim(page: Path):
    text = page.read_text()
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SHAPE
    assert f"turnwise reproduce {page.stem}" in text
    claim = load_table_claim(page.stem) or load_claim(page.stem)
    assert claim.paper.split("arXiv ")[1].rstrip(")") in text.splitlines()[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_shows_equations_as_explain_prints_them(page: Path):
    """A page may leave paragraphs out, but no line of one that it shows."""
    shown = EQUATION.findall(page.read_text())
    assert shown
    for name, equation in shown:
        printed = explain(preset(name)).split("\n\n")
        assert [part for part in equation.split("\n\n") if part not in printed] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_names_metrics_that_exist(page: Path):
    named = re.findall(r"^\| `([\w/]+)` \|", page.read_text(), re.MULTILINE)
    known = {name.replace("<name>", "") for name in METRICS}
    assert named
    for name in named:
        assert name in METRICS or any(each.endswith("_") and name.startswith(each) for each in known)
