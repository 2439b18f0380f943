"""From the words of a request back to its tree."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

from turnwise.envs.plans.sentence_words import JOINTS, WHICH, Role, Terminal, readings
from turnwise.envs.plans.sentences import (
    RELATIVE_FORMS,
    Clause,
    Form,
    Paragraph,
    Relative,
    Sentence,
    Things,
    TimeOfDay,
    constraints_of,
)

_LONGEST = 20_000
"""Characters of a request."""
_SHOWN = 40
_END = "."
_TIME = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")
_LINKS = tuple(joint.removeprefix(", ") for joint in JOINTS if joint.startswith(","))
_FIRST = {Form.PREPOSITION_FIRST: Role.PREPOSITION, Form.CONJUNCTION_FIRST: Role.CONJUNCTION}


def parse_request(text: str, names: Sequence[str]) -> Paragraph:
    """The tree of a request about actions with these names; ValueError if it is not one, or has two meanings."""
    if len(text) > _LONGEST:
        raise ValueError(f"the request has {len(text)} characters; shorten it to {_LONGEST}")
    sentences = list[Sentence]()
    words = list[str]()
    for word in _words(text, names):
        if word != _END:
            words.append(word)
            continue
        sentences.append(_sentence(words, names))
        words = []
    if words or not sentences:
        raise ValueError("the request must consist of sentences that end with a full stop")
    return tuple(sentences)


@cache
def _terminals() -> dict[str, set[Terminal]]:
    return readings()


@cache
def _fixed() -> re.Pattern[str]:
    return _pattern((*_terminals(), *_LINKS, WHICH), f"{_TIME.pattern}|[,;.]")


def _pattern(phrases: Iterable[str], *others: str) -> re.Pattern[str]:
    """The longest phrase that fits, as whole words, or one of the others; blanks may come first."""
    longest = "|".join(map(re.escape, sorted(phrases, key=len, reverse=True)))
    any_of = "|".join((rf"(?:{longest})(?![\w-])", *others))
    return re.compile(rf"\s*({any_of})")


def _words(text: str, names: Sequence[str]) -> Iterator[str]:
    """Names, phrases, times and punctuation."""
    known, fixed = _pattern(name.lower() for name in names), _fixed()
    text, place = text.lower().rstrip(), 0
    while place < len(text):
        found = known.match(text, place) or fixed.match(text, place)
        if found is None:
            raise ValueError(f"cannot read the request from {text[place : place + _SHOWN]!r} on")
        yield found[1]
        place = found.end()


def _sentence(words: Sequence[str], names: Sequence[str]) -> Sentence:
    found = [sentence for sentence, end in _Reader(words, names).sentences() if end == len(words)]
    if not found:
        raise ValueError(f"{' '.join(words)[:_SHOWN]!r} is not a sentence of the grammar of requests")
    if len({constraints_of((sentence,), len(names)) for sentence in found}) > 1:
        raise ValueError(f"{' '.join(words)[:_SHOWN]!r} has two meanings")
    return found[0]


class _Reader:
    """Every method yields what may begin at a place, and where it ends."""

    def __init__(self, words: Sequence[str], names: Sequence[str]) -> None:
        self.words = words
        self.numbers = {name.lower(): number for number, name in enumerate(names)}

    def sentences(self) -> Iterator[tuple[Sentence, int]]:
        """Sentences that begin the words."""
        for clause, end in self._clauses(0):
            yield from self._continued(Sentence(clauses=(clause,)), end)

    def _continued(self, sentence: Sentence, place: int) -> Iterator[tuple[Sentence, int]]:
        yield sentence, place
        for joint, after in self._joints(place):
            for clause, end in self._clauses(after):
                longer = Sentence(clauses=(*sentence.clauses, clause), joints=(*sentence.joints, joint))
                yield from self._continued(longer, end)

    def _joints(self, place: int) -> Iterator[tuple[str, int]]:
        if self._is(place, ";"):
            yield ";", place + 1
        if self._is(place, ",") and self._at(place + 1) in _LINKS:
            yield f", {self._at(place + 1)}", place + 2

    def _clauses(self, place: int) -> Iterator[tuple[Clause, int]]:
        for form, part in _FIRST.items():
            yield from self._fronted(form, part, place)
        for subject, after in self._things(place):
            for form, earlier, at in self._order(after):
                for other, end in self._objects(at):
                    yield Clause(form=form, earlier=earlier, subject=subject, object=other), end
            for at in self._event(after):
                yield from self._conjoined(subject, at)

    def _fronted(self, form: Form, part: Role, place: int) -> Iterator[tuple[Clause, int]]:
        for earlier, at in self._terminal(part, place):
            for other, after in self._objects(at) if part is Role.PREPOSITION else self._events(at):
                for subject, end in self._events(after + 1) if self._is(after, ",") else ():
                    yield Clause(form=form, earlier=earlier, subject=subject, object=other), end

    def _conjoined(self, subject: Things, place: int) -> Iterator[tuple[Clause, int]]:
        for earlier, at in self._terminal(Role.CONJUNCTION, place):
            for other, end in self._events(at):
                yield Clause(form=Form.CONJUNCTION, earlier=earlier, subject=subject, object=other), end

    def _events(self, place: int) -> Iterator[tuple[Things, int]]:
        for things, after in self._things(place):
            for end in self._event(after):
                yield things, end

    def _event(self, place: int) -> Iterator[int]:
        for _, end in self._terminal(Role.EVENT, place):
            yield end

    def _order(self, place: int) -> Iterator[tuple[Form, bool, int]]:
        """`precedes`, or `happens before`."""
        for earlier, end in self._terminal(Role.VERB, place):
            yield RELATIVE_FORMS[0], earlier, end
        for after in self._event(place):
            for earlier, end in self._terminal(Role.PREPOSITION, after):
                yield RELATIVE_FORMS[1], earlier, end

    def _objects(self, place: int) -> Iterator[tuple[Things | TimeOfDay, int]]:
        if time := _TIME.fullmatch(self._at(place)):
            yield TimeOfDay(minute=60 * int(time[1]) + int(time[2])), place + 1
        yield from self._things(place)

    def _things(self, place: int) -> Iterator[tuple[Things, int]]:
        for actions, after in self._lists(place):
            yield Things(actions=actions), after
            if self._is(after, ",") and self._is(after + 1, WHICH):
                yield from self._described(actions, after + 2)

    def _described(self, actions: tuple[int, ...], place: int) -> Iterator[tuple[Things, int]]:
        for form, earlier, at in self._order(place):
            for other, end in self._plain_objects(at):
                things = Things(actions=actions, relative=Relative(form=form, earlier=earlier, object=other))
                if self._is(end, ","):
                    yield things, end + 1
                if self._at(end) in (",", ";", ""):  # what follows has the comma, or needs none
                    yield things, end

    def _plain_objects(self, place: int) -> Iterator[tuple[Things | TimeOfDay, int]]:
        for other, end in self._objects(place):
            if isinstance(other, TimeOfDay) or other.relative is None:
                yield other, end

    def _lists(self, place: int) -> Iterator[tuple[tuple[int, ...], int]]:
        """`a`, or `a , b and c`: several always end with `and`."""
        actions = list[int]()
        while self._at(place) in self.numbers:
            actions.append(self.numbers[self._at(place)])
            place += 1
            if len(actions) == 1:
                yield (actions[0],), place
            if self._is(place, "and") and self._at(place + 1) in self.numbers:
                yield (*actions, self.numbers[self._at(place + 1)]), place + 2
            if not self._is(place, ","):
                return
            place += 1

    def _terminal(self, part: Role, place: int) -> Iterator[tuple[bool, int]]:
        for known, earlier in sorted(_terminals().get(self._at(place), ())):
            if known is part:
                yield earlier, place + 1

    def _at(self, place: int) -> str:
        return self.words[place] if place < len(self.words) else ""

    def _is(self, place: int, word: str) -> bool:
        return self._at(place) == word
