"""Tools an agent can call: typed functions, the formats of a call, and the ones that come built in."""

from turnwise.tools.base import Tool, ToolResult, neutralise, tool
from turnwise.tools.formats import CallError, FencedFormat, Format, JsonFormat, TagFormat, ToolCall, render_tools

__all__ = [
    "CallError",
    "FencedFormat",
    "Format",
    "JsonFormat",
    "TagFormat",
    "Tool",
    "ToolCall",
    "ToolResult",
    "neutralise",
    "render_tools",
    "tool",
]
