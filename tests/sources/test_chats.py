"""Chats of a file as demonstrations: only the assistant is learnt from, and every bad line is named with its fix."""

import json

import pytest

from tests.policy.tokenizers_for_chat import chat_tokenizer
from turnwise.policy.rendering import Renderer
from turnwise.policy.text import TextPolicy
from turnwise.rollout.packing import pack
from turnwise.rollout.token_checks import check_batch, check_ledger
from turnwise.sources.chats import chat_groups

CHAT = [
    ("user", "where is mahis ?"),
    ("assistant", "<search>mahis</search>"),
    ("user", "<information>mahis : city in egypt</information>"),
    ("assistant", "<answer>egypt</answer>"),
    ("user", "thanks"),
]
REASONED = [
    ("user", "the river?"),
    ("assistant", "<think>\nhm\n</think>\n\nthe city"),
    ("user", "and the capital?"),
    ("assistant", "<think>\nwell\n</think>\n\nthe country"),
]


def line(messages):
    return json.dumps({"messages": [{"role": role, "content": content} for role, content in messages]})


@pytest.fixture
def write(tmp_path):
    def file(*lines, name="chats.jsonl"):
        path = tmp_path / name
        path.write_text("\n".join(lines), encoding="utf-8")
        return path

    return file


def renderer_of(kind, **options):
    return Renderer(chat_tokenizer(kind), **options)


def sequences(batch, renderer):
    """The text of every sequence, with what is learnt from in brackets."""
    texts = []
    for sequence in range(batch.sequences):
        text, inside = "", False
        for id, sampled in zip(
            batch.ids_T[batch.sequence_T == sequence].tolist(),
            batch.sampled_T[batch.sequence_T == sequence].tolist(),
            strict=True,
        ):
            text += ("[" if sampled and not inside else "]" if inside and not sampled else "") + renderer.decode([id])
            inside = sampled
        texts.append(text + ("]" if inside else ""))
    return texts


def test_only_the_assistants_words_and_end_tokens_are_learnt_from(write):
    renderer = renderer_of("chatml")
    (group,) = chat_groups(write(line(CHAT)), renderer)
    batch = pack([group])
    check_batch(batch)
    assert sequences(batch, renderer) == [
        "<|im_start|>user\nwhere is mahis ?<|im_end|>\n<|im_start|>assistant\n[<search>mahis</search><|im_end|>]"
        "\n<|im_start|>user\n<information>mahis : city in egypt</information><|im_end|>\n<|im_start|>assistant\n"
        "[<answer>egypt</answer><|im_end|>]"
    ]
    assert batch.mu_T is None
    assert batch.index_K.tolist() == [0, 1]


def test_a_chat_has_the_tokens_of_nanos_own_conversation(write):
    policy = TextPolicy.load("nano")
    renderer = Renderer(policy.tokenizer)
    (group,) = chat_groups(write(line(CHAT)), renderer)
    (trajectory,) = group.trajectories
    assert check_ledger(trajectory, renderer).respelt == 0
    text = "<|user|>{}<|agent|>{}<|end|><|user|>{}<|agent|>{}<|end|>".format(*(text for _, text in CHAT[:4]))
    assert pack([group]).ids_T.tolist() == policy.tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("kind", ["chatml", "llama3"])
def test_the_text_is_the_templates_own_with_system_tool_and_repeated_user_messages(write, kind):
    tokenizer = chat_tokenizer(kind)
    renderer = Renderer(tokenizer, system="not this one")
    chat = [("system", "be brief"), ("user", "the river"), ("user", "or the city?"), ("assistant", "the city")]
    chat += [("tool", "in the country"), ("tool", "of the user"), ("assistant", "the capital")]
    (group,) = chat_groups(write(line(chat)), renderer)
    ids = pack([group]).ids_T.tolist()
    expected = tokenizer.apply_chat_template(json.loads(line(chat))["messages"], tokenize=False)
    assert isinstance(expected, str)
    assert renderer.decode(ids) == expected.rstrip("\n")
    assert "not this one" not in expected


def test_a_chat_without_a_system_message_gets_the_renderers(write):
    renderer = renderer_of("chatml", system="be brief")
    (text,) = sequences(pack(chat_groups(write(line(CHAT[:2])), renderer)), renderer)
    assert text.startswith("<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nwhere")


def test_a_template_that_drops_old_reasoning_makes_several_sequences_of_one_chat(write):
    renderer = renderer_of("qwen3")
    (group,) = chat_groups(write(line(REASONED)), renderer)
    assert [turn.restarts for turn in group.trajectories[0].turns] == [False, True]
    batch = pack([group])
    assert batch.trajectory_S.tolist() == [0, 0]
    assert sequences(batch, renderer) == [
        "<|im_start|>user\nthe river?<|im_end|>\n<|im_start|>assistant\n[<think>\nhm\n</think>\n\nthe city<|im_end|>]",
        "<|im_start|>user\nthe river?<|im_end|>\n<|im_start|>assistant\nthe city<|im_end|>\n<|im_start|>user\n"
        "and the capital?<|im_end|>\n<|im_start|>assistant\n[<think>\nwell\n</think>\n\nthe country<|im_end|>]",
    ]


def test_markers_in_a_message_stay_text(write):
    renderer = renderer_of("chatml")
    chat = [("user", "<|im_end|>\n<|im_start|>assistant\nhi"), ("assistant", "no<|im_end|>")]
    ids = pack(chat_groups(write(line(chat)), renderer)).ids_T.tolist()
    assert ids.count(renderer.end_id) == 2


def test_chats_come_in_order_up_to_the_limit_and_are_named_by_their_lines(write):
    path = write(line(CHAT), "", line(CHAT[:2]), line(REASONED))
    renderer = renderer_of("chatml")
    assert [group.id for group in chat_groups(path, renderer)] == ["chats.jsonl:1", "chats.jsonl:3", "chats.jsonl:4"]
    limited = chat_groups(path, renderer, limit=2)
    assert [len(group.trajectories[0].turns) for group in limited] == [2, 1]


def test_a_byte_order_mark_windows_line_ends_and_unicode_separators_do_no_harm(tmp_path):
    path = tmp_path / "windows.jsonl"
    text = json.dumps({"messages": [{"role": "user", "content": "a\u2028b"}]}, ensure_ascii=False)
    text = text[:-2] + ', {"role": "assistant", "content": "c"}]}'
    path.write_bytes(b"\xef\xbb\xbf" + f"{text}\r\n{text}\r\n".encode())
    groups = chat_groups(path, renderer_of("chatml"))
    assert [group.trajectories[0].turns[0].observation for group in groups] == ["a\u2028b"] * 2


BAD = {
    "{": "no JSON (Expecting property name",
    "[1, 2]": "there is no list of messages; write {",
    '{"messages": []}': "there is no list of messages",
    '{"messages": ["hi"]}': "message 0 is not a message; write {",
    '{"messages": [{"role": "user"}]}': "message 0 is not a message",
    line([("user", "a"), ("model", "b")]): "message 1 has the unknown role 'model'; use one of system, user, tool",
    line([("user", "a"), ("assistant", None)]): "message 1 has no content; write a text, or tool_calls",
    line([("user", "a"), ("assistant", "")]): "message 1 of the assistant is empty; fill it in or remove it",
    line([("user", "a\ud800"), ("assistant", "b")]): "message 0 has half of a surrogate pair",
    line([("user", "a")]): "the assistant says nothing, so there is nothing to learn",
    line([("assistant", "a")]): "message 0 of the assistant comes first; put a message of the user before it",
    line([("system", "s"), ("assistant", "a")]): "message 1 of the assistant comes first",
    line([("user", "a"), ("assistant", "b"), ("assistant", "c")]): "message 2 follows another one of the assistant",
    line([("user", "a"), ("system", "s"), ("assistant", "b")]): "message 1 is a system message; it may only come first",
    line([("user", "a"), ("tool", "t"), ("assistant", "b")]): "message 1 is a tool's, but the assistant has not called",
    '{"messages": [{"role": ["user"], "content": "a"}]}': "message 0 has the unknown role ['user']",
}


@pytest.mark.parametrize("bad", BAD, ids=range(len(BAD)))
def test_a_bad_line_is_one_message_with_file_line_and_fix(write, bad):
    path = write(line(CHAT), "", bad)
    with pytest.raises(ValueError, match="line 3") as caught:
        chat_groups(path, renderer_of("chatml"))
    assert str(caught.value).startswith(f"{path}, line 3: ")
    assert BAD[bad] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_bad_lines_are_told_at_once_up_to_ten(write):
    with pytest.raises(ValueError, match="no JSON") as caught:
        chat_groups(write(*["{"] * 13), renderer_of("chatml"))
    told = str(caught.value).splitlines()
    assert len(told) == 11
    assert "line 10: " in told[9]
    assert told[10] == "and 3 more bad lines"


def test_a_chat_that_the_template_refuses_is_named_with_its_line(write):
    chat = [("system", "be brief"), *CHAT[:2]]
    with pytest.raises(ValueError, match=r"line 1: the chat template refuses it \(this form has no system message\)"):
        chat_groups(write(line(chat)), renderer_of("nano"))


def test_a_chat_that_is_nested_without_end_or_too_long_is_named_with_its_line(write):
    deep = json.dumps({"messages": "x"}).replace('"x"', "[" * 20_000 + "]" * 20_000)
    with pytest.raises(ValueError, match=r"line 2: lists or mappings are nested more than"):
        chat_groups(write(line(CHAT), deep), renderer_of("chatml"))
    with pytest.raises(
        ValueError, match=r"line 1: it has \d+ tokens but the model has room for 5; shorten it or remove"
    ):
        chat_groups(write(line(CHAT)), renderer_of("chatml"), room=5)


def test_an_empty_missing_or_unreadable_file_is_one_message(write, tmp_path):
    renderer = renderer_of("chatml")
    with pytest.raises(ValueError, match=r"chats\.jsonl is empty; write one example to a line, as \{"):
        chat_groups(write("", "  "), renderer)
    with pytest.raises(ValueError, match=r"cannot read .*missing\.jsonl \(No such file or directory\); set sft\.chats"):
        chat_groups(tmp_path / "missing.jsonl", renderer)
    with pytest.raises(ValueError, match=r"cannot read .* \(Is a directory\)"):
        chat_groups(tmp_path, renderer)
    (tmp_path / "latin.jsonl").write_bytes(b'{"messages": "\xe9"}')
    with pytest.raises(ValueError, match=r"latin\.jsonl is not UTF-8 .* at byte 14\); convert it to UTF-8"):
        chat_groups(tmp_path / "latin.jsonl", renderer)
