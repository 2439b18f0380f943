"""The sample of episodes: which are shown, how much of them, and what is known of each token."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest
import tokenizers

from tests.report.runs import NANO, record, write_run
from turnwise.report import Sample
from turnwise.report.episodes import choose_rows, choose_steps, sample_episodes
from turnwise.runs.reading import read_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", steps=12, recorded=(1, 6, 12))


def sampled(run: Path, **changes: Any) -> dict[str, Any]:
    return sample_episodes(read_run(run), Sample(**changes), budget=1e6)


def test_steps_are_spread_from_first_to_last_with_those_nearest_to_what_happened() -> None:
    recorded = list(range(1, 201))
    assert choose_steps(recorded, [], 3, ()) == [1, 101, 200]
    assert choose_steps(recorded, [], 3, [122, 250]) == [1, 101, 122, 200]
    assert choose_steps(recorded, [], 1, ()) == [1]
    assert choose_steps([], [], 3, [5]) == []


def test_the_first_and_last_recorded_step_are_shown_even_without_token_details() -> None:
    recorded = list(range(1, 201))
    assert choose_steps(recorded, [10, 120, 190, 999], 3, ()) == [1, 120, 200]
    assert choose_steps(recorded, [10, 190], 2, ()) == [1, 200]


def test_held_out_episodes_are_shown_apart(run: Path) -> None:
    for name in ("eval_000000", "eval_000006", "eval_000012"):
        shutil.copy(run / "rollouts/step_000001.jsonl.zst", run / f"rollouts/{name}.jsonl.zst")
    shown = [(episode["step"], episode["held_out"]) for episode in sampled(run, episodes=1)["episodes"]]
    assert shown == [(1, False), (6, False), (12, False), (0, True), (12, True)]


def test_a_small_sample_shows_failures_and_successes() -> None:
    rows = [{"id": str(place), "info": {"success": place != 7}} for place in range(9)]
    assert [row["id"] for row in choose_rows(rows, 4)] == ["0", "1", "2", "7"]
    assert [row["id"] for row in choose_rows(rows, 20)] == [str(place) for place in range(9)]


def test_every_token_keeps_its_own_numbers(run: Path) -> None:
    ledger = {row["id"]: row for row in read_run(run).recorded("step", 6)}
    details = {row["id"]: row for row in read_run(run).recorded("tokens", 6)}
    shown = [episode for episode in sampled(run)["episodes"] if episode["step"] == 6]
    assert len(shown) == 6
    for episode in shown:
        turns, detail = ledger[episode["id"]]["turns"], details[episode["id"]]
        assert [turn["sampled"] for turn in episode["turns"]] == [turn["sampled_ids"] for turn in turns]
        assert [value for turn in episode["turns"] for value in turn["clipped"]] == detail["clipped"]
        advantages = [value for turn in episode["turns"] for value in turn["advantage"]]
        assert advantages == pytest.approx(detail["advantage"], rel=1e-4)
        assert episode["turns"][1]["sampler"] == pytest.approx(turns[1]["logprobs"], rel=1e-4)


def test_the_texts_of_a_turns_tokens_make_its_text(run: Path) -> None:
    sample = sampled(run)
    turn = sample["episodes"][0]["turns"][0]
    assert "".join(sample["texts"][str(token)] for token in turn["sampled"]).strip() == "search: town Mahis country"


def test_a_part_of_a_character_is_spelt_as_in_the_vocabulary(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=12, recorded=(12,), words={"action": "café"})
    texts = sampled(run)["texts"]
    ids = tokenizers.Tokenizer.from_file(str(NANO / "tokenizer.json")).encode("é").ids
    assert [texts[str(token)] for token in ids[-2:]] == ["Ã", "©"]


def test_long_turns_are_shortened_and_say_by_how_much(run: Path) -> None:
    turn = sampled(run, tokens=4)["episodes"][0]["turns"][0]
    whole = read_run(run).recorded("step", 1)[0]["turns"][0]
    assert turn["prompt"] == whole["prompt_ids"][-4:]
    assert turn["sampled"] == whole["sampled_ids"][:4]
    assert len(turn["clipped"]) == len(turn["sampler"]) == 4
    assert turn["left_out"] == [len(whole["prompt_ids"]) - 4, len(whole["sampled_ids"]) - 4]


def test_the_sample_stops_at_its_budget_and_says_so(run: Path) -> None:
    data = read_run(run)
    episodes = sample_episodes(data, Sample(), budget=6000)["episodes"]
    assert 1 <= len(episodes) < 18
    assert data.problems[-1].startswith("The sample of episodes is smaller than asked for")


def test_without_a_tokenizer_the_turns_own_words_are_shown(run: Path) -> None:
    (run / "checkpoints" / "step_000012" / "tokenizer.json").unlink()
    sample = sampled(run)
    assert sample["texts"] is None
    assert sample["episodes"][0]["turns"][0]["action"] == "search: town Mahis country"


def test_without_token_details_only_the_samplers_numbers_are_there(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=12)
    record(run, 5, Random(0), episodes=4, words={}, details=False)
    turn = sampled(run)["episodes"][0]["turns"][0]
    assert turn["sampler"]
    assert not {"old", "new", "advantage", "clipped"} & turn.keys()
