"""A calculator for a model: arithmetic only, exact for integers, and fast for any input."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

from turnwise.tools.tool import tool

Number = int | float

_LONGEST = 300
_MOST_BITS = 4096
"""Integers above this size are rejected: beyond it one multiplication is no longer instant."""
_MOST_DIGITS = 15


@tool
def calculator(expression: str) -> str:
    """Evaluate arithmetic: + - * / // % ** and parentheses, abs, ceil, floor, max, min, round, sqrt.

    Args:
        expression: such as (3 + 4) * 12 / 5
    """
    if len(expression) > _LONGEST:
        raise ValueError(f"the expression is longer than {_LONGEST} characters; compute it in parts")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError("not an arithmetic expression; write for example (3 + 4) * 12 / 5") from None
    return _show(_value(tree.body))


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _checked(value)
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _SIGNS:
            return _SIGNS[type(op)](_value(operand))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _checked(_OPERATORS[type(op)](_value(left), _value(right)))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS and arguments:
            return _checked(_call(name, [_value(argument) for argument in arguments]))
    raise ValueError(f"only numbers, + - * / // % ** and {', '.join(_FUNCTIONS)} are allowed")


def _call(name: str, arguments: list[Number]) -> Any:
    try:
        return _FUNCTIONS[name](*arguments)
    except TypeError:
        raise ValueError(f"{name} does not take these {len(arguments)} arguments") from None


def _power(base: Number, exponent: Number) -> Any:
    # The size is known before the work is done: 9**9**9 is rejected, not computed.
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > _MOST_BITS:
        raise ValueError("the power is too large")
    return base**exponent


def _round(value: Number, digits: int = 0) -> Number:
    # The built-in computes 10**digits, however many digits that is.
    if abs(digits) > _MOST_DIGITS:
        raise ValueError(f"round to at most {_MOST_DIGITS} digits")
    return round(value, digits)


def _checked(value: Any) -> Number:
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise ValueError("the number is too large")
    if isinstance(value, complex) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError("the result is not a finite real number")
    return value


def _show(value: Number) -> str:
    return str(value) if isinstance(value, int) else f"{value:.12g}"


_SIGNS: dict[type[ast.unaryop], Callable[[Number], Number]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "ceil": math.ceil,
    "floor": math.floor,
    "max": max,
    "min": min,
    "round": _round,
    "sqrt": math.sqrt,
}
