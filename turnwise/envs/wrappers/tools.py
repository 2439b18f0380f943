"""Tool use for any environment."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import ClassVar

from turnwise.envs.base import Env, Info, Reset, Step
from turnwise.envs.wrappers.wrapper import Wrapper, then
from turnwise.tools.formats import CallError, Format, TagFormat, ToolCall, render_tools
from turnwise.tools.tool import Tool, ToolResult, neutralise


class ToolEnv(Wrapper):
    """Lets the agent call tools: `ToolEnv(env, [calculator])`.

    An action with a call uses up the turn, and the tool's result is the next observation; any other action goes
    to the environment. A malformed call gets an explanation and `valid=False`. A tool that fails, even by its own
    bug, answers with the error. Formats are tried in order. Tool turns never end an episode by themselves: put a
    TurnLimit around this.
    """

    shared: ClassVar[frozenset[str]] = Wrapper.shared | {"tools", "formats"}

    def __init__(
        self,
        env: Env,
        tools: Sequence[Tool],
        *,
        formats: Sequence[Format] = (TagFormat(),),
        max_tool_uses: int = 10,
        use_reward: float = 0.0,
        success_reward: float = 0.0,
        error_reward: float = 0.0,
        result_tag: str = "result",
    ) -> None:
        super().__init__(env)
        _check(tools, formats)
        self.tools = {tool.name: tool for tool in tools}
        self.formats = tuple(formats)
        self.max_tool_uses = max_tool_uses
        self.use_reward = use_reward
        self.success_reward = success_reward
        self.error_reward = error_reward
        self.result_tag = result_tag
        self.tool_uses = 0

    @property
    def reward_range(self) -> tuple[float, float]:
        """The environment's bounds, extended to a turn spent on a tool."""
        low, high = self.env.reward_range
        of_tools = (0.0, self.error_reward, self.use_reward + self.success_reward, self.use_reward + self.error_reward)
        return min(low, *of_tools), max(high, *of_tools)

    def on_reset(self, reset: Reset) -> Reset:
        """Describe the tools above the first observation."""
        observation, info = reset
        self.tool_uses = 0
        return f"{render_tools(self.tools.values(), self.formats)}\n\n{observation}", info

    def step(self, action: str) -> Step | Awaitable[Step]:
        """Call the tool named in the action, otherwise step the environment."""
        call = self._parse(action)
        if call is None:
            return super().step(action)
        if isinstance(call, CallError):
            return self._turn(ToolResult(text=call.message, ok=False), self.error_reward, valid=False)
        if self.tool_uses >= self.max_tool_uses:
            return self._turn(ToolResult(text="no tool uses left; answer now", ok=False), 0.0, valid=False)
        self.tool_uses += 1
        return then(self.tools[call.name](call.arguments), lambda result: self._used(call, result))

    def _parse(self, action: str) -> ToolCall | CallError | None:
        parsed = (form.parse(action, self.tools) for form in self.formats)
        return next((call for call in parsed if call is not None), None)

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
