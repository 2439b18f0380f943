"""Rewards for tasks with a right answer: each compares with the `answer` of the task, a text or a list of texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnwise.envs.search.protocol import exact_match, f1
from turnwise.envs.tasks.answers import extract_answer, same_answer


def exact(task: Any, answer: str) -> float:
    """1 if the answer is the task's, without regard to case, punctuation and articles; a boxed one is unpacked."""
    return exact_match(_said(answer), _golds(task))


def overlap(task: Any, answer: str) -> float:
    """Word-level F1 with the task's answer."""
    return f1(_said(answer), _golds(task))


def number(task: Any, answer: str) -> float:
    """1 if the answer is the same number as the task's: `1,200`, `$1200.00` and `2400/2` are."""
    return float(any(same_answer(_said(answer), gold) for gold in _golds(task)))


def _said(answer: str) -> str:
    return extract_answer(answer) or answer


def _golds(task: Any) -> list[str]:
    right = task.get("answer") if isinstance(task, Mapping) else None
    if right is None:
        raise ValueError("the task has no 'answer' to compare with; write a function of your own for such tasks")
    return [str(each) for each in (right if isinstance(right, list) else [right])]
