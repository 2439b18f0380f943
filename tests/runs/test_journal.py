"""Journals grow line by line, lose no whole line, and never show half of one."""

import hashlib
import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.runs import Journal, RunFolderError, read_journal
from turnwise.runs import journal as journal_module

ROWS = [{"step": 1, "loss/policy": 0.1}, {"step": 2, "text": "naïve\nline"}, {"step": 3, "parts": {"a": [1, 2.5]}}]


def written(path: Path) -> Journal:
    journal = Journal(path)
    for row in ROWS:
        journal.append(row)
    return journal


def test_rows_come_back_as_they_were_appended(tmp_path: Path):
    journal = written(tmp_path / "metrics.jsonl")
    assert read_journal(journal.path) == ROWS
    assert journal.path.read_bytes().count(b"\n") == 3


def test_a_journal_without_a_file_is_empty(tmp_path: Path):
    journal = Journal(tmp_path / "metrics.jsonl")
    journal.truncate(journal.mark())
    assert journal.size == 0
    assert read_journal(journal.path) == []
    assert not journal.path.exists()


def test_another_reader_sees_a_line_as_soon_as_it_is_appended(tmp_path: Path):
    journal = Journal(tmp_path / "metrics.jsonl")
    for count, row in enumerate(ROWS, start=1):
        journal.append(row)
        assert read_journal(journal.path) == ROWS[:count]


def test_what_is_not_finite_becomes_null_at_any_depth(tmp_path: Path):
    journal = Journal(tmp_path / "events.jsonl")
    journal.append({"a": math.nan, "b": {"c": [math.inf, 1.5]}, "d": np.float32("-inf"), "e": torch.tensor(math.nan)})
    assert json.loads(journal.path.read_text(), parse_constant=pytest.fail) == {
        "a": None,
        "b": {"c": [None, 1.5]},
        "d": None,
        "e": None,
    }


def test_numbers_of_arrays_and_tensors_are_written_as_numbers(tmp_path: Path):
    journal = Journal(tmp_path / "metrics.jsonl")
    journal.append({"a": np.int64(3), "b": np.bool_(False), "c": torch.tensor(0.5), "d": np.arange(3)})
    assert read_journal(journal.path) == [{"a": 3, "b": False, "c": 0.5, "d": [0, 1, 2]}]


def test_a_file_cut_at_any_byte_gives_its_whole_lines_and_takes_the_next_one(tmp_path: Path):
    content = written(tmp_path / "whole.jsonl").path.read_bytes()
    for cut in range(len(content) + 1):
        journal = Journal(tmp_path / "cut.jsonl")
        journal.path.write_bytes(content[:cut])
        whole = content[:cut].count(b"\n")
        assert read_journal(journal.path) == ROWS[:whole]
        assert journal.size == content[:cut].rfind(b"\n") + 1
        journal.append({"step": 9})
        assert read_journal(journal.path) == [*ROWS[:whole], {"step": 9}]


def test_a_cut_line_longer_than_a_block_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(journal_module, "_BLOCK", 7)
    journal = Journal(tmp_path / "events.jsonl")
    journal.append({"step": 1})
    with journal.path.open("ab") as file:
        file.write(b'{"text": "' + b"x" * 100)
    assert journal.size == len('{"step": 1}\n')
    journal.append({"step": 2})
    assert read_journal(journal.path) == [{"step": 1}, {"step": 2}]


def test_a_bad_line_that_is_not_the_last_is_named(tmp_path: Path):
    journal = written(tmp_path / "metrics.jsonl")
    lines = journal.path.read_bytes().split(b"\n")
    journal.path.write_bytes(b"\n".join([lines[0], b"\0\0\0", *lines[2:]]))
    with pytest.raises(RunFolderError, match=r"line 2 of .*metrics\.jsonl is not a JSON object"):
        read_journal(journal.path)


def test_truncate_goes_back_to_an_earlier_mark(tmp_path: Path):
    journal = Journal(tmp_path / "metrics.jsonl")
    journal.append(ROWS[0])
    mark, content = journal.mark(), journal.path.read_bytes()
    journal.append(ROWS[1])
    assert journal.after(mark) == [ROWS[1]]
    journal.truncate(mark)
    assert journal.path.read_bytes() == content
    assert journal.mark() == mark


def test_truncate_refuses_a_journal_that_is_shorter_or_was_edited(tmp_path: Path):
    journal = written(tmp_path / "metrics.jsonl")
    content, mark = journal.path.read_bytes(), journal.mark()
    journal.path.write_bytes(content[:-1])
    with pytest.raises(RunFolderError, match=rf"metrics.jsonl has \d+ bytes .* when it had {len(content)};"):
        Journal(journal.path).truncate(mark)
    for place in range(len(content)):
        harmed = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :] + b'{"step": 9}\n'
        journal.path.write_bytes(harmed)
        with pytest.raises(RunFolderError, match=r"metrics\.jsonl is damaged or was edited"):
            Journal(journal.path).truncate(mark)
        assert journal.path.read_bytes() == harmed


def test_the_mark_of_a_growing_journal_reads_only_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    read: list[int] = []
    monkeypatch.setattr(journal_module, "hashlib", SimpleNamespace(sha256=lambda: Counting(read)))
    journal = Journal(tmp_path / "metrics.jsonl")
    for step in range(50):
        journal.append({"step": step, "text": "x" * 100})
        journal.mark()
    content = journal.path.read_bytes()
    assert journal.mark() == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert sum(read) == len(content)


class Counting:
    """A digest that counts what it is given."""

    def __init__(self, read: list[int]) -> None:
        self._read, self._digest = read, hashlib.sha256()

    def update(self, block: bytes) -> None:
        self._read.append(len(block))
        self._digest.update(block)

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=40, deadline=None)
@given(rows=st.lists(st.dictionaries(st.text(), JSON, max_size=4), max_size=4))
def test_every_json_row_survives_exactly(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, object]]):
    journal = Journal(tmp_path_factory.mktemp("journal") / "rows.jsonl")
    for row in rows:
        journal.append(row)
    assert read_journal(journal.path) == rows
