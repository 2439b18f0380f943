"""Calls in tags, fenced code and JSON; any text at all parses to a call, an error or nothing."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.tools import CallError, FencedFormat, Format, JsonFormat, ReActFormat, TagFormat, Tool, ToolCall, tool


@tool
def search(query: str) -> str:
    """Look something up."""
    return query


@tool
def python(code: str) -> str:
    """Run code."""
    return code


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


TOOLS: dict[str, Tool] = {"search": search, "python": python, "add": add}
FORMATS: list[Format] = [TagFormat(), FencedFormat(), JsonFormat()]


def test_tags_carry_the_one_argument():
    call = TagFormat().parse("<think>hm</think> <search> capital of Jordan\n</search> then", TOOLS)
    assert call == ToolCall(name="search", arguments={"query": "capital of Jordan"})


@pytest.mark.parametrize(
    ("text", "name", "body"),
    [
        ("<search>a</search><search>b</search>", "search", "a"),
        ("<search>a<search>b</search></search>", "search", "a<search>b"),
        ("<python>print('<search>x</search>')</python>", "python", "print('<search>x</search>')"),
        ("</search><search>a</search>", "search", "a"),
        ("<search></search>", "search", ""),
        ("<search>0</search>", "search", "0"),
        ("<python>\n    if x:\n        y\n</python>", "python", "if x:\n    y"),
    ],
)
def test_the_first_opening_tag_counts_up_to_its_nearest_closing_tag(text: str, name: str, body: str):
    call = TagFormat().parse(text, TOOLS)
    assert isinstance(call, ToolCall)
    assert (call.name, *call.arguments.values()) == (name, body)


def test_an_unclosed_tag_is_an_error_that_says_how_to_close_it():
    error = CallError(message="<search> is not closed; write <search>...</search>")
    assert TagFormat().parse("<search>capital", TOOLS) == error
    assert TagFormat().parse("<search>a</python>", TOOLS) == error


@pytest.mark.parametrize("text", ["", "plain", "<answer>4</answer>", "<SEARCH>a</SEARCH>", "search>", "<add>1</add>"])
def test_text_without_a_tagged_call_is_not_a_call(text: str):
    assert TagFormat().parse(text, TOOLS) is None
    assert TagFormat().parse(text, {}) is None


def test_fenced_code_goes_to_its_tool_with_indentation_kept():
    text = "So:\n```python\nfor i in (1, 2):\n    print(i)\n```\nand\n```python\nignored\n```"
    call = FencedFormat().parse(text, TOOLS)
    assert call == ToolCall(name="python", arguments={"code": "for i in (1, 2):\n    print(i)\n"})
    assert FencedFormat().parse("```py\n1\n```", TOOLS) == ToolCall(name="python", arguments={"code": "1\n"})


def test_other_fences_are_text_and_an_open_fence_is_an_error():
    assert FencedFormat().parse("```\nx\n```", TOOLS) is None
    assert FencedFormat().parse("```json\n{}\n```", TOOLS) is None
    assert FencedFormat().parse("```python\nx\n```", {"search": search}) is None
    error = FencedFormat().parse("```python\nprint(1)", TOOLS)
    assert error == CallError(message="the code block is not closed; end it with a line ```")


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>',
        'first <tool_call>\n{"name": "add", "arguments": "{\\"a\\": 1, \\"b\\": 2}"}\n</tool_call> after',
        '{"name": "add", "arguments": {"a": 1, "b": 2}}',
        '{"type": "function", "function": {"name": "add", "arguments": "{\\"a\\": 1, \\"b\\": 2}"}}',
    ],
)
def test_json_calls_are_read_in_all_their_spellings(text: str):
    assert JsonFormat().parse(text, TOOLS) == ToolCall(name="add", arguments={"a": 1, "b": 2})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("{", "not valid JSON"),
        ("[" * 10**5, "not valid JSON"),
        ("[1]", "must be one JSON object"),
        ("{}", 'an object with a "name"'),
        ('{"name": 3, "arguments": {}}', 'an object with a "name"'),
        ('{"function": "add"}', 'an object with a "name"'),
        ('{"name": "fly", "arguments": {}}', "unknown tool 'fly'; there is search, python, add"),
        ('{"name": "add", "arguments": [1, 2]}', '"arguments" must be an object'),
        ('{"name": "add", "arguments": "nonsense"}', "not valid JSON"),
        ('{"name": "add", "arguments": "7"}', "must be one JSON object"),
    ],
)
def test_a_malformed_json_call_is_described(body: str, message: str):
    error = JsonFormat().parse(f"<tool_call>{body}</tool_call>", TOOLS)
    assert isinstance(error, CallError)
    assert message in error.message
    assert len(error.message) < 200


@pytest.mark.parametrize("text", ['{"answer": 4}', "{not json}", "{", "3", '["name"]', 'say {"name": "add"}'])
def test_json_that_is_no_call_is_left_to_the_environment(text: str):
    assert JsonFormat().parse(text, TOOLS) is None


def test_an_unclosed_json_call_is_an_error():
    error = JsonFormat().parse('<tool_call>{"name": "add"', TOOLS)
    assert isinstance(error, CallError)
    assert "not closed" in error.message


def test_only_json_accepts_a_tool_of_two_arguments():
    assert [form.accepts(add) for form in FORMATS] == [False, False, True]
    assert [form.accepts(search) for form in FORMATS] == [True, False, True]


PIECES = [
    "<search>",
    "</search>",
    "<tool_call>",
    "</tool_call>",
    "```python\n",
    "\n```",
    "{",
    '{"name":',
    "\\",
    "\0",
    "\ud800",
]


@pytest.mark.parametrize("form", FORMATS)
@given(text=st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=12).map("".join))
def test_parsing_never_raises(form: Format, text: str):
    assert isinstance(form.parse(text, TOOLS), ToolCall | CallError | None)


@given(query=st.text(st.characters(exclude_categories=["Cs"]), max_size=50))
def test_a_json_call_survives_the_round_trip(query: str):
    arguments = {"query": query}
    for written in (arguments, json.dumps(arguments)):
        text = json.dumps({"name": "search", "arguments": written})
        assert JsonFormat().parse(text, TOOLS) == ToolCall(name="search", arguments=arguments)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    "piece", ["<search>", "</search>", "<tool_call>", "```python\n", "{", "a" * 10, "\x00", "<" * 9]
)
def test_a_megabyte_is_parsed_in_no_time(form: Format, piece: str):
    begin = time.thread_time()
    form.parse(piece * (10**6 // len(piece)), TOOLS)
    assert time.thread_time() - begin < 2.0


REACT = ReActFormat()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Thought: look.\nAction: search\nAction Input: mahis", ToolCall(name="search", arguments={"query": "mahis"})),
        ('Action: search\nAction Input: {"query": "a b"}', ToolCall(name="search", arguments={"query": "a b"})),
        (
            'Action: add\nAction Input: {"a": 1, "b": 2}\nObservation: 4',
            ToolCall(name="add", arguments={"a": 1, "b": 2}),
        ),
        ("Action: `add`", ToolCall(name="add", arguments={})),
        ("Final Answer: done\nAction: add", None),
    ],
)
def test_react_lines_are_a_call_or_an_end(text: str, expected: ToolCall | None):
    assert REACT.parse(text, {each.name: each for each in (search, add)}) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("I do not know.", "Final Answer:"),
        ("Action: fly", "unknown tool 'fly'"),
        ("Action: add\nAction Input: {1}", "not valid JSON"),
    ],
)
def test_react_lines_that_are_wrong_say_how_to_fix_them(text: str, message: str):
    error = REACT.parse(text, {"add": add})
    assert isinstance(error, CallError)
    assert message in error.message
