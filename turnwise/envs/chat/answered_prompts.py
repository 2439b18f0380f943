"""Prompts from a file: answered in one turn, or in several with a user who follows a script."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from turnwise.envs.base import Env, Info, Reset, Step
from turnwise.envs.chat.prompt_files import read_prompts
from turnwise.envs.search.protocol import f1
from turnwise.outside import is_outside, load

Score = Callable[[dict[str, Any], str], Any]
"""`score(task, answer)`: the reward, or a mapping with `reward` and other scores."""

_ALIKE = 0.5
"""Word-level F1 with the reference from which an answer succeeds."""


class AnsweredPrompts(Env):
    """Answer the prompts of a file: `make("chat/prompts", path="prompts.jsonl", score="reference")`.

    `score` is what the last answer earns:

    - `none`: nothing; a judge or a reward model scores it (`judge` in the recipe);
    - `reference`: word-level F1 with the line's reference answer;
    - `package.module:function`: what the function returns for (task, answer), a number, or a mapping with `reward` and
      any other scores, which become metrics. The task is the line of the file, with the chat so far as `messages`.

    With `turns` above 1, the user goes on with the line's `followups`. An episode succeeds if its reward reaches
    `require`; without one, if there is an answer at all.
    """

    reward_range: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    shared: ClassVar[frozenset[str]] = frozenset({"prompts", "prompt", "function"})

    def __init__(
        self, *, path: str, score: str = "none", require: float | None = None, turns: int = 1, split: str = "train"
    ) -> None:
        super().__init__(split=split)
        if turns < 1:
            raise ValueError(f"turns is {turns}; an episode has at least one")
        self.prompts, self.turns = read_prompts(path, split), turns
        self.score, self.function = score, _find_function(score)
        if score == "reference" and (missing := sum(not prompt.reference for prompt in self.prompts)):
            raise ValueError(f"{missing} of {len(self.prompts)} prompts in {path} have no reference; use another score")
        self.require = _ALIKE if score == "reference" and require is None else require
        self.prompt, self.messages = self.prompts[0], list[dict[str, str]]()

    def reset(self, seed: int | None = None, task: Any = None) -> Reset:
        """Draw a prompt, or take the one with the place `task` in the split."""
        super().reset(seed=seed)
        self.prompt = self.rng.choice(self.prompts) if task is None else self.prompts[task]
        self.messages = [{"role": "user", "content": self.prompt.text}]
        return self.prompt.text, {}

    def list_tasks(self) -> list[int]:
        """The place of every prompt of the split, each different text once."""
        return sorted({prompt.text: place for place, prompt in enumerate(self.prompts)}.values())

    def step(self, action: str) -> Step:
        """The user goes on, or the last answer is scored."""
        self.messages.append({"role": "assistant", "content": action})
        answered = len(self.messages) // 2
        reply = "" if answered == self.turns else self._reply(answered)
        if reply:
            self.messages.append({"role": "user", "content": reply})
            return reply, 0.0, False, False, {}
        scores = self._scores(action)
        reward = scores.pop("reward")
        success = bool(action.strip()) if self.require is None else reward >= self.require
        info: Info = {"success": success}
        return "", reward, True, False, {**info, "scores": scores} if scores else info

    def sample_random_action(self) -> str:
        """A few words of the prompt."""
        words = self.prompt.text.split()
        return " ".join(self.rng.choice(words) for _ in range(self.rng.randint(1, 8)))

    def oracle(self) -> str:
        """The reference answer; in earlier turns of several, too."""
        return self.prompt.reference

    def has_oracle(self) -> bool:
        """Whether every prompt has a reference."""
        return all(prompt.reference.strip() for prompt in self.prompts)

    def _reply(self, answered: int) -> str:
        """What the user says after so many answers; empty ends the chat."""
        followups = self.prompt.followups
        return followups[answered - 1] if answered <= len(followups) else ""

    def _scores(self, answer: str) -> dict[str, float]:
        if self.function is None:
            return {"reward": f1(answer, [self.prompt.reference]) if self.score == "reference" else 0.0}
        found = self.function({**self.prompt.row, "messages": list(self.messages)}, answer)
        table: Mapping[str, Any] = found if isinstance(found, Mapping) else {"reward": found}
        if "reward" not in table:
            raise ValueError(f"{self.score} must return a number, or a mapping with 'reward'; got {sorted(table)}")
        return {str(name): float(value) for name, value in table.items()}


def _find_function(score: str) -> Score | None:
    if score in ("none", "reference"):
        return None
    if not is_outside(score) or "/" in score:  # an address would pass as data, see `turnwise.trust`
        raise ValueError(f"unknown score {score!r}; for a file choose none, reference, or package.module:function")
    try:
        found = load(score)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"score: {score} does not load: {error}; write it as package.module:function") from error
    # Decided without a call, because a recipe may name anything.
    if not inspect.isfunction(found) or len(inspect.signature(found).parameters) != 2:
        raise ValueError(f"score: {score} is not a function of (task, answer)")
    return found
