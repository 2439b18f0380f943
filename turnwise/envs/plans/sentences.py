"""The grammar of requests as a tree, and its two renderers: words, and constraints.

paragraph = sentence+            sentence = clause (joint clause)*
clause    = things VP object                        a precedes b
          | things VP0 P object                     a happens before b
          | P object , things VP0                   before b, a happens
          | things VP0 SC things VP0                a happens before b occurs
          | SC things VP0 , things VP0              before b occurs, a happens
things    = action+ | action+ , which (VP | VP0 P) object ,
object    = things | time of day, in requests with times
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from turnwise.envs.plans.orderings import Constraints
from turnwise.envs.plans.sentence_words import SPELLINGS, SYNONYMS, WHICH, Role


class Form(StrEnum):
    """The forms of a clause, by what carries the order and whether it stands first."""

    VERB = "verb"
    PREPOSITION = "preposition"
    PREPOSITION_FIRST = "preposition first"
    CONJUNCTION = "conjunction"
    CONJUNCTION_FIRST = "conjunction first"


RELATIVE_FORMS = (Form.VERB, Form.PREPOSITION)
TIME_FORMS = (Form.VERB, Form.PREPOSITION, Form.PREPOSITION_FIRST)
"""Forms whose object may be a time."""


@dataclass(frozen=True, kw_only=True)
class TimeOfDay:
    """`TimeOfDay(minute=840)` is 14:00."""

    minute: int

    def __str__(self) -> str:
        return f"{self.minute // 60:02}:{self.minute % 60:02}"


@dataclass(frozen=True, kw_only=True)
class Things:
    """One or more actions, and what a relative clause says about them."""

    actions: tuple[int, ...]
    relative: Relative | None = None


@dataclass(frozen=True, kw_only=True)
class Relative:
    """`which precedes b`, `which happens before b`."""

    form: Form
    earlier: bool
    object: Things | TimeOfDay


@dataclass(frozen=True, kw_only=True)
class Clause:
    """`a precedes b` is `Clause(form=Form.VERB, earlier=True, subject=Things(actions=(0,)), object=…)`."""

    form: Form
    earlier: bool
    subject: Things
    object: Things | TimeOfDay


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """Clauses, and one joint fewer."""

    clauses: tuple[Clause, ...]
    joints: tuple[str, ...] = ()


Paragraph = tuple[Sentence, ...]
"""A whole request."""


def constraints_of(paragraph: Paragraph, count: int) -> Constraints:
    """What a request about `count` actions demands."""
    whole = Constraints(actions=frozenset(range(count)))
    for sentence in paragraph:
        for clause in sentence.clauses:
            for part in _demands(clause):
                whole = whole | part
    return whole


def _demands(clause: Clause) -> Iterator[Constraints]:
    yield _relate(clause.subject, clause.earlier, clause.object)
    for things in (clause.subject, clause.object):
        if isinstance(things, Things) and things.relative is not None:
            yield _relate(things, things.relative.earlier, things.relative.object)


def _relate(subject: Things, earlier: bool, other: Things | TimeOfDay) -> Constraints:
    """Every action of the one list with every action of the other."""
    if isinstance(other, TimeOfDay):
        bounds = frozenset((each, other.minute) for each in subject.actions)
        known = frozenset(subject.actions)
        return Constraints(actions=known, ends_by=bounds) if earlier else Constraints(actions=known, starts_from=bounds)
    before, after = (subject, other) if earlier else (other, subject)
    pairs = frozenset((first, second) for first in before.actions for second in after.actions)
    return Constraints(actions=frozenset((*subject.actions, *other.actions)), orders=pairs)


class Wording:
    """Puts a tree into words: `Wording(names, Random(0)).prose(paragraph)`.

    Equal generators choose equal words. Of the ways to say each terminal the first `synonyms` are used.
    """

    def __init__(self, names: Sequence[str], rng: Random, *, synonyms: int = SYNONYMS) -> None:
        self.names, self.rng, self.synonyms = names, rng, synonyms

    def prose(self, paragraph: Paragraph) -> str:
        """As people write: `Before b, a happens.`"""
        text = re.sub(r" (?=[,;.])", "", self.spaced(paragraph))
        return re.sub(r"(?:^|(?<=\. ))[a-z]", lambda first: first[0].upper(), text)

    def spaced(self, paragraph: Paragraph) -> str:
        """With blanks around everything, for models whose tokens are words: `before b , a happens .`"""
        return " ".join(self._sentence(sentence) for sentence in paragraph)

    def _sentence(self, sentence: Sentence) -> str:
        first, *rest = (self._clause(clause) for clause in sentence.clauses)
        joined = [
            f"{joint.replace(',', ', ').strip()} {clause}" for joint, clause in zip(sentence.joints, rest, strict=True)
        ]
        text = re.sub(r"\s+", " ", " ".join([first, *joined, "."]))
        # The comma that ends a relative clause falls together with what follows.
        return re.sub(r", (?=[,;.])", "", text)

    def _clause(self, clause: Clause) -> str:
        subject, object_ = self._things(clause.subject), self._object(clause.object)
        happens = self._word(Role.EVENT, True, clause.subject)
        if clause.form is Form.VERB:
            return f"{subject} {self._word(Role.VERB, clause.earlier, clause.subject)} {object_}"
        if clause.form in (Form.PREPOSITION, Form.PREPOSITION_FIRST):
            order = f"{self._word(Role.PREPOSITION, clause.earlier, clause.subject)} {object_}"
        else:
            assert isinstance(clause.object, Things)
            occurs = self._word(Role.EVENT, True, clause.object)
            order = f"{self._word(Role.CONJUNCTION, clause.earlier, clause.subject)} {object_} {occurs}"
        first = clause.form in (Form.PREPOSITION_FIRST, Form.CONJUNCTION_FIRST)
        return f"{order} , {subject} {happens}" if first else f"{subject} {happens} {order}"

    def _object(self, other: Things | TimeOfDay) -> str:
        return str(other) if isinstance(other, TimeOfDay) else self._things(other)

    def _things(self, things: Things) -> str:
        *most, last = (self.names[each] for each in things.actions)
        listed = f"{' , '.join(most)} and {last}" if most else last
        if things.relative is None:
            return listed
        relative, object_ = things.relative, self._object(things.relative.object)
        if relative.form is Form.VERB:
            said = self._word(Role.VERB, relative.earlier, things)
        else:
            happens = self._word(Role.EVENT, True, things)
            said = f"{happens} {self._word(Role.PREPOSITION, relative.earlier, things)}"
        return f"{listed} , {WHICH} {said} {object_} ,"

    def _word(self, part: Role, earlier: bool, of: Things) -> str:
        singular, plural = self.rng.choice(SPELLINGS[part, earlier][: self.synonyms])
        return singular if len(of.actions) == 1 else plural
