"""Files of preferences and of plain text as groups."""

import json
from pathlib import Path
from typing import Any

import pytest

from turnwise.policy.rendering import Renderer
from turnwise.policy.text import TextPolicy
from turnwise.sources.plain_text import text_groups
from turnwise.sources.preferences import preference_groups
from turnwise.types import Group


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(TextPolicy.load("nano").tokenizer)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def read(tmp_path: Path, renderer: Renderer, *rows: Any, **options: Any) -> list[Group]:
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return preference_groups(path, renderer, **options)


PAIR = {"prompt": "where is mahis ?", "chosen": "egypt", "rejected": "france"}


def test_a_pair_is_a_group_of_two_the_chosen_one_first(tmp_path: Path, renderer: Renderer) -> None:
    [group] = read(tmp_path, renderer, PAIR)
    chosen, rejected = group.trajectories
    assert group.id == "pairs.jsonl:1"
    assert [each.id for each in group.trajectories] == ["pairs.jsonl:1/0", "pairs.jsonl:1/1"]
    assert (chosen.reward, rejected.reward, chosen.success, rejected.success) == (1.0, 0.0, True, False)
    assert (chosen.turns[0].action, rejected.turns[0].action) == ("egypt", "france")
    assert chosen.turns[0].prompt_ids == rejected.turns[0].prompt_ids
    assert chosen.turns[0].logprobs is None


def test_only_the_answers_are_learnt_whatever_the_prompt_holds(tmp_path: Path, renderer: Renderer) -> None:
    prompt = [user("hello"), assistant("where to ?"), user("where is mahis ?")]
    [group] = read(tmp_path, renderer, {**PAIR, "prompt": prompt})
    for trajectory in group.trajectories:
        assert len(trajectory.turns) == 1
        assert "where to ?" in renderer.decode(trajectory.turns[0].prompt_ids)
        assert "where to ?" not in renderer.decode(trajectory.turns[0].sampled_ids)


def test_all_forms_of_a_pair_mean_the_same(tmp_path: Path, renderer: Renderer) -> None:
    prompt = [user("where is mahis ?")]
    forms = [
        PAIR,
        {"messages": prompt, "chosen": assistant("egypt"), "rejected": [assistant("france")]},
        {"chosen": [*prompt, assistant("egypt")], "rejected": [*prompt, assistant("france")]},
    ]
    groups = read(tmp_path, renderer, *forms)
    assert len({str([each.turns for each in group.trajectories]) for group in groups}) == 1


def test_an_answer_may_have_several_turns_and_the_reward_is_the_last_ones(tmp_path: Path, renderer: Renderer) -> None:
    chosen = [assistant("which mahis ?"), user("the city"), assistant("egypt")]
    [group] = read(tmp_path, renderer, {**PAIR, "chosen": chosen})
    assert [turn.reward for turn in group.trajectories[0].turns] == [0.0, 1.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chosen": None}, "chosen must begin with a message of the assistant"),
        ({"rejected": "egypt"}, "chosen and rejected are equal"),
        ({"prompt": [assistant("hm")]}, "the prompt must end with a message of the user"),
        ({"prompt": ""}, "the prompt must end with a message of the user"),
        ({"chosen": [user("and ?")]}, "chosen must begin with a message of the assistant"),
        ({"chosen": "egypt " * 600}, "it has .* tokens but the model has room for 64"),
    ],
)
def test_bad_lines_are_named_with_the_fix(
    tmp_path: Path, renderer: Renderer, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=rf"pairs\.jsonl, line 2: {message}"):
        read(tmp_path, renderer, PAIR, {**PAIR, **change}, room=64)


def test_a_line_without_an_answer_shows_the_form(tmp_path: Path, renderer: Renderer) -> None:
    with pytest.raises(ValueError, match=r'line 1: chosen or rejected is missing; write \{"prompt"'):
        read(tmp_path, renderer, {"prompt": "where is mahis ?", "chosen": "egypt"})


def test_text_is_cut_into_pieces_of_which_all_but_the_first_token_is_learnt(tmp_path: Path, renderer: Renderer) -> None:
    path, text = tmp_path / "book.txt", "mahis is a city in egypt . " * 30
    path.write_text(text)
    groups = text_groups(path, renderer, room=16)
    turns = [group.trajectories[0].turns[0] for group in groups]
    ids = [token for turn in turns for token in (*turn.prompt_ids, *turn.sampled_ids)]
    assert ids == renderer.encode(text)
    assert {len(turn.prompt_ids) for turn in turns} == {1}
    assert {len(turn.sampled_ids) for turn in turns[:-1]} == {15}
    assert [group.id for group in groups[:2]] == ["book.txt:0", "book.txt:1"]
    assert text_groups(path, renderer, room=16, limit=2) == groups[:2]


def test_every_line_of_a_jsonl_is_a_text_of_its_own(tmp_path: Path, renderer: Renderer) -> None:
    path = tmp_path / "books.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in ("a city", "a city " * 8)))
    room = len(renderer.encode("a city " * 8)) - 2
    groups = text_groups(path, renderer, room=room)
    assert [group.id for group in groups] == ["books.jsonl:1", "books.jsonl:2/0", "books.jsonl:2/1"]
    path.write_text('{"txt": 1}')
    with pytest.raises(ValueError, match=r'line 1: there is no text; write \{"text"'):
        text_groups(path, renderer)


def test_a_text_without_tokens_is_refused(tmp_path: Path, renderer: Renderer) -> None:
    path = tmp_path / "empty.txt"
    path.write_text("")
    with pytest.raises(ValueError, match="has no text of two tokens or more"):
        text_groups(path, renderer)
