"""The mock tools of a request, and the ways in which an agent calls them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from turnwise.envs.plans.plan_task import PlanTask
from turnwise.envs.plans.synthesis import CLOSES, OPENS
from turnwise.tools.formats import CallError, Format, JsonFormat, ReActFormat, ToolCall, render_tools, write_call
from turnwise.tools.tool import Tool

START, START_OVER, DONE = "start_time", "start_over", "done"
_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")
_SHOWN = 60


@dataclass(frozen=True, kw_only=True)
class PlainFormat:
    """The bare name of a tool, and the time where it takes one: `b 09:30`. The word `done` is not a call."""

    def accepts(self, tool: Tool) -> bool:
        """Every tool of a request."""
        return True

    def parse(self, text: str, tools: Mapping[str, Tool]) -> ToolCall | CallError | None:
        """The whole text is a call, an error, or `done`."""
        said = text[: 4 * _SHOWN].strip()
        if said == DONE:
            return None
        name, time = said, ""
        if name not in tools:
            name, _, time = said.rpartition(" ")
        if name not in tools or len(text) > 4 * _SHOWN:
            return CallError(message=f"write {', '.join(tools)} or {DONE}")
        return ToolCall(name=name, arguments={START: time} if time else {})

    def describe(self, tools: Mapping[str, Tool]) -> str:
        """How to write a call."""
        return f"Write the name of a tool, or {DONE}."


PROTOCOLS: Mapping[str, Format] = {
    "react": ReActFormat(),
    "calls": JsonFormat(),
    "api": JsonFormat(),
    "plain": PlainFormat(),
}
"""How an agent calls tools: in ReAct's lines, as JSON in tags, by the functions of a chat API, or by bare names."""


def mock_tools(task: PlanTask) -> dict[str, Tool]:
    """A tool for each action, by name; requests with times have one more, to begin again."""
    tools = [
        _mock(action, None if task.minutes is None else task.minutes[place])
        for place, action in enumerate(task.actions)
    ]
    if task.minutes is not None:
        tools.append(
            Tool(
                name=START_OVER,
                description="Forgets all that was done today. Nothing takes another time than before.",
                parameters={"type": "object", "properties": {}},
                run=lambda _: "A new day begins.",
            )
        )
    return {tool.name: tool for tool in tools}


def tool_name(action: str) -> str:
    """The name of an action's tool, as chat APIs allow it: `hedge trimming` is `hedge_trimming`."""
    return re.sub(r"\W+", "_", action)


def read_turn(protocol: str, text: str, tools: Mapping[str, Tool]) -> ToolCall | CallError | None:
    """The call of a turn; None: the agent says that it is done."""
    call = PROTOCOLS[protocol].parse(text, tools)
    if isinstance(call, ToolCall) and call.name not in tools:
        return CallError(message=f"there is no tool {call.name[:_SHOWN]!r}")
    return call


def write_turn(protocol: str, name: str, time: str | None) -> str:
    """A call as the protocol wants it."""
    arguments = {} if time is None else {START: time}
    if protocol == "plain":
        return name if time is None else f"{name} {time}"
    if protocol == "react":
        given = "{}" if time is None else f'{{"{START}": "{time}"}}'
        return f"Action: {name}\nAction Input: {given}"
    return write_call(ToolCall(name=name, arguments=arguments))


def describe_tools(protocol: str, tools: Mapping[str, Tool]) -> str:
    """What a prompt says about the tools; a chat API gets them beside the prompt (`tool_schemas`)."""
    return "" if protocol == "api" else render_tools(tools.values(), [PROTOCOLS[protocol]])


def tool_schemas(tools: Mapping[str, Tool]) -> list[dict[str, Any]]:
    """The tools in the form of chat APIs."""
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)},
        }
        for tool in tools.values()
    ]


def read_time(said: Any) -> int:
    """`09:30` as a minute of the day; ValueError if it is none."""
    found = _CLOCK.fullmatch(said.strip()) if isinstance(said, str) and len(said) < _SHOWN else None
    if found is None:
        raise ValueError(f"{START} is a time such as 09:30")
    return 60 * int(found[1]) + int(found[2])


def _mock(action: str, minutes: int | None) -> Tool:
    name, described = tool_name(action), f"{action[:1].upper()}{action[1:]}."
    if minutes is None:
        nothing = {"type": "object", "properties": {}}
        return Tool(name=name, description=described, parameters=nothing, run=partial(_run, action))
    note = f"when it starts, from {OPENS // 60:02}:00 to {CLOSES // 60}:00, such as 09:30"
    parameters = {
        "type": "object",
        "properties": {START: {"type": "string", "description": note}},
        "required": [START],
    }
    return Tool(name=name, description=described, parameters=parameters, run=partial(_run_timed, action, minutes))


def _run(action: str, arguments: Mapping[str, Any]) -> str:
    """Arguments are ignored: there are none that matter."""
    return f"{action} done"


def _run_timed(action: str, minutes: int, arguments: Mapping[str, Any]) -> str:
    read_time(arguments.get(START))
    return f"{action} done in {minutes} minutes"
