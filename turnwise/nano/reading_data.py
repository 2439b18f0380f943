"""Reading data: documents, questions about them, right answers. No searching, so no plan to imitate.

A reading example is a chat in a different form: documents and question are in one message, while the search environment
asks first and shows one document per turn. Questions are those of the environment, over one to three documents.
"""

from __future__ import annotations

from random import Random

from turnwise.envs.search.geo import Problem
from turnwise.nano.problems import ask, draw_problem
from turnwise.nano.worlds import MadeUpWorld

_MORE_QUESTIONS = 3


def read(world: MadeUpWorld, rng: Random) -> list[tuple[str, str]]:
    """A question over its documents and up to two others, then a few on the facts these documents state."""
    problem = draw_problem(world, rng.choice((1, 2, 2, 3)), rng)
    names = [*problem.queries, *rng.sample(list(world.cities) + list(world.countries), rng.randint(0, 2))]
    rng.shuffle(names)
    names = list(dict.fromkeys(names))
    documents = "\n".join(world.document(name) for name in names)
    parts = [f"<information>{documents}</information>", ask(problem, rng)]
    if rng.random() < 0.5:  # the environment asks before it shows, so this order must be known too
        parts.reverse()
    turns = [(" ".join(parts), _answer(problem))]
    return turns + [_ask_about(world, rng.choice(names), rng) for _ in range(rng.randint(0, _MORE_QUESTIONS))]


def _ask_about(world: MadeUpWorld, name: str, rng: Random) -> tuple[str, str]:
    facts = world.countries.get(name) or world.cities[name]
    fact, answer = rng.choice(list(facts.items()))
    problem = Problem(fact=fact, place="name", names=(name,), answer=answer, queries=(name,))
    return ask(problem, rng), _answer(problem)


def _answer(problem: Problem) -> str:
    return f"<answer>{problem.answer}</answer>"
