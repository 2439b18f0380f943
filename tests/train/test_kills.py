"""The real command with the shipped model, killed at random moments: the run ends as if nothing had happened."""

from pathlib import Path

import pytest

from tests.train.kills import campaign

pytest.importorskip("tantivy", reason="the shipped recipe needs turnwise[search]")


def test_a_few_random_kills_of_the_real_command_change_no_bit(tmp_path: Path) -> None:
    # Two hundred of them, of more recipes, are a campaign of `make torture`.
    tally = campaign(tmp_path, kills=3, seed=0, cases=("st-ppo",))
    assert tally.kills == 3
    assert not tally.differences, str(tally)
