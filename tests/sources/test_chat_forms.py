"""The forms of chat files: messages, prompt and completion, ShareGPT; what is learned, cut, left out and held out."""

import json
import re
from pathlib import Path

import pytest

from tests.policy.tokenizers_for_chat import chat_tokenizer
from tests.sources.test_chats import sequences
from turnwise.policy.rendering import Renderer
from turnwise.recipe.loading import load_recipe
from turnwise.rollout.packing import pack
from turnwise.rollout.token_checks import check_batch
from turnwise.sources.chat_lengths import Lengths
from turnwise.sources.chats import chat_groups
from turnwise.sources.demonstrations import longest_sequence
from turnwise.train.setup import make_imitation

MESSAGES = {
    "messages": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "where is mahis ?"},
        {"role": "assistant", "content": "egypt"},
        {"role": "user", "content": "and doris ?"},
        {"role": "assistant", "content": "greece"},
    ]
}
SHARED = {
    "conversations": [
        {"from": "system", "value": "be brief"},
        {"from": "human", "value": "where is mahis ?"},
        {"from": "gpt", "value": "egypt"},
        {"from": "human", "value": "and doris ?"},
        {"from": "gpt", "value": "greece"},
    ]
}
PAIR = {"prompt": MESSAGES["messages"][:4], "completion": [MESSAGES["messages"][4]]}


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(chat_tokenizer("chatml"))


def write(folder: Path, *rows: object, name: str = "chats.jsonl") -> Path:
    path = folder / name
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def learned(groups, renderer):
    return sequences(pack(groups), renderer)


def lengths_of(groups):
    return [longest_sequence(group.trajectories[0].turns) for group in groups]


def test_every_form_gives_the_same_tokens_and_a_prompt_is_only_read(tmp_path: Path, renderer: Renderer) -> None:
    mixed, shared, pair = learned(chat_groups(write(tmp_path, MESSAGES, SHARED, PAIR), renderer), renderer)
    assert mixed == shared
    assert re.findall(r"\[(.*?)\]", mixed) == ["egypt<|im_end|>", "greece<|im_end|>"]
    assert re.findall(r"\[(.*?)\]", pair) == ["greece<|im_end|>"]
    assert pair.replace("[", "").replace("]", "") == mixed.replace("[", "").replace("]", "")
    check_batch(pack(chat_groups(tmp_path / "chats.jsonl", renderer)))


def test_texts_are_a_users_and_an_assistants_message(tmp_path: Path, renderer: Renderer) -> None:
    texts = {"prompt": "where is mahis ?", "completion": "egypt"}
    whole = {"messages": [{"role": "user", "content": "where is mahis ?"}, {"role": "assistant", "content": "egypt"}]}
    beside = {"system": "be brief", "conversations": SHARED["conversations"][1:]}
    groups = chat_groups(write(tmp_path, texts, whole, beside, SHARED), renderer)
    one, two, three, four = learned(groups, renderer)
    assert one == two
    assert three == four


def test_sharegpt_calls_of_tools_are_the_assistants(tmp_path: Path, renderer: Renderer) -> None:
    called = {
        "conversations": [
            {"from": "human", "value": "where is mahis ?"},
            {"from": "function_call", "value": '{"name": "search", "arguments": {"query": "mahis"}}'},
            {"from": "observation", "value": "mahis : city in egypt"},
            {"from": "gpt", "value": "egypt"},
        ]
    }
    (text,) = learned(chat_groups(write(tmp_path, called), renderer), renderer)
    first, second = re.findall(r"\[(.*?)\]", text, flags=re.DOTALL)
    assert "search" in first
    assert "mahis" in first
    assert second == "egypt<|im_end|>"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "hello"}, 'there is no list of messages; write {"messages"'),
        ({"prompt": "hello"}, "there is no completion; write"),
        ({"prompt": "hello", "completion": " "}, "the completion is empty"),
        ({"prompt": 3, "completion": "a"}, "prompt is of type int; write a text"),
        ({"completion": "a"}, "prompt is null; write a text"),
        ({"prompt": "a", "completion": [{"role": "user", "content": "b"}]}, "the completion must begin with a message"),
        ({**MESSAGES, **SHARED}, "it has messages and conversations; keep one of them"),
        ({"conversations": "hello"}, "conversations is not a list"),
        ({"conversations": [{"from": "human"}]}, "message 0 has no 'from' or no 'value'"),
        ({"conversations": [{"from": "moon", "value": "a"}]}, "message 0 is from 'moon'; use one of system, human"),
        ({"conversations": [{"from": "gpt", "value": "a"}]}, "message 0 of the assistant comes first"),
        (
            {"conversations": [{"from": "human", "value": "a"}, {"from": "function_call", "value": "{"}]},
            "message 1 calls a tool, but not as JSON",
        ),
        ([], "there is no list of messages"),
    ],
)
def test_a_bad_line_is_named_with_its_fix(tmp_path: Path, renderer: Renderer, row: object, message: str) -> None:
    with pytest.raises(ValueError, match=rf"line 2: {re.escape(message)}"):
        chat_groups(write(tmp_path, MESSAGES, row), renderer)


def test_cut_right_keeps_the_first_tokens_and_no_more(tmp_path: Path, renderer: Renderer) -> None:
    (whole,) = chat_groups(write(tmp_path, MESSAGES), renderer)
    ids = [token for turn in whole.trajectories[0].turns for token in (*turn.prompt_ids, *turn.sampled_ids)]
    first = len(whole.trajectories[0].turns[0].prompt_ids)
    for room in range(2, len(ids) + 1):
        cutting = Lengths(rule="cut-right", room=room)
        if room <= first:
            with pytest.raises(ValueError, match=r"all of the 1 rows .* have more than"):
                chat_groups(tmp_path / "chats.jsonl", renderer, lengths=cutting)
            continue
        (group,) = chat_groups(tmp_path / "chats.jsonl", renderer, lengths=cutting)
        turns = group.trajectories[0].turns
        kept = [token for turn in turns for token in (*turn.prompt_ids, *turn.sampled_ids)]
        assert kept == ids[: len(kept)]
        assert len(kept) <= room
        assert all(
            turn.sampled_ids and turn.action == renderer.decode(turn.sampled_ids[: len(turn.sampled_ids)])
            for turn in turns
            if turn.sampled_ids[-1] != renderer.end_id
        )
        assert cutting.cut == (room < len(ids))


def test_cut_left_keeps_the_system_message_and_the_last_exchanges(tmp_path: Path, renderer: Renderer) -> None:
    rows = [
        {"role": role, "content": f"{word} {number}"}
        for number in range(8)
        for role, word in (("user", "ask"), ("assistant", "say"))
    ]
    path = write(tmp_path, {"messages": [{"role": "system", "content": "be brief"}, *rows]})
    (whole,) = lengths_of(chat_groups(path, renderer))
    for room in (whole, whole - 1, whole // 2, whole // 4):
        cutting = Lengths(rule="cut-left", room=room)
        groups = chat_groups(path, renderer, lengths=cutting)
        assert lengths_of(groups)[0] <= room
        (text,) = learned(groups, renderer)
        said = re.findall(r"\[say (\d)", text)
        assert said == [str(number) for number in range(8 - len(said), 8)]
        assert said
        assert text.startswith("<|im_start|>system\nbe brief<|im_end|>")
        assert f"ask {8 - len(said)}" in text
        assert f"ask {7 - len(said)}" not in text
        assert cutting.cut == (room < whole)
    # One more exchange would not have fitted.
    assert (
        len(
            re.findall(
                r"\[say",
                learned(chat_groups(path, renderer, lengths=Lengths(rule="cut-left", room=whole - 1)), renderer)[0],
            )
        )
        == 7
    )


def test_cut_left_shortens_a_single_long_request_and_keeps_its_end(tmp_path: Path, renderer: Renderer) -> None:
    asked = " ".join(f"word{number}" for number in range(200)) + " where is mahis ?"
    path = write(tmp_path, {"prompt": asked, "completion": "egypt"}, {"prompt": "a", "completion": "long " * 400})
    cutting = Lengths(rule="cut-left", room=120)
    groups = chat_groups(path, renderer, lengths=cutting)
    (text,) = learned(groups, renderer)
    assert text.startswith("<|im_start|>user\n")
    assert "where is mahis ?<|im_end|>" in text
    assert re.findall(r"\[(.*?)\]", text) == ["egypt<|im_end|>"]
    assert 100 < lengths_of(groups)[0] <= 120
    assert (cutting.rows, cutting.cut, cutting.dropped) == (2, 1, 1)
    told = cutting.told("chats.jsonl")
    assert told == "2 of 2 rows of chats.jsonl had more than 120 tokens: 1 cut, 1 left out (sft.too_long=cut-left)"


def test_a_share_of_prompts_is_held_out_whatever_else_the_file_has(tmp_path: Path, renderer: Renderer) -> None:
    def split(rows):
        path = write(tmp_path, *rows)
        sft = {"chats": str(path), "held_out": 0.3, "demonstrations": 1000, "batch": 1000, "epochs": 1, "warmup": 0}
        imitation = make_imitation(load_recipe(None, {"sft": sft}), renderer)
        prompts = [
            {group.trajectories[0].task[0]["content"] for group in part}
            for part in (imitation.groups(1), imitation.held_out)
        ]
        assert prompts[0].isdisjoint(prompts[1])
        return prompts

    rows = [{"prompt": f"where is {number // 2} ?", "completion": f"place {number}"} for number in range(200)]
    learned_first, held_first = split(rows)
    assert 18 <= len(held_first) <= 44
    learned_later, held_later = split([*reversed(rows), {"prompt": "who ?", "completion": "me"}])
    assert held_later - {"who ?"} == held_first
    assert learned_later - {"who ?"} == learned_first


@pytest.mark.parametrize(
    ("sft", "message"),
    [
        ({"held_out": 1.5}, "sft.held_out"),
        ({"held_out": "more.jsonl"}, "held_out names a file, but the expert plays"),
        ({"chats": "a.jsonl", "too_long": "cut"}, "sft.too_long"),
    ],
)
def test_a_mistake_in_the_section_is_named(sft: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_recipe(None, {"sft": sft})
