"""Keeps answers away from scorers that would run them as Python.

Some reasoning-gym families pass the answer to `eval` or to `sympy.parse_expr`, which is `eval` too. A policy in
training writes whatever is rewarded, so for these families only plain data and plain mathematics reach the scorer.
"""

from __future__ import annotations

import ast
import re

LITERAL_FAMILIES = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
"""Families that `eval` an answer to accept a Python list."""
EXPRESSION_FAMILIES = frozenset(
    {"countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration"}
)
"""Families that let sympy parse the answer."""

_FUNCTION = re.compile(r"sqrt|exp|log|ln|a?(sin|cos|tan)h?|cot|sec|csc|erf|[Aa]bs|pi|[A-Za-z]")
_CHARACTERS = re.compile(r"[A-Za-z0-9\s+\-*/^().,]*")
_WORD = re.compile(r"[A-Za-z]+")


def is_harmless(family: str, answer: str) -> bool:
    """Whether the scorer of `family` can take this answer without running code chosen by the policy."""
    if family in LITERAL_FAMILIES:
        return _is_code_free(answer)
    if family in EXPRESSION_FAMILIES:
        return _is_mathematics(answer)
    return True


def _is_code_free(text: str) -> bool:
    """True for a Python literal or a bare name, and for text that is not Python: `eval` rejects that unrun."""
    try:
        ast.literal_eval(text)
    except SyntaxError:
        return True
    except (MemoryError, RecursionError, TypeError, ValueError):
        return text.strip().isidentifier()
    return True


def _is_mathematics(text: str) -> bool:
    """Numbers, operators, one-letter symbols and elementary functions; no quotes, attributes or other names."""
    return bool(_CHARACTERS.fullmatch(text)) and all(map(_FUNCTION.fullmatch, _WORD.findall(text)))
