"""The small world that generated dialogues are about: people, what is true of them, and how that is said and read.

A memory is written as `Ann's pets: Buddy, Scout`, or for the smallest models `ann pets buddy scout`. Both are read
word by word, so a model may write other words around them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from turnwise.envs.memory.memory_index import split_words

PEOPLE = ("ann", "bob", "cleo", "dan", "eve", "finn", "gus", "hana", "ivo", "jude", "kim", "lea")
COUNTRIES: Mapping[str, str] = {
    "oslo": "norway",
    "bergen": "norway",
    "rome": "italy",
    "milan": "italy",
    "paris": "france",
    "lyon": "france",
    "madrid": "spain",
    "seville": "spain",
}
MONTHS = ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october")
SMALL_TALK = ("weather", "traffic", "lunch", "news", "football", "music")
NONE, NO, CHAT = "none", "no", "chat"
MOST_VALUES = 3
Form = Literal["english", "words"]
FactKind = Literal["new", "compatible", "refined", "contradicted", "repeated", "retracted", "chatter"]


@dataclass(frozen=True, kw_only=True)
class Relation:
    """What can be true of a person: one value at a time, or several; `dated` ones have a month once it is known."""

    values: tuple[str, ...]
    several: bool = False
    dated: bool = False
    said: str = ""
    """How somebody says it."""
    gone: str = ""
    """How somebody says that it is over."""
    ask: str = ""


RELATIONS: Mapping[str, Relation] = {
    "pets": Relation(
        values=("buddy", "scout", "rex", "luna", "milo", "coco"),
        several=True,
        said="{who} adopted a dog, {value}",
        gone="{who} gave {value} away",
        ask="Which pets does {who} have?",
    ),
    "hobbies": Relation(
        values=("chess", "tennis", "piano", "yoga", "golf", "dance"),
        several=True,
        said="{who} took up {value}",
        gone="{who} gave up {value}",
        ask="Which hobbies does {who} have?",
    ),
    "trips": Relation(
        values=(*COUNTRIES,),
        several=True,
        dated=True,
        said="{who} travelled to {value}",
        gone="{who} did not travel to {value} after all",
        ask="Where did {who} travel?",
    ),
    "home": Relation(
        values=(*COUNTRIES,),
        said="{who} moved to {value}",
        gone="{who} left {value} and has no home now",
        ask="Where does {who} live?",
    ),
    "job": Relation(
        values=("nurse", "baker", "pilot", "judge", "tailor", "clerk"),
        said="{who} works as a {value} now",
        gone="{who} no longer works as a {value}",
        ask="What is the job of {who}?",
    ),
    "friend": Relation(
        values=PEOPLE,
        said="{who}'s best friend is {value} now",
        gone="{who} and {value} are no longer friends",
        ask="Who is the best friend of {who}?",
    ),
}

Values = tuple[tuple[str, str], ...]
"""Each with its month, or an empty text."""
Pair = tuple[str, str]
"""A person and a relation."""
Truth = dict[Pair, Values]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """What one turn says: a value of a person's relation, that it is no longer so, or small talk."""

    kind: FactKind
    person: str
    relation: str
    value: str
    month: str = ""

    @property
    def pair(self) -> Pair:
        """What it is about."""
        return self.person, self.relation

    def words(self) -> str:
        """`ann pets scout`, `ann trips rome june`, `ann pets no buddy`, `ann chat weather`."""
        no = NO if self.kind == "retracted" else ""
        return " ".join(filter(None, (self.person, self.relation, no, self.value, self.month)))

    def sentence(self) -> str:
        """As somebody says it in a dialogue."""
        who, value = _named(self.person), _named(self.value)
        if self.kind == "chatter":
            return f"{who} and I talked about the {value} for a while."
        relation = RELATIONS[self.relation]
        said = (relation.gone if self.kind == "retracted" else relation.said).format(who=who, value=value)
        return f"{said}{f' in {self.month.capitalize()}' if self.month else ''}."


def tell(truth: Truth, fact: Fact) -> None:
    """Change what is true by what was said."""
    if fact.kind == "chatter":
        return
    truth[fact.pair] = merged(truth.get(fact.pair, ()), fact)


def merged(values: Values, fact: Fact) -> Values:
    """The values of a relation after a fact: `(buddy)` and `ann pets scout` make `(buddy, scout)`."""
    said = (fact.value, fact.month)
    if fact.kind == "retracted":
        return tuple(each for each in values if each[0] != fact.value)
    if not RELATIONS[fact.relation].several:
        return (said,)
    if fact.value in dict(values):
        return tuple((name, (fact.month or month) if name == fact.value else month) for name, month in values)
    return (*values, said)


def write_memory(pair: Pair, values: Values, form: Form) -> str:
    """A memory of what is true."""
    person, relation = pair
    if form == "words":
        return " ".join([person, relation, *(word for value in values for word in value if word)])
    named = [f"{_named(name)} ({month.capitalize()})" if month else _named(name) for name, month in values]
    return f"{_named(person)}'s {relation}: {', '.join(named)}"


def read_memory(text: str) -> tuple[Pair, Values] | None:
    """What a memory says, in either form; None if it is not about a person's relation."""
    words = split_words(text)
    person = next((word for word in words if word in PEOPLE), None)
    relation = next((word for word in words if word in RELATIONS), None)
    if person is None or relation is None or NO in words:
        return None
    found: dict[str, str] = {}
    last = ""
    for word in words[words.index(person) + 1 :]:
        if word in RELATIONS[relation].values:
            found.setdefault(last := word, "")
        elif word in MONTHS and last:
            found[last] = word
    return ((person, relation), tuple(found.items())) if found else None


def spoken(values: Iterable[str], form: Form) -> str:
    """An answer: `Buddy, Scout` or `buddy scout`."""
    listed = list(values) or [NONE]
    return " ".join(listed) if form == "words" else ", ".join(map(_named, listed))


def known_words() -> Sequence[str]:
    """Every word of the short form, besides those of questions, operations and answers."""
    values = [value for relation in RELATIONS.values() for value in relation.values]
    words = (*PEOPLE, *RELATIONS, *values, *COUNTRIES.values(), *MONTHS, *SMALL_TALK, NONE, NO, CHAT)
    return tuple(dict.fromkeys(words))


def _named(word: str) -> str:
    return word if _is_plain(word) else word.capitalize()


def _is_plain(word: str) -> bool:
    """Whether it is a common noun."""
    return word in (NONE, *SMALL_TALK, *RELATIONS["hobbies"].values, *RELATIONS["job"].values)
