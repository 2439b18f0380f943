"""Tool use for any environment."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import ClassVar

from turnwise.envs.base import Env, Info, Reset, Step
from turnwise.envs.wrappers.wrapper import Wrapper, then
from turnwise.tools.formats import CallError, Format, JsonFormat, TagFormat, ToolCall, render_tools, unknown_tool
from turnwise.tools.native_calls import MESSAGES, call_id, describe_tools, read_native_calls
from turnwise.tools.tool import Tool, ToolResult, neutralise

_USED_UP = "no tool uses left; answer now"


class ToolEnv(Wrapper):
    """Lets the agent call tools: `ToolEnv(env, [calculator])`.

    An action with a call uses up the turn, and the tool's result is the next observation; any other action goes
    to the environment. A malformed call gets an explanation and `valid=False`. A tool that fails, even by its own
    bug, answers with the error. Formats are tried in order. Tool turns never end an episode by themselves: put a
    TurnLimit around this.

    With `native` the chat template shows the tools, a turn may make several calls in the syntax of the model's family
    (`turnwise.tools.native_calls`), and each result goes back in the role `tool`.
    """

    shared: ClassVar[frozenset[str]] = Wrapper.shared | {"tools", "formats", "schemas"}

    def __init__(
        self,
        env: Env,
        tools: Sequence[Tool],
        *,
        formats: Sequence[Format] = (TagFormat(),),
        native: bool = False,
        max_tool_uses: int = 10,
        use_reward: float = 0.0,
        success_reward: float = 0.0,
        error_reward: float = 0.0,
        result_tag: str = "result",
    ) -> None:
        super().__init__(env)
        _check(tools, (JsonFormat(),) if native else formats)
        self.tools = {tool.name: tool for tool in tools}
        self.schemas = describe_tools(tools)
        self.formats, self.native = tuple(formats), native
        self.max_tool_uses = max_tool_uses
        self.use_reward = use_reward
        self.success_reward = success_reward
        self.error_reward = error_reward
        self.result_tag = result_tag
        self.tool_uses = self.calls = 0

    @property
    def reward_range(self) -> tuple[float, float]:
        """The environment's bounds, extended to a turn spent on a tool."""
        low, high = self.env.reward_range
        of_tools = (0.0, self.error_reward, self.use_reward + self.success_reward, self.use_reward + self.error_reward)
        return min(low, *of_tools), max(high, *of_tools)

    def on_reset(self, reset: Reset) -> Reset:
        """Describe the tools above the first observation."""
        observation, info = reset
        self.tool_uses = self.calls = 0
        if self.native:
            return observation, self._told(info, [{"role": "user", "content": observation}])
        return f"{render_tools(self.tools.values(), self.formats)}\n\n{observation}", info

    def on_step(self, action: str, step: Step) -> Step:
        """The environment's own observation is the user's."""
        observation, reward, terminated, truncated, info = step
        told = self._told(info, [{"role": "user", "content": observation}]) if self.native else info
        return observation, reward, terminated, truncated, told

    def step(self, action: str) -> Step | Awaitable[Step]:
        """Call the tool named in the action, otherwise step the environment."""
        if self.native:
            return self._step_native(action)
        call = self._parse(action)
        if call is None:
            return super().step(action)
        if isinstance(call, CallError):
            return self._turn(ToolResult(text=call.message, ok=False), self.error_reward, valid=False)
        if self.tool_uses >= self.max_tool_uses:
            return self._turn(ToolResult(text=_USED_UP, ok=False), 0.0, valid=False)
        self.tool_uses += 1
        return then(self.tools[call.name](call.arguments), lambda result: self._used(call, result))

    def _parse(self, action: str) -> ToolCall | CallError | None:
        parsed = (form.parse(action, self.tools) for form in self.formats)
        return next((call for call in parsed if call is not None), None)

    def _step_native(self, action: str) -> Step | Awaitable[Step]:
        found = read_native_calls(action)
        if found.error is not None:
            step = self._turn(ToolResult(text=found.error.message, ok=False), self.error_reward, valid=False)
            return self.on_step(action, step)
        return self._call_all(list(found.calls), []) if found.calls else super().step(action)

    def _call_all(self, calls: list[ToolCall], results: list[ToolResult]) -> Step | Awaitable[Step]:
        """One after the other; a tool may be asynchronous."""
        if len(results) == len(calls):
            return self._called(calls, results)
        return then(self._result(calls[len(results)]), lambda result: self._call_all(calls, [*results, result]))

    def _result(self, call: ToolCall) -> ToolResult | Awaitable[ToolResult]:
        if call.name not in self.tools:
            return ToolResult(text=unknown_tool(call.name, self.tools).message, ok=False)
        if self.tool_uses >= self.max_tool_uses:
            return ToolResult(text=_USED_UP, ok=False)
        self.tool_uses += 1
        return self.tools[call.name](call.arguments)

    def _called(self, calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> Step:
        """The results in the role `tool`, each with the id of its call."""
        rewards = [self.use_reward + (self.success_reward if each.ok else self.error_reward) for each in results]
        ok = all(result.ok for result in results)
        whole = ToolResult(text="\n".join(result.text for result in results), ok=ok)
        _, reward, terminated, truncated, info = self._turn(whole, sum(rewards), valid=True)
        told = list[Info]()
        for call, result in zip(calls, results, strict=True):
            text = neutralise(result.text, (*self.tools, self.result_tag))
            told.append({"role": "tool", "name": call.name, "tool_call_id": call_id(self.calls), "content": text})
            self.calls += 1
        made = [{"tool": call.name, "arguments": dict(call.arguments)} for call in calls]
        info |= {"tool": calls[0].name, "parsed_action": made[0] if len(made) == 1 else made}
        observation = "\n".join(message["content"] for message in told)
        return observation, reward, terminated, truncated, self._told(info, told)

    def _told(self, info: Info, messages: list[Info]) -> Info:
        """The info of an environment that speaks in messages: the tools, and what a template is to show."""
        return {**info, "tools": self.schemas, MESSAGES: messages}

    def _used(self, call: ToolCall, result: ToolResult) -> Step:
        reward = self.use_reward + (self.success_reward if result.ok else self.error_reward)
        observation, reward, terminated, truncated, info = self._turn(result, reward, valid=True)
        info |= {"tool": call.name, "parsed_action": {"tool": call.name, "arguments": dict(call.arguments)}}
        return observation, reward, terminated, truncated, info

    def _turn(self, result: ToolResult, reward: float, *, valid: bool) -> Step:
        text = neutralise(result.text, (*self.tools, self.result_tag))
        info: Info = {"valid": valid, "tool_ok": result.ok, "reward_parts": {"tool": reward}}
        if self.acting_seat is not None:  # the result goes to the caller
            info |= {"seat": self.acting_seat, "rewards": {self.acting_seat: reward}}
        return f"<{self.result_tag}>\n{text}\n</{self.result_tag}>", reward, False, False, info


def _check(tools: Sequence[Tool], formats: Sequence[Format]) -> None:
    if isinstance(tools, Tool):
        raise ValueError(f"tools must be a list; write [{tools.name}]")
    for tool in tools:
        if not isinstance(tool, Tool):
            raise ValueError(f"{tool!r} is not a tool; decorate the function with @tool, or pass tool(function)")
    names = [tool.name for tool in tools]
    if len(set(names)) < len(names):
        raise ValueError(f"tool names must differ, but got {', '.join(names)}")
    for tool in tools:
        if not any(form.accepts(tool) for form in formats):
            raise ValueError(
                f"no format can call the tool {tool.name!r}: tags and fenced code carry exactly one argument; "
                "add JsonFormat() to formats"
            )
