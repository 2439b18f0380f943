"""Criteria in a claim's own words, on made-up runs: intervals by hand, what is decided and what is not."""

import pytest

from tests.reproduce.tiny import GUESS_CLAIM, write_claim
from turnwise.reproduce.claim import load_claim
from turnwise.reproduce.conclusion import conclude, verdict_of
from turnwise.reproduce.criteria import Criterion
from turnwise.reproduce.verdict import judge


def criterion(**choices) -> Criterion:
    return Criterion.model_validate({"arm": "a", "metric": "turns", **choices})


def by_seed(*values: float) -> dict[int, float]:
    return dict(enumerate(values))


@pytest.mark.parametrize(
    ("bound", "outcome"),
    [
        # 5.0, 5.2, 5.4: mean 5.2, deviation 0.2, t(0.975; 2) = 4.303, so 5.2 ± 4.303 · 0.2 / √3 = 4.703 to 5.697.
        ({"at_least": 4.70}, "pass"),
        ({"at_least": 4.71}, "not decided"),
        ({"at_least": 5.69}, "not decided"),
        ({"at_least": 5.70}, "fail"),
        ({"at_most": 5.70}, "pass"),
        ({"at_most": 5.69}, "not decided"),
        ({"at_most": 4.71}, "not decided"),
        ({"at_most": 4.70}, "fail"),
    ],
)
def test_the_whole_interval_must_lie_on_one_side_of_the_bound(bound, outcome):
    found, text = criterion(**bound).judge([by_seed(5.0, 5.2, 5.4)])
    assert found == outcome
    assert text == "5.20 (95% 4.70 to 5.70), 3 seeds"


def test_a_difference_is_paired_by_seed():
    # The arms vary by whole turns from seed to seed, their differences (0.9, 1.0, 1.1) hardly: 1 ± 0.248.
    one, other = by_seed(5.9, 8.0, 10.1), by_seed(5.0, 7.0, 9.0)
    assert criterion(minus="b", at_least=0.75).judge([one, other]) == ("pass", "+1.00 (95% +0.75 to +1.25), 3 seeds")
    assert criterion(minus="b", at_least=0.76).judge([one, other])[0] == "not decided"
    assert criterion(minus="b", at_least=0.75).judge([one, {0: 9.0, 1: 5.0, 2: 7.0}])[0] == "not decided"


def test_only_seeds_in_common_count_and_two_are_too_few():
    found, text = criterion(minus="b", at_least=0.5).judge([by_seed(6.0, 6.0, 6.0), {1: 5.0, 2: 5.0, 7: 5.0}])
    assert (found, text) == ("not decided", "too few seeds: 2 of the 3 that an interval needs")


def test_a_criterion_says_what_it_asks_for():
    assert criterion(minus="b", at_least=0.5).name == "turns of a minus b at least 0.5"
    assert criterion(at_most=5.3).name == "turns of a at most 5.3"
    assert criterion(minus="b", updates=8, at_least=0.5).name == "turns of a minus b with 8 updates at least 0.5"


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (
            "arm: rebn, metric: success",
            "arm: rebm, metric: success",
            "'rebm' is not one of the arms rebn, undiscounted",
        ),
        ("minus: rebn", "minus: rebm", "'rebm' is not one of the arms"),
        ("minus: rebn", "minus: rebn, over: rebn", "either minus or over; give one of them"),
        ("minus: rebn", "over: undiscounted", "over itself is always 1"),
        ("at_least: 0.95", "decides: true", r"criteria\.0: a criterion has either at_least or at_most"),
        ("at_least: 0.95", "at_least: 0.9, at_most: 1", "either at_least or at_most"),
        ("at_least: 0.95", "at_leest: 0.95", r"criteria\.0\.at_leest"),
        ("minus: rebn", "minus: undiscounted", "minus itself is always 0"),
        ("criteria:", "controls: [rebn]\ncriteria:", "controls are compared with the method in thresholds"),
        ("rate: 1.0e-3", "rate: 1.0e-3\n    parts: [A, Z]", "'Z' is not one of the parts A, B"),
        ("slip: action", "slip: sentence", r"start\.slip: Input should be 'word' or 'action'"),
    ],
)
def test_mistakes_in_criteria_are_named(tmp_path, before, after, message):
    assert before in GUESS_CLAIM
    with pytest.raises(ValueError, match=message):
        load_claim(str(write_claim(tmp_path, GUESS_CLAIM.replace(before, after, 1))))


def test_a_claim_that_nothing_decides_is_refused(tmp_path):
    start, end = GUESS_CLAIM.index("criteria:"), GUESS_CLAIM.index("scales:")
    with pytest.raises(ValueError, match="nothing decides the claim; give it thresholds or criteria"):
        load_claim(str(write_claim(tmp_path, GUESS_CLAIM[:start] + GUESS_CLAIM[end:])))


def runs(arm, success, turns):
    return [
        {
            "arm": arm, "rate": 1e-3, "updates": 2, "lag": 0, "seed": seed, "final": success, "area": success,
            "collapse": None, "applied_rate": 1e-3, "clip_fraction": 0.1, "gradient_tail": 2.0, "scale": None,
            "explained_variance": None, "first": {"eval/turns": of_seed + 2, "eval/meteor": 0.2},
            "last": {"eval/success": success, "eval/turns": of_seed, "eval/reward": success, "eval/meteor": 0.5},
            "peak": {"eval/turns": 9.0, "eval/meteor": 0.8}, "mean": {"loss/clip_fraction": 0.25},
        }
        for seed, of_seed in enumerate(turns)
    ]  # fmt: skip


@pytest.fixture
def claim(tmp_path):
    return load_claim(str(write_claim(tmp_path / "guess", GUESS_CLAIM.replace("seeds: 1", "seeds: 3"))))


def test_each_part_of_a_claim_has_its_verdict(claim, tmp_path):
    rows = [*runs("rebn", 0.99, [5.0, 5.2, 5.4]), *runs("undiscounted", 0.98, [6.1, 6.2, 6.3])]
    findings = conclude(claim, claim.scale("cpu"), rows, tmp_path)
    assert [(finding.part, finding.outcome, finding.decides) for finding in findings] == [
        ("A", "pass", True),
        ("A", "pass", True),
        ("B", "fail", True),
        ("A", "not decided", False),
    ]
    assert verdict_of(findings) == "A pass, B fail"
    text = (tmp_path / "verdict.md").read_text()
    assert text.startswith("# A guessing paper: A pass, B fail")
    assert "| A: turns of undiscounted minus rebn at least 0.5 | pass | +1.00 (95% +0.75 to +1.25), 3 seeds |" in text
    assert "| *A: turns of rebn at most 5.3* | not decided |" in text
    assert "| n | final (95%) | turns (95%) | reward (95%) | area |" in text
    assert (
        "| rebn | 0.001 | 2 | 0 | 3 | 0.99 (0.99 to 0.99) | 5.20 (4.70 to 5.70) | 0.99 (0.99 to 0.99) | 0.99 |" in text
    )
    assert not (tmp_path / "rates.svg").exists()


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"metric": "eval/meteor", "over": "start", "at_least": 1.5}, "2.50 (95% 2.50 to 2.50), 3 seeds"),
        ({"metric": "turns", "minus": "start", "at_most": 0}, "-2.00 (95% -2.00 to -2.00), 3 seeds"),
        ({"metric": "eval/meteor", "over": "peak", "at_most": 0.8}, "0.62 (95% 0.62 to 0.62), 3 seeds"),
        ({"metric": "turns", "peak": True, "at_most": 9}, "9.00 (95% 9.00 to 9.00), 3 seeds"),
        ({"metric": "eval/meteor", "over": "eval/turns", "at_most": 1}, "0.10 (95% 0.09 to 0.11), 3 seeds"),
        ({"metric": "loss/clip_fraction", "over": "undiscounted", "at_least": 1}, "1.00 (95% 1.00 to 1.00), 3 seeds"),
    ],
)
def test_a_criterion_may_be_about_any_metric_a_ratio_the_start_or_the_peak(claim, asked, text):
    claim = claim.model_copy(update={"criteria": [Criterion.model_validate({"arm": "rebn", **asked})]})
    rows = [*runs("rebn", 0.99, [5.0, 5.2, 5.4]), *runs("undiscounted", 0.98, [6.1, 6.2, 6.3])]
    (finding,) = judge(claim, claim.scale("cpu"), rows)
    assert (finding.outcome, finding.text) == ("pass", text)


def test_a_metric_that_the_runs_lack_decides_nothing(claim):
    claim = claim.model_copy(update={"criteria": [criterion(arm="rebn", metric="eval/metoer", at_least=1)]})
    (finding,) = judge(claim, claim.scale("cpu"), runs("rebn", 0.99, [5.0, 5.2, 5.4]))
    assert (finding.outcome, finding.text) == ("not decided", "the runs have no eval/metoer")


def test_a_scale_may_name_the_parts_that_it_is_for(claim):
    def asked(**changes):
        return [finding.name for finding in judge(claim, claim.scale("cpu").model_copy(update=changes), [])]

    assert asked(parts=["B"]) == ["B: reward of rebn minus undiscounted at least 0.02"]
    assert asked(parts=[]) == []
    assert {name[0] for name in asked()} == {"A", "B"}


def test_a_part_is_not_decided_by_the_half_that_a_scale_has_runs_for(claim):
    scale = claim.scale("cpu")
    rebn = {"claims": scale.blocks["claims"].model_copy(update={"arms": ["rebn"]})}
    findings = judge(claim, scale.model_copy(update={"blocks": rebn}), [])
    assert [(finding.name, finding.text) for finding in findings if finding.decides][1:] == [
        ("A: turns of undiscounted minus rebn at least 0.5", "this scale has no such runs")
    ]


def test_nothing_is_decided_while_a_run_that_a_criterion_reads_is_missing(claim):
    rows = [*runs("rebn", 0.99, [5.0, 5.2, 5.4]), *runs("undiscounted", 0.98, [6.1, 6.2])]
    findings = judge(claim, claim.scale("cpu"), rows)
    texts = {finding.criterion: (finding.outcome, finding.text) for finding in findings}
    assert texts["success of rebn at least 0.95"][0] == "pass"
    waiting = ("not decided", "1 of 6 runs are missing")
    assert texts["turns of undiscounted minus rebn at least 0.5"] == waiting
    assert texts["reward of rebn minus undiscounted at least 0.02"] == waiting


@pytest.mark.parametrize("asked", [{"minus": "start"}, {"over": "start"}, {"over": "peak"}, {"peak": True}])
def test_a_mean_over_steps_has_neither_a_start_nor_a_peak(asked):
    with pytest.raises(ValueError, match="loss/policy is a mean over steps"):
        Criterion(arm="a", metric="loss/policy", at_least=0.0, **asked)
