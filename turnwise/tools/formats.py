"""How a model writes a call: tags, fenced code or JSON. Any text parses to a call, an error to show, or nothing."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from turnwise.tools.tool import Tool

_QUOTED_CHARACTERS = 60
_LINES = re.MULTILINE | re.DOTALL


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """A call as the model wrote it: `ToolCall(name="search", arguments={"query": "mahis"})`."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class CallError:
    """The text tries to call a tool but is malformed; the message tells the model how to fix it."""

    message: str


class Format(Protocol):
    """One way to write calls."""

    def accepts(self, tool: Tool) -> bool:
        """Whether this format can call the tool; the other methods skip tools it cannot."""
        ...

    def parse(self, text: str, tools: Mapping[str, Tool]) -> ToolCall | CallError | None:
        """The first call in the text, an error if a call is malformed, None if the text has no call."""
        ...

    def describe(self, tools: Mapping[str, Tool]) -> str:
        """How to write a call, for the prompt."""
        ...


@dataclass(frozen=True, kw_only=True)
class TagFormat:
    """`<search>mahis</search>`: the text between the tags is the tool's one argument.

    The first opening tag of a known tool counts, up to the nearest closing tag of the same name. The text between is
    taken as it is, including other tags, but without surrounding blank space.
    """

    def accepts(self, tool: Tool) -> bool:
        """Tools with a single argument to give."""
        return _sole_argument(tool) is not None

    def parse(self, text: str, tools: Mapping[str, Tool]) -> ToolCall | CallError | None:
        """The first tagged call."""
        names = "|".join(re.escape(name) for name, tool in tools.items() if self.accepts(tool))
        opening = re.search(f"<({names})>", text) if names else None
        if opening is None:
            return None
        name = opening[1]
        end = text.find(f"</{name}>", opening.end())
        if end < 0:
            return CallError(message=f"<{name}> is not closed; write <{name}>...</{name}>")
        # Code is often indented as a whole; dedented before it is stripped, its lines stay aligned.
        return _one_argument_call(tools[name], textwrap.dedent(text[opening.end() : end]).strip())

    def describe(self, tools: Mapping[str, Tool]) -> str:
        """One pattern per tool."""
        fitting = (tool for tool in tools.values() if self.accepts(tool))
        patterns = ", ".join(f"<{tool.name}>{_sole_argument(tool)}</{tool.name}>" for tool in fitting)
        return f"Call a tool by writing {patterns}."


@dataclass(frozen=True, kw_only=True)
class FencedFormat:
    """A fenced code block: the code goes to one tool."""

    tool: str = "python"
    languages: tuple[str, ...] = ("python", "py")

    def accepts(self, tool: Tool) -> bool:
        """Only the one tool, if it has a single argument to give."""
        return tool.name == self.tool and _sole_argument(tool) is not None

    def parse(self, text: str, tools: Mapping[str, Tool]) -> ToolCall | CallError | None:
        """The first fenced block in one of the languages."""
        languages = "|".join(map(re.escape, self.languages))
        opening = re.search(rf"^```(?:{languages})[ \t]*\n", text, re.MULTILINE)
        tool = tools.get(self.tool)
        if opening is None or tool is None or not self.accepts(tool):
            return None
        closing = re.compile(r"^```", re.MULTILINE).search(text, opening.end())
        if closing is None:
            return CallError(message="the code block is not closed; end it with a line ```")
        return _one_argument_call(tool, text[opening.end() : closing.start()])

    def describe(self, tools: Mapping[str, Tool]) -> str:
        """The fence to write."""
        return (
            f"Call the tool {self.tool} by writing a block that starts with ```{self.languages[0]} and ends with ```."
        )


@dataclass(frozen=True, kw_only=True)
class JsonFormat:
    """`<tool_call>{"name": "search", "arguments": {"query": "mahis"}}</tool_call>`, or the bare object.

    A bare object must be the whole text. Arguments may be an object, or a string that contains one as OpenAI-style
    APIs send them.
    """

    def accepts(self, tool: Tool) -> bool:
        """Every tool."""
        return True

    def parse(self, text: str, tools: Mapping[str, Tool]) -> ToolCall | CallError | None:
        """The first tagged JSON call, otherwise a bare object that names a tool and arguments."""
        _, opening, rest = text.partition("<tool_call>")
        if not opening:
            return self._parse_bare(text, tools)
        body, closing, _ = rest.partition("</tool_call>")
        if not closing:
            return CallError(message="<tool_call> is not closed; write <tool_call>{...}</tool_call>")
        return self._read(_load_object(body), tools)

    def describe(self, tools: Mapping[str, Tool]) -> str:
        """The object to write, and the schema of each tool's arguments."""
        schemas = "\n".join(f"{name}: {json.dumps(tool.parameters)}" for name, tool in tools.items())
        example = '<tool_call>{"name": ..., "arguments": {...}}</tool_call>'
        return f"Call a tool by writing {example}. Arguments by tool, as JSON schema:\n{schemas}"

    def _parse_bare(self, text: str, tools: Mapping[str, Tool]) -> ToolCall | CallError | None:
        text = text.strip()
        if not (text.startswith("{") and text.endswith("}")):
            return None
        value = _load_object(text)
        # Any other JSON is the agent's answer, not a call.
        is_call = isinstance(value, dict) and ({"name", "arguments"} <= value.keys() or "function" in value)
        return self._read(value, tools) if is_call else None

    def _read(self, value: dict[str, Any] | CallError, tools: Mapping[str, Tool]) -> ToolCall | CallError:
        call = value if isinstance(value, CallError) else read_call(value)
        return unknown_tool(call.name, tools) if isinstance(call, ToolCall) and call.name not in tools else call


@dataclass(frozen=True, kw_only=True)
class ReActFormat:
    """`Action: search` on a line, `Action Input: mahis` on the next; `Final Answer:` before them means no call.

    The input is a JSON object, or plain text for a tool with one argument to give. What follows `Observation:`, which
    only the environment may write, is ignored.
    """

    def accepts(self, tool: Tool) -> bool:
        """Every tool."""
        return True

    def parse(self, text: str, tools: Mapping[str, Tool]) -> ToolCall | CallError | None:
        """The first action; a text with neither an action nor a final answer is malformed."""
        found = re.search(r"^[ \t]*(Action|Final Answer)[ \t]*:(.*)", text, re.MULTILINE)
        if found is None:
            return CallError(message="write Action: and Action Input: on two lines, or Final Answer:")
        if found[1] == "Final Answer":
            return None
        name = found[2].strip().strip("`\"'")
        if name not in tools:
            return unknown_tool(name, tools)
        said = re.match(r"\s*Action Input[ \t]*:(.*?)(?=^[ \t]*Observation[ \t]*:|\Z)", text[found.end() :], _LINES)
        return self._with_input(tools[name], said[1].strip() if said else "")

    def describe(self, tools: Mapping[str, Tool]) -> str:
        """The lines to write."""
        return (
            "Use this format:\nThought: what to do next\nAction: the name of one tool\n"
            "Action Input: its arguments as a JSON object\nThe result comes back as an Observation. When you are done, "
            "write\nFinal Answer: a short summary"
        )

    def _with_input(self, tool: Tool, said: str) -> ToolCall | CallError:
        if not said.startswith("{") and _sole_argument(tool) is not None:
            return _one_argument_call(tool, said.strip("`\"'"))
        arguments = _load_object(said) if said.startswith("{") else {}
        return arguments if isinstance(arguments, CallError) else ToolCall(name=tool.name, arguments=arguments)


def read_call(value: Mapping[str, Any]) -> ToolCall | CallError:
    """A call in the OpenAI form: `{"function": {"name": "search", "arguments": ...}}`, or the inner object alone."""
    function = value.get("function", value)
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not name:
        return CallError(message='a call is an object with a "name" and "arguments"')
    arguments = function.get("arguments", {})
    arguments = _load_object(arguments) if isinstance(arguments, str) else arguments
    if isinstance(arguments, CallError):
        return arguments
    if not isinstance(arguments, dict):
        return CallError(message='"arguments" must be an object, such as {"query": "..."}')
    return ToolCall(name=name, arguments=arguments)


def write_call(call: ToolCall) -> str:
    """A call in the form that `JsonFormat` reads."""
    body = json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)
    return f"<tool_call>{body.replace('</', '<' + chr(92) + '/')}</tool_call>"  # no argument may close the tag


def render_tools(tools: Iterable[Tool], formats: Iterable[Format]) -> str:
    """The part of a prompt that describes the tools and how to call them."""
    by_name = {tool.name: tool for tool in tools}
    lines = ["You can use these tools, one call per turn:"]
    for tool in by_name.values():
        lines.append(f"- {tool.name}({', '.join(tool.parameters.get('properties', {}))}): {tool.description}")
        for name, schema in tool.parameters.get("properties", {}).items():
            lines += [f"    {name}: {schema['description']}"] if schema.get("description") else []
    return "\n".join([*lines, *(form.describe(by_name) for form in formats)])


def _one_argument_call(tool: Tool, value: str) -> ToolCall:
    name = _sole_argument(tool)
    assert name is not None
    return ToolCall(name=tool.name, arguments={name: value})


def _sole_argument(tool: Tool) -> str | None:
    """The argument that plain text stands for: the one required, or the only one."""
    names = tool.required or tuple(tool.parameters.get("properties", {}))
    return names[0] if len(names) == 1 else None


def _load_object(text: str) -> dict[str, Any] | CallError:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return CallError(message=f"not valid JSON ({str(error)[:_QUOTED_CHARACTERS]}); write one object")
    return value if isinstance(value, dict) else CallError(message="the call must be one JSON object")


def unknown_tool(name: str, tools: Mapping[str, Tool]) -> CallError:
    """What a model reads that calls a tool that is not there."""
    return CallError(message=f"unknown tool {name[:_QUOTED_CHARACTERS]!r}; there is {', '.join(tools) or 'none'}")
