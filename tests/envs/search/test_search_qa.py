"""Questions and corpora from files: the published shapes, and what is said about broken ones."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tantivy", reason="needs turnwise[search]")

from turnwise.envs import make
from turnwise.envs.base import SPLITS
from turnwise.envs.search.dense import hashed_ngrams
from turnwise.envs.search.env import SearchEnv
from turnwise.envs.search.qa_files import read_corpus, read_questions

DATA = Path(__file__).parents[4] / "shared" / "data"


def data(name: str) -> Path:
    path = DATA / name
    if not path.is_file():
        pytest.skip(f"needs ../shared/data/{name} beside the repository")
    return path


def qa(**options: Any) -> SearchEnv:
    env = make("search/qa", **options)
    assert isinstance(env, SearchEnv)
    return env


def write(path: Path, *records: Any) -> Path:
    path.write_text("\n".join(json.dumps(record) for record in records), encoding="utf-8")
    return path


CORPUS = ({"title": "Amman", "text": "Capital of Jordan."}, {"title": "Mahis", "text": "A town in Jordan."})


def expert_success(env: SearchEnv, episodes: int) -> float:
    wins = 0
    for seed in range(episodes):
        env.reset(seed=seed)
        terminated, last = False, {}
        while not terminated:
            *_, terminated, _, last = env.step(env.oracle())
        wins += last["success"]
    return wins / episodes


def shown_by_expert(env: SearchEnv, seed: int) -> tuple[dict[str, Any], str]:
    task, shown = env.reset(seed=seed)[1]["task"], ""
    while "<search>" in (action := env.oracle()):
        shown += env.step(action)[0]
    return task, shown


def test_natural_questions_shapes_load(tmp_path: Path) -> None:
    path = write(
        tmp_path / "nq.jsonl",
        {"question": "capital of jordan", "answer": ["Amman", "Amman city"]},
        {"id": "q7", "question": "town in jordan", "golden_answers": ["Mahis"]},
        {"question": "plain text", "answer": "Petra"},
        {"question": "many", "answers": ["one", "two", "one"]},
    )
    questions = read_questions(path)
    assert [question.answers for question in questions] == [
        ("Amman", "Amman city"),
        ("Mahis",),
        ("Petra",),
        ("one", "two"),
    ]
    assert [question.id for question in questions] == ["1", "q7", "3", "4"]


def test_any_of_several_answers_is_right(tmp_path: Path) -> None:
    questions = write(tmp_path / "q.jsonl", {"question": "capital of jordan", "answer": ["Amman", "Amman city"]})
    corpus = write(tmp_path / "c.jsonl", *CORPUS)
    for answer, reward in (("amman", 1.0), ("The Amman City", 1.0), ("mahis", 0.0)):
        env = qa(questions=questions, corpus=corpus, divide=False)
        env.reset(seed=0)
        assert env.step(f"<answer>{answer}</answer>")[1] == reward


def test_results_come_from_the_corpus_with_their_titles(tmp_path: Path) -> None:
    questions = write(tmp_path / "q.jsonl", {"question": "capital of jordan", "answer": "Amman"})
    env = qa(questions=questions, corpus=write(tmp_path / "c.jsonl", *CORPUS), divide=False, top_k=1)
    env.reset(seed=0)
    assert env.step("<search>capital</search>")[0] == "<information>Amman: Capital of Jordan.</information>"


def test_dense_retrieval_behind_the_same_interface(tmp_path: Path) -> None:
    questions = write(tmp_path / "q.jsonl", {"question": "capital of jordan", "answer": "Amman"})
    corpus = write(tmp_path / "c.jsonl", *CORPUS)
    env = qa(questions=questions, corpus=corpus, divide=False, top_k=1, embed=hashed_ngrams)
    env.reset(seed=0)
    assert env.step("<search>capitall</search>")[0] == "<information>Amman: Capital of Jordan.</information>"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("c.jsonl", '{"title": "Amman", "text": "Capital"}'),
        ("c.jsonl", '{"title": "Amman", "paragraph_text": "Capital"}'),
        ("c.jsonl", '\ufeff{"title": "Amman", "contents": "Capital"}\n\n'),
        ("c.json", '[{"title": "Amman", "text": "Capital"}]'),
        ("c.json", '{"Amman": ["Cap", "ital"]}'),
        ("c.json", '{"Amman": "Capital"}'),
    ],
)
def test_corpus_shapes(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    assert [document.body for document in read_corpus(path)] == ["Amman: Capital"]


def test_choices_counted_from_zero_or_one_are_told_apart(tmp_path: Path) -> None:
    def record(right: int) -> dict[str, Any]:
        return {"question": "which ?", "opa": "w", "opb": "x", "opc": "y", "opd": "z", "cop": right}

    from_one = read_questions(write(tmp_path / "one.jsonl", record(1), record(4)))
    from_zero = read_questions(write(tmp_path / "zero.jsonl", record(1), record(0)))
    assert [question.answers[0] for question in from_one] == ["A", "D"]
    assert [question.answers[0] for question in from_zero] == ["B", "A"]


def test_without_arguments_it_says_what_to_pass() -> None:
    with pytest.raises(ValueError, match=r"questions='questions.jsonl', corpus='corpus.jsonl'"):
        make("search/qa")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no such file: .*absent\.jsonl"):
        qa(questions=tmp_path / "absent.jsonl")
    questions = write(tmp_path / "q.jsonl", {"question": "who ?", "answer": "x"})
    with pytest.raises(ValueError, match=r"no such file: .*absent\.jsonl"):
        qa(questions=questions, corpus=tmp_path / "absent.jsonl", divide=False)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"question": "who ?", "answer": "x"}\n{"answer": "x"}', "line 2: the field 'question' is missing"),
        ('{"question": "who ?"}', "line 1: the field 'golden_answers' is missing.*answer"),
        ('{"question": "who ?", "answer": 7}', "line 1: the field 'answer' must be a text"),
        ('{"question": "who ?", "answer": []}', "line 1: the field 'answer' must be a text"),
        ('{"question": "", "answer": "x"}', "line 1: the field 'question' must be a non-empty text"),
        ('\n{"question": ', "line 2 is not valid JSON"),
        ('["who ?"]', "line 1: expected an object with a field 'question', found list"),
        ('{"question": "who ?", "opa": "w", "opb": "x", "opc": "y", "opd": "z", "cop": 9}', "line 1: the field 'cop'"),
        ('{"question": "who ?", "opa": "w", "cop": 1}', "line 1: the field 'opb' is missing"),
        ('{"question": "who ?", "answer": "x", "context": [["title"]]}', "line 1: 'context'"),
        ('{"question": "who ?", "answer": "x", "CONTEXTS": [1]}', "line 1: titles and passages must be texts"),
        ("", "is empty"),
        (" \n \n", "is empty"),
    ],
)
def test_a_wrong_shape_names_line_and_field(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_questions(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"a": 1}\n{"b": 2}', "name it .jsonl"),
        ("7", "must contain a list or an object, found int"),
        ("", "is empty"),
        ("[]", "is empty"),
        ('[{"title": "x"}]', "entry 1: the field 'text' is missing"),
        ('[{"title": "x", "text": 3}]', "entry 1: the fields 'title' and 'text' must be texts"),
        ('{"x": 3}', "key 'x': expected an object"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_a_broken_corpus_is_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_corpus(path)


def test_questions_without_passages_need_a_corpus(tmp_path: Path) -> None:
    questions = write(tmp_path / "q.jsonl", {"question": "who ?", "answer": "x"})
    with pytest.raises(ValueError, match="pass a corpus too"):
        qa(questions=questions, divide=False)


def test_one_file_is_divided_and_split_files_are_not(tmp_path: Path) -> None:
    corpus = write(tmp_path / "c.jsonl", *CORPUS)
    records = [{"question": f"question {index} ?", "answer": "x"} for index in range(50)]
    one = write(tmp_path / "all.jsonl", *records)
    asked = {split: _asked(qa(questions=one, corpus=corpus, split=split)) for split in SPLITS}
    assert [len(asked[split]) for split in SPLITS] == [30, 10, 10]
    assert len(asked["train"] | asked["validation"] | asked["test"]) == 50
    write(tmp_path / "part_test.jsonl", *records[:5])
    assert len(_asked(qa(questions=tmp_path / "part_{split}.jsonl", corpus=corpus, split="test"))) == 5
    assert len(_asked(qa(questions=one, corpus=corpus, divide=False))) == 50


def _asked(env: SearchEnv) -> set[str]:
    return {env.reset(seed=seed)[1]["task"]["question"] for seed in range(600)}


def test_a_file_too_small_to_divide_says_so(tmp_path: Path) -> None:
    questions = write(tmp_path / "q.jsonl", {"question": "who ?", "answer": "x"})
    with pytest.raises(ValueError, match="divide=False"):
        qa(questions=questions, corpus=write(tmp_path / "c.jsonl", *CORPUS), split="test")


def test_a_changed_file_is_read_anew(tmp_path: Path) -> None:
    corpus = write(tmp_path / "c.jsonl", *CORPUS)
    path = write(tmp_path / "q.jsonl", {"question": "first ?", "answer": "x"})
    assert _asked(qa(questions=path, corpus=corpus, divide=False)) == {"first ?"}
    path.unlink()
    write(path, {"question": "second ?", "answer": "x"})
    assert _asked(qa(questions=path, corpus=corpus, divide=False)) == {"second ?"}


def test_invalid_utf8_is_replaced_not_raised(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_bytes(b'{"question": "who \xff ?", "answer": "x"}')
    assert read_questions(path)[0].text == "who \ufffd ?"


@pytest.mark.parametrize("name", ["hotpotqa_train", "musique_train"])
def test_multi_hop_sets_load_and_their_gold_titles_lead_to_the_answer(name: str) -> None:
    env = qa(questions=data(f"multihop/{name}.json"), corpus=data(f"multihop/{name}_corpus.json"), divide=False)
    assert expert_success(env, 60) == 1.0
    found = []
    for seed in range(60):
        task, shown = shown_by_expert(env, seed)
        assert task["hops"] >= 2
        if task["answers"][0] not in ("yes", "no"):
            found.append(any(answer.lower() in shown.lower() for answer in task["answers"]))
    assert sum(found) / len(found) > 0.85  # a bare title such as "Iowa" does not always find its own passage


def test_musique_aliases_are_right_answers() -> None:
    first = read_questions(data("multihop/musique_train.json"))[0]
    assert first.answers == ("G. Stanley Hall", "Stanley Hall")
    assert first.titles == ("Journal of Psychotherapy Integration", "Adolescence")


def test_the_questions_own_passages_serve_as_corpus() -> None:
    assert len(qa(questions=data("multihop/hotpotqa_train.json")).retriever.documents) > 900


def test_two_wiki_corpus_loads() -> None:
    assert len(read_corpus(data("multihop/2wikimultihopqa_corpus.json"))) > 6000


def test_medmcqa_loads_whole() -> None:
    path = data("medical/medmcqa_dev.jsonl")
    questions = read_questions(path)
    assert len(questions) == 4183
    assert {question.answers[0] for question in questions} == set("ABCD")
    assert expert_success(qa(questions=path), 50) == 1.0


def test_pubmedqa_loads_whole() -> None:
    path = data("medical/pubmedqa_test.json")
    questions = read_questions(path)
    assert len(questions) == 500
    assert {question.answers[0] for question in questions} == {"yes", "no", "maybe"}
    assert expert_success(qa(questions=path), 50) == 1.0
