"""The Search-R1 protocol: what the agent may write, what it gets back, and how an answer is scored.

The agent thinks in `<think>`, then writes `<search>query</search>` or `<answer>text</answer>`; results arrive as
`<information>...</information>`. A turn is read up to its first closing `</search>` or `</answer>`, as a sampler that
stops there would see it; a tag inside `<think>` therefore counts as well.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from turnwise.envs.search.retriever import Document

INVALID = "invalid action : write <search>query</search> or <answer>text</answer>"
LAST_TURN = "no more searches : write <answer>text</answer>"
NOTHING_FOUND = "nothing found"

_ACTION_TAG = re.compile(r"<(/?)(search|answer)>", re.IGNORECASE | re.ASCII)
_TAG_LIKE = re.compile(r"<(?=\s*/?\s*(?:think|search|information|answer)\b|\|)", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2064\ufeff]")
_ARTICLES = {"a", "an", "the"}
_PUNCTUATION = str.maketrans("", "", string.punctuation)

_PROMPTS = {
    "terse": "<search> or <answer> : {question}",
    "full": """Answer the question below.

Each time you get new information, first reason about it inside <think> and </think>. If a fact is missing, ask the \
search engine with <search>query</search>; its best results come back between <information> and </information>. You \
may search up to {searches} times. As soon as you know enough, write the bare answer, without explanation, as \
<answer>text</answer>. Example: <answer>Paris</answer>

Question: {question}""",
}
PROMPTS = tuple(_PROMPTS)


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchAction:
    """What one turn asks for: `SearchAction(kind="search", text="capital of jordan")`."""

    kind: Literal["search", "answer"]
    text: str

    def __str__(self) -> str:
        return f"<{self.kind}>{self.text}</{self.kind}>"


def parse(turn: str) -> SearchAction | None:
    """The action of a turn; None if its first closing tag has no opening tag, or the text between is blank.

    `parse("<think>first <search> then</think><search>mahis</search>")` searches for `mahis`: the innermost pair counts.
    """
    opened: dict[str, int] = {}
    for tag in _ACTION_TAG.finditer(turn):
        kind = tag[2].lower()
        if not tag[1]:
            opened[kind] = tag.end()
            continue
        text = turn[opened[kind] : tag.start()].strip() if kind in opened else ""
        return SearchAction(kind="search" if kind == "search" else "answer", text=text) if text else None
    return None


def ask(question: str, *, style: str, searches: int) -> str:
    """The first observation: the protocol, briefly (`terse`) or explained (`full`), and the question."""
    return _PROMPTS[style].format(question=defuse(question), searches=searches)


def show(documents: Sequence[Document], *, characters: int) -> str:
    """Search results as the agent reads them, each cut to this many characters."""
    lines = "\n".join(document.body[:characters] for document in documents)
    # Defused after joining, to catch a tag that spans the end of one document and the start of the next.
    return f"<information>{defuse(lines) or NOTHING_FOUND}</information>"


def defuse(text: str) -> str:
    """Outside text with nothing left that reads as a protocol tag or a chat marker (`<|...|>`)."""
    return _TAG_LIKE.sub("&lt;", _CONTROL.sub(" ", text))


def normalise(answer: str) -> str:
    """Lower case, without punctuation, articles and extra blanks; a bare article stays, it may be choice `A`."""
    words = answer.lower().translate(_PUNCTUATION).split()
    return " ".join([word for word in words if word not in _ARTICLES] or words)


def exact_match(answer: str, golds: Iterable[str]) -> float:
    """1.0 if the normalised answer equals one of the golds, otherwise 0.0."""
    return float(normalise(answer) in {normalise(gold) for gold in golds})


def f1(answer: str, golds: Iterable[str]) -> float:
    """Word-level F1 with the closest gold: `f1("the red car", ["car red fast"])` is 2 * (1 * 2/3) / (1 + 2/3) = 0.8."""
    return max((_f1(normalise(answer).split(), normalise(gold).split()) for gold in golds), default=0.0)


def _f1(answer: list[str], gold: list[str]) -> float:
    common = (Counter(answer) & Counter(gold)).total()
    return 2 * common / (len(answer) + len(gold)) if common else 0.0


def bleu1(answer: str, golds: Iterable[str]) -> float:
    """BLEU of single words with the closest gold: the share of words that are in it, less if the answer is shorter.

    `bleu1("a red car", ["red fast car"])` is 2/2 · exp(1 − 3/2) = 0.607; a word counts as often as the gold has it.
    """
    return max((_bleu1(normalise(answer).split(), normalise(gold).split()) for gold in golds), default=0.0)


def _bleu1(answer: list[str], gold: list[str]) -> float:
    common = (Counter(answer) & Counter(gold)).total()
    return common / len(answer) * math.exp(min(0.0, 1 - len(gold) / len(answer))) if common else 0.0
