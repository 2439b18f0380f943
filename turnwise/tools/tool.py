"""A tool is a typed, documented function that a model can call; its result is a value, never an exception."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

OUTPUT_CHARACTERS = 4000
"""How much of a tool's output a model reads, unless the tool sets its own limit."""

PROTOCOL_TAGS = (
    *("think", "search", "information", "answer", "python", "result", "tool_call", "tool_response"),
    *("system", "user", "assistant", "s", "bos", "eos", "start_of_turn", "end_of_turn"),
)
"""Tags that parsers and chat templates act on; text from outside must not be able to contain them."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True, kw_only=True)
class ToolResult:
    """The result of a call: `ToolResult(text="Paris")`, or `ToolResult(text="unknown city", ok=False)`."""

    text: str
    ok: bool = True


@dataclass(frozen=True, kw_only=True)
class Tool:
    """Something a model can call: `Tool(...)({"query": "mahis"})` gives a ToolResult, or an awaitable of one."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of the arguments, an object."""
    run: Callable[[Mapping[str, Any]], Any] = field(repr=False)
    """Takes the arguments as the model wrote them; the model sees what it raises."""
    function: Callable[..., Any] | None = field(default=None, repr=False)
    """The plain function behind a `@tool`, callable as written: `weather.function("Amman", days=2)`."""
    output_characters: int = OUTPUT_CHARACTERS

    def __call__(self, arguments: Mapping[str, Any]) -> ToolResult | Awaitable[ToolResult]:
        """Call the tool; wrong arguments and exceptions come back as a result with `ok=False`."""
        try:
            value = self.run(arguments)
        except Exception as error:  # the edge: one broken call must not end the episode
            return self._refusal(error)
        return self._wait(value) if inspect.isawaitable(value) else self._result(value)

    @property
    def required(self) -> tuple[str, ...]:
        """Names of the required arguments."""
        return tuple(self.parameters.get("required", ()))

    async def _wait(self, value: Awaitable[Any]) -> ToolResult:
        try:
            return self._result(await value)
        except Exception as error:  # the edge: one broken call must not end the episode
            return self._refusal(error)

    def _result(self, value: Any) -> ToolResult:
        result = value if isinstance(value, ToolResult) else ToolResult(text=_as_text(value))
        return ToolResult(text=neutralise(_cut(result.text, self.output_characters)), ok=result.ok)

    def _refusal(self, error: Exception) -> ToolResult:
        return self._result(ToolResult(text=f"{self.name}: {_explain(error)}", ok=False))


def tool(function: Callable[..., Any]) -> Tool:
    """Turn a typed, documented function, plain or `async`, into a Tool.

    @tool
    def weather(city: str, days: int = 1) -> str:
        \"\"\"Forecast for a city.

        Args:
            city: its English name
            days: how far ahead to look
        \"\"\"

    To report a failure, raise a ValueError (the model reads its message) or return `ToolResult(text=..., ok=False)`.
    Any other exception is a failure too; the model reads its type and message.
    """
    name = function.__name__
    description, notes = _read_docstring(function)
    arguments = _arguments_model(function, notes)
    schema = arguments.model_json_schema()
    schema.pop("title")

    def run(given: Mapping[str, Any]) -> Any:
        checked = arguments.model_validate(given)
        return function(**{field_name: getattr(checked, field_name) for field_name in arguments.model_fields})

    return Tool(name=name, description=description, parameters=schema, run=run, function=function)


def neutralise(text: str, tags: Iterable[str] = PROTOCOL_TAGS) -> str:
    """Untrusted text with protocol tags and chat control tokens disarmed: `<search>` becomes `&lt;search>`."""
    names = "|".join(map(re.escape, tags))
    return re.sub(rf"<(?=\s*/?\s*(?:{names})\b|\|)", "&lt;", text, flags=re.IGNORECASE)


def _arguments_model(function: Callable[..., Any], notes: Mapping[str, str]) -> type[BaseModel]:
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ValueError(f"tool {function.__name__}: {parameter} must be an ordinary named argument")
        if parameter.name not in hints:
            raise ValueError(f"tool {function.__name__}: give the argument {parameter.name!r} a type annotation")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints[parameter.name], Field(default, description=notes.get(parameter.name)))
    return create_model(function.__name__, __config__=ConfigDict(extra="forbid"), **fields)


def _read_docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The description, and the note on each argument under `Args:`."""
    text = inspect.getdoc(function)
    if not text:
        raise ValueError(f"tool {function.__name__}: write a docstring, the model reads it to learn what the tool does")
    description, _, rest = text.partition("\nArgs:\n")
    notes: dict[str, str] = {}
    for line in rest.splitlines():
        found = re.match(r"\s+(\w+)(?: \([^)]*\))?: (.+)", line)
        if found is None:
            break
        notes[found[1]] = found[2].strip()
    return " ".join(description.split()), notes


def _explain(error: Exception) -> str:
    if isinstance(error, ValidationError):
        problems = (f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors())
        return "wrong arguments: " + "; ".join(problems)
    if isinstance(error, ValueError | ArithmeticError) and str(error):
        return str(error)  # written for the caller
    return f"{type(error).__name__}: {error}"


def _as_text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _cut(text: str, room: int) -> str:
    """At most `room` characters, valid Unicode, without control characters."""
    kept = text[:room].encode(errors="replace").decode()
    kept = _CONTROL.sub("", kept)
    return kept if len(text) <= room else f"{kept}\n[{len(text) - room} more characters cut]"
