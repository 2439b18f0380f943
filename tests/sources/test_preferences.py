"""Files of preferences and of plain text as groups."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.policy.tokenizers_for_chat import chat_tokenizer
from tests.policy.tool_templates import tool_tokenizer
from turnwise.policy.rendering import Renderer
from turnwise.policy.text import TextPolicy
from turnwise.sources.chat_turns import turns_of
from turnwise.sources.compared_answers import read_comparison
from turnwise.sources.plain_text import text_groups
from turnwise.sources.preferences import preference_groups
from turnwise.sources.splitting import split_held_out
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
        ({"chosen": None}, "chosen is null; write a text, or a list of messages"),
        ({"chosen": True}, "chosen is of type bool; write a text, or a list of messages"),
        ({"chosen": " "}, "chosen is empty; fill it in, or remove the line"),
        ({"rejected": [assistant("which ?"), user("the city"), assistant("")]}, "rejected is empty"),
        ({"rejected": []}, "rejected is empty"),
        ({"rejected": "egypt"}, "chosen and rejected are equal"),
        ({"chosen": [assistant("egypt"), user("thanks")]}, "chosen must end with a message of the assistant"),
        ({"chosen": [assistant("a"), assistant("b")]}, "chosen after the prompt: message 2 follows another one"),
        ({"chosen": [{"role": "bot", "content": "a"}]}, "chosen does not begin with the prompt"),
        (
            {"chosen": [assistant("a"), {"role": "bot", "content": "b"}, assistant("c")]},
            "chosen after the prompt: message 2 has the unknown role",
        ),
        (
            {"chosen": [user("where is it ?"), assistant("egypt")]},
            "chosen does not begin with the prompt; begin it with",
        ),
        ({"ranked": ["a", "b"]}, "it has chosen and ranked; keep one of them"),
        ({"probability": 1.2}, "probability is 1.2; write the chance that chosen wins, from 0 to 1"),
        ({"probability": float("nan")}, "probability is nan; write a finite number"),
        ({"probability": "0.7"}, "probability is '0.7'; write a finite number"),
        ({"tools": "search"}, "tools is not a list of objects"),
        ({"prompt": [assistant("hm")]}, "the prompt must end with a message of the user"),
        ({"prompt": ""}, "the prompt must end with a message of the user"),
        ({"chosen": [user("where is mahis ?")]}, "chosen must begin with a message of the assistant, after the prompt"),
        ({"chosen": "egypt " * 600}, "it has .* tokens but the model has room for 64"),
    ],
)
def test_bad_lines_are_named_with_the_fix(
    tmp_path: Path, renderer: Renderer, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=rf"pairs\.jsonl, line 2: {message}"):
        read(tmp_path, renderer, PAIR, {**PAIR, **change}, room=64)


PROMPT = "where is mahis ?"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"ranked": "egypt"}, "ranked is not a list of two answers or more; write .*best"),
        ({"ranked": ["egypt"]}, "ranked is not a list of two answers or more"),
        ({"ranked": ["egypt", "france", "egypt"]}, "ranked.0 and ranked.2 are equal"),
        ({"ranked": ["egypt", "france"], "probability": 0.5}, "probability belongs to a pair of chosen and rejected"),
        ({"answers": ["egypt", "france"]}, "answers.0 has no content or no score; write .*score"),
        (
            {"answers": [{"content": "a", "score": 1}, {"content": "b", "score": float("inf")}]},
            "answers.1.score is inf",
        ),
        ({"answers": [{"content": "a", "score": 1}, {"content": "b", "score": True}]}, "answers.1.score is True"),
        ({"answers": [{"content": "a", "score": 1}, {"content": "b", "score": 1}]}, "all answers have the same score"),
        ({"answers": [{"content": "a", "score": 1}, {"content": "", "score": 0}]}, "answers.1 is empty"),
        (
            {"chosen": [user("a"), assistant("b")], "rejected": [user("c"), assistant("b")], "prompt": None},
            "the prompt",
        ),
        (["egypt"], "chosen or rejected is missing"),
    ],
)
def test_bad_rankings_and_scores_are_named_with_the_fix(
    tmp_path: Path, renderer: Renderer, row: Any, message: str
) -> None:
    line = {"prompt": PROMPT, **row} if isinstance(row, dict) else row
    with pytest.raises(ValueError, match=rf"pairs\.jsonl, line 1: {message}"):
        read(tmp_path, renderer, line)


def test_a_ranking_is_a_group_with_rewards_from_one_to_zero(tmp_path: Path, renderer: Renderer) -> None:
    [group] = read(tmp_path, renderer, {"prompt": PROMPT, "ranked": ["egypt", [assistant("france")], "no"]})
    assert [each.reward for each in group.trajectories] == [1.0, 0.5, 0.0]
    assert [each.turns[0].action for each in group.trajectories] == ["egypt", "france", "no"]


def test_scores_are_the_rewards_and_ties_among_others_are_fine(tmp_path: Path, renderer: Renderer) -> None:
    answers = [{"content": text, "score": score} for text, score in (("a", -1), ("b", 2.5), ("c", -1))]
    [group] = read(tmp_path, renderer, {"prompt": PROMPT, "answers": answers})
    assert [each.reward for each in group.trajectories] == [-1.0, 2.5, -1.0]


def test_a_probability_becomes_the_wins_of_both_answers(tmp_path: Path, renderer: Renderer) -> None:
    groups = read(tmp_path, renderer, {**PAIR, "probability": 0.75}, PAIR)
    names = ["pairs.jsonl:1/0", "pairs.jsonl:1/1"]
    assert [each.info for each in groups[0].trajectories] == [
        {"beats": [0.5, 0.75], "rivals": names},
        {"beats": [0.25, 0.5], "rivals": names},
    ]
    assert [each.turns[-1].streams for each in groups[0].trajectories] == [{"wins": [0.75]}, {"wins": [0.25]}]
    assert all(not each.info and not each.turns[-1].streams for each in groups[1].trajectories)


def test_answers_that_repeat_the_prompt_mean_the_same(tmp_path: Path, renderer: Renderer) -> None:
    whole = {"chosen": [user(PROMPT), assistant("egypt")], "rejected": [user(PROMPT), assistant("france")]}
    groups = read(tmp_path, renderer, PAIR, {"prompt": PROMPT, **whole}, whole)
    assert len({str([each.turns for each in group.trajectories]) for group in groups}) == 1


def test_chats_that_part_at_a_message_of_the_user_are_answers_of_several_turns(
    tmp_path: Path, renderer: Renderer
) -> None:
    start = [user(PROMPT), assistant("which ?")]
    rest = [[user("the city"), assistant("egypt")], [user("the lake"), assistant("france")]]
    [group] = read(tmp_path, renderer, {"chosen": start + rest[0], "rejected": start + rest[1]})
    assert [[turn.action for turn in each.turns] for each in group.trajectories] == [
        ["which ?", "egypt"],
        ["which ?", "france"],
    ]


@pytest.mark.parametrize("template", ["chatml", "llama3", "qwen3", "nano"])
def test_lines_read_together_have_the_tokens_of_lines_read_alone(tmp_path: Path, template: str) -> None:
    renderer = Renderer(chat_tokenizer(template))
    turns = [assistant("<think>hm</think> which ?"), user("the <|im_end|> city"), assistant(" egypt ")]
    rows = [
        {"prompt": "héllo ?", "chosen": turns, "rejected": "no"},
        {"prompt": [user("a"), assistant("b"), user("c")], "chosen": "<|im_end|>", "rejected": "x\n"},
    ]
    groups = read(tmp_path, renderer, *rows)
    for row, group in zip(rows, groups, strict=True):
        line = read_comparison(row)
        for answer, trajectory in zip(line.answers, group.trajectories, strict=True):
            alone = turns_of([*line.prompt, *answer], renderer, context=len(line.prompt))
            alone[-1].reward = trajectory.reward
            assert trajectory.turns == alone


def test_equal_prompts_are_held_out_together_and_the_share_is_about_right(tmp_path: Path, renderer: Renderer) -> None:
    rows = [{**PAIR, "prompt": f"where is {number // 2} ?"} for number in range(400)]
    groups = read(tmp_path, renderer, *rows)
    kept, held = split_held_out(groups, 0.25, name="pairs")
    assert len(kept) + len(held) == 400
    assert 60 < len(held) < 140
    prompts = [{str(group.trajectories[0].task) for group in part} for part in (kept, held)]
    assert prompts[0].isdisjoint(prompts[1])
    assert split_held_out(groups, 0.25, name="pairs") == (kept, held)


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


def test_plain_lines_need_no_call_of_the_tokenizer_for_each(
    tmp_path: Path, renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = list[str]()
    monkeypatch.setattr(Renderer, "_encode_text", lambda self, text: calls.append(text) or [7])
    rows = [{"prompt": f"where is {number} ?", "chosen": "egypt", "rejected": "no"} for number in range(50)]
    assert len(read(tmp_path, renderer, *rows)) == 50
    assert {*calls} <= {""}  # they are encoded together


def test_a_prompt_that_the_template_refuses_as_it_is_does_not_stop_the_file(tmp_path: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": {"place": "here"}}}
    prompt = [user("weather ?"), {"role": "assistant", "content": None, "tool_calls": [call]}]
    prompt += [{"role": "tool", "tool_call_id": "c1", "content": "rain"}, assistant("rain"), user("sure ?")]
    mistral = Renderer(tool_tokenizer("mistral"))  # it wants ids of nine letters
    (group,) = read(tmp_path, mistral, {"prompt": prompt, "chosen": "yes", "rejected": "no"})
    assert "[TOOL_RESULTS]" in mistral.decode(group.trajectories[0].turns[0].prompt_ids)
