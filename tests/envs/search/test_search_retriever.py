"""Retrieval: ranking, ties, hostile queries, determinism and speed, for BM25 and for dense vectors."""

import math
import random
import threading
import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("tantivy", reason="needs turnwise[search]")

from tests.envs.search.two_processes import run_twice
from turnwise.envs.search.dense import Dense, hashed_ngrams
from turnwise.envs.search.retriever import BM25, Document, Retriever, build_once


def documents(*texts: str) -> list[Document]:
    return [Document(number=number, text=text) for number, text in enumerate(texts)]


def found(retriever: Retriever, query: str, k: int) -> list[int]:
    return [document.number for document in retriever.search(query, k)]


@pytest.fixture(scope="module")
def mixed() -> BM25:
    rng = random.Random(3)
    words = [f"w{index}" for index in range(30)]
    return BM25(documents(*(" ".join(rng.choices(words, k=rng.randint(1, 6))) for _ in range(3000))))


def reference_scores(retriever: BM25, terms: list[str]) -> dict[int, float]:
    """BM25 written out: k1 = 1.2, b = 0.75, idf = ln(1 + (N - n + 0.5) / (n + 0.5))."""
    bags = [Counter(document.text.split()) for document in retriever.documents]
    mean = sum(bag.total() for bag in bags) / len(bags)
    scores: dict[int, float] = {}
    for term in terms:
        holders = [number for number, bag in enumerate(bags) if term in bag]
        idf = math.log(1 + (len(bags) - len(holders) + 0.5) / (len(holders) + 0.5))
        for number in holders:
            count, length = bags[number][term], bags[number].total()
            weight = idf * count * 2.2 / (count + 1.2 * (0.25 + 0.75 * length / mean))
            scores[number] = scores.get(number, 0.0) + weight
    return scores


@pytest.mark.parametrize("query", ["w1", "w1 w2", "w3 w4 w5", "w6 w7 w8 w9"])
def test_ranking_is_bm25_with_ties_by_document_number(mixed: BM25, query: str) -> None:
    scores = reference_scores(mixed, query.split())
    best = sorted(scores, key=lambda number: (-round(scores[number], 4), number))[:25]
    assert found(mixed, query, 25) == best


def test_a_shorter_list_is_the_head_of_a_longer_one(mixed: BM25) -> None:
    rng = random.Random(5)
    for _ in range(100):
        query = " ".join(f"w{rng.randrange(30)}" for _ in range(rng.randint(1, 4)))
        full = found(mixed, query, 60)
        assert found(mixed, query, 1) == full[:1]
        assert found(mixed, query, 7) == full[:7]


def test_equal_documents_come_in_their_order() -> None:
    retriever = BM25(documents(*["red fox"] * 5000))
    assert found(retriever, "fox", 12) == list(range(12))
    assert found(retriever, "red fox", 12) == list(range(12))


def test_case_accents_and_punctuation_do_not_matter() -> None:
    retriever = BM25(documents("Çeşme lies in Türkiye.", "another"))
    assert found(retriever, "CESME!", 1) == [0]
    assert found(retriever, "turkiye?", 1) == [0]


def test_titles_are_searched_too() -> None:
    retriever = BM25([Document(number=0, text="nothing"), Document(number=1, title="Amman", text="a city")])
    assert found(retriever, "amman", 3) == [1]


@pytest.mark.parametrize(
    "query",
    [
        "",
        " ",
        "AND OR NOT",
        "+fox -red",
        "body:fox",
        "(",
        '"',
        "[a TO b]",
        "fox~2^3",
        "*",
        "\\",
        "\ud800",
        "\x00fox",
        "∅",
    ],
)
def test_query_syntax_is_only_text(query: str) -> None:
    retriever = BM25(documents("red fox", "blue fox", "and or not"))
    assert len(retriever.search(query, 3)) <= 3


@settings(max_examples=300, deadline=None)
@given(query=st.text(st.characters(), max_size=80), k=st.integers(-2, 9))
def test_any_text_is_a_query(mixed: BM25, query: str, k: int) -> None:
    results = found(mixed, query, k)
    assert len(results) <= max(k, 0)
    assert results == found(mixed, query, k)


def test_a_megabyte_query_is_answered_quickly(mixed: BM25) -> None:
    started = time.thread_time()
    assert len(mixed.search("w1 w2 " * 170_000, 3)) == 3
    mixed.search("x" * 1_000_000, 3)
    mixed.search(" ".join(f"t{index}" for index in range(150_000)), 3)
    assert time.thread_time() - started < 2.0


def test_an_empty_corpus_finds_nothing() -> None:
    assert BM25([]).search("fox", 3) == []


def test_threads_get_the_same_answers(mixed: BM25) -> None:
    queries = [f"w{index % 30} w{(index * 7) % 30}" for index in range(400)]
    expected = [found(mixed, query, 5) for query in queries]
    results: dict[int, list[list[int]]] = {}

    def work(place: int) -> None:
        results[place] = [found(mixed, query, 5) for query in queries]

    threads = [threading.Thread(target=work, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[place] for place in range(4)] == [expected] * 4


def test_at_least_300_queries_a_second(mixed: BM25) -> None:
    started = time.thread_time()
    for index in range(300):
        mixed.search(f"w{index % 30} w{(index * 7) % 30}", 3)
    assert time.thread_time() - started < 1.0


_RANKINGS = """
import random
from turnwise.envs.search.dense import Dense, hashed_ngrams
from turnwise.envs.search.retriever import BM25, Document
rng = random.Random(1)
words = ["red", "blue", "fox", "owl", "lake"]
documents = [Document(number=n, text=" ".join(rng.choices(words, k=3))) for n in range(2000)]
for retriever in (BM25(documents), Dense(documents, hashed_ngrams)):
    for query in ("red fox", "owl", "lake blue owl", "rde fxo"):
        print([document.number for document in retriever.search(query, 20)])
"""


def test_two_processes_rank_alike() -> None:
    first, second = run_twice(_RANKINGS)
    assert first == second
    assert first.count("[") == 8


def test_threads_that_ask_together_share_one_build() -> None:
    built: list[int] = []
    barrier = threading.Barrier(8)

    @build_once
    def slow() -> object:
        built.append(1)
        time.sleep(0.02)
        return object()

    results: list[object] = []

    def work() -> None:
        barrier.wait()
        results.append(slow())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1
    assert len(set(map(id, results))) == 1


def test_dense_ranks_by_cosine() -> None:
    vectors = {"east": (2.0, 0.0), "north": (0.0, 1.0), "north east": (1.0, 1.0), "up": (1.0, 3.0), "": (0.0, 0.0)}
    retriever = Dense(documents("east", "north", "north east"), vectors.__getitem__)
    # cosines of (1, 3) with the three: 0.316, 0.949, 0.894
    assert found(retriever, "up", 3) == [1, 2, 0]
    assert found(retriever, "east", 1) == [0]
    assert found(retriever, "", 3) == []
    assert found(retriever, "east", 0) == []


def test_hashed_ngrams_forgive_typing_errors_where_words_do_not() -> None:
    texts = documents("amman is the capital of jordan", "paris is the capital of france", "rome lies in italy")
    assert found(Dense(texts, hashed_ngrams), "ammann jordann", 1) == [0]
    assert found(BM25(texts), "ammann jordann", 1) == []


def test_dense_ties_go_to_the_smaller_number() -> None:
    assert found(Dense(documents(*["red fox"] * 200), hashed_ngrams), "fox", 5) == [0, 1, 2, 3, 4]


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(), max_size=60))
def test_any_text_has_a_finite_embedding(text: str) -> None:
    assert np.isfinite(hashed_ngrams(text)).all()
    Dense(documents("red fox", ""), hashed_ngrams).search(text, 2)


def test_an_embedding_of_changing_length_is_reported() -> None:
    retriever = Dense(documents("a", "b"), lambda text: [1.0] * (3 if text == "query" else 2))
    with pytest.raises(ValueError, match=r"3 numbers for a query and 2 for a document"):
        retriever.search("query", 1)


def test_a_dense_retriever_without_documents_is_reported() -> None:
    with pytest.raises(ValueError, match="at least one document"):
        Dense([], hashed_ngrams)
