"""docs/claims.md says what the claims and the papers' pages say, for every paper that can be put to the test."""

import re
from pathlib import Path

import pytest

from docs.claims_page import PAGE, Paper, papers, read_findings, render, verdict_words
from turnwise.reproduce.claim import load_claim, shipped_claims
from turnwise.reproduce.table_claim import load_table_claim

PAPERS = papers()


def test_the_page_is_up_to_date_and_has_every_claim() -> None:
    assert {paper.name for paper in PAPERS} == set(shipped_claims())
    assert PAGE.read_text() == render(PAPERS), "run: python docs/claims_page.py"


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
def test_every_finding_names_a_study_that_exists_and_a_verdict(paper: Paper) -> None:
    claim = load_table_claim(paper.name) or load_claim(paper.name)
    commands = [finding.command for finding in paper.findings]
    assert commands[0] == f"turnwise reproduce {paper.name}"
    assert len(set(commands)) == len(commands)
    for finding in paper.findings:
        named = re.fullmatch(rf"turnwise reproduce {paper.name}(?: --scale ([\w-]+))?", finding.command)
        assert named, finding.command
        assert (named[1] or "cpu") in claim.scales
        run = "not run yet" not in verdict_words(finding.verdict)
        assert bool(finding.seeds) == bool(finding.found) == run


def test_a_page_without_a_table_or_with_another_word_for_a_verdict_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A paper\n\n## Results\n\nIt works.\n")
    with pytest.raises(ValueError, match="has no table with the head"):
        read_findings(page)
    assert verdict_words("A holds; B not decided") == ["holds", "not decided"]
    for verdict in ("works", "A holds, more or less", "", "A holds;"):
        with pytest.raises(ValueError, match="is no verdict"):
            verdict_words(verdict)
