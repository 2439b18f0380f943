"""The verdict on made-up runs: what passes, what fails, what is not decided; ranges of rates; the figure."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from tests.reproduce.tiny import CLAIM, write_claim
from turnwise.evaluate.statistics import Interval
from turnwise.reproduce.claim import load_claim
from turnwise.reproduce.conclusion import conclude
from turnwise.reproduce.figure import draw_rates
from turnwise.reproduce.verdict import judge, overall, usable_range

SEEDS = 4
BLOCKS = """
      rates: {arms: [ppo, st-ppo], rates: [1.0e-3, 2.0e-2]}
      on-policy: {arms: [ppo, st-ppo], updates: [1]}
"""


@pytest.fixture
def claim(tmp_path):
    text = CLAIM.replace("seeds: 1\n", f"seeds: {SEEDS}\n").rstrip() + BLOCKS
    return load_claim(str(write_claim(tmp_path / "tiny", text)))


def runs(arm, finals, *, rate=2e-2, updates=4, collapsed=0):
    return [
        {
            "arm": arm, "rate": rate, "updates": updates, "lag": 0, "seed": seed, "final": final, "area": final,
            "collapse": {"step": 1, "reason": "x"} if seed < collapsed else None, "applied_rate": rate,
            "clip_fraction": 0.1, "gradient_tail": 2.0, "scale": None, "explained_variance": 0.2,
        }
        for seed, final in enumerate(finals)
    ]  # fmt: skip


def good_rows():
    """The method holds, the baseline does not, and no control comes near."""
    return [
        *runs("ppo", [0.0, 0.1, 0.0, 0.6], collapsed=3),
        *runs("ppo", [0.8, 0.8, 0.8, 0.8], rate=1e-3),
        *runs("st-ppo", [0.8, 0.9, 0.85, 0.85]),
        *runs("st-ppo", [0.8, 0.8, 0.8, 0.8], rate=1e-3),
        *runs("ppo", [0.7, 0.72, 0.71, 0.7], updates=1),
        *runs("st-ppo", [0.71, 0.72, 0.7, 0.71], updates=1),
        *runs("matched", [0.5, 0.6, 0.5, 0.5]),
        *runs("permuted", [0.85, 0.88, 0.86, 0.84]),
    ]


def outcomes(claim, rows):
    return {finding.criterion: finding.outcome for finding in judge(claim, claim.scale("cpu"), rows)}


def test_a_claim_that_holds_passes_and_says_which_control_does_as_well(claim):
    assert outcomes(claim, good_rows()) == {
        "ppo collapses": "pass",
        "st-ppo holds": "pass",
        "st-ppo ends higher": "pass",
        "st-ppo is usable over a wider range of rates": "pass",
        "on-policy st-ppo costs nothing": "pass",
        "st-ppo beats matched": "pass",
        "st-ppo beats permuted": "fail",
    }
    assert overall(judge(claim, claim.scale("cpu"), good_rows())) == "pass"


def test_a_baseline_that_lives_fails_the_claim(claim):
    rows = [row for row in good_rows() if (row["arm"], row["rate"], row["updates"]) != ("ppo", 2e-2, 4)]
    rows += runs("ppo", [0.8, 0.9, 0.8, 0.9])
    found = outcomes(claim, rows)
    assert found["ppo collapses"] == "fail"
    assert found["st-ppo ends higher"] == "fail"
    assert found["st-ppo is usable over a wider range of rates"] == "fail"
    assert overall(judge(claim, claim.scale("cpu"), rows)) == "fail"


def test_nothing_is_decided_before_every_seed_has_run(claim):
    rows = [row for row in good_rows() if row["seed"] < 3]
    found = outcomes(claim, rows)
    assert {found["ppo collapses"], found["st-ppo holds"], found["st-ppo ends higher"]} == {"not decided"}
    assert overall(judge(claim, claim.scale("cpu"), rows)) == "not decided"
    assert set(outcomes(claim, []).values()) == {"not decided"}


@pytest.mark.parametrize(
    ("cell", "waiting"),
    [
        (("ppo", 1e-3, 4), {"st-ppo is usable over a wider range of rates"}),
        (("st-ppo", 2e-2, 1), {"on-policy st-ppo costs nothing"}),
        (("matched", 2e-2, 4), {"st-ppo beats matched"}),
    ],
)
def test_one_missing_run_leaves_open_what_reads_it_and_nothing_else(claim, cell, waiting):
    rows = [row for row in good_rows() if (row["arm"], row["rate"], row["updates"], row["seed"]) != (*cell, 3)]
    assert {criterion for criterion, outcome in outcomes(claim, rows).items() if outcome == "not decided"} == waiting


def test_the_ends_of_a_range_lie_where_the_curve_meets_the_bar():
    curve = {1e-3: 0.2, 1e-2: 0.8, 1e-1: 0.8, 1.0: 0.0}
    assert usable_range(curve, 0.5) == pytest.approx((10**-2.5, 10 ** (-1 + 0.3 / 0.8)))
    assert usable_range(curve, 0.9) is None


def test_a_range_ends_with_the_grid_and_the_longest_stretch_counts():
    assert usable_range({1.0: 0.8, 2.0: 0.8}, 0.5) == Interval(1.0, 2.0)
    split = {1.0: 0.8, 2.0: 0.0, 4.0: 0.8, 8.0: 0.8, 16.0: 0.8}
    assert usable_range(split, 0.8) == Interval(4.0, 16.0)


def test_the_conclusion_holds_verdict_tables_and_a_figure(claim, tmp_path):
    conclude(claim, claim.scale("cpu"), good_rows(), tmp_path)
    text = (tmp_path / "verdict.md").read_text()
    assert text.startswith("# A tiny paper: pass")
    assert "| st-ppo | 0.02 | 4 | 0 | 4 | 0.85 (0.79 to 0.91) | 0.85 | 0/4 | 0.10 | 2.00 |  | 0.20 |" in text
    figure = ElementTree.fromstring((tmp_path / "rates.svg").read_text())
    assert len(figure.findall(".//{*}polyline")) == 2


def test_names_in_a_figure_are_text_and_nothing_else():
    figure = draw_rates({"<script>": [(1e-3, 0.5, Interval(0.4, 0.6))]}, title="a & b")
    assert "<script>" not in figure
    assert ElementTree.fromstring(figure).attrib["aria-label"] == "a & b"


def only(claim, *blocks, **changes):
    """The scale with some of its blocks."""
    scale = claim.scale("cpu")
    return scale.model_copy(update={"blocks": {name: scale.blocks[name] for name in blocks}, **changes})


def test_thresholds_are_asked_whole_or_not_at_all(claim):
    def asked(*blocks, **changes):
        return judge(claim, only(claim, *blocks, **changes), good_rows())

    rates = asked("rates")
    assert [finding.criterion for finding in rates] == [finding.criterion for finding in asked("on-policy")]
    missing = {finding.criterion: finding.text for finding in rates if finding.outcome == "not decided"}
    assert missing == {"on-policy st-ppo costs nothing": "this scale has no such runs"}
    on_policy = [row for row in good_rows() if row["updates"] == 1]
    assert overall(judge(claim, only(claim, "on-policy"), on_policy)) == "not decided"  # costing nothing is no verdict
    assert [finding.criterion for finding in asked("stress")] == ["st-ppo beats matched", "st-ppo beats permuted"]
    assert overall(asked("stress")) == "not decided"  # the baseline is not in it


def test_a_scale_that_decides_nothing_says_so(claim, tmp_path):
    conclude(claim, only(claim, "updates"), [], tmp_path)
    assert (tmp_path / "verdict.md").read_text().startswith("# A tiny paper: not decided")


def test_a_range_cannot_be_wider_than_none(claim):
    rows = [row for row in good_rows() if row["arm"] != "ppo" or row["rate"] != 1e-3]
    rows += runs("ppo", [0.1, 0.1, 0.1, 0.1], rate=1e-3)
    findings = {finding.criterion: finding for finding in judge(claim, claim.scale("cpu"), rows)}
    wider = findings["st-ppo is usable over a wider range of rates"]
    assert (wider.outcome, "ppo does not reach a mean of" in wider.text) == ("not decided", True)


def test_the_ratio_of_ranges_comes_with_what_other_seeds_would_have_said(claim):
    findings = {finding.criterion: finding.text for finding in judge(claim, claim.scale("cpu"), good_rows())}
    ratio = re.search(
        r"([\d.]+) times as wide \(95% ([\d.]+) to ([\d.]+)\)", findings["st-ppo is usable over a wider range of rates"]
    )
    assert ratio is not None
    found, low, high = map(float, ratio.groups())
    assert 1 <= low < found < high  # one of ppo's four seeds holds at the stress rate


def test_a_claim_of_which_nothing_was_asked_is_not_decided() -> None:
    assert overall([]) == "not decided"
