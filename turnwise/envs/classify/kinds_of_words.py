"""`classify/kinds`: four kinds of things, in 40 words; half of the questions have no better answer than a guess."""

from __future__ import annotations

from typing import Any, ClassVar

from turnwise.envs.base import Env, Reset, Step
from turnwise.envs.classify.judgements import CLOSE, OPEN, LabelGrading, opening_info
from turnwise.envs.tasks.answers import split_of

KINDS = {
    "animal": ("ant", "bear", "cat", "dog", "eel", "fox"),
    "plant": ("fern", "lily", "moss", "oak", "pine", "rose"),
    "tool": ("axe", "drill", "file", "hammer", "rake", "saw"),
    "food": ("bread", "cake", "jam", "rice", "soup", "stew"),
}
"""The words of each kind, which is the label."""
MADE_UP = ("blick", "dax", "fep", "gazzer", "kiki", "lorp", "mib", "nonce", "plim", "toma", "wug", "zav")
"""Words without a kind: the label of a question about them is drawn for each episode."""
UNSURE = "unsure"
"""A word of the language that is not a label."""
WORDS = (OPEN, CLOSE, *KINDS, *(word for words in KINDS.values() for word in words), *MADE_UP, UNSURE)
"""All words of questions and answers."""
_ASKED = 3


class Kinds(Env):
    """Which kind are three words of? `fox eel cat` → `<Judgement> animal </Judgement>`.

    Half of the questions are about made-up words, with a random label: a guess earns 0.25 · right + 0.75 · wrong in the
    mean, and whoever earns more with an answer that cannot be parsed should abstain. The scores say how often answers
    could be parsed, for all questions, real words (`parsable_real`) and made-up ones (`parsable_made_up`).
    """

    reward_range: ClassVar[tuple[float, float]] = (-10.0, 10.0)

    def __init__(
        self, *, right: float = 1.0, wrong: float = -1.0, unparsable: float = -3.0, split: str = "train"
    ) -> None:
        super().__init__(split=split)
        if max(map(abs, (right, wrong, unparsable))) > self.reward_range[1]:
            raise ValueError(f"right={right:g}, wrong={wrong:g}, unparsable={unparsable:g}: keep within ±10")
        self.grading = LabelGrading(right=right, wrong=wrong, unparsable=unparsable)
        self.words, self.label, self.is_real = "", "", True

    def reset(self, seed: int | None = None, task: Any = None) -> Reset:
        """Draw a question; only the seed decides which, `task` is not used."""
        super().reset(seed=seed)
        self.is_real, self.label = self.rng.random() < 0.5, self.rng.choice(tuple(KINDS))
        known = KINDS[self.label] if self.is_real else MADE_UP
        self.words = self._draw(known)
        info = opening_info(self.grading)
        return self.words, {**info, "scores": self._scores(0.0)}

    def step(self, action: str) -> Step:
        """Grade the judgement."""
        observation, reward, over, cut, info = self.grading.grade(action, self.label, tuple(KINDS))
        return observation, reward, over, cut, {**info, "scores": self._scores(float(info["valid"]))}

    def sample_random_action(self) -> str:
        """Any kind, or a word that is none."""
        return _say(self.rng.choice((*KINDS, UNSURE)))

    def oracle(self) -> str:
        """The right label, even of made-up words."""
        return _say(self.label)

    def _draw(self, known: tuple[str, ...]) -> str:
        while split_of(words := " ".join(self.rng.choices(known, k=_ASKED))) != self.split:
            pass
        return words

    def _scores(self, parsable: float) -> dict[str, float]:
        return {"parsable": parsable, "parsable_real" if self.is_real else "parsable_made_up": parsable}


def _say(word: str) -> str:
    return f"{OPEN} {word} {CLOSE}"
