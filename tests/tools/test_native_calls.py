"""Calls in the syntax of model families: each is read, what is no call stays text, hostile text gives a result."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.tools import ToolCall
from turnwise.tools.native_calls import call_id, describe_tools, read_native_calls

SEARCH = ToolCall(name="search", arguments={"query": "mahis"})
TWICE = (SEARCH, ToolCall(name="add", arguments={"a": 1}))
JSON = json.dumps({"name": "search", "arguments": {"query": "mahis"}})
ADD = json.dumps({"name": "add", "arguments": {"a": 1}})

CALLS = [
    (f"<tool_call>{JSON}</tool_call>", "", (SEARCH,)),
    (f"let me see\n<tool_call>\n{JSON}\n</tool_call>\n<tool_call>{ADD}</tool_call>", "let me see", TWICE),
    (f"<think>hm <tool_call>x</tool_call></think>\n<tool_call>{JSON}</tool_call>", None, (SEARCH,)),
    ("<tool_call><function=search>\n<parameter=query>\nmahis\n</parameter>\n</function></tool_call>", "", (SEARCH,)),
    ('{"name": "search", "parameters": {"query": "mahis"}}', "", (SEARCH,)),
    ('<|python_tag|>{"name": "search", "parameters": {"query": "mahis"}}', "", (SEARCH,)),
    (f"{JSON}; {ADD}", "", TWICE),
    (f"[TOOL_CALLS] [{JSON}, {ADD}]", "", TWICE),
    (f'I look[TOOL_CALLS][{JSON[:-1]}, "id": "aB3dE6gH9"}}]', "I look", (SEARCH,)),
    ('[TOOL_CALLS]search[ARGS]{"query": "mahis"}[TOOL_CALLS]add{"a": 1}', "", TWICE),
    ('[TOOL_CALLS]search[CALL_ID]x1[ARGS]{"query": "mahis"}', "", (SEARCH,)),
]


@pytest.mark.parametrize(("text", "words", "calls"), CALLS)
def test_every_familys_calls_are_read(text, words, calls):
    found = read_native_calls(text)
    assert (found.calls, found.error) == (calls, None)
    assert words is None or found.text == words


@pytest.mark.parametrize(
    "text", ["egypt", '{"answer": 42}', "{not json}", "{}", "<think><tool_call>{}</think> egypt", ""]
)
def test_what_is_no_call_is_an_answer(text):
    found = read_native_calls(text)
    assert (found.text, found.calls, found.error) == (text, (), None)


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>{",
        f"<tool_call>{JSON}</tool_call><tool_call>[]</tool_call>",
        "[TOOL_CALLS]",
        "[TOOL_CALLS] [{",
        "[TOOL_CALLS] []",
        "<|python_tag|>print(1)",
        '[TOOL_CALLS] [{"arguments": {}}]',
    ],
)
def test_a_call_that_cannot_be_read_is_an_error_and_nothing_of_the_turn_is_called(text):
    found = read_native_calls(text)
    assert found.calls == ()
    assert found.error is not None
    assert found.error.message


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "<tool_call>",
                "</tool_call>",
                "[TOOL_CALLS]",
                "[ARGS]",
                "{",
                "}",
                '"a"',
                ":",
                "[",
                "]",
                "</think>",
                "<|python_tag|>",
                "<function=",
                ">",
                "x",
                JSON,
                "\ud800",
                "\x00",
            ]
        ),
        max_size=12,
    )
)
def test_any_text_has_a_defined_result(parts):
    found = read_native_calls("".join(parts))
    assert not (found.calls and found.error)


def test_a_megabyte_of_brackets_is_an_error_not_a_crash():
    for text in ("[TOOL_CALLS]" + "[" * 10**6, "<tool_call>" + "{" * 10**6 + "</tool_call>", "{" * 10**6 + "}"):
        assert read_native_calls(text).calls == ()


def test_ids_are_nine_letters_and_tools_have_openais_form():
    assert [call_id(0), call_id(12), len(call_id(10**7))] == ["call00000", "call00012", 9]
    from turnwise.tools import calculator

    (row,) = describe_tools([calculator])
    assert row["type"] == "function"
    assert row["function"].keys() == {"name", "description", "parameters"}
    assert json.loads(json.dumps(row)) == row
