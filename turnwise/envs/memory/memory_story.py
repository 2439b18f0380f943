"""Dialogues of several sessions in which facts are new, refined, added to, contradicted, repeated and withdrawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from turnwise.envs.memory.memory_bank import Bank, Entry, Event, Operation
from turnwise.envs.memory.memory_facts import (
    CHAT,
    MONTHS,
    MOST_VALUES,
    PEOPLE,
    RELATIONS,
    SMALL_TALK,
    Fact,
    FactKind,
    Form,
    Pair,
    Truth,
    merged,
    read_memory,
    tell,
    write_memory,
)
from turnwise.envs.memory.memory_questions import FactQuestion, draw_question

KINDS: tuple[FactKind, ...] = ("new", "compatible", "contradicted", "refined", "repeated", "retracted", "chatter")
_SHARES = (6, 3, 2, 1, 1, 1, 1)
"""How often each kind is drawn; the last facts of a dialogue have equal shares, for they are the task."""
_TRIES = 50
"""At an end of a story, before another story is drawn."""
_DATED = 0.5
"""Of journeys whose month is said at once."""
_PAIRS = [(person, relation) for person in PEOPLE for relation in RELATIONS]
TURNS_PER_SESSION = 8


@dataclass(frozen=True, kw_only=True)
class FactStory:
    """A dialogue as a list of facts, one a turn, and a question that the last of them decides."""

    facts: tuple[Fact, ...]
    truth: Truth
    question: FactQuestion

    def date(self, turn: int) -> str:
        """The date of a turn's session."""
        days = 10 * (turn // TURNS_PER_SESSION)
        return f"{days % 30 + 1} {MONTHS[days // 30 % len(MONTHS)].capitalize()}"


def draw_story(rng: Random, *, memories: int, last: int, fits: Callable[[FactQuestion, str], bool]) -> FactStory:
    """A story that needs so many memories before its `last` facts, whose kinds are drawn evenly.

    The question is about the last fact; about any, if `last` is 0. It and its answer must be ones that `fits` accepts.
    """
    while True:
        known: Truth = {}
        told: list[Fact] = []
        while sum(map(bool, known.values())) < memories:
            told += _tell_more(rng, known, rng.choices(KINDS, _SHARES)[0])
        for _ in range(_TRIES):
            truth, added = dict(known), list[Fact]()
            while len(added) < last:
                added += _tell_more(rng, truth, rng.choice(KINDS))
            facts = (*told, *added)
            question = draw_question(rng, truth, _subject(rng, truth, added[-1] if added else None))
            if fits(question, question.accepted(truth)[0]):
                return FactStory(facts=facts, truth=truth, question=question)


def _tell_more(rng: Random, truth: Truth, kind: FactKind) -> list[Fact]:
    """One more fact of a kind, or none where there can be none."""
    fact = _draw_fact(rng, kind, truth)
    if fact is None:
        return []
    tell(truth, fact)
    return [fact]


def _subject(rng: Random, truth: Truth, last: Fact | None) -> Pair:
    if last is not None and last.kind != "chatter":
        return last.pair
    return rng.choice([pair for pair, values in truth.items() if values])


def managed_bank(facts: Sequence[Fact], form: Form) -> Bank:
    """The bank that a good manager makes of facts: one memory for everything that is still true."""
    truth, changed = Truth(), dict[Pair, int]()
    for turn, fact in enumerate(facts):
        if fact.kind not in ("chatter", "repeated"):
            tell(truth, fact)
            changed[fact.pair] = turn
    bank = Bank()
    for pair, values in truth.items():
        if values:
            bank.add(write_memory(pair, values, form), now=changed[pair])
    return bank


def raw_bank(facts: Sequence[Fact], form: Form) -> Bank:
    """The bank without a manager: every fact as it was said."""
    bank = Bank()
    for turn, fact in enumerate(facts):
        bank.add(fact.words() if form == "words" else fact.sentence(), now=turn)
    return bank


def decide(fact: Fact, related: Sequence[Entry], form: Form) -> Operation:
    """What a good manager does with a fact, given the memories that it is shown."""
    if fact.kind == "chatter":
        return Operation(event=Event.NOOP)
    shown = [(entry, read_memory(entry.text)) for entry in related]
    entry, values = next(((each, read[1]) for each, read in shown if read and read[0] == fact.pair), (None, ()))
    after = merged(values, fact)
    if after == values:
        return Operation(event=Event.NOOP)
    if entry is None:
        return Operation(event=Event.ADD, text=write_memory(fact.pair, after, form))
    if not after:
        return Operation(event=Event.DELETE, id=entry.id)
    return Operation(event=Event.UPDATE, id=entry.id, text=write_memory(fact.pair, after, form))


def _draw_fact(rng: Random, kind: FactKind, truth: Truth) -> Fact | None:
    """A fact of this kind; None if nothing can be of that kind yet."""
    if kind == "chatter":
        said = Fact(kind=kind, person=rng.choice(PEOPLE), relation=CHAT, value=rng.choice(SMALL_TALK))
        return said if any(truth.values()) else None  # the question needs something to ask for
    if kind in ("refined", "repeated", "retracted"):
        known = [(pair, *value) for pair, values in truth.items() for value in values]
        vague = [each for each in known if RELATIONS[each[0][1]].dated and not each[2]]
        if not (possible := vague if kind == "refined" else known):
            return None
        (person, relation), value, month = rng.choice(possible)
        month = rng.choice(MONTHS) if kind == "refined" else month if kind == "repeated" else ""
        return Fact(kind=kind, person=person, relation=relation, value=value, month=month)
    if not (pairs := _subjects(kind, truth)):
        return None
    person, relation = pair = rng.choice(pairs)
    taken = {person, *dict(truth.get(pair, ()))}
    value = rng.choice([value for value in RELATIONS[relation].values if value not in taken])
    month = rng.choice(MONTHS) if RELATIONS[relation].dated and rng.random() < _DATED else ""
    return Fact(kind=kind, person=person, relation=relation, value=value, month=month)


def _subjects(kind: FactKind, truth: Truth) -> list[Pair]:
    """What a new value can be said of."""
    if kind == "new":
        return [pair for pair in _PAIRS if not truth.get(pair)]
    if kind == "contradicted":
        return [pair for pair, values in truth.items() if values and not RELATIONS[pair[1]].several]
    return [pair for pair, values in truth.items() if RELATIONS[pair[1]].several and 0 < len(values) < MOST_VALUES]
