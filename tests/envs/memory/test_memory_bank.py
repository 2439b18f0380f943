"""The bank: every operation, and every malformed one, has a defined result; retrieval is exact and fast."""

from __future__ import annotations

import json
import math
import time
from random import Random
from typing import Any

import pytest

from turnwise.envs.memory.memory_bank import (
    LONGEST_TEXT,
    MOST_OPERATIONS,
    Bank,
    Event,
    MalformedTurnError,
    Operation,
    read_operations,
    read_words,
)
from turnwise.envs.memory.memory_index import MemoryIndex, split_words


def bank_of(*texts: str, **options: Any) -> Bank:
    bank = Bank(**options)
    for number, text in enumerate(texts):
        bank.add(text, now=number)
    return bank


def contents(bank: Bank) -> dict[str, str]:
    return {id: entry.text for id, entry in bank.entries.items()}


def test_operations_of_a_turn_are_applied_in_order_and_ids_are_never_used_again() -> None:
    bank = bank_of("Ann's pets: Buddy", "Ann's home: Rome")
    turn = [
        {"event": "UPDATE", "id": "1", "text": "Ann's pets: Buddy, Scout", "old_memory": "Ann's pets: Buddy"},
        {"event": "DELETE", "id": 2},
        {"event": "ADD", "text": "Ann's home: Oslo"},
        {"event": "NOOP"},
    ]
    bank.apply(read_operations(f"I keep both.\n```json\n{json.dumps(turn)}\n```"), now=7)
    assert contents(bank) == {"1": "Ann's pets: Buddy, Scout", "3": "Ann's home: Oslo"}
    assert (bank.entries["1"].created, bank.entries["1"].updated) == (0, 7)
    assert bank.size == sum(map(len, contents(bank).values()))
    assert [entry.id for entry in bank.search("where is the home of Ann", 1)] == ["3"]


def test_half_a_character_is_replaced_before_anyone_reads_it() -> None:
    (operation,) = read_operations('{"event": "ADD", "text": "Ann \\ud800"}')
    assert operation.text == "Ann ?"


def test_a_turn_may_be_one_operation_or_the_form_of_mem0() -> None:
    add = {"event": "ADD", "text": "x"}
    assert read_operations(json.dumps(add)) == read_operations(json.dumps({"memory": [add]}))
    assert read_operations("[]") == []


@pytest.mark.parametrize(
    ("turn", "message"),
    [
        ("", "no JSON"),
        ("I would add it.", "no JSON"),
        ("[{", "not JSON"),
        ('[{"event": "ADD", "text": "x"', "not JSON"),
        ("[" * 100_000, "more than 100,000|not JSON|nested"),
        ("[" * 5_000 + "]" * 5_000, "nested"),
        ('{"a": ' * 5_000, "not JSON|nested"),
        ("[1]", "an operation is a mapping"),
        ('[{"event": "REPLACE"}]', "the event is one of ADD, UPDATE, DELETE, NOOP"),
        ('[{"event": ["ADD"], "text": "x"}]', "the event is one of"),
        ('[{"event": "add", "text": "x"}]', "the event is one of"),
        ('[{"event": "ADD"}]', "ADD needs a text"),
        ('[{"event": "ADD", "text": "  "}]', "ADD needs a text"),
        ('[{"event": "ADD", "text": 5}]', "a text is a string"),
        (json.dumps([{"event": "ADD", "text": "x" * (LONGEST_TEXT + 1)}]), "a text is a string of at most"),
        ('[{"event": "UPDATE", "text": "x"}]', "UPDATE needs the id"),
        ('[{"event": "DELETE"}]', "DELETE needs the id"),
        ('[{"event": "DELETE", "id": true}]', "an id is a number"),
        ('[{"event": "DELETE", "id": 1.0}]', "an id is a number"),
        ('[{"event": "DELETE", "id": -1}]', "an id is a number"),
        ('[{"event": "DELETE", "id": "٣"}]', "an id is a number"),
        ('[{"event": "DELETE", "id": 1' + "0" * 50 + "}]", "an id is a number"),
        (json.dumps([{"event": "NOOP"}] * (MOST_OPERATIONS + 1)), "write at most 16"),
        ('[{"event": "DELETE", "id": "99"}]', "99, which is not in the bank"),
        ('[{"event": "UPDATE", "id": "99", "text": "x"}]', "99, which is not in the bank"),
        ('[{"event": "ADD", "id": "1", "text": "x"}]', "there is a memory 1 already"),
        (
            '[{"event": "DELETE", "id": "1"}, {"event": "UPDATE", "id": 1, "text": "x"}]',
            "two operations change memory 1",
        ),
        ('[{"event": "ADD", "text": "x"}, {"event": "DELETE", "id": "99"}]', "99, which is not in the bank"),
    ],
)
def test_a_malformed_turn_changes_nothing_and_says_why(turn: str, message: str) -> None:
    bank = bank_of("Ann's pets: Buddy", "Ann's home: Rome")
    before = contents(bank)
    with pytest.raises(MalformedTurnError, match=message):
        bank.apply(read_operations(turn), now=3)
    assert contents(bank) == before


def test_small_models_write_words() -> None:
    assert read_words("UPDATE 3 ann pets buddy scout") == [
        Operation(event=Event.UPDATE, id="3", text="ann pets buddy scout")
    ]
    assert read_words(" NOOP ") == [Operation(event=Event.NOOP)]
    for operation in (Operation(event=Event.ADD, text="ann home rome"), Operation(event=Event.DELETE, id="4")):
        assert read_words(operation.as_words()) == [operation]
        assert read_operations(json.dumps([operation.as_json()])) == [operation]
    for turn in ("", "update 3 x", "UPDATE", "UPDATE x", "DELETE", "ADD", "ADDED x", "NOOPE"):
        with pytest.raises(MalformedTurnError):
            read_words(turn)


def test_a_bank_of_ten_megabytes_works_and_takes_no_more() -> None:
    bank = bank_of(*[f"{number:04} {'x' * 1995}" for number in range(5_000)])
    assert bank.size == bank.largest == 10_000_000
    assert bank.search("4711", 1)[0].id == "4712"
    with pytest.raises(MalformedTurnError, match="delete something first"):
        bank.apply([Operation(event=Event.ADD, text="y")], now=1)
    bank.apply([Operation(event=Event.DELETE, id="1"), Operation(event=Event.ADD, text="new")], now=1)
    assert bank.search("new", 1)[0].text == "new"


def test_retrieval_of_ten_thousand_entries_takes_less_than_five_milliseconds() -> None:
    rng = Random(0)
    bank = bank_of(*[f"ann the {' '.join(f'w{rng.randrange(2_000)}' for _ in range(8))}" for _ in range(10_000)])
    queries = [f"ann the {' '.join(f'w{rng.randrange(2_000)}' for _ in range(8))}" for _ in range(50)]
    bank.search(queries[0], 60)

    def seconds(query: str) -> float:
        start = time.thread_time()  # of this thread alone: the machine may be busy
        bank.search(query, 60)
        return time.thread_time() - start

    fastest = [min(seconds(query) for _ in range(5)) for query in queries]  # who shares its core slows it down too
    assert sorted(fastest)[len(fastest) // 2] < 0.005


def test_the_index_ranks_as_bm25_does_after_any_changes() -> None:
    rng = Random(1)
    index, texts = MemoryIndex(), dict[str, str]()
    for number in range(600):
        if texts and rng.random() < 0.4:
            index.remove(gone := rng.choice([*texts]))
            del texts[gone]
        entry = rng.choice([*texts]) if texts and rng.random() < 0.3 else str(number)
        texts[entry] = " ".join(rng.choices("abcdefgh", k=rng.randint(1, 6)))
        index.put(entry, texts[entry])
    words = {entry: split_words(text) for entry, text in texts.items()}
    mean = sum(map(len, words.values())) / len(words)

    def score(entry: str, query: str) -> float:
        total, own = 0.0, words[entry]
        for term in set(query.split()):
            often, holding = own.count(term), sum(term in each for each in words.values())
            rarity = math.log1p((len(words) - holding + 0.5) / (holding + 0.5))
            total += rarity * often * 2.2 / (often + 1.2 * (0.25 + 0.75 * len(own) / mean)) if often else 0.0
        return total

    for query in ("a b", "c", "a d h h", "z"):
        found = index.search(query, 10)
        best = sorted((round(score(entry, query), 6) for entry in texts), reverse=True)[:10]
        assert [round(score(entry, query), 6) for entry in found] == pytest.approx(best, abs=2e-6)
    assert len(index.search("a", 10_000)) == len(texts) == len(index)
    assert index.search("a", 0) == MemoryIndex().search("a", 3) == []
