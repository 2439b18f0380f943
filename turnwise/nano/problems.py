"""Questions of `search/geo-*` about made-up worlds, and the real environment that asks them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from turnwise.envs.search.env import SearchEnv
from turnwise.envs.search.geo import ASKS, PLACES, Problem
from turnwise.envs.search.task import SearchTask
from turnwise.nano.worlds import MadeUpWorld, size


def _country_fact(world: MadeUpWorld, rng: Random) -> Problem:
    country, (fact, answer) = _draw_country_and_fact(world, rng)
    return Problem(fact=fact, place="name", names=(country,), answer=answer, queries=(country,))


def _fact_by_capital(world: MadeUpWorld, rng: Random) -> Problem:
    country = rng.choice([name for name, facts in world.countries.items() if "capital" in facts])
    facts = world.countries[country]
    fact = rng.choice([fact for fact in facts if fact != "capital"])
    names = (facts["capital"],)
    return Problem(fact=fact, place="by capital", names=names, answer=facts[fact], queries=(country,))


def _city_fact(world: MadeUpWorld, rng: Random) -> Problem:
    city = rng.choice(list(world.cities))
    fact, answer = rng.choice(list(world.cities[city].items()))
    return Problem(fact=fact, place="name", names=(city,), answer=answer, queries=(city,))


def _fact_by_city(world: MadeUpWorld, rng: Random) -> Problem:
    city = rng.choice(list(world.cities))
    country = world.cities[city]["country"]
    fact, answer = rng.choice(list(world.countries[country].items()))
    return Problem(fact=fact, place="by city", names=(city,), answer=answer, queries=(city, country))


def _population_of_capital(world: MadeUpWorld, rng: Random) -> Problem:
    city = rng.choice([name for name, facts in world.cities.items() if "capital" in world.countries[facts["country"]]])
    country = world.cities[city]["country"]
    capital = world.countries[country]["capital"]
    answer, queries = world.cities[capital]["population"], (city, country, capital)
    return Problem(fact="population", place="capital by city", names=(city,), answer=answer, queries=queries)


def _fact_by_larger_city(world: MadeUpWorld, rng: Random) -> Problem:
    while True:
        first, second = rng.sample(list(world.cities), 2)
        if size(world.cities[first]) != size(world.cities[second]):
            break
    larger = max(first, second, key=lambda city: size(world.cities[city]))
    country = world.cities[larger]["country"]
    fact, answer = rng.choice(list(world.countries[country].items()))
    queries = (first, second, country)
    return Problem(fact=fact, place="by larger city", names=(first, second), answer=answer, queries=queries)


def _draw_country_and_fact(world: MadeUpWorld, rng: Random) -> tuple[str, tuple[str, str]]:
    country = rng.choice(list(world.countries))
    return country, rng.choice(list(world.countries[country].items()))


KINDS: dict[int, tuple[Callable[[MadeUpWorld, Random], Problem], ...]] = {
    1: (_country_fact, _fact_by_capital, _city_fact),
    2: (_fact_by_city,),
    3: (_population_of_capital, _fact_by_larger_city),
}
"""Kinds of questions by the number of documents they take; `Problem.queries` has those documents' names."""


def draw_problem(world: MadeUpWorld, hops: int, rng: Random) -> Problem:
    """A problem that takes `hops` documents."""
    return rng.choice(KINDS[hops])(world, rng)


def ask(problem: Problem, rng: Random) -> str:
    """The problem in words, by one of the environment's own templates."""
    place = rng.choice(PLACES[problem.place]).format(*problem.names)
    return rng.choice(ASKS[problem.fact]).format(place=place)


def make_env(world: MadeUpWorld, hops: int) -> SearchEnv:
    """The real search environment over a made-up world."""

    def draw(rng: Random) -> SearchTask:
        problem = draw_problem(world, hops, rng)
        name = f"made-up-{hops}hop/{problem.fact}/{problem.place}/-/{'+'.join(problem.names)}"
        question, answers = ask(problem, rng), (problem.answer,)
        return SearchTask(
            question=question, answers=answers, id=name, hops=hops, split="train", queries=problem.queries
        )

    return SearchEnv(draw=draw, retriever=world.retriever, max_searches=hops + 1)
