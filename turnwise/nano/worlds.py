"""Made-up worlds: the documents of `search/geo-*`, about places that do not exist.

Names are recombined from words of the real world's *train* split, so that they look like names but nothing about
them can be memorised: to answer, the model must read. A world is small, used for a few hundred examples and discarded.
No real fact about a country, of any split, is ever shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from turnwise.envs.search.geo import countries
from turnwise.envs.search.retriever import BM25, Document

COUNTRIES, CITIES_PER_COUNTRY = 100, 12
FACTS = ("continent", "capital", "currency", "phone", "domain")
_MISSING = 0.1
_LETTERS = "abcdefghijklmnopqrstuvwxyz"

Facts = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Lexicon:
    """The words that names are made of."""

    words: tuple[str, ...]
    continents: tuple[str, ...]
    currencies: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class MadeUpWorld:
    """Facts by country and by city, names unique over both, and the index over their documents."""

    countries: Mapping[str, Facts]
    cities: Mapping[str, Facts]
    """`{"mahis": {"country": "jordan", "population": "18 k"}}`"""
    retriever: BM25

    def document(self, name: str) -> str:
        """The document of a country or city."""
        return (
            country_text(name, self.countries[name]) if name in self.countries else city_text(name, self.cities[name])
        )


def train_lexicon() -> Lexicon:
    """Words of the train split's countries, capitals, currencies and cities."""
    train = countries("train")
    names = [name for country in train for name in (country.name, *(city.name for city in country.cities))]
    return Lexicon(
        words=tuple(sorted({word for name in names for word in name.split() if word.isalpha()})),
        continents=tuple(sorted({country.facts["continent"] for country in train})),
        currencies=tuple(sorted({country.facts["currency"] for country in train if "currency" in country.facts})),
    )


def country_text(name: str, facts: Facts) -> str:
    """`jordan : country in asia ; capital amman ; currency dinar ; phone 962 ; domain jo`."""
    rest = "".join(f" ; {fact} {facts[fact]}" for fact in FACTS[1:] if fact in facts)
    return f"{name} : country in {facts['continent']}{rest}"


def city_text(name: str, facts: Facts) -> str:
    """`mahis : city in jordan ; population 18 k`."""
    return f"{name} : city in {facts['country']} ; population {facts['population']}"


def make_name(lexicon: Lexicon, rng: Random) -> str:
    """One to three words, most of them the beginning of one word joined to the end of another."""
    count = rng.choices((1, 2, 3), (70, 24, 6))[0]
    return " ".join(_make_word(lexicon, rng) for _ in range(count))


def _make_word(lexicon: Lexicon, rng: Random) -> str:
    first, second = rng.choice(lexicon.words), rng.choice(lexicon.words)
    if rng.random() < 0.2:
        return first
    return first[: rng.randint(1, max(1, len(first) - 1))] + second[rng.randint(0, len(second) - 1) :]


def make_world(lexicon: Lexicon, rng: Random) -> MadeUpWorld:
    """A new world of `COUNTRIES` countries."""
    taken = set[str]()
    land, towns = dict[str, Facts](), dict[str, Facts]()
    for _ in range(COUNTRIES):
        country = _new_name(lexicon, rng, taken)
        own = [_new_name(lexicon, rng, taken) for _ in range(rng.randint(2, 2 * CITIES_PER_COUNTRY - 2))]
        towns |= {town: {"country": country, "population": f"{_thousands(rng)} k"} for town in own}
        land[country] = _make_facts(own[0], lexicon, rng)
    texts = [country_text(*item) for item in land.items()] + [city_text(*item) for item in towns.items()]
    retriever = BM25([Document(number=number, text=text) for number, text in enumerate(texts)])
    return MadeUpWorld(countries=land, cities=towns, retriever=retriever)


def _new_name(lexicon: Lexicon, rng: Random, taken: set[str]) -> str:
    while (name := make_name(lexicon, rng)) in taken:
        pass
    taken.add(name)
    return name


def _thousands(rng: Random) -> int:
    return max(1, round(15 * rng.paretovariate(0.9)) % 30_000)


def _make_facts(capital: str, lexicon: Lexicon, rng: Random) -> Facts:
    facts = {
        "continent": rng.choice(lexicon.continents),
        "capital": capital,
        "currency": rng.choice(lexicon.currencies) if rng.random() < 0.5 else _make_word(lexicon, rng),
        "phone": str(rng.randint(1, 10 ** rng.choice((2, 3, 3, 4)) - 1)),
        "domain": rng.choice(_LETTERS) + rng.choice(_LETTERS),
    }
    return {fact: value for fact, value in facts.items() if fact == "continent" or rng.random() > _MISSING}


def size(city: Facts) -> int:
    """Thousands of people: 18 for `{"population": "18 k"}`."""
    return int(city["population"].removesuffix(" k"))
