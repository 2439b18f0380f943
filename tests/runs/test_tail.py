"""A journal that is followed while it is written: nothing is missed, nothing counted twice, every rewind is noticed."""

import json
import os
from pathlib import Path
from random import Random

from turnwise.runs.journal import parse_line
from turnwise.runs.tail import JournalTail


def line(step: int, word: str = "") -> bytes:
    return json.dumps({"step": step, "word": word}).encode() + b"\n"


def steps(tail: JournalTail) -> list[int] | None:
    gain = tail.look()
    return None if gain is None else [row["step"] for row in gain.rows]


def test_only_complete_new_lines_are_read(tmp_path: Path):
    file = tmp_path / "metrics.jsonl"
    tail = JournalTail(file)
    assert tail.look() is None
    file.write_bytes(line(1) + line(2) + b'{"step": 3')
    assert steps(tail) == [1, 2]
    assert steps(tail) is None
    file.write_bytes(line(1) + line(2) + line(3) + line(4))
    assert steps(tail) == [3, 4]


def test_a_journal_that_was_rewound_and_grew_past_its_old_end_starts_anew(tmp_path: Path):
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(line(1) + line(2, "old") + line(3, "old"))
    tail = JournalTail(file)
    assert steps(tail) == [1, 2, 3]
    old = tail.position
    os.truncate(file, len(line(1)))
    with file.open("ab") as opened:
        opened.write(line(2, "new") + line(3, "new") + line(4, "new"))
    gain = tail.look()
    assert gain is not None
    assert gain.anew
    assert [row["word"] for row in gain.rows] == ["", "new", "new", "new"]
    assert not tail.begins_with(*old)
    (tmp_path / "first.jsonl").write_bytes(line(1))
    first = JournalTail(tmp_path / "first.jsonl")
    first.look()
    assert tail.begins_with(*first.position)


def test_a_journal_that_goes_away_and_comes_back_starts_anew(tmp_path: Path):
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(line(1))
    tail = JournalTail(file)
    tail.look()
    file.unlink()
    gone = tail.look()
    assert gone is not None
    assert gone.anew
    assert not gone.rows
    assert tail.look() is None
    file.write_bytes(line(7))
    assert steps(tail) == [7]
    file.unlink()
    file.mkdir()
    assert steps(tail) == []


def test_what_is_no_row_is_counted_and_left_out(tmp_path: Path):
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b"\x00\xff\n[1]\n" + b"[" * 100_000 + b'\n{"step": "3"}\n{"step": true}\n' + line(2**60) + line(4))
    tail = JournalTail(file)
    assert steps(tail) == [4]
    assert tail.damaged == 6


def test_random_appends_and_rewinds_leave_the_rows_of_the_file(tmp_path: Path):
    file, draw = tmp_path / "metrics.jsonl", Random(3)
    file.touch()
    tail, rows = JournalTail(file), list[dict[str, object]]()
    for turn in range(300):
        if draw.random() < 0.2:
            os.truncate(file, draw.randrange(file.stat().st_size + 1))
        with file.open("ab") as opened:
            opened.write(b"".join(line(draw.randrange(50), str(turn)) for _ in range(draw.randrange(4))))
        gain = tail.look()
        if gain is not None:
            rows = [*([] if gain.anew else rows), *gain.rows]
        lines = file.read_bytes().split(b"\n")[:-1]
        assert rows == [row for each in lines if (row := parse_line(each)) is not None]
