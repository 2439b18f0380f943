"""`search/geo-1hop`, `geo-2hop`, `geo-3hop`: questions about real countries and cities, in one to three searches.

Every question is about places with unambiguous names, and every search of the scripted expert was tested on the
index when the world was built: its top result is the required document. Countries are divided among the splits,
together with their cities and capitals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Literal

from turnwise.envs.search.env import SearchEnv
from turnwise.envs.search.geo_facts import Country, world
from turnwise.envs.search.retriever import build_once
from turnwise.envs.search.task import SearchTask

ASKS = {
    "capital": ("what is the capital of {place} ?", "which city is the capital of {place} ?"),
    "currency": ("what is the currency of {place} ?", "which money is used in {place} ?"),
    "continent": ("what is the continent of {place} ?", "on which continent is {place} ?"),
    "phone": ("what is the phone code of {place} ?", "which phone prefix has {place} ?"),
    "domain": ("what is the domain of {place} ?", "which web domain has {place} ?"),
    "country": ("what is the country of {place} ?", "in which country is {place} ?"),
    "population": ("what is the population of {place} ?", "how many people live in {place} ?"),
}
"""How each fact is phrased."""

PLACES = {
    "name": ("{0}",),
    "by capital": ("the country with the capital {0}", "the country ruled from {0}"),
    "by city": ("the country of {0}", "the country where {0} lies", "the country with the city {0}"),
    "capital by city": ("the capital of the country of {0}", "the capital of the country where {0} lies"),
    "by larger city": ("the country of the larger of {0} and {1}", "the country where the larger of {0} and {1} lies"),
}
"""How the place in question is described."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A question before it is worded, and the way to its answer.

    Example: `Problem(fact="capital", place="by city", names=("mahis",), answer="amman",
    queries=("mahis", "country jordan capital"))`.
    """

    fact: str
    place: str
    names: tuple[str, ...]
    answer: str
    queries: tuple[str, ...]


@build_once
def countries(split: str) -> tuple[Country, ...]:
    """The countries that questions of this split are about."""
    return tuple(country for country in world().countries.values() if country.split == split)


@build_once
def countries_with_cities(split: str) -> tuple[Country, ...]:
    """Countries among them with at least one city to ask about."""
    return tuple(country for country in countries(split) if country.cities)


@build_once
def countries_known_by_capital(split: str) -> tuple[Country, ...]:
    """Countries among them that can be found through their capital."""
    return tuple(country for country in countries(split) if country.capital_query)


@build_once
def countries_with_capital_city(split: str) -> tuple[Country, ...]:
    """Countries among them that lead from a city to the capital's own document."""
    return tuple(c for c in countries_with_cities(split) if c.capital is not None and "capital" in c.queries)


def _country_fact(split: str, rng: Random) -> Problem:
    country = rng.choice(countries(split))
    fact = rng.choice(list(country.queries))
    queries = (country.queries[fact],)
    return Problem(fact=fact, place="name", names=(country.name,), answer=country.facts[fact], queries=queries)


def _fact_by_capital(split: str, rng: Random) -> Problem:
    country = rng.choice(countries_known_by_capital(split))
    fact = rng.choice([fact for fact in country.facts if fact != "capital"])
    assert country.capital_query is not None
    names, queries = (country.facts["capital"],), (country.capital_query,)
    return Problem(fact=fact, place="by capital", names=names, answer=country.facts[fact], queries=queries)


def _city_fact(split: str, rng: Random) -> Problem:
    # The country first: drawn by city, half of all questions would be about the few largest countries.
    city = rng.choice(rng.choice(countries_with_cities(split)).cities)
    fact, answer = rng.choice([("country", city.country), ("population", f"{city.thousands} k")])
    return Problem(fact=fact, place="name", names=(city.name,), answer=answer, queries=(city.name,))


def _fact_by_city(split: str, rng: Random) -> Problem:
    country = rng.choice(countries_with_cities(split))
    city = rng.choice(country.cities)
    fact = rng.choice(list(country.queries))
    queries = (city.name, country.queries[fact])
    return Problem(fact=fact, place="by city", names=(city.name,), answer=country.facts[fact], queries=queries)


def _population_of_capital(split: str, rng: Random) -> Problem:
    country = rng.choice(countries_with_capital_city(split))
    city, capital = rng.choice(country.cities), country.capital
    assert capital is not None
    queries = (city.name, country.queries["capital"], capital.name)
    answer = f"{capital.thousands} k"
    return Problem(fact="population", place="capital by city", names=(city.name,), answer=answer, queries=queries)


def _fact_by_larger_city(split: str, rng: Random) -> Problem:
    while True:
        pair = [rng.choice(country.cities) for country in rng.sample(countries_with_cities(split), 2)]
        if pair[0].thousands != pair[1].thousands:
            break
    larger = world().countries[max(pair, key=lambda city: city.thousands).country]
    fact = rng.choice(list(larger.queries))
    names = (pair[0].name, pair[1].name)
    queries = (*names, larger.queries[fact])
    return Problem(fact=fact, place="by larger city", names=names, answer=larger.facts[fact], queries=queries)


KINDS: dict[int, tuple[Callable[[str, Random], Problem], ...]] = {
    1: (_country_fact, _fact_by_capital, _city_fact),
    2: (_fact_by_city,),
    3: (_population_of_capital, _fact_by_larger_city),
}
"""Kinds of questions by the number of documents they take."""


def _draw(hops: int, split: str, rng: Random) -> SearchTask:
    problem = rng.choice(KINDS[hops])(split, rng)
    ask, place = rng.randrange(len(ASKS[problem.fact])), rng.randrange(len(PLACES[problem.place]))
    described = PLACES[problem.place][place].format(*problem.names)
    return SearchTask(
        question=ASKS[problem.fact][ask].format(place=described),
        answers=(problem.answer,),
        id=f"geo-{hops}hop/{problem.fact}/{problem.place}/{ask}.{place}/{'+'.join(problem.names)}",
        hops=hops,
        split=split,
        queries=problem.queries,
    )


def geo(
    *,
    hops: int,
    split: str = "train",
    max_searches: int | None = None,
    top_k: int = 1,
    distractors: int = 0,
    reward: Literal["em", "f1"] = "em",
    prompt: Literal["terse", "full"] = "terse",
) -> SearchEnv:
    """Questions that take `hops` documents; by default one more search than that is allowed."""
    if hops not in KINDS:
        raise ValueError(f"no geo questions with {hops} hops; choose hops from {', '.join(map(str, KINDS))}")
    return SearchEnv(
        draw=partial(_draw, hops, split),
        retriever=world().retriever,
        split=split,
        max_searches=hops + 1 if max_searches is None else max_searches,
        top_k=top_k,
        distractors=distractors,
        reward=reward,
        prompt=prompt,
    )
