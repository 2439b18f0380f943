"""Measures of the texts that held-out episodes consist of: `eval.measures` in a recipe names them.

Diversity is lost when answers to different prompts become alike (`meteor` rises), when several answers to one prompt do
(`self-similarity` rises), or when fewer different words are used (`distinct` falls).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import combinations, pairwise
from random import Random
from statistics import fmean

from turnwise.evaluate.meteor import meteor, split_words
from turnwise.sources.rollout_metrics import own_perplexity
from turnwise.types import Group, Trajectory

_PAIRS = 1000
"""Pairs of answers that a similarity is the mean of."""

Answer = tuple[str, list[str]]
"""A prompt, and all that was answered in words."""


def measure_texts(groups: Sequence[Group], names: Collection[str]) -> dict[str, float]:
    """The measures of that name as `eval/…` metrics, omitting those without data; others are made elsewhere."""
    tasks = [[each for each in group.trajectories if not each.stop.is_failure and each.turns] for group in groups]
    found: dict[str, float] = {}
    for name in names:
        if name in MEASURES:
            found |= MEASURES[name]([task for task in tasks if task])
    return {f"eval/{name}": value for name, value in found.items()}


def similarity(tasks: Sequence[Sequence[Trajectory]]) -> dict[str, float]:
    """Mean METEOR score of random pairs of answers to different prompts (SuperHF's measure of diversity)."""
    answers = [_read(trajectory) for task in tasks for trajectory in task]
    if len({prompt for prompt, _ in answers}) < 2:
        return {}
    rng, scores = Random("pairs of answers"), list[float]()
    while len(scores) < _PAIRS:
        (prompt, words), (other, reference) = rng.choice(answers), rng.choice(answers)
        if prompt != other:
            scores.append(meteor(words, reference))
    return {"meteor": fmean(scores)}


def self_similarity(tasks: Sequence[Sequence[Trajectory]]) -> dict[str, float]:
    """Mean METEOR score of pairs of tries at the same task; needs `eval.tries` above 1."""
    pairs = [pair for task in tasks for pair in combinations([_read(each)[1] for each in task], 2)]
    chosen = Random("pairs of tries").sample(pairs, min(_PAIRS, len(pairs)))
    return {"self_similarity": fmean(meteor(*pair) for pair in chosen)} if chosen else {}


def distinct(tasks: Sequence[Sequence[Trajectory]]) -> dict[str, float]:
    """Share of different words, and of different pairs of neighbouring words, among all that were written."""
    texts = [_read(trajectory)[1] for task in tasks for trajectory in task]
    words = [word for text in texts for word in text]
    neighbours = [pair for text in texts for pair in pairwise(text)]
    shares = {"distinct_1": words, "distinct_2": neighbours}
    return {name: len(set(grams)) / len(grams) for name, grams in shares.items() if grams}


def length(tasks: Sequence[Sequence[Trajectory]]) -> dict[str, float]:
    """Mean words of an episode's answers, with punctuation marks."""
    return {"length": fmean(len(_read(each)[1]) for task in tasks for each in task)} if tasks else {}


def perplexity(tasks: Sequence[Sequence[Trajectory]]) -> dict[str, float]:
    """The policy's perplexity of its own answers."""
    value = own_perplexity([each for task in tasks for each in task])
    return {} if value is None else {"perplexity": value}


def _read(trajectory: Trajectory) -> Answer:
    prompt, said = trajectory.turns[0].observation, " ".join(turn.action for turn in trajectory.turns)
    return prompt, split_words(said)


MEASURES: dict[str, Callable[[Sequence[Sequence[Trajectory]]], dict[str, float]]] = {
    "meteor": similarity,
    "self-similarity": self_similarity,
    "distinct": distinct,
    "length": length,
    "perplexity": perplexity,
}
"""Measures of texts by name. `kl` is measured where the learner is (`train/first_policy.py`)."""
