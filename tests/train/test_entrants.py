"""Players of a tournament that are models: a run folder, and a server that samples as the others do."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from tests.serve.local_model import NAME, LocalModel, local_model
from tests.train.small_runs import run
from turnwise.cli import app
from turnwise.recipe.schema import Rollout
from turnwise.rollout.episode import EpisodeSpec
from turnwise.train.entrants import entering
from turnwise.types import StopReason


def first_words(served: LocalModel, *, temperature: float, seed: int, max_tokens: int = 12) -> str:
    """What the model behind the address says at the beginning of a game, which is always too long."""
    players = {"served": f"{served.url}#{NAME}", "any": "random"}
    rollout = Rollout(max_turns=8, max_tokens=max_tokens)
    with entering(players, rollout=rollout, temperature=temperature, seed=seed, device="cpu") as entrants:
        seated = {"player_0": entrants.agents["served"], "player_1": entrants.agents["any"]}
        (group, *_) = entrants.play([EpisodeSpec(env="duel/nim", seed=1)], seated)
    (trajectory,) = group.trajectories
    assert trajectory.stop is StopReason.MAX_TOKENS, trajectory.info
    return trajectory.turns[0].action


def test_a_server_samples_with_the_temperature_the_tokens_and_the_seed_of_the_tournament() -> None:
    with local_model() as served:
        greedy = first_words(served, temperature=0.0, seed=0)
        assert first_words(served, temperature=0.0, seed=1) == greedy
        drawn = first_words(served, temperature=1.0, seed=0)
        assert drawn != greedy
        assert first_words(served, temperature=1.0, seed=0) == drawn
        assert first_words(served, temperature=1.0, seed=1) != drawn
        short = first_words(served, temperature=0.0, seed=0, max_tokens=4)
        assert greedy.startswith(short)
        assert len(short) < len(greedy)


def test_a_run_folder_and_a_server_meet_in_a_tournament(tmp_path: Path) -> None:
    duels = {"id": "duel/nim", "check": False}
    run(tmp_path / "run", {"model": "pico-duels", "env": duels, "train": {"steps": 1}})
    with local_model() as served:
        players = [f"learned={tmp_path / 'run'}", f"served={served.url}#{NAME}", "expert=oracle"]
        options = [part for player in players for part in ("--player", player)]
        limits = ["--games", "2", "--max-tokens", "4", "--device", "cpu", "--json"]
        outcome = CliRunner().invoke(app, ["tournament", "duel/nim", *options, *limits])
    assert outcome.exit_code == 0, outcome.output
    found = json.loads(outcome.stdout)
    assert (found["games"], found["faults"], found["unfinished"]) == (3 * 2 * 2, 0, {})
    placed = {row["player"]: row for row in found["standings"]}
    assert found["standings"][0]["player"] == "expert"
    assert placed["expert"]["score"] == 1.0
    assert placed["served"]["forfeits"] > 0  # it never comes to an end
    assert placed["learned"]["games"] == placed["served"]["games"] == 8
