"""Tools an agent can call: typed functions, call formats, and the built-in tools."""

from turnwise.tools.calculator import calculator
from turnwise.tools.formats import (
    CallError,
    FencedFormat,
    Format,
    JsonFormat,
    ReActFormat,
    TagFormat,
    ToolCall,
    render_tools,
)
from turnwise.tools.python import python_tool
from turnwise.tools.search import search_tool
from turnwise.tools.tool import Tool, ToolResult, neutralise, tool

__all__ = [
    "CallError",
    "FencedFormat",
    "Format",
    "JsonFormat",
    "ReActFormat",
    "TagFormat",
    "Tool",
    "ToolCall",
    "ToolResult",
    "calculator",
    "neutralise",
    "python_tool",
    "render_tools",
    "search_tool",
    "tool",
]
