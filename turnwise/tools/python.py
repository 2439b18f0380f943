"""Python as a tool: the program runs in the sandbox, and the model reads what it printed."""

from __future__ import annotations

from turnwise.tools.sandbox import Execution, SandboxLimits, check_sandbox, run_python
from turnwise.tools.tool import Tool, ToolResult, tool


def python_tool(limits: SandboxLimits | None = None) -> Tool:
    """A tool `python(code)`; if no sandbox can be made, it refuses and says what to install."""
    limits = limits or SandboxLimits()
    check_sandbox()

    async def python(code: str) -> ToolResult:
        """Run a Python program without network or files and read what it prints.

        Args:
            code: the whole program; print what you want to know
        """
        return _report(await run_python(code, limits), limits)

    return tool(python)


def _report(execution: Execution, limits: SandboxLimits) -> ToolResult:
    parts = [execution.stdout.rstrip(), execution.stderr.rstrip()]
    if execution.timed_out:
        parts.append(f"stopped: not finished after {limits.wall_seconds:g} seconds")
    elif execution.output_full:
        parts.append(f"stopped: more than {limits.output_bytes} bytes of output")
    elif execution.exit_code and not execution.stderr:
        parts.append(f"stopped with exit code {execution.exit_code}; it may have used too much time or memory")
    return ToolResult(text="\n".join(filter(None, parts)) or "(no output)", ok=execution.ok)
