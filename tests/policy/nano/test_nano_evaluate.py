"""The evaluation plays real episodes: a model that has learnt one move scores exactly what that move is worth."""

from functools import partial
from random import Random

import pytest
import torch
from transformers import PreTrainedTokenizerFast

pytest.importorskip("tantivy", reason="needs the search extra")

from turnwise.envs.games.word_list import words
from turnwise.envs.registry import make
from turnwise.nano.evaluate import evaluate
from turnwise.nano.guesser import play_guess_number
from turnwise.nano.mixtures import Batch, spoken
from turnwise.nano.model import NanoShape, build_model
from turnwise.nano.tokenizer import render, train_tokenizer
from turnwise.nano.train import NanoLearner, NanoSettings

GAME = partial(make, "game/guess-number-easy", split="validation")
SEEDS = range(60)


def _games() -> list[list[str]]:
    return [[observation for observation, _ in play_guess_number(Random(seed), seed=seed)[0]] for seed in range(30)]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    listed = words(4, 5, 6, 7, 8)
    joined = [first + second for first, second in zip(listed, reversed(listed), strict=True)]
    return train_tokenizer([*joined, *(text for game in _games() for text in game), "\\boxed{5}"])


@pytest.fixture(scope="module")
def learner(tokenizer: PreTrainedTokenizerFast) -> NanoLearner:
    """A model that has learnt to say 5 whatever it sees."""
    texts = [render((observation, "\\boxed{5}") for observation in game) for game in _games()]
    ids = torch.tensor(tokenizer(texts, add_special_tokens=False, padding=True)["input_ids"])
    starts = torch.zeros_like(ids, dtype=torch.bool)
    starts[:, 0] = True
    shape = NanoShape(width=32, layers=2, heads=2, feed_forward=64)
    learner = NanoLearner(build_model(shape, seed=0), NanoSettings(learning_rate=1e-2, warm_up=1))
    for _ in range(40):
        learner.step(Batch(ids=ids, starts=starts, trained=spoken(ids)), rate=1.0)
    return learner


def _target(seed: int) -> int:
    env = GAME()
    env.reset(seed=seed)
    return env.rules.target  # pyright: ignore[reportAttributeAccessIssue]


def test_one_move_scores_what_it_is_worth(learner: NanoLearner, tokenizer: PreTrainedTokenizerFast) -> None:
    report = evaluate(learner.model, tokenizer, GAME, seeds=SEEDS, temperature=0.0)
    wins = sum(_target(seed) == 5 for seed in SEEDS)
    assert wins > 0
    assert report.success == wins / len(SEEDS)
    assert report.valid == 1.0
    assert report.turns == (wins + 4 * (len(SEEDS) - wins)) / len(SEEDS)
    assert report.by_fact == {"all": (wins, len(SEEDS))}
    assert "valid turns 1.000" in str(report)


def test_sampling_depends_on_the_seed_alone(learner: NanoLearner, tokenizer: PreTrainedTokenizerFast) -> None:
    hot = partial(evaluate, learner.model, tokenizer, GAME, seeds=SEEDS, temperature=1.5)
    assert hot(seed=1) == hot(seed=1)
    assert hot(seed=1) != hot(seed=2)


def test_turns_without_an_action_are_counted_as_invalid(tokenizer: PreTrainedTokenizerFast) -> None:
    model = build_model(NanoShape(width=32, layers=1, heads=2, feed_forward=64), seed=0)
    build = partial(make, "search/geo-2hop", split="validation")
    report = evaluate(model, tokenizer, build, seeds=range(4), temperature=1.0)
    assert (report.success, report.valid, report.turns) == (0.0, 0.0, 4.0)
