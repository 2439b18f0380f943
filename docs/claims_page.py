"""Writes docs/claims.md: what every paper claims, from its claim.yaml, and what we found, from its page.

    python docs/claims_page.py

A paper's page says what was found in its first table under this head, one line for each study:

    | command | verdict | seeds | what we found |

The verdict is `holds`, `fails`, `not decided` or `not run yet`, or one of them for each part: `A holds; B fails`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from turnwise.reproduce.claim import load_claim, shipped_claims
from turnwise.reproduce.table_claim import load_table_claim

DOCS = Path(__file__).parent
PAGE = DOCS / "claims.md"
VERDICTS = ("holds", "fails", "not decided", "not run yet")
_OTHER_PAGES = {"st-ppo": "stability.md"}
_HEAD = ["command", "verdict", "seeds", "what we found"]
_INTRODUCTION = """# Claims

What papers claim, and what we found when we put it to the test. The thresholds of each claim were fixed before the
first run on the study's seeds (`turnwise/recipes/PAPER/claim.yaml`). `turnwise reproduce PAPER` runs the study and
computes the verdict, and every verdict is published, whatever it is.

The studies are small: models of 60,000 weights on a CPU, SmolLM2-135M on a GPU (`--scale gpu`). So *holds* means that
the effect is there at this size, and *fails* that it is not. *Not decided* means that the interval over seeds contains
the bound, which is no evidence either way. A claim in parts has a verdict for each.
"""
_END = "*Made from the claims and the papers' pages by `python docs/claims_page.py`; change those, not this page.*"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One study of a claim."""

    command: str
    verdict: str
    seeds: str
    found: str


@dataclass(frozen=True, kw_only=True)
class Paper:
    """A paper with a claim, and its page."""

    name: str
    title: str
    claims: str
    page: str
    findings: Sequence[Finding]


def papers() -> list[Paper]:
    """All of them, by title."""
    return sorted((_paper(name) for name in shipped_claims()), key=lambda paper: paper.title.lower())


def _paper(name: str) -> Paper:
    claim = load_table_claim(name) or load_claim(name)
    page = _OTHER_PAGES.get(name, f"recipes/{name}.md")
    return Paper(
        name=name, title=claim.paper, claims=claim.text.strip(), page=page, findings=read_findings(DOCS / page)
    )


def read_findings(page: Path) -> list[Finding]:
    """The lines of a page's table of findings; ValueError if it has none."""
    lines = page.read_text().splitlines() if page.is_file() else []
    for number, line in enumerate(lines):
        if _cells(line) == _HEAD:
            rows = [_cells(row) for row in _until_blank(lines[number + 2 :])]
            return [Finding(command=a.strip("`"), verdict=b, seeds=c, found=d) for a, b, c, d in rows]
    raise ValueError(f"{page} has no table with the head | {' | '.join(_HEAD)} |; see {Path(__file__).name}")


def _until_blank(lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        if not line.startswith("|"):
            return
        yield line


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []


def verdict_words(verdict: str) -> list[str]:
    """`A holds; B not decided` as `["holds", "not decided"]`; ValueError for any other word."""
    words: list[str] = []
    for part in verdict.split(";"):
        found = next((word for word in VERDICTS if re.search(rf"(?:^|\s){word}$", part.strip())), None)
        if found is None:
            raise ValueError(f"{part.strip()!r} is no verdict; end it with one of {', '.join(VERDICTS)}")
        words.append(found)
    return words


def render(every: Sequence[Paper]) -> str:
    """The whole page."""
    return "\n".join(_lines(every)) + "\n"


def _lines(every: Sequence[Paper]) -> Iterator[str]:
    yield _INTRODUCTION
    counted = Counter(_in_short(paper.findings[0].verdict) for paper in every)
    shares = ", ".join(f"{word} {counted[word]}" for word in (*VERDICTS, "in part") if counted[word])
    yield f"{len(every)} papers, by their main study: {shares}.\n"
    yield "| paper | verdict | what we found | seeds |\n|---|---|---|---|"
    for paper in every:
        main = paper.findings[0]
        yield f"| [{_short(paper)}]({paper.page}) | {main.verdict} | {main.found} | {main.seeds} |"
    yield ""
    for paper in every:
        yield f"## {_short(paper)}\n"
        yield f"**{paper.title}, as we test it:** {paper.claims}\n"
        yield f"| {' | '.join(_HEAD)} |\n|---|---|---|---|"
        for finding in paper.findings:
            yield f"| `{finding.command}` | {finding.verdict} | {finding.seeds} | {finding.found} |"
        yield f"\nEquation, arms, numbers and differences from the paper: [{_short(paper)}]({paper.page}).\n"
    yield _END


def _short(paper: Paper) -> str:
    return paper.title.partition(" (")[0]


def _in_short(verdict: str) -> str:
    words = set(verdict_words(verdict))
    return words.pop() if len(words) == 1 else "in part"


if __name__ == "__main__":
    PAGE.write_text(render(papers()))
