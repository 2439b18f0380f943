"""The tag protocol of classification, and what an answer earns: `<Judgement>spam</Judgement>`.

Only the text before the first closing tag counts. The opening tag may be missing, because the chat template may have
written it already (`model.prefix`). Improving NLU with PPO (2410.11020).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from turnwise.envs.base import Info, Step
from turnwise.envs.tasks.answers import parse_number

OPEN, CLOSE = "<Judgement>", "</Judgement>"
_LONGEST = 400
"""Characters of a judgement; also keeps hostile answers cheap."""
_CLOSE_TAG = re.compile(re.escape(CLOSE), re.IGNORECASE)
_OPEN_TAG = re.compile(re.escape(OPEN), re.IGNORECASE)
_SEPARATORS = re.compile(r"(?<=\w)[_-]+(?=\w)|\s+")
"""Blanks, and what joins the words of a label; the sign of -1 joins nothing."""


@dataclass(frozen=True, kw_only=True)
class LabelGrading:
    """What an answer with one of several labels earns."""

    right: float = 1.0
    wrong: float = -1.0
    unparsable: float = -3.0
    """No closing tag, no label, or several labels."""

    def grade(self, action: str, gold: str, choices: Sequence[str]) -> Step:
        """The step that ends the episode."""
        named = find_label(judgement(action), choices)
        if named is None:
            return _end(self.unparsable, None, right=False)
        return _end(self.right if named == gold else self.wrong, named, right=named == gold)


@dataclass(frozen=True, kw_only=True)
class NumberGrading:
    """What an answer with a number earns: margin − |x − y|, at least −margin, which is also what no number earns."""

    margin: float = 2.5
    close: float = 0.5
    """The greatest error that counts as a success."""

    @property
    def unparsable(self) -> float:
        """The reward without a number."""
        return -self.margin

    def grade(self, action: str, gold: str, choices: Sequence[str] = ()) -> Step:
        """The step that ends the episode."""
        number = parse_number(judgement(action) or "")
        if number is None:
            return _end(self.unparsable, None, right=False)
        error = float(min(abs(number - parse_gold(gold)), 2 * self.margin))
        return _end(self.margin - error, str(float(number)), right=error <= self.close)


Grading = LabelGrading | NumberGrading


def judgement(action: str) -> str | None:
    """The text of the first judgement; None if it is not closed, or too long."""
    end = _CLOSE_TAG.search(action)
    if end is None:
        return None
    text = _OPEN_TAG.split(action[: end.start()])[-1].strip()
    return text if len(text) <= _LONGEST else None


def find_label(text: str | None, choices: Sequence[str]) -> str | None:
    """The one choice that a text is or names, whatever its case; None if it names none or several.

    `find_label("It is not_spam.", ["spam", "not_spam"])` is `not_spam`: a longer label hides those inside it.
    """
    if text is None:
        return None
    labels = {_plain(choice): choice for choice in choices}
    longest_first = sorted(labels, key=len, reverse=True)
    pattern = "|".join(rf"(?<!\w){re.escape(label)}(?!\w)" for label in longest_first)
    named = set(re.findall(pattern, _plain(text)))
    return labels[named.pop()] if len(named) == 1 else None


def opening_info(grading: Grading) -> Info:
    """The info of a question: an answer that a limit cuts is an unparsable one."""
    return {"cut_reward": grading.unparsable, "scores": {"parsable": 0.0}}


def parse_gold(text: str) -> float:
    """The number of a label; ValueError if it is not one."""
    number = parse_number(text)
    if number is None:
        raise ValueError(f"{text!r} is not a number")
    return float(number)


def _plain(text: str) -> str:
    """Without case, and with blanks for the separators of compound labels."""
    return _SEPARATORS.sub(" ", text.casefold()).strip()


def _end(reward: float, named: str | None, *, right: bool) -> Step:
    info: Info = {"success": right, "valid": named is not None, "parsed_action": named}
    return "", reward, True, False, {**info, "scores": {"parsable": float(named is not None)}}
