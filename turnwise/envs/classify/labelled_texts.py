"""`classify/files`: label the texts of a file, or estimate a number for each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, Literal

from turnwise.envs.base import Env, Reset, Step
from turnwise.envs.classify.judgements import (
    CLOSE,
    OPEN,
    Grading,
    LabelGrading,
    NumberGrading,
    find_label,
    opening_info,
)
from turnwise.envs.classify.label_files import FileForm, HeldOut, Labelled, read_labelled

NUMBER = "number"
_MOST_LABELS = 200
"""A file with more is probably not one of labels."""
Labels = Sequence[str | int] | Mapping[str | int, str] | Literal["number"] | None


class LabelledTexts(Env):
    """Label the texts of a file: `make("classify/files", path="train.jsonl", held_out="test.jsonl", shots=4)`.

    Which fields a line has is said by `fields` (default: those of premise, hypothesis, passage, question, text and so
    on that it has) and `label`. `labels` lists the labels, renames them (`{0: negative, 1: positive}`), or is `number`
    for regression; without it they are those of the training split. With `choices` a question lists only so many
    labels, the right one among them. `shots` examples of the training split come first, balanced over the labels.
    """

    reward_range: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    shared: ClassVar[frozenset[str]] = frozenset({"lines", "examples", "labels"})

    def __init__(
        self,
        *,
        path: str = "",
        held_out: HeldOut = 0.2,
        fields: Sequence[str] = (),
        label: str = "label",
        labels: Labels = None,
        task: str = "",
        choices: int | None = None,
        shots: int = 0,
        right: float = 1.0,
        wrong: float = -1.0,
        unparsable: float = -3.0,
        margin: float = 2.5,
        split: str = "train",
    ) -> None:
        super().__init__(split=split)
        if not path:
            raise ValueError('classify/files reads its texts from a file; pass path="train.jsonl"')
        if shots < 0 or (choices is not None and choices < 2):
            raise ValueError(f"shots={shots} and choices={choices}: shots are at least 0 and choices at least 2")
        form = FileForm(fields=tuple(fields), label=label, names=_names(labels), numbers=labels == NUMBER)
        self.lines = read_labelled(path, split, held_out=held_out, form=form)
        training = read_labelled(path, "train", held_out=held_out, form=form)
        self.labels = () if form.numbers else _labels(training, form)
        self.examples = _by_label(training)
        self.numbers, self.task, self.choices, self.shots = form.numbers, task, choices, shots
        self.grading: Grading = (
            NumberGrading(margin=margin)
            if form.numbers
            else LabelGrading(right=right, wrong=wrong, unparsable=unparsable)
        )
        self.line, self.listed = self.lines[0], self.labels

    def reset(self, seed: int | None = None, task: Any = None) -> Reset:
        """Draw a text, or take the one with the place `task` in the split."""
        super().reset(seed=seed)
        self.line = self.rng.choice(self.lines) if task is None else self.lines[task]
        self.listed = self._choose()
        parts = [self._instruction(), *map(_show_example, self._draw_shots()), self.line.text]
        return "\n\n".join(parts), opening_info(self.grading)

    def list_tasks(self) -> list[int]:
        """The place of every text of the split, each different one once."""
        return sorted({line.text: place for place, line in enumerate(self.lines)}.values())

    def step(self, action: str) -> Step:
        """Grade the judgement."""
        return self.grading.grade(action, self.line.label, self.listed)

    def sample_random_action(self) -> str:
        """A label of those listed, or a number that occurs."""
        return _wrap(self.rng.choice(self.listed or tuple(self.examples)))

    def oracle(self) -> str:
        """The right judgement."""
        return _wrap(self.line.label)

    def _choose(self) -> tuple[str, ...]:
        """The labels that the question lists."""
        if self.choices is None or self.choices >= len(self.labels):
            return self.labels
        others = [label for label in self.labels if label != self.line.label]
        listed = [self.line.label, *self.rng.sample(others, self.choices - 1)]
        return tuple(self.rng.sample(listed, len(listed)))

    def _instruction(self) -> str:
        answers = "a number" if self.numbers else f"one of: {', '.join(self.listed)}"
        given = self.task or ("Rate the text." if self.numbers else "Classify the text.")
        return f"{given} Answer with {answers}. Write only {OPEN}answer{CLOSE}"

    def _draw_shots(self) -> list[Labelled]:
        """Examples of the listed labels in turn, in an order that does not depend on the right one."""
        listed = self.listed or tuple(self.examples)
        order = self.rng.sample(listed, len(listed))
        chosen: list[Labelled] = []
        for number in range(self.shots):
            turn, place = divmod(number, len(order))
            known = [line for line in self.examples.get(order[place], ()) if line.text != self.line.text]
            chosen += [known[turn % len(known)]] if known else []
        return chosen


def _names(labels: Labels) -> tuple[tuple[str, str], ...]:
    if labels is None or labels == NUMBER:
        return ()
    if isinstance(labels, str):
        raise ValueError(f"labels is {labels!r}; write a list of labels, or {NUMBER}")
    given = labels.items() if isinstance(labels, Mapping) else ((label, label) for label in labels)
    # JSON writes truth values in lower case, and YAML may have read them as such.
    return tuple((str(old).lower() if isinstance(old, bool) else str(old), str(new).strip()) for old, new in given)


def _labels(training: Sequence[Labelled], form: FileForm) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(new for _, new in form.names)) or tuple(sorted({line.label for line in training}))
    if not 2 <= len(found) <= _MOST_LABELS:
        raise ValueError(
            f"the training split has {len(found)} different labels; there must be 2 to {_MOST_LABELS} "
            "(label= names the field, labels=number estimates numbers)"
        )
    if (unclear := _unclear(found)) is not None:
        raise ValueError(
            f"an answer cannot name the label {unclear!r} alone: case, blanks, - and _ do not tell labels apart; "
            "rename it with labels={OLD: NEW}"
        )
    return found


@cache
def _unclear(labels: tuple[str, ...]) -> str | None:
    """A label that its own text does not name."""
    return next((label for label in labels if find_label(label, labels) != label), None)


@cache
def _by_label(training: tuple[Labelled, ...]) -> Mapping[str, tuple[Labelled, ...]]:
    """The texts of each label, in the order of the file."""
    found: dict[str, list[Labelled]] = {}
    for line in training:
        found.setdefault(line.label, []).append(line)
    return {label: tuple(lines) for label, lines in found.items()}


def _show_example(line: Labelled) -> str:
    return f"{line.text}\n{_wrap(line.label)}"


def _wrap(label: str) -> str:
    return f"{OPEN}{label}{CLOSE}"
