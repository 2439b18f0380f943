"""Final answers of maths problems: find them in text and compare them by value."""

from __future__ import annotations

import re
import zlib
from fractions import Fraction

from turnwise.envs.base import Step

INSTRUCTION = "Give the final answer as \\boxed{answer}."

_LONGEST = 200
"""Maximum length of a final answer; the bound also keeps exact arithmetic on hostile digits fast."""
_TOLERANCE = Fraction(1, 10**6)
_INTEGER = r"(?:\d{1,3}(?:,\d{3})+|\d+)"
_NUMBER = re.compile(rf"(?<![\w.])[-+]?\s?(?:{_INTEGER}(?:\.\d+)?|\.\d+)(?:\s*/\s*{_INTEGER})?")
_EXPONENT = re.compile(r"\de[-+]?\d")
"""Scientific notation is not read: `1e999999999` would be a number with a billion digits."""
_LATEX_FRACTION = re.compile(r"\\[dt]?frac\{\s*(-?[\d,]+)\s*\}\{\s*([\d,]+)\s*\}")
_LATEX_NOISE = re.compile(r"\\(?:text|mathrm|textbf|mbox)\b|\\[,;! ]|\\left|\\right|[{}$\\]")


def extract_answer(text: str) -> str | None:
    """The last `\\boxed{...}` with balanced braces, otherwise what follows the last `####`, otherwise None."""
    boxed = _last_boxed(text)
    if boxed is not None:
        return boxed.strip()
    _, marker, rest = text.rpartition("####")
    lines = rest.strip().splitlines()
    return lines[0].strip() if marker and lines else None


def same_answer(given: str, gold: str) -> bool:
    """Equal by value if both are numbers (`1,200`, `$1200.00`, `2400/2`), otherwise by text without case and spaces."""
    given_number, gold_number = parse_number(given), parse_number(gold)
    if given_number is None or gold_number is None:
        return len(given) <= _LONGEST and _plain(given) == _plain(gold)
    return abs(given_number - gold_number) <= _TOLERANCE * max(1, abs(gold_number))


def parse_number(text: str) -> Fraction | None:
    """The one number in an answer, ignoring units; None if there is none or several."""
    if len(text) > _LONGEST:
        return None
    text = _plain(_LATEX_FRACTION.sub(r"\1/\2", text)).rpartition("=")[2]
    found = _NUMBER.findall(text.replace("−", "-"))
    if len(found) != 1 or _EXPONENT.search(text):
        return None
    numerator, _, denominator = found[0].replace(",", "").replace(" ", "").partition("/")
    if denominator and int(denominator) == 0:
        return None
    return Fraction(numerator) / (int(denominator) if denominator else 1)


def grade(action: str, gold: str) -> Step:
    """The step that ends a one-question episode: reward 1 for the right answer, otherwise 0."""
    answer = extract_answer(action)
    if answer is None:
        return f"No answer found. {INSTRUCTION}", 0.0, True, False, {"success": False, "valid": False}
    right = same_answer(answer, gold)
    observation = "Correct." if right else f"Wrong: the answer is {gold}."
    return observation, float(right), True, False, {"success": right, "parsed_action": answer[:_LONGEST]}


def split_of(question: str) -> str:
    """The split a question belongs to, 80 / 10 / 10 by a stable hash: no question is ever in two."""
    place = zlib.crc32(question.encode(errors="replace")) % 10
    return {8: "validation", 9: "test"}.get(place, "train")


def _last_boxed(text: str) -> str | None:
    _, marker, rest = text.rpartition("\\boxed{")
    if not marker:
        return None
    depth = 1
    for brace in re.finditer(r"[{}]", rest):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return rest[: brace.start()]
    return None


def _plain(text: str) -> str:
    return " ".join(_LATEX_NOISE.sub("", text).casefold().split()).rstrip(".")
