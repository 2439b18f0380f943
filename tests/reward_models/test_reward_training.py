"""Reward models: they learn a rule, are saved as transformers reads them, and score the same everywhere."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tests.reward_models.small_pairs import chat, tiny, write_pairs
from turnwise.policy.text import TextPolicy
from turnwise.reward_models import RewardModel, RewardTraining, train_reward_model
from turnwise.types import Message, StopReason, Trajectory, Turn

ASKED = "review the style and the end of the film"
CHATS = [
    chat(ASKED, "the film is great ."),
    chat("review the end and the style of the book", "the book is dull and the style is dull ."),
    chat(ASKED, "the film is great", "review the end of the film", "the end is poor ."),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reward")
    train_reward_model(write_pairs(folder / "pairs.jsonl", source="rule"), folder / "model", tiny())
    return folder / "model"


def ids_of(model: RewardModel, said: list[Message]) -> list[int]:
    turns = model.read([{"role": each.role, "content": each.content} for each in said]).turns
    return [token for turn in turns for token in (*turn.prompt_ids, *turn.sampled_ids)]


def test_it_learns_a_rule_and_reports_on_prompts_that_it_has_not_seen(trained: Path) -> None:
    report = json.loads((trained / "report.json").read_text())
    assert report["all"]["pairs"] == report["by_source"]["rule"]["pairs"] > 5
    assert report["all"]["accuracy"] >= 0.9
    rows = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 11))
    assert rows[-1]["loss/policy"] < 0.4 < rows[0]["loss/policy"]


def test_scores_do_not_depend_on_what_is_scored_together(trained: Path) -> None:
    model = RewardModel.load(trained)
    together = model.score_texts(CHATS)
    assert together == pytest.approx([model.score_texts([each])[0] for each in CHATS], abs=1e-4)
    assert model.score_texts(CHATS) == together


@pytest.mark.parametrize("side", ["left", "right"])
def test_transformers_reads_the_same_scores_also_in_padded_batches(trained: Path, side: str) -> None:
    model, theirs = RewardModel.load(trained), AutoModelForSequenceClassification.from_pretrained(trained)
    tokenizer = AutoTokenizer.from_pretrained(trained, padding_side=side)
    padded = tokenizer.pad({"input_ids": [ids_of(model, each) for each in CHATS]}, return_tensors="pt")
    with torch.no_grad():
        found = theirs(**padded).logits.squeeze(1).tolist()
    assert found == pytest.approx(model.score_texts(CHATS), abs=1e-4)
    assert tokenizer.chat_template


def test_an_adapter_is_merged_into_what_is_saved(tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="needs turnwise[lora]")
    settings = tiny(model={"name": "pico-chat", "lora": {"rank": 4}}, train={"learning_rate": 2e-2})
    report = train_reward_model(write_pairs(tmp_path / "pairs.jsonl"), tmp_path / "model", settings)
    assert (report.all.accuracy or 0) > 0.7
    model, theirs = (
        RewardModel.load(tmp_path / "model"),
        AutoModelForSequenceClassification.from_pretrained(tmp_path / "model"),
    )
    found = theirs(torch.tensor([ids_of(model, CHATS[0])])).logits.item()
    assert found == pytest.approx(model.score_texts(CHATS[:1])[0], abs=1e-4)


def test_equal_seeds_give_equal_bits(trained: Path, tmp_path: Path) -> None:
    train_reward_model(write_pairs(tmp_path / "pairs.jsonl", source="rule"), tmp_path / "model", tiny())
    for name in ("model.safetensors", "metrics.jsonl", "report.json"):
        assert (tmp_path / "model" / name).read_bytes() == (trained / name).read_bytes(), name


def test_regression_learns_the_scores_themselves(tmp_path: Path) -> None:
    train_reward_model(write_pairs(tmp_path / "pairs.jsonl"), tmp_path / "model", tiny(loss="regression", epochs=12))
    chats = [chat(ASKED, f"the film is {word} .") for word in ("great", "dull")]
    good, bad = RewardModel.load(tmp_path / "model").score_texts(chats)
    assert good > bad + 0.2
    assert -0.5 < bad < good < 1.5  # trained by comparisons alone, scores have no zero


def test_every_turn_of_an_episode_gets_a_number_from_what_was_said_up_to_it(trained: Path) -> None:
    model = RewardModel.load(trained)
    said = (ASKED, "the film is great ."), ("review the end of the film", "the end is dull .")
    turns = [Turn(observation=heard, action=answer) for heard, answer in said]
    ((first, last),) = model.score_episodes([Trajectory(id="e", turns=turns, stop=StopReason.DONE)])
    assert first == pytest.approx(model.score_texts([chat(*said[0])])[0], abs=1e-4)
    assert last == pytest.approx(model.score_texts([chat(*said[0], *said[1])])[0], abs=1e-4)


def test_being_stopped_leaves_nothing_behind(tmp_path: Path) -> None:
    def stop(text: str) -> None:
        if text.startswith("step 2"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_reward_model(write_pairs(tmp_path / "pairs.jsonl"), tmp_path / "model", tiny(), note=stop)
    assert [path.name for path in tmp_path.iterdir()] == ["pairs.jsonl"]


def test_mistakes_have_one_message(tmp_path: Path, trained: Path) -> None:
    with pytest.raises(ValueError, match="held_out"):
        RewardTraining.of({"held_out": 1.5})
    with pytest.raises(ValueError, match="exists, and nothing is overwritten"):
        train_reward_model(tmp_path / "none.jsonl", trained, tiny())
    with pytest.raises(ValueError, match=r"groups to learn from and 0 to measure|leaves 0 groups to learn from"):
        train_reward_model(write_pairs(tmp_path / "one.jsonl", lines=1), tmp_path / "model", tiny())
    with pytest.raises(ValueError, match="is not a reward model; train one with"):
        RewardModel.load(tmp_path)
    TextPolicy.load("pico").save(tmp_path / "policy")
    with pytest.raises(ValueError, match=r"labels|no weights for score"):
        RewardModel.load(tmp_path / "policy")
