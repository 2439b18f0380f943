"""Every reasoning-gym family as a single-turn environment: `make("rg/spell_backward")`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from reasoning_gym.factory import DATASETS, create_dataset

from turnwise.envs.adapters.confined_programs import confine_programs, require_confinement, was_run
from turnwise.envs.adapters.evaluated_answers import is_harmless
from turnwise.envs.adapters.isolated_random import IsolatedRandom
from turnwise.envs.adapters.names import check_name
from turnwise.envs.base import Env, Reset, Step

OPEN, CLOSE = "<answer>", "</answer>"
INSTRUCTION = f"Think first if you like, then give only the final answer between {OPEN} and {CLOSE}."
MAX_ANSWER_CHARACTERS = 20_000
"""Longer answers score 0 unread: the time of several scorers grows faster than the answer."""

SCORER_ERRORS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What scorers raise on answers they cannot read."""
MAX_DRAWS = 50
"""Items that may fail in a row. A quarter of the programs of `codeio` need packages that the sandbox lacks."""
GOLD_FIELDS = ("possible_answer", "example_correct_answer", "example_answer")
"""Where families with many right answers keep one of them."""


class ReasoningGym(Env):
    """One question of a family, drawn without end, scored by the family's own scorer.

    `settings` are the family's own (`make("rg/chain_sum", settings={"max_terms": 3})`).
    """

    # A scorer may compute for minutes on a hostile answer (9**9**9); a process can be killed at its deadline.
    execution = "process"
    shared = frozenset({"dataset"})

    def __init__(self, *, name: str, settings: Mapping[str, Any] | None = None, split: str = "train") -> None:
        super().__init__(split=split)
        check_name("reasoning-gym family", name, DATASETS)
        require_confinement(f"rg/{name}", name)
        confine_programs()
        self.name = name
        self.settings = dict(settings or {})

    def reset(self, seed: int | None = None, task: Any = None) -> Reset:
        """Draw a new question."""
        super().reset(seed=seed)
        self.dataset, self.item = self._draw(self.rng.getrandbits(31))
        return f"{self.item['question']}\n\n{INSTRUCTION}", {}

    def step(self, action: str) -> Step:
        """Score the text between the last pair of answer tags; the episode ends."""
        answer = _last_answer(action)
        score = self._score(answer)
        info = {"valid": answer is not None, "success": score >= 1.0, "parsed_action": answer}
        return f"Score: {score:g}", score, True, False, info

    def sample_random_action(self) -> str:
        """The right answer to another question of the family."""
        gold = _gold(self._draw(self.rng.getrandbits(31))[1])
        return f"{OPEN}{self.rng.randint(0, 9) if gold is None else gold}{CLOSE}"

    def oracle(self) -> str:
        """The family's gold answer."""
        return f"{OPEN}{_gold(self.item)}{CLOSE}"

    def has_oracle(self) -> bool:
        """False for the families that have no gold answer."""
        return _gold(self._draw(0)[1]) is not None

    def _draw(self, seed: int) -> tuple[Any, dict[str, Any]]:
        # Most families own a generator; a few draw from the process-global ones.
        with IsolatedRandom(seed).swapped_in():
            dataset = create_dataset(self.name, size=1, seed=seed, **self.settings)
            item = next(filter(was_run, map(dataset.__getitem__, range(MAX_DRAWS))), None)
        if item is None:
            raise ValueError(f"{MAX_DRAWS} programs of rg/{self.name} failed in a row; choose another family or seed")
        return dataset, item

    def _score(self, answer: str | None) -> float:
        family = self.item["metadata"].get("source_dataset", self.name)
        if answer is None or len(answer) > MAX_ANSWER_CHARACTERS or not is_harmless(family, answer):
            return 0.0
        try:
            return float(self.dataset.score_answer(answer, self.item))
        except SCORER_ERRORS:
            return 0.0


def _last_answer(text: str) -> str | None:
    end = text.rfind(CLOSE)
    start = text.rfind(OPEN, 0, end) if end >= 0 else -1
    return text[start + len(OPEN) : end].strip() if start >= 0 else None


def _gold(item: Mapping[str, Any]) -> str | None:
    answers = (item["answer"], *(item["metadata"].get(name) for name in GOLD_FIELDS))
    gold = next((answer for answer in answers if answer is not None), None)
    return gold if gold is None or isinstance(gold, str) else json.dumps(gold)
