"""One task: a bank, what is said before the question, and the question; and what an expert does with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from turnwise.envs.memory.memory_bank import Bank, Entry, Event, Operation
from turnwise.envs.memory.memory_facts import NO, RELATIONS, Fact, Form, Pair, Values, read_memory, write_memory
from turnwise.envs.memory.memory_index import split_words
from turnwise.envs.memory.memory_questions import first_found
from turnwise.envs.memory.memory_story import FactStory, decide, draw_story, managed_bank, raw_bank
from turnwise.envs.tasks.answers import split_of

BankKind = Literal["managed", "raw"]


@dataclass(frozen=True, kw_only=True)
class Said:
    """One turn that a manager handles."""

    text: str
    date: str
    fact: Fact | None = None
    """What it says, in a generated dialogue."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A task of `memory/…`, generated or from a file."""

    bank: Bank
    said: Sequence[Said]
    question: str
    answers: tuple[str, ...]
    kind: str
    """Of the question."""
    story: FactStory | None = None

    def operation(self, said: Said, related: Sequence[Entry], form: Form) -> Operation:
        """What a good manager does."""
        if said.fact is None:  # nobody knows what it changes
            return Operation(event=Event.ADD, text=said.text)
        return decide(said.fact, related, form)

    def used(self, candidates: Sequence[Entry]) -> list[str]:
        """The memories that matter for the question, in the order in which they are needed."""
        if self.story is None:
            return [candidates[0].text] if candidates else []
        truth, question = self.story.truth, self.story.question
        needed = question.evidence(lambda pair: truth.get(pair, ()))
        about = {entry.text: _pair_of(entry.text) for entry in candidates}
        return [text for pair in needed for text, found in about.items() if found == pair]

    def read(self, candidates: Sequence[Entry], form: Form) -> str:
        """What a scripted reader answers."""
        assert self.story is not None
        return self.story.question.answer(first_found(candidates), form)


def draw_case(rng: Random, *, memories: int, turns: int, bank: BankKind, form: Form, split: str) -> Case:
    """A task about a generated dialogue, of which the last `turns` facts are not in the bank yet.

    No question is in two splits with the same answer.
    """
    story = draw_story(
        rng,
        memories=memories,
        last=turns,
        fits=lambda question, answer: split_of(f"{question.text('words')} {answer}") == split,
    )
    known = story.facts[: len(story.facts) - turns]
    start = len(known)
    said = [
        Said(text=fact.words() if form == "words" else fact.sentence(), date=story.date(start + place), fact=fact)
        for place, fact in enumerate(story.facts[start:])
    ]
    return Case(
        bank=managed_bank(known, form) if bank == "managed" else raw_bank(known, form),
        said=said,
        question=story.question.text(form),
        answers=story.question.accepted(story.truth),
        kind=story.question.kind,
        story=story,
    )


def random_operation(rng: Random, said: Said, related: Sequence[Entry], form: Form) -> Operation:
    """Any operation on what is there: rewriting replaces a memory, or adds what was said to it."""
    event = rng.choice((*Event,))
    if event is Event.NOOP or (event is not Event.ADD and not related):
        return Operation(event=Event.NOOP)
    if event is Event.ADD or said.fact is None or said.fact.relation not in RELATIONS:
        return Operation(event=Event.ADD, text=said.text)
    entry = rng.choice(related)
    if event is Event.DELETE:
        return Operation(event=event, id=entry.id)
    kept: Values = (read_memory(entry.text) or (said.fact.pair, ()))[1] if rng.random() < 0.5 else ()
    values = dict(kept) | {said.fact.value: said.fact.month}
    return Operation(event=event, id=entry.id, text=write_memory(said.fact.pair, tuple(values.items()), form))


def _pair_of(text: str) -> Pair | None:
    """What a memory is about, also one of what is no longer so."""
    words = " ".join(word for word in split_words(text) if word != NO)
    return (read_memory(words) or (None,))[0]
