"""`chat/prompts`: prompts to answer in free text, scored by functions or by a judge."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from random import Random
from statistics import fmean
from typing import Any

from turnwise.envs.base import Env, Reset, Step
from turnwise.envs.chat.answered_prompts import AnsweredPrompts
from turnwise.envs.chat.model_user import ModelUserPrompts
from turnwise.envs.chat.reviews import SUBJECTS, Subject, score_review, write_review
from turnwise.envs.tasks.answers import split_of

_REWARDS = ("true", "proxy", "success")
SOUND = 0.25
"""The true score from which a review counts as a success."""


def make_prompts(
    *,
    path: str | None = None,
    score: str | bool | None = None,
    require: float | None = None,
    turns: int = 1,
    user: Mapping[str, Any] | None = None,
    split: str = "train",
) -> Env:
    """`make("chat/prompts")`: the language of reviews, which needs no download; with a `path`, prompts from a file."""
    score = "true" if score is True else score or None  # YAML reads a bare true as a truth value
    if path is not None:
        choices: dict[str, Any] = {"path": path, "score": score or "none", "require": require, "turns": turns}
        made = AnsweredPrompts if user is None else partial(ModelUserPrompts, user=user)
        return made(**choices, split=split)
    if user is not None:
        raise ValueError("reviews have a scripted user; user= is for prompts from a file (path=)")
    return Reviews(score=score or "true", require=SOUND if require is None else require, turns=turns, split=split)


class Reviews(Env):
    """Review something in one answer of about 16 words; `turnwise.envs.chat.reviews` has the words and the scores.

    `score` names the reward: the `true` score, the `proxy` that can be hacked, or `success` (1 or 0). An answer
    succeeds if its true score reaches `require`. The expert samples reviews from a small grammar, with mixed feelings,
    until one succeeds. A high `require` makes a task that the expert always solves and who imitated it before seldom.

    With several `turns`, the user goes on to other aspects (`now the price and the look`) without naming the topic,
    which every answer must. Scores are then means over the answers, and each answer earns its part.
    """

    def __init__(self, *, score: str = "true", require: float = SOUND, turns: int = 1, split: str = "train") -> None:
        super().__init__(split=split)
        if score not in _REWARDS:
            raise ValueError(f"unknown score {score!r}; the language of reviews has {', '.join(_REWARDS)}")
        if not 0 <= require <= 1:
            raise ValueError(f"require is {require}; true scores are between 0 and 1")
        if turns < 1:
            raise ValueError(f"turns is {turns}; an episode has at least one")
        self.score, self.require, self.turns = score, require, turns
        self.subject, self.expert_seed = SUBJECTS[0], 0
        self.answers: list[dict[str, float]] = []
        """The scores of the answers so far."""

    def reset(self, seed: int | None = None, task: Any = None) -> Reset:
        """Draw a subject, or take `task={"topic": "film", "first": "style", "second": "end"}`."""
        super().reset(seed=seed)
        self.subject = Subject(**task) if task else self.rng.choice(_subjects(self.split))
        self.expert_seed, self.answers = self.rng.getrandbits(64), []
        return self.subject.prompt, {}

    def list_tasks(self) -> list[dict[str, str]]:
        """Every subject of the split."""
        return [{"topic": each.topic, "first": each.first, "second": each.second} for each in _subjects(self.split)]

    def step(self, action: str) -> Step:
        """Score the review; the episode is over, or the user asks for more."""
        if len(self.answers) == self.turns:
            raise ValueError("no episode is running; call reset() first")
        self.answers.append(score_review(action, self.subject))
        over = len(self.answers) == self.turns
        scores = {name: fmean(each[name] for each in self.answers) for name in self.answers[0]}
        success = over and self._succeeds(scores)
        reward = float(success) if self.score == "success" else self.answers[-1][self.score] / self.turns
        if over:
            return "", reward, True, False, {"success": success, "scores": scores}
        self.subject = self.subject.another(self.rng)
        return self.subject.followup, reward, False, False, {}

    def sample_random_action(self) -> str:
        """A review from the grammar, sound or not."""
        return write_review(self.rng, self.subject)

    def oracle(self) -> str:
        """The first sound review that the expert thinks of."""
        rng = Random(self.expert_seed + len(self.answers))
        while True:
            review = write_review(rng, self.subject)
            if self._succeeds(score_review(review, self.subject)):
                return review

    def _succeeds(self, scores: dict[str, float]) -> bool:
        return scores["true"] >= self.require - 1e-9


@cache
def _subjects(split: str) -> tuple[Subject, ...]:
    return tuple(subject for subject in SUBJECTS if split_of(subject.prompt) == split)
