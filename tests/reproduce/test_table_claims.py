"""Claims about tables of players: played on every seed, resumed without repeating, judged by bounds."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from turnwise.cli import app
from turnwise.envs.cards.dhumbal_players import make_player
from turnwise.envs.cards.dhumbal_table import play_table
from turnwise.evaluate.player_statistics import compare_players
from turnwise.evaluate.statistics import bonferroni, cohens_d, welch_t
from turnwise.outside import load
from turnwise.reproduce.claim import shipped_claims
from turnwise.reproduce.table_claim import TableClaim, load_table_claim
from turnwise.reproduce.table_study import TableQueue, TableStudy, perform_table

CLAIM = """
paper: A tiny paper (arXiv 0000.00000)
text: The daring win.
tables:
  duel: {players: {bold: cards/dhumbal:aggressive, shy: cards/dhumbal:random}, options: {pickup: own}}
  same: {players: {bold: cards/dhumbal:random, shy: {player: cards/dhumbal:random}}, rounds: 8}
criteria:
  - {part: A, arm: duel, metric: win_rate/bold, at_least: 0.6}
  - {part: A, arm: duel, minus: same, metric: margin/bold, at_least: 0.0, decides: false}
  - {part: B, arm: duel, metric: coins/shy, at_least: 0.0}
  - {part: B, arm: duel, metric: risk/nobody, at_least: 0.0, decides: false}
scales:
  cpu: {rounds: 24, seeds: 3, first_seed: 5}
  cpu-quick: {rounds: 8, seeds: 3, tables: [duel]}
"""


def write_claim(folder: Path, text: str = CLAIM) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "claim.yaml").write_text(text)
    return str(folder)


def tiny(folder: Path) -> TableClaim:
    claim = load_table_claim(write_claim(folder))
    assert claim is not None
    return claim


def play_here(study: TableStudy) -> None:
    """Play every table in this process."""
    queue = TableQueue(list(study.runs), study.output)
    while job := queue.take():
        assert perform_table(job) == ""


def test_a_study_is_played_judged_and_not_played_again(tmp_path):
    study = TableStudy(tiny(tmp_path / "claim"), "cpu", tmp_path / "out")
    play_here(study)
    rows = study.write_results()
    assert len(rows) == len(study.runs) == 6
    found = {finding.name: finding.outcome for finding in study.conclude(rows)}
    assert found == {
        "A: win_rate/bold of duel at least 0.6": "pass",
        "B: coins/shy of duel at least 0": "fail",
        "A: margin/bold of duel minus same at least 0": found["A: margin/bold of duel minus same at least 0"],
        "B: risk/nobody of duel at least 0": "not decided",
    }
    page = (tmp_path / "out" / "verdict.md").read_text()
    assert "# A tiny paper (arXiv 0000.00000): A pass, B fail" in page
    assert "| bold, shy |" in page
    assert study.run(jobs=1, report=print) == {}, "nothing is left to play"


def test_the_verdict_has_the_slowest_decision_of_all_seeds_where_it_was_measured(tmp_path):
    study = TableStudy(tiny(tmp_path / "claim"), "cpu-quick", tmp_path / "out")
    play_here(study)
    rows = study.write_results()
    for number, row in enumerate(rows):
        assert row["metrics"]["slowest_ms/bold"] >= row["metrics"]["decision_ms/bold"] > 0
        row["metrics"]["slowest_ms/bold"] = 1.0 + number
    study.conclude(rows)
    page = (tmp_path / "out" / "verdict.md").read_text().splitlines()
    assert next(line for line in page if line.startswith("| player |")).endswith("| slowest ms, of all seeds |")
    assert next(line for line in page if line.startswith("| bold |")).endswith("| 3 |")
    for row in rows:  # a study from before it was measured
        row["metrics"] = {name: value for name, value in row["metrics"].items() if "slowest" not in name}
    study.conclude(rows)
    assert "slowest" not in (tmp_path / "out" / "verdict.md").read_text()


def test_a_player_learns_once_for_all_tables_of_its_seed(tmp_path):
    learner = "{player: 'turnwise.train.card_ppo:PpoPlayer', options: {steps: 1, rounds: 2}, learns: true}"
    tables = "\n".join(
        f"  {name}: {{players: {{ppo: {learner}, any: cards/dhumbal:random}}, rounds: 4}}" for name in ("one", "two")
    )
    criterion = "criteria: [{part: A, arm: one, metric: win_rate/ppo, at_least: 0.0}]"
    text = f"paper: P\ntext: T\ntables:\n{tables}\n{criterion}\nscales: {{cpu: {{rounds: 4, seeds: 2}}}}\n"
    claim = load_table_claim(write_claim(tmp_path / "claim", text))
    assert claim is not None
    study = TableStudy(claim, "cpu", tmp_path / "out")
    play_here(study)
    assert len(list((tmp_path / "out" / "learned").iterdir())) == 2, "one for each seed"
    rows = study.write_results()
    assert [row["metrics"]["win_rate/ppo"] for row in rows[0::2]] == [
        row["metrics"]["win_rate/ppo"] for row in rows[1::2]
    ]


def test_equal_seeds_give_equal_tables(tmp_path):
    one, again = (TableStudy(tiny(tmp_path / "claim"), "cpu", tmp_path / name) for name in ("one", "again"))
    play_here(one)
    play_here(again)
    rates = [[row["metrics"]["win_rate/bold"] for row in study.write_results()] for study in (one, again)]
    assert rates[0] == rates[1]


def test_a_table_that_was_played_otherwise_is_refused(tmp_path):
    play_here(TableStudy(tiny(tmp_path / "claim"), "cpu", tmp_path / "out"))
    changed = load_table_claim(write_claim(tmp_path / "other", CLAIM.replace("pickup: own", "pickup: previous")))
    assert changed is not None
    with pytest.raises(ValueError, match="is of another table; choose another --output"):
        TableStudy(changed, "cpu", tmp_path / "out").write_results()


def test_missing_tables_leave_a_criterion_undecided(tmp_path):
    study = TableStudy(tiny(tmp_path / "claim"), "cpu", tmp_path / "out")
    findings = study.conclude(study.write_results())
    assert {finding.outcome for finding in findings} == {"not decided"}
    assert "not played on all seeds" in findings[0].text


def test_the_command_plays_tables_in_processes(tmp_path):
    command = [
        "reproduce",
        write_claim(tmp_path / "claim"),
        "--quick",
        "--jobs",
        "1",
        "--output",
        str(tmp_path / "out"),
    ]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "3 of 3 runs are complete" in done.output
    assert len(json.loads((tmp_path / "out" / "results.json").read_text())) == 3


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("arm: duel, metric: coins", "arm: dual, metric: coins", "'dual' is not one of the tables duel, same"),
        ("tables: [duel]", "tables: [dual]", "'dual' is not one of the tables"),
        ("rounds: 24", "rounds: 1", "greater than or equal to 2"),
        ("minus: same", "minus: start", "is a mean over steps"),
    ],
)
def test_mistakes_in_a_claim_are_named(tmp_path, before, after, message):
    with pytest.raises(ValueError, match=message):
        load_table_claim(write_claim(tmp_path, CLAIM.replace(before, after, 1)))


def test_settings_have_no_place_in_a_study_of_tables(tmp_path):
    with pytest.raises(ValueError, match="env cannot be set: the tables are fixed"):
        TableStudy(tiny(tmp_path / "claim"), "cpu", tmp_path / "out", {"env": "x"})


def test_the_shipped_claim_names_players_that_exist_and_metrics_that_tables_have():
    claims = [claim for paper in shipped_claims() if (claim := load_table_claim(paper)) is not None]
    assert claims
    for claim in claims:
        for table in claim.tables.values():
            for choice in table.players.values():
                assert (
                    choice.learns == (load(choice.player) is not None) if choice.learns else make_player(choice.player)
                )
        for criterion in claim.criteria:
            kind, *players = criterion.metric.split("/")
            assert kind in {"win_rate", "coins", "call_rate", "call_success", "margin", "p"}
            assert set(players) <= set(claim.tables[criterion.arm].players)


def test_pairs_of_players_are_tested_with_welch_and_bonferroni():
    names = ("aggressive", "random", "balanced")
    records = play_table({name: make_player(f"cards/dhumbal:{name}") for name in names}, rounds=60, seed=1)
    tests = [test for test in compare_players(records) if test.metric == "coins"]
    assert [(test.first, test.second) for test in tests] == [names[:2], (names[0], names[2]), names[1:]]
    coins = {name: [float(each) for each in record.coins] for name, record in records.items()}
    expected = bonferroni([welch_t(coins[test.first], coins[test.second]).p for test in tests])
    assert [test.p for test in tests] == expected
    assert tests[0].d == cohens_d(coins["aggressive"], coins["random"]) > 0
