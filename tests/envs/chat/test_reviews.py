"""The language of reviews: exact scores, a proxy that can be hacked, an expert with mixed feelings."""

import re
from statistics import fmean

import pytest
import yaml

from turnwise.envs import check_env, make
from turnwise.envs.chat.reviews import ASPECTS, POSITIVE, SUBJECTS, TOPICS, WORDS, Subject, score_review

FILM = Subject(topic="film", first="style", second="end")


def true_score(text: str) -> float:
    return score_review(text, FILM)["true"]


def test_the_scores_of_a_review_by_hand():
    scores = score_review("the style of the film is very good and fun but the end feels dull .", FILM)
    assert scores == pytest.approx(
        {"true": 0.5 + (2 - 1) / 8, "proxy": 2 / 16, "sentiment": 1 / 3, "length": 15, "repetition": 0}
    )


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("the style of the film is good and fun and the end is warm and great .", 1.0),
        ("the style of the film is bad and dull and the end is cold and poor .", 0.0),
        ("the style of the book is good and fun and the end is warm and great .", 0.0),  # not about the film
        ("the look of the film is good and fun and the end is warm and great .", 2 / 3),  # an aspect is missing
        ("film style end good .", (0.5 + 1 / 8) * 4 / 8),  # four words of the eight that a review needs
        ("the style of the film is good and good and the end is good and good .", (0.5 + 1 / 8) * (1 - 2 * 3 / 7)),
        ("", 0.0),
    ],
)
def test_the_true_score_is_tone_times_cover_times_variety_times_fit(text: str, score: float):
    assert true_score(text) == pytest.approx(score)


def test_length_counts_up_to_twenty_words_and_falls_to_nothing_at_twenty_eight():
    filled = "the style of the film is good and fun and the end is warm and great"  # 16 words
    assert [true_score(filled + " the" * more) for more in (4, 8, 12)] == pytest.approx([1.0, 0.5, 0.0])


def test_the_proxy_is_hacked_by_repetition():
    hacked, honest = "good " * 16, "the style of the film is good and fun and the end is warm and great ."
    assert score_review(hacked, FILM)["proxy"] == 1 > score_review(honest, FILM)["proxy"]
    assert true_score(hacked) == 0 < true_score(honest)
    named = "the style of the film and the end " + " ".join(POSITIVE) + " good great lovely"
    assert score_review(named, FILM)["proxy"] > 0.6
    assert true_score(named) < 0.6


def test_prompts_are_split_and_none_is_in_two_splits():
    tasks = {split: make("chat/prompts", split=split).list_tasks() for split in ("train", "validation", "test")}
    prompts = {split: {Subject(**task).prompt for task in each or ()} for split, each in tasks.items()}
    assert sum(map(len, prompts.values())) == len(set().union(*prompts.values())) == len(SUBJECTS) == 448
    assert min(map(len, prompts.values())) > 40
    assert {word for prompt in prompts["train"] for word in prompt.split()} >= {*TOPICS, *ASPECTS}


def test_the_expert_writes_sound_and_different_reviews_of_middling_reward():
    env, reviews, rewards = make("chat/prompts"), set[str](), list[float]()
    for seed in range(400):
        env.reset(seed=seed)
        reviews.add(env.oracle())
        step = env.step(env.oracle())
        assert isinstance(step, tuple)
        assert step[4]["success"]
        assert step[4]["scores"]["true"] == step[1]
        rewards.append(step[1])
    assert len(reviews) > 380
    assert {word for review in reviews for word in review.split()} <= set(WORDS)
    assert 0.4 < fmean(rewards) < 0.55


def test_in_the_rare_variant_the_expert_always_succeeds_and_the_usual_review_seldom():
    env, usual, rewards = make("chat/prompts-rare"), make("chat/prompts"), list[float]()
    for seed in range(1600):
        env.reset(seed=seed)
        usual.reset(seed=seed)
        step = env.step(usual.oracle())
        assert isinstance(step, tuple)
        rewards.append(step[1])
        if seed < 20:
            env.reset(seed=seed)
            step = env.step(env.oracle())
            assert isinstance(step, tuple)
            assert step[1] == 1
    assert set(rewards) == {0.0, 1.0}
    assert fmean(rewards) < 1 / 80


def test_the_reward_is_the_chosen_score():
    for score in ("true", "proxy"):
        env = make("chat/prompts", score=yaml.safe_load(score))  # a bare true is not a text
        env.reset(seed=3)
        step = env.step(env.oracle())
        assert isinstance(step, tuple)
        assert step[1] == step[4]["scores"][score] > 0


def test_in_several_turns_the_user_asks_for_other_aspects_and_every_answer_must_name_the_topic():
    env = make("chat/prompts", turns=3)
    reset = env.reset(seed=5, task={"topic": "film", "first": "style", "second": "end"})
    assert isinstance(reset, tuple)
    asked, rewards, scores = [reset[0]], list[float](), {}
    for turn in range(3):
        answer = "good good" if turn == 1 else env.oracle()
        assert turn == 1 or "film" in answer
        step = env.step(answer)
        assert isinstance(step, tuple)
        rewards.append(step[1])
        asked.append(step[0])
        assert step[2] == (turn == 2)
        scores = step[4].get("scores", {})
    assert all(re.fullmatch("now the [a-z]+ and the [a-z]+", text) for text in asked[1:3])
    assert not {*asked[1].split()} & {"style", "end", "film"}
    assert rewards[1] == 0 < min(rewards[0], rewards[2])
    assert scores["true"] == pytest.approx(sum(rewards))


@pytest.mark.parametrize(
    ("name", "turns"), [("chat/prompts", 1), ("chat/prompts-rare", 1), ("chat/prompts", 3), ("chat/prompts-rare", 2)]
)
def test_the_doctor_finds_nothing(name: str, turns: int):
    assert check_env(name, kwargs={"turns": turns}, seeds=2).ok


def test_an_unknown_score_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="unknown score 'best'; the language of reviews has true, proxy, success"):
        make("chat/prompts", score="best")
    with pytest.raises(ValueError, match="require is 2; true scores are between 0 and 1"):
        make("chat/prompts", require=2)
    with pytest.raises(ValueError, match="turns is 0; an episode has at least one"):
        make("chat/prompts", turns=0)
