"""A chat model behind an OpenAI-compatible endpoint as a judge: it compares two answers, or scores one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from turnwise.judges.chat_questions import ChatQuestions, request_of, transcript
from turnwise.judges.judge import Per, scores_to_matrix
from turnwise.types import Trajectory, Turn

PROMPT = """Compare two answers to the same request.

Request:
{task}

Answer A:
{first}

Answer B:
{second}

Which answer is better? Reply with one letter: A, B, or C if they are equally good."""
"""What the model is asked unless the recipe says otherwise."""
SCORE_PROMPT = """Grade an answer to a request.

Request:
{task}

Answer:
{answer}

How good is the answer? Reply with one whole number from 0 (useless) to 10 (perfect)."""
"""The same for a score."""
_LETTER = re.compile(r"\b[ABC]\b")
_CHANCES = {"A": 1.0, "B": 0.0, "C": 0.5}
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.]*\w)")
_OUT_OF = re.compile(r"\s*(?:/|out of)\s*\d+")


class ChatJudge:
    """Asks a chat model which answer is better, once in either order, so that its liking for a place cancels out.

    An answer that names neither counts as a tie. Equal questions are asked once in the life of a run.
    """

    def __init__(
        self,
        *,
        url: str,
        model: str,
        prompt: str = PROMPT,
        max_tokens: int = 16,
        seconds: float = 60.0,
        retries: int = 4,
        concurrency: int = 8,
    ) -> None:
        """`url` ends in /v1; `seconds` is the limit of one request."""
        self.concurrency = concurrency
        self._questions = ChatQuestions(
            url=url,
            model=model,
            prompt=prompt,
            places=("task", "first", "second"),
            max_tokens=max_tokens,
            seconds=seconds,
            retries=retries,
            concurrency=concurrency,
        )

    def prefer(self, task: Any, first: Trajectory, second: Trajectory) -> float:
        """The mean of what the model says in either order."""
        request, one, other = request_of(task, first.turns), transcript(first.turns), transcript(second.turns)
        return (self._ask(request, one, other) + 1 - self._ask(request, other, one)) / 2

    def _ask(self, task: str, first: str, second: str) -> float:
        """The chance that the first one is better, as the model sees it."""
        unclear = "names no better answer, it says {said}; ask for A, B or C"
        chance = self._questions.ask({"task": task, "first": first, "second": second}, _letter, unclear=unclear)
        return 0.5 if chance is None else chance


class ChatScoreJudge:
    """Asks a chat model for a grade of each answer alone, from 0 to `best`; the score is the grade divided by it.

    A reply without a grade counts as 0. Equal questions are asked once in the life of a run.
    """

    def __init__(
        self,
        *,
        url: str,
        model: str,
        prompt: str = SCORE_PROMPT,
        best: float = 10.0,
        max_tokens: int = 16,
        seconds: float = 60.0,
        retries: int = 4,
        concurrency: int = 8,
    ) -> None:
        """`url` ends in /v1; `seconds` is the limit of one request."""
        if best <= 0:
            raise ValueError("judge.best must be above 0: it is the grade of a perfect answer")
        self.concurrency, self._best = concurrency, best
        self._questions = ChatQuestions(
            url=url,
            model=model,
            prompt=prompt,
            places=("task", "answer"),
            max_tokens=max_tokens,
            seconds=seconds,
            retries=retries,
            concurrency=concurrency,
        )

    def prefer(self, task: Any, first: Trajectory, second: Trajectory) -> float:
        """The probability that the first is better, from both scores."""
        (one,), (other,) = self.score([first, second], per="episode")
        return scores_to_matrix([one, other])[0][1]

    def score(self, trajectories: Sequence[Trajectory], *, per: Per) -> list[list[float]]:
        """The grades from 0 to 1 of whole episodes, or of every turn with what came before it."""
        asked = [
            [each.turns[: place + 1] for place in range(len(each.turns))] if per == "turn" else [each.turns]
            for each in trajectories
        ]
        tasks = [each.task for each in trajectories]
        with ThreadPoolExecutor(max_workers=self.concurrency) as threads:
            cases = [(task, turns) for task, parts in zip(tasks, asked, strict=True) for turns in parts]
            grades = iter(list(threads.map(lambda case: self._grade(*case), cases)))
        return [[next(grades) for _ in parts] for parts in asked]

    def _grade(self, task: Any, turns: Sequence[Turn]) -> float:
        parts = {"task": request_of(task, turns), "answer": transcript(turns)}
        unclear = f"gives no grade from 0 to {self._best:g}, it says {{said}}; ask for one number"
        return (self._questions.ask(parts, self._read, unclear=unclear) or 0.0) / self._best

    def _read(self, said: str) -> float | None:
        """The one number in a reply; "7/10" and "7 out of 10" are 7."""
        found = {float(each) for each in _NUMBER.findall(_OUT_OF.sub(" ", said))}
        grade = found.pop() if len(found) == 1 else None
        return grade if grade is not None and 0 <= grade <= self._best else None


def _letter(said: str) -> float | None:
    # "A close call, but B" and "B is better than A" name both: only one letter alone is a verdict.
    named = set(_LETTER.findall(said))
    return _CHANCES[named.pop()] if len(named) == 1 else None
