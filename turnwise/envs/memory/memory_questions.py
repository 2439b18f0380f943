"""Questions of four kinds about what was said, their answers, and a reader that answers them from memories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations
from random import Random
from typing import Literal

from turnwise.envs.memory.memory_bank import Entry
from turnwise.envs.memory.memory_facts import COUNTRIES, RELATIONS, Form, Pair, Truth, Values, read_memory, spoken

Kind = Literal["single-hop", "multi-hop", "temporal", "open-domain"]
KINDS: tuple[Kind, ...] = ("single-hop", "multi-hop", "temporal", "open-domain")
Known = Callable[[Pair], Values]
"""What is true, or what a reader finds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FactQuestion:
    """A question about a person's relation, or with `multi-hop` about that of the person's best friend.

    A temporal question asks when `value` was; one of open domain asks for the country of a home, which no memory says.
    """

    kind: Kind
    person: str
    relation: str
    value: str = ""

    def text(self, form: Form) -> str:
        """The question as it is asked: `what friend of ann pets`."""
        if form == "words":
            return {
                "single-hop": f"what {self.person} {self.relation}",
                "multi-hop": f"what friend of {self.person} {self.relation}",
                "temporal": f"when {self.person} {self.relation} {self.value}",
                "open-domain": f"country of {self.person} {self.relation}",
            }[self.kind]
        who = self.person.capitalize()
        if self.kind == "temporal":
            return f"In which month did {who} travel to {self.value.capitalize()}?"
        if self.kind == "open-domain":
            return f"In which country does {who} live?"
        hop = f"{who}'s best friend" if self.kind == "multi-hop" else who
        return RELATIONS[self.relation].ask.format(who=hop)

    def answer(self, known: Known, form: Form = "words") -> str:
        """The answer by what is known: in order of mention, or none."""
        return spoken(self._answers(known), form)

    def accepted(self, truth: Truth) -> tuple[str, ...]:
        """All right answers: those of several values in any order."""
        values = self._answers(lambda pair: truth.get(pair, ()))
        return tuple(spoken(order, "words") for order in permutations(values))

    def evidence(self, known: Known) -> list[Pair]:
        """What must be looked up, in this order."""
        if self.kind != "multi-hop":
            return [(self.person, self.relation)]
        friend = self._friend(known)
        return [(self.person, "friend"), *([(friend, self.relation)] if friend else [])]

    def _friend(self, known: Known) -> str:
        return next((name for name, _ in known((self.person, "friend"))), "")

    def _answers(self, known: Known) -> list[str]:
        person = self._friend(known) if self.kind == "multi-hop" else self.person
        values = known((person, self.relation))
        if self.kind == "temporal":
            return [month for name, month in values if name == self.value and month]
        if self.kind == "open-domain":
            return [COUNTRIES[name] for name, _ in values]
        return [name for name, _ in values]


def draw_question(rng: Random, truth: Truth, about: Pair) -> FactQuestion:
    """A question that depends on what is true of this relation, of any kind that is possible."""
    person, relation = about
    possible = [FactQuestion(kind="single-hop", person=person, relation=relation)]
    for name, month in truth.get(about, ()):
        if month:
            possible.append(FactQuestion(kind="temporal", person=person, relation=relation, value=name))
        if relation == "home":
            possible.append(FactQuestion(kind="open-domain", person=person, relation=relation))
        if relation == "friend":
            known = [other for friend, other in truth if friend == name and other != "friend" and truth[name, other]]
            possible += [FactQuestion(kind="multi-hop", person=person, relation=other) for other in known]
    if relation != "friend":
        friends = [who for (who, other), values in truth.items() if other == "friend" and person in dict(values)]
        possible += [FactQuestion(kind="multi-hop", person=who, relation=relation) for who in friends]
    kind = rng.choice(sorted({question.kind for question in possible}))
    return rng.choice([question for question in possible if question.kind == kind])


def first_found(memories: Sequence[Entry]) -> Known:
    """What a hasty reader knows: of all memories of a person's relation only the oldest."""
    found: dict[Pair, Values] = {}
    for entry in sorted(memories, key=lambda entry: int(entry.id)):
        if (read := read_memory(entry.text)) is not None:
            found.setdefault(*read)
    return lambda pair: found.get(pair, ())
