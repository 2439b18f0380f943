"""The classification task whose questions are half unanswerable."""

from statistics import fmean

import pytest

from turnwise.envs import check_env
from turnwise.envs.classify.kinds_of_words import KINDS, MADE_UP, Kinds


def play(env: Kinds, seed: int, kind: str) -> float:
    env.reset(seed=seed)
    return env.step(f"<Judgement> {kind} </Judgement>")[1]


def test_the_doctor_finds_no_fault():
    assert check_env("classify/kinds", seeds=3).ok


def test_real_words_have_their_kind_and_made_up_words_a_random_one():
    env, labels = Kinds(), dict[str, set[str]]()
    for seed in range(4000):
        words, _ = env.reset(seed=seed)
        labels.setdefault(words, set()).add(env.label)
        assert all(word in (KINDS[env.label] if env.is_real else MADE_UP) for word in words.split())
    several = [len(kinds) > 1 for words, kinds in labels.items() if words.split()[0] in MADE_UP]
    assert sum(several) > 200


@pytest.mark.parametrize(("unparsable", "best"), [(0.0, "abstain"), (-1.0, "guess"), (-3.0, "guess")])
def test_guessing_at_made_up_words_earns_minus_a_half(unparsable: float, best: str):
    env = Kinds(unparsable=unparsable)
    made_up = [seed for seed in range(3000) if (env.reset(seed=seed), not env.is_real)[1]]
    guess, abstain = (fmean(play(env, seed, kind) for seed in made_up) for kind in ("tool", "unsure"))
    assert guess == pytest.approx(-0.5, abs=0.1)
    assert abstain == unparsable
    assert (best == "abstain") == (abstain > guess)


def test_scores_tell_the_halves_apart():
    env = Kinds()
    for seed in range(10):
        _, before = env.reset(seed=seed)
        half = "parsable_real" if env.is_real else "parsable_made_up"
        assert before["scores"] == {"parsable": 0.0, half: 0.0}
        assert env.step(env.oracle())[4]["scores"] == {"parsable": 1.0, half: 1.0}
