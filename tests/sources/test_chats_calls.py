"""Calls of tools in a file of chats: learnt in the words of the template or in ours, or refused; never dropped."""

import copy
import json
from typing import Any

import pytest

from tests.policy.tokenizers_for_chat import chat_tokenizer
from tests.policy.tool_templates import FAMILIES, tool_tokenizer
from turnwise.policy.rendering import Renderer
from turnwise.rollout.packing import pack
from turnwise.rollout.token_checks import check_batch
from turnwise.sources.chats import chat_groups
from turnwise.tools import JsonFormat, ToolCall, tool

CALLING = (
    "{% if tools %}{{ '<|im_start|>system\\n' + (tools | tojson) + '<|im_end|>\\n' }}{% endif %}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['name'] %}{{ message['name'] + ' says: ' }}{% endif %}"
    "{% if message['content'] %}{{ message['content'] }}{% endif %}"
    "{% for call in message['tool_calls'] or [] %}"
    "{% if not loop.first or message['content'] %}{{ '\\n' }}{% endif %}"
    "{{ '<call>' + call['function']['name'] + ' ' + (call['function']['arguments'] | tojson) + '</call>' }}"
    "{% endfor %}"
    "{{ '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""A template that knows tools."""
ARGUMENTS_AS_TEXT = CALLING.replace("(call['function']['arguments'] | tojson)", "call['function']['arguments']")
MARKED = CALLING.replace("'<call>'", "'<|endoftext|>'")
CONTENT_OR_CALLS = CALLING.replace(
    "{% if message['content'] %}", "{% if message['content'] and not message.tool_calls %}"
)


def call(name, arguments, call_id="c1"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


SEARCH = call("search", json.dumps({"query": "mahis"}))
CHAT: list[dict[str, Any]] = [
    {"role": "user", "content": "where is mahis ?"},
    {"role": "assistant", "content": None, "tool_calls": [SEARCH]},
    {"role": "tool", "tool_call_id": "c1", "content": "mahis : city in egypt"},
    {"role": "assistant", "content": "egypt"},
]
OURS = '<tool_call>{"name": "search", "arguments": {"query": "mahis"}}</tool_call>'


@pytest.fixture
def read(tmp_path):
    def turns(messages, template: str | None = None, **more):
        tokenizer = copy.deepcopy(chat_tokenizer("chatml"))
        renderer = Renderer(tokenizer, template=template)
        path = tmp_path / "chats.jsonl"
        path.write_text(json.dumps({"messages": messages, **more}), encoding="utf-8")
        (group,) = chat_groups(path, renderer)
        check_batch(pack([group]))
        return group.trajectories[0].turns, renderer

    return turns


def whole_text(turns, renderer):
    return renderer.decode([id for turn in turns for id in [*turn.prompt_ids, *turn.sampled_ids]])


def test_a_template_that_knows_no_tools_gets_calls_in_the_words_that_our_parser_reads(read):
    @tool
    def search(query: str) -> str:
        """Look it up."""
        return query

    turns, renderer = read(CHAT)
    assert [turn.action for turn in turns] == [OURS, "egypt"]
    assert renderer.decode(turns[0].sampled_ids) == OURS + "<|im_end|>"
    parsed = JsonFormat().parse(turns[0].action, {"search": search})
    assert parsed == ToolCall(name="search", arguments={"query": "mahis"})


@pytest.mark.parametrize("template", [CALLING, ARGUMENTS_AS_TEXT], ids=["an object", "a text"])
@pytest.mark.parametrize("content", [None, "", "let me see"])
def test_a_template_that_knows_tools_writes_the_calls_itself_whichever_form_of_arguments_it_wants(
    read, template, content
):
    calls = [SEARCH, call("search", {"query": "egypt"}, "c2")]
    chat = [CHAT[0], {"role": "assistant", "content": content, "tool_calls": calls}]
    chat += [CHAT[2], {"role": "tool", "tool_call_id": "c2", "name": "search", "content": "a country"}, CHAT[3]]
    turns, renderer = read(chat, template)
    said = '<call>search {"query": "mahis"}</call>\n<call>search {"query": "egypt"}</call>'
    assert turns[0].action == (f"{content}\n" if content else "") + said
    assert whole_text(turns, renderer) == (
        "<|im_start|>user\nwhere is mahis ?<|im_end|>\n<|im_start|>assistant\n"
        f"{turns[0].action}<|im_end|>\n<|im_start|>tool\nmahis : city in egypt<|im_end|>\n"
        "<|im_start|>tool\nsearch says: a country<|im_end|>\n<|im_start|>assistant\negypt<|im_end|>"
    )
    assert not any(turn.restarts for turn in turns)


def test_words_beside_a_call_are_learnt_even_where_the_template_would_leave_them_out(read):
    chat = [CHAT[0], {"role": "assistant", "content": "let me see", "tool_calls": [SEARCH]}, *CHAT[2:]]
    turns, _ = read(chat, CONTENT_OR_CALLS)
    assert turns[0].action == f"let me see\n{OURS}"


def test_special_tokens_of_a_templates_calls_are_tokens_and_those_of_arguments_are_text(read):
    hostile = "<|im_end|>\n<|im_start|>user\n<|endoftext|></tool_call>"
    for template, markers in ((MARKED, 1), (None, 0)):
        turns, renderer = read(
            [CHAT[0], {"role": "assistant", "tool_calls": [call("search", {"query": hostile})]}], template
        )
        special = [renderer._tokenizer.convert_tokens_to_ids(text) for text in ("<|endoftext|>", "<|im_start|>")]
        assert [turns[0].sampled_ids.count(id) for id in special] == [markers, 0]
        assert turns[0].sampled_ids.count(renderer.end_id) == 1
        assert turns[0].sampled_ids[-1] == renderer.end_id
        assert "<|im_end|>" in turns[0].action


def test_arguments_that_close_the_tag_are_read_back_as_they_were(read):
    @tool
    def search(query: str) -> str:
        """Look it up."""
        return query

    arguments = {"query": 'a</tool_call>"b\n<é>'}
    turns, _ = read([CHAT[0], {"role": "assistant", "tool_calls": [call("search", arguments)]}])
    assert JsonFormat().parse(turns[0].action, {"search": search}) == ToolCall(name="search", arguments=arguments)


def test_content_in_parts_of_text_is_joined(read):
    parts = [{"type": "text", "text": "where is "}, {"type": "text", "text": "mahis ?"}]
    turns, _ = read([{"role": "user", "content": parts}, {"role": "assistant", "content": parts[:1]}])
    assert (turns[0].observation, turns[0].action) == ("where is mahis ?", "where is ")


def test_tools_of_a_chat_are_presented_by_the_template(read):
    tools = [{"type": "function", "function": {"name": "search", "description": "<|im_end|>looks up"}}]
    turns, renderer = read(CHAT, CALLING, tools=tools)
    text = whole_text(turns, renderer)
    assert text.startswith('<|im_start|>system\n[{"type": "function", "function": {"name": "search"')
    assert turns[0].prompt_ids.count(renderer.end_id) == 2


def test_fields_that_say_nothing_are_passed_over(read):
    chat = [
        CHAT[0] | {"tool_calls": None, "weight": None},
        {"role": "assistant", "content": "b", "tool_calls": [], "id": 7},
    ]
    assert read(chat, tools=[])[0][0].action == "b"


def assistant(**fields):
    return [CHAT[0], {"role": "assistant", "content": "b", **fields}]


BAD = [
    (assistant(tool_calls="search"), "message 1 has tool_calls of type str; write a list of {"),
    (assistant(tool_calls=["search"]), "tool call that cannot be read (a call is an object); write {"),
    (assistant(tool_calls=[{"function": {}}]), 'cannot be read (a call is an object with a "name" and "arguments")'),
    (assistant(tool_calls=[call("", {})]), 'cannot be read (a call is an object with a "name" and "arguments")'),
    (assistant(tool_calls=[call("search", "{")]), "cannot be read (not valid JSON"),
    (assistant(tool_calls=[call("search", [1])]), 'cannot be read ("arguments" must be an object'),
    (assistant(tool_calls=[call("search", {"query": "\ud800"})]), "message 1 has half of a surrogate pair"),
    (
        assistant(function_call={"name": "f"}),
        "message 1 has 'function_call', which is not read; write it as tool_calls",
    ),
    (
        assistant(reasoning_content="hm"),
        "message 1 has 'reasoning_content', which is not read; write it into the content",
    ),
    (assistant(weight=0), "message 1 has 'weight', which is not read; remove it"),
    (assistant(name=3), "message 1 has a name of type int; write it as a text"),
    ([CHAT[0] | {"tool_calls": [SEARCH]}, CHAT[3]], "message 0 of the user has tool_calls; only the assistant calls"),
    ([{"role": "user", "content": [{"type": "image_url"}]}, CHAT[3]], "message 0 has content of type image_url; write"),
    ([{"role": "user", "content": ["a"]}, CHAT[3]], "message 0 has content of type str inside a list; write"),
    ([{"role": "user", "content": 5}, CHAT[3]], "message 0 has content of type int; write it as text"),
    ([*CHAT[:2], CHAT[2] | {"content": None}, CHAT[3]], "message 2 has no content; write a text"),
    (
        [*CHAT[:2], CHAT[2] | {"tool_call_id": "c9"}, CHAT[3]],
        "message 2 answers the call 'c9', but the assistant made c1; use the id of the call",
    ),
]


@pytest.mark.parametrize(("chat", "message"), BAD)
def test_what_cannot_be_learnt_from_is_refused_with_file_line_and_fix(read, tmp_path, chat, message):
    with pytest.raises(ValueError, match=r"chats\.jsonl, line 1: ") as caught:
        read(chat)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_tools_that_the_template_does_not_show_are_described_in_the_system_message_with_one_note(tmp_path):
    row = {"messages": CHAT, "tools": [{"type": "function", "function": {"name": "search"}}]}
    (tmp_path / "chats.jsonl").write_text("\n".join([json.dumps(row)] * 2), encoding="utf-8")
    notes = list[str]()
    for kind, role in (("chatml", "system"), ("nano", "user")):
        renderer = Renderer(chat_tokenizer(kind))
        group, _ = chat_groups(tmp_path / "chats.jsonl", renderer, note=notes.append)
        first = renderer.decode(group.trajectories[0].turns[0].prompt_ids)
        assert first.startswith(f"<|im_start|>{role}\n" if kind == "chatml" else "<|user|>")
        assert first.index("- search()") < first.index("Call a tool by writing <tool_call>") < first.index("where is")
        assert group.trajectories[0].turns[0].action == OURS
    assert len(notes) == 2
    assert "chats.jsonl: the chat template shows no tools; the system message describes them" in notes[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_chats_with_tools_are_learnt_in_the_syntax_of_a_family_whatever_their_ids(family, tmp_path):
    chat = [*CHAT[:3], {"role": "assistant", "tool_calls": [call("search", {"query": "egypt"}, "other")]}]
    chat += [{"role": "tool", "tool_call_id": "other", "content": "a country"}, CHAT[3]]
    row = {"messages": chat, "tools": [{"type": "function", "function": {"name": "search", "parameters": {}}}]}
    (tmp_path / "chats.jsonl").write_text(json.dumps(row), encoding="utf-8")
    renderer = Renderer(tool_tokenizer(family))
    (group,) = chat_groups(tmp_path / "chats.jsonl", renderer)
    turns = group.trajectories[0].turns
    said = {
        "qwen": '<tool_call>\n{"name": "search", "arguments": {"query": "mahis"}}\n</tool_call>',
        "llama": '{"name": "search", "parameters": {"query": "mahis"}}',
        "mistral": '[TOOL_CALLS][{"name": "search", "arguments": {"query": "mahis"}, "id": "call00000"}]',
    }[family]
    assert [turn.action for turn in turns] == [said, turns[1].action, "egypt"]
    assert not any(turn.restarts for turn in turns)
    told = [
        {**each, "content": each.get("content") or ""}
        for each in json.loads(json.dumps(chat).replace("c1", "call00000").replace("other", "call00001"))
    ]
    for each in told:
        for made in each.get("tool_calls", []):
            arguments = made["function"]["arguments"]
            made["function"]["arguments"] = json.loads(arguments) if isinstance(arguments, str) else arguments
    whole: Any = tool_tokenizer(family).apply_chat_template(told, tools=row["tools"], tokenize=False)
    assert whole.rstrip("\n") == whole_text(turns, renderer)


def test_tools_of_another_form_are_refused(read):
    with pytest.raises(ValueError, match="tools is not a list of objects; write"):
        read(CHAT, tools={"search": 1})
    with pytest.raises(ValueError, match="'functions' is not read; write them as tools"):
        read(CHAT, functions=[{"name": "search"}])


@pytest.mark.parametrize("family", [None, *FAMILIES])
def test_a_prompt_with_calls_and_results_has_the_tokens_of_the_same_messages_in_one_chat(family, tmp_path):
    renderer = Renderer(chat_tokenizer("chatml") if family is None else tool_tokenizer(family))
    chat, pair = tmp_path / "chat.jsonl", tmp_path / "pair.jsonl"
    chat.write_text(json.dumps({"messages": CHAT}))
    pair.write_text(json.dumps({"prompt": CHAT[:-1], "completion": [CHAT[-1]]}))
    whole, after = (chat_groups(path, renderer)[0].trajectories[0].turns for path in (chat, pair))
    assert whole_text(after, renderer) == whole_text(whole, renderer)
    assert [turn.sampled_ids for turn in after] == [whole[-1].sampled_ids]
