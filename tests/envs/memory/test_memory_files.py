"""Dialogues of other people: LoCoMo, LongMemEval and BFCL's memory sessions, as their files are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from turnwise.envs.memory.memory_env import MemoryEnv
from turnwise.envs.memory.memory_files import read_questions
from turnwise.envs.registry import make

DATA = Path(__file__).parents[4] / "shared" / "data" / "memory"
SPLITS = ("train", "validation", "test")


def locomo() -> list[dict[str, Any]]:
    talk = {
        "speaker_a": "Ann",
        "speaker_b": "Bob",
        "session_2": [{"speaker": "Bob", "dia_id": "D2:1", "text": "I moved to Oslo."}],
        "session_2_date_time": "1:56 pm on 8 May, 2023",
        "session_10": [{"speaker": "Ann", "dia_id": "D10:1", "text": "Bye!"}],
        "session_1": [
            {"speaker": "Ann", "dia_id": "D1:1", "text": "I adopted Buddy."},
            {"speaker": "Bob", "dia_id": "D1:2", "text": "Lovely!"},
        ],
        "session_1_date_time": "1 May, 2023",
    }
    asked = [
        {"question": f"Who is pet number {n}?", "answer": "Buddy", "evidence": ["D1:1"], "category": 4}
        for n in range(30)
    ]
    asked += [{"question": "When did Bob move?", "answer": 2023, "evidence": ["D2:1"], "category": 2}]
    asked += [{"question": "Who is Rex?", "adversarial_answer": "Buddy", "category": 5}]
    return [{"sample_id": "conv-1", "conversation": talk, "qa": asked}]


def longmemeval() -> list[dict[str, Any]]:
    sessions = [
        [
            {"role": "user", "content": "My best time is 26:10.", "has_answer": True},
            {"role": "assistant", "content": "ok"},
        ],
        [
            {"role": "user", "content": "Now it is 25:50!", "has_answer": True},
            {"role": "assistant", "content": "Great."},
        ],
    ]
    plain = {"question_type": "knowledge-update", "answer": "25:50"}
    dates = {"haystack_dates": ["2023/05/25", "2023/05/27"], "haystack_sessions": sessions}
    return [{"question_id": str(n), "question": f"What is my best time, {n}?", **plain, **dates} for n in range(30)]


def write(path: Path, entries: list[dict[str, Any]], *, lines: bool = False) -> str:
    path.write_text("\n".join(map(json.dumps, entries)) if lines else json.dumps(entries))
    return str(path)


def bfcl(folder: Path) -> str:
    folder.mkdir()
    said = [[{"role": "user", "content": "I am Michael."}], [{"role": "user", "content": "I live in Seattle."}]]
    write(folder / "memory_customer.json", [{"id": "p-0", "topic": "First", "question": said}], lines=True)
    names = [f"memory_{n}" for n in range(30)]
    asked = [
        {"id": n, "question": [[{"role": "user", "content": f"Name {n}?"}]], "scenario": "customer"} for n in names
    ]
    write(folder / "questions.jsonl", asked, lines=True)
    write(folder / "answers.jsonl", [{"id": n, "ground_truth": ["Michael", "Mike"]} for n in names], lines=True)
    return str(folder)


def all_questions(path: str) -> dict[str, Any]:
    return {id: question for split in SPLITS for id, question in read_questions(path, split).items()}


def test_locomo_is_read_in_the_order_of_its_sessions_without_adversarial_questions(tmp_path: Path) -> None:
    found = all_questions(write(tmp_path / "locomo10.json", locomo()))
    assert len(found) == 31
    moved = found["conv-1/31"]
    assert (moved.kind, moved.answers) == ("temporal", ("2023",))
    assert [said.text for said in moved.turns] == ["Ann: I adopted Buddy.", "Bob: Lovely!", "Bob: I moved to Oslo."]
    assert moved.turns[-1].date == "1:56 pm on 8 May, 2023"
    assert [said.text for said in found["conv-1/1"].turns] == ["Ann: I adopted Buddy."]


def test_longmemeval_is_read_up_to_its_last_evidence_in_both_its_forms(tmp_path: Path) -> None:
    found = all_questions(write(tmp_path / "full.json", longmemeval()))
    assert [said.text for said in found["3"].turns][::2] == ["user: My best time is 26:10.", "user: Now it is 25:50!"]
    short = [
        {**each, "sessions": [{"date": "2023", "turns": talk} for talk in each.pop("haystack_sessions")]}
        for each in longmemeval()
    ]
    again = all_questions(write(tmp_path / "oracle.jsonl", short, lines=True))
    assert [said.text for said in again["3"].turns] == [said.text for said in found["3"].turns]


@pytest.mark.parametrize("name", ["memory/answer", "memory/both"])
def test_a_file_is_played_question_by_question(tmp_path: Path, name: str) -> None:
    for path in (write(tmp_path / "a.json", locomo()), write(tmp_path / "b.json", longmemeval()), bfcl(tmp_path / "c")):
        env = make(name, path=path)
        assert isinstance(env, MemoryEnv)
        tasks = env.list_tasks()
        assert tasks
        for task in tasks:
            observation, _ = env.reset(seed=0, task=task)
            if name == "memory/both":
                observation = env.step(env.oracle())[0]
            assert "Question: " in observation
            assert env.step(env.oracle())[1] == 1.0
    env.reset(task=tasks[0])
    if name == "memory/both":
        env.step('[{"event": "NOOP"}]')
    assert env.step("Memories:\nAnswer: Mike.")[1] == 1.0


def test_a_manager_handles_a_whole_dialogue_that_is_shorter_than_its_turns(tmp_path: Path) -> None:
    case = all_questions(write(tmp_path / "locomo10.json", locomo()))["conv-1/31"].case(5)
    assert (len(case.bank), len(case.said)) == (0, 3)


def test_what_cannot_be_read_gets_one_message(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such file"):
        make("memory/answer", path=str(tmp_path / "none.json"))
    for number, content in enumerate(('{"a": 1}', "[1]", "nonsense", '[{"conversation": {}, "qa": 3}]', "[" * 20_000)):
        (tmp_path / f"{number}.json").write_text(content)
        with pytest.raises(ValueError, match="is not in the form of LoCoMo, LongMemEval or a folder"):
            make("memory/answer", path=str(tmp_path / f"{number}.json"))
    with pytest.raises(ValueError, match=r"is not in the form of LoCoMo.*answers\.jsonl"):
        make("memory/answer", path=str(tmp_path))
    one = write(tmp_path / "one.json", longmemeval()[:1])
    with pytest.raises(ValueError, match="belongs to the split"):
        [make("memory/answer", path=one, split=split) for split in SPLITS]
    env = make("memory/answer", path=write(tmp_path / "many.json", longmemeval()))
    with pytest.raises(ValueError, match="there is no question 'x' in this split"):
        env.reset(task="x")


@pytest.mark.skipif(not DATA.is_dir(), reason="the memory files are not beside the repository")
@pytest.mark.parametrize(
    ("name", "count", "kinds"),
    [
        ("longmemeval_oracle_evidence.jsonl", 500, {"multi-session", "knowledge-update", "temporal-reasoning"}),
        ("bfcl_memory", 155, {"customer", "finance", "healthcare", "notetaker", "student"}),
    ],
)
def test_public_files_are_read_whole_and_their_answers_are_right(name: str, count: int, kinds: set[str]) -> None:
    found = all_questions(str(DATA / name))
    assert len(found) == count
    assert kinds <= {question.kind for question in found.values()}
    assert all(question.text and all(question.answers) for question in found.values())
    assert all(id.endswith("_abs") for id, question in found.items() if not question.turns)  # nothing was said
    env = MemoryEnv(seats=["answerer"], path=str(DATA / name), split="test")
    for task in env.list_tasks() or []:
        observation, _ = env.reset(seed=0, task=task)
        assert env.questions[task].text in observation
        assert env.step(env.oracle())[1] == 1.0


@pytest.mark.skipif(not DATA.is_dir(), reason="the memory files are not beside the repository")
def test_whole_public_dialogues_end_at_their_last_evidence() -> None:
    found = read_questions(str(DATA / "longmemeval_sample_full.json"), "train")
    assert found["6a1eabeb"].answers == ("25 minutes and 50 seconds (or 25:50)",)
    assert "25:50" in found["6a1eabeb"].turns[-1].text
