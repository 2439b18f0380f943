"""Runs the programs of reasoning-gym's data sets in the sandbox.

The family `codeio` asks what programs from elsewhere do, and finds out by running them in the asking process. Here
they run in the sandbox, with only the standard library.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from random import Random
from typing import Any

from reasoning_gym.code.codeio import CodeIODataset

from turnwise.tools.sandbox import SandboxLimits, check_sandbox, run_python_sync

FAMILIES = frozenset({"codeio"})
"""Families whose questions come from running programs."""
_LIMITS = SandboxLimits(cpu_seconds=1, wall_seconds=20.0)
"""Processor time, so that a busy machine asks the same questions as an idle one."""
_SEED, _PROGRAM = "<seed>", "<program>"
# The order of sets depends on the hash seed, which is random in the sandbox: equal seeds must ask equal questions.
_RUN = f"""
import json, os, random, sys
if "PYTHONHASHSEED" not in os.environ:
    os.execve(sys.executable, [sys.executable, "-sSP", __file__], {{**os.environ, "PYTHONHASHSEED": "0"}})
random.seed({_SEED})
names = {{"Random": random.Random}}
exec({_PROGRAM}, names, names)
inputs = names["generate_inputs"](random.Random({_SEED}))
asked = repr(inputs)  # a program may change what it is given
outputs = names["main_solution"](**inputs)
json.dumps([inputs, outputs])
print()
print(f"({{asked}}, {{outputs!r}})")
"""


def confine_programs() -> None:
    """From now on data sets run their programs in the sandbox, including inside composites."""
    CodeIODataset._generate_io_pair = _run_confined


def require_confinement(name: str, family: str) -> None:
    """ValueError, with the fix, if `family` runs programs and this machine cannot confine them."""
    if family not in FAMILIES:
        return
    try:
        check_sandbox()
    except ValueError as error:
        raise ValueError(f"{name} runs programs of its data set, which only happens in the sandbox; {error}") from error


def was_run(item: Mapping[str, Any]) -> bool:
    """Whether an item is a question: False if its program failed, for example for lack of a package."""
    data = item["metadata"]
    return data.get("source_dataset") not in FAMILIES or bool(data["input_data"] or data["output_data"])


def _run_confined(
    self: CodeIODataset, main_code: str, input_generator_code: str, rng: Random, max_retries: int = 1
) -> tuple[Any, Any]:
    """A program's input and output; ({}, {}) if it failed, as in the method this replaces."""
    program = repr(f"{main_code}\n\n{input_generator_code}")
    code = _RUN.replace(_SEED, str(rng.getrandbits(64))).replace(_PROGRAM, program)
    execution = run_python_sync(code, _LIMITS)
    lines = execution.stdout.splitlines()
    if not execution.ok or not lines:
        return {}, {}
    try:
        inputs, outputs = ast.literal_eval(lines[-1])  # reads data and runs nothing
        json.dumps([inputs, outputs])
    except (MemoryError, RecursionError, SyntaxError, TypeError, ValueError):
        return {}, {}
    return inputs, outputs
