"""`search/medical-mcq`: four-choice questions over ICD-10-CM, with retrieval over the descriptions of its codes.

The wrong options are siblings of the right one. A question is kept only if searching for its subject finds the right
document first. The blocks of the classification are divided among the splits, so no code is ever in two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Literal

import simple_icd_10_cm as icd

from turnwise.envs.base import SPLITS
from turnwise.envs.search.env import SearchEnv
from turnwise.envs.search.protocol import normalise
from turnwise.envs.search.retriever import BM25, Document, build_once
from turnwise.envs.search.task import SearchTask, assign_splits, multiple_choice

_OPTIONS = 4
_LONGEST_CODE = 5
"""Significant characters: longer codes only state the side of the body or the visit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Code:
    """One code: `Code(name="A00.1", description="Cholera due to ... eltor", terms=("Cholera eltor",), document=4)`."""

    name: str
    description: str
    terms: tuple[str, ...]
    """Other names of the same condition."""
    document: int


Family = tuple[Code, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Catalogue:
    """What questions of one split are made of."""

    siblings: tuple[Family, ...]
    """The codes directly under one heading, at least four."""
    synonyms: tuple[Family, ...]
    """Families in which some code has other names."""
    blocks: tuple[tuple[tuple[str, Family], ...], ...]
    """For each block its headings, at least four, each with the codes under it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A question before its options are lettered; the right code comes first, and `query` leads to its document."""

    kind: Literal["code", "synonym", "member"]
    question: str
    codes: tuple[Code, ...]
    query: str

    @property
    def options(self) -> list[str]:
        """The text of the four choices: bare codes if a code is asked for, otherwise what the codes stand for."""
        return [code.name if self.kind == "code" else code.description for code in self.codes]


@build_once
def _codes() -> dict[str, Code]:
    # Deduplicated: a category that is a separate block is listed twice.
    names = dict.fromkeys(name for name in icd.get_all_codes() if _is_kept(name))
    return {
        name: Code(
            name=name,
            description=icd.get_description(name),
            terms=tuple(icd.get_inclusion_term(name)),
            document=number,
        )
        for number, name in enumerate(names)
    }


def _is_kept(name: str) -> bool:
    is_code = icd.is_category(name) or icd.is_subcategory(name)
    return is_code and len(name.replace(".", "")) <= _LONGEST_CODE


@build_once
def retriever() -> BM25:
    """The index over all code descriptions of this process, built on first use (a few seconds)."""
    return BM25([Document(number=code.document, text=_text(code)) for code in _codes().values()])


def _text(code: Code) -> str:
    also = f" ; also {', '.join(code.terms)}" if code.terms else ""
    return f"{code.name} : {code.description} ; under {_heading(icd.get_parent(code.name))}{also}"


def _heading(name: str) -> str:
    suffix = f" ({name})"
    return icd.get_description(name).removesuffix(suffix) + suffix


@build_once
def catalogues() -> Mapping[str, Catalogue]:
    """The codes of every split."""
    families: dict[str, Family] = {}
    for parent in icd.get_all_codes():
        if icd.is_chapter(parent):
            continue
        children = tuple(_codes()[name] for name in icd.get_children(parent) if name in _codes())
        # Two codes with one description cannot both be options.
        if children and len({normalise(child.description) for child in children}) == len(children):
            families[parent] = children
    splits = assign_splits(_block(parent) for parent in families)
    return {
        split: _catalogue({parent: family for parent, family in families.items() if splits[_block(parent)] == split})
        for split in SPLITS
    }


def _block(name: str) -> str:
    return next(above for above in [name, *icd.get_ancestors(name)] if icd.is_block(above))


def _catalogue(families: Mapping[str, Family]) -> Catalogue:
    siblings = tuple(family for family in families.values() if len(family) >= _OPTIONS)
    blocks: dict[str, list[tuple[str, Family]]] = {}
    for parent, family in families.items():
        if icd.is_category(parent):
            blocks.setdefault(_block(parent), []).append((parent, family))
    return Catalogue(
        siblings=siblings,
        synonyms=tuple(family for family in siblings if any(code.terms for code in family)),
        blocks=tuple(tuple(headings) for headings in blocks.values() if len(headings) >= _OPTIONS),
    )


def _code_of_description(catalogue: Catalogue, rng: Random) -> Problem:
    codes = tuple(rng.sample(rng.choice(catalogue.siblings), _OPTIONS))
    condition = codes[0].description
    question = f"Which code stands for this condition: {condition}?"
    return Problem(kind="code", question=question, codes=codes, query=condition)


def _condition_of_synonym(catalogue: Catalogue, rng: Random) -> Problem:
    family = rng.choice(catalogue.synonyms)
    right = rng.choice([code for code in family if code.terms])
    others = rng.sample([code for code in family if code is not right], _OPTIONS - 1)
    term = rng.choice(right.terms)
    question = f"Under which condition is this classified: {term}?"
    return Problem(kind="synonym", question=question, codes=(right, *others), query=term)


def _member_of_heading(catalogue: Catalogue, rng: Random) -> Problem:
    headings = rng.sample(rng.choice(catalogue.blocks), _OPTIONS)
    members = tuple(rng.choice(family) for _, family in headings)
    question = f"Which of these is classified under {_heading(headings[0][0])}?"
    return Problem(kind="member", question=question, codes=members, query=members[0].description)


KINDS: tuple[Callable[[Catalogue, Random], Problem], ...] = (
    _code_of_description,
    _condition_of_synonym,
    _member_of_heading,
)
"""Kinds of questions, drawn equally often."""


def _draw(catalogue: Catalogue, split: str, rng: Random) -> SearchTask:
    problem = _answerable(catalogue, rng)
    order = rng.sample(range(_OPTIONS), _OPTIONS)
    options = [problem.options[place] for place in order]
    question, answers = multiple_choice(problem.question, options, right=order.index(0))
    names = "+".join(problem.codes[place].name for place in order)
    return SearchTask(
        question=f"{question}\nAnswer with the letter.",
        answers=answers,
        id=f"medical-mcq/{problem.kind}/{names}/{problem.query}",
        hops=1,
        split=split,
        queries=(problem.query,),
    )


def _answerable(catalogue: Catalogue, rng: Random) -> Problem:
    """A problem with four different options whose query finds the right document first; others are redrawn."""
    while True:
        problem = rng.choice(KINDS)(catalogue, rng)
        found = [document.number for document in retriever().search(problem.query, 1)]
        different = len({normalise(option) for option in problem.options}) == _OPTIONS
        if found == [problem.codes[0].document] and different:
            return problem


def medical(
    *,
    split: str = "train",
    max_searches: int = _OPTIONS,
    top_k: int = 1,
    distractors: int = 0,
    reward: Literal["em", "f1"] = "em",
    prompt: Literal["terse", "full"] = "full",
) -> SearchEnv:
    """Multiple-choice questions about diagnosis codes; enough searches to look up every option."""
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; choose one of {', '.join(SPLITS)}")
    return SearchEnv(
        draw=partial(_draw, catalogues()[split], split),
        retriever=retriever(),
        split=split,
        max_searches=max_searches,
        top_k=top_k,
        distractors=distractors,
        reward=reward,
        prompt=prompt,
    )
