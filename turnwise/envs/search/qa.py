"""`search/qa`: your own questions over your own corpus."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random
from typing import Literal

from turnwise.envs.base import SPLITS
from turnwise.envs.search.dense import Dense, Embed
from turnwise.envs.search.env import SearchEnv
from turnwise.envs.search.qa_files import Question, number, read_corpus, read_questions
from turnwise.envs.search.retriever import BM25, Retriever, build_once
from turnwise.envs.search.task import SearchTask, assign_splits

_USAGE = "make('search/qa', questions='questions.jsonl', corpus='corpus.jsonl')"
_SPLIT_FIELD = "{split}"


def qa(
    *,
    questions: str | Path | None = None,
    corpus: str | Path | None = None,
    embed: Embed | None = None,
    divide: bool = True,
    split: str = "train",
    max_searches: int = 4,
    top_k: int = 3,
    distractors: int = 0,
    reward: Literal["em", "f1"] = "em",
    prompt: Literal["terse", "full"] = "full",
    document_characters: int = 1_000,
) -> SearchEnv:
    """Questions from a file over a corpus from a file (JSON or JSONL, see `qa_files` for the shapes).

    Without `corpus` the passages in the questions file are searched. `questions="nq_{split}.jsonl"` names one
    file per split; a single file is divided 60 / 20 / 20, unless `divide=False` gives every split the whole file.
    With `embed`, a function from text to vector, retrieval is dense instead of BM25.
    """
    if questions is None:
        raise ValueError(f"search/qa needs a file of questions: {_USAGE}")
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; choose one of {', '.join(SPLITS)}")
    path = Path(str(questions).replace(_SPLIT_FIELD, split))
    one_file = _SPLIT_FIELD not in str(questions)
    tasks = _tasks(path, _stamp(path), split, divide and one_file)
    return SearchEnv(
        draw=partial(_draw, tasks),
        tasks=tasks,
        retriever=_own_retriever(path, _stamp(path), embed) if corpus is None else _open(Path(corpus), embed),
        split=split,
        max_searches=max_searches,
        top_k=top_k,
        distractors=distractors,
        reward=reward,
        prompt=prompt,
        document_characters=document_characters,
    )


def _draw(tasks: tuple[SearchTask, ...], rng: Random) -> SearchTask:
    return rng.choice(tasks)


def _stamp(path: Path) -> int:
    """When the file was last changed: a changed file is read again."""
    return path.stat().st_mtime_ns if path.is_file() else 0


@build_once
def _tasks(path: Path, stamp: int, split: str, divide: bool) -> tuple[SearchTask, ...]:
    questions = _questions(path, stamp)
    # Divided by wording, not by id: a question that occurs twice must not be in two splits.
    splits = assign_splits(question.text for question in questions) if divide else {}
    tasks = tuple(_task(question, split) for question in questions if splits.get(question.text, split) == split)
    if not tasks:
        raise ValueError(
            f"{path} is too small to be divided: its {split} split is empty; "
            f"pass divide=False, or one file per split as in questions='questions_{_SPLIT_FIELD}.jsonl'"
        )
    return tasks


@build_once
def _questions(path: Path, stamp: int) -> list[Question]:
    return read_questions(path)


def _task(question: Question, split: str) -> SearchTask:
    return SearchTask(
        question=question.text,
        answers=question.answers,
        id=question.id,
        hops=max(len(question.titles), 1),
        split=split,
        queries=tuple(title.strip() for title in question.titles if title.strip()) or (question.text.strip(),),
    )


def _open(path: Path, embed: Embed | None) -> Retriever:
    return _corpus_retriever(path, _stamp(path), embed)


@build_once
def _corpus_retriever(path: Path, stamp: int, embed: Embed | None) -> Retriever:
    documents = read_corpus(path)
    return BM25(documents) if embed is None else Dense(documents, embed)


@build_once
def _own_retriever(path: Path, stamp: int, embed: Embed | None) -> Retriever:
    documents = number([passage for question in _questions(path, stamp) for passage in question.passages])
    if not documents:
        raise ValueError(f"the questions in {path} have no passages; pass a corpus too: {_USAGE}")
    return BM25(documents) if embed is None else Dense(documents, embed)
