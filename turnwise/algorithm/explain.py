"""An algorithm as a plain-text equation."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator

from turnwise.algorithm.notes import MARKS, NOTES
from turnwise.algorithm.parts import Part, facts, function_of
from turnwise.algorithm.presets import PRESETS, preset
from turnwise.algorithm.row import Algorithm
from turnwise.algorithm.rules import resolve
from turnwise.ops.facts import Need, Trait, formula_of

_FOR_VALUE = re.compile(r"(?P<option>\w+)=(?P<value>[\w-]+): +")


def explain(row: Algorithm) -> str:
    """The objective, then every part of it, then warnings and what is known about the method."""
    sections = [_title(row), _objective(row), *_parts(row), _schedule(row), *_warnings(row), *_note(row)]
    text = "\n\n".join(sections) + "\n"
    return text + "".join(f"\n{mark} {meaning}\n" for mark, meaning in MARKS.items() if mark in text)


def equation(axis: str, part: Part) -> str:
    """The equation of a part: the second paragraph of its docstring.

    A line that begins with the name of an option is left out when that option is None, and one that begins with
    `option=value:` when it has another value.
    """
    paragraphs = inspect.cleandoc(function_of(axis, part.kind).__doc__ or "").split("\n\n")
    text = textwrap.dedent(paragraphs[1]) if len(paragraphs) > 1 else paragraphs[0]
    unused = tuple(f"{name}{end}" for name, value in part.options.items() if value is None for end in ",:")
    lines = [_chosen(line, part) for line in text.splitlines() if not line.startswith(unused)]
    return "\n".join(line for line in lines if line is not None)


def _chosen(line: str, part: Part) -> str | None:
    """The line without the value that it is for; None if the part has another."""
    found = _FOR_VALUE.match(line)
    if found is None or found["option"] not in part.options:
        return line
    return line[found.end() :] if str(part.options[found["option"]]) == found["value"] else None


def _changed(row: Algorithm) -> list[str]:
    """The axes in which a row differs from the preset of the same name."""
    original = preset(row.name)
    return [axis for axis in Algorithm.model_fields if getattr(row, axis) != getattr(original, axis)]


def _title(row: Algorithm) -> str:
    if row.name not in PRESETS:
        return f"{row.name}: your own row"
    changed = ", ".join(_changed(row))
    return f"{row.name}, changed: {changed}" if changed else f"{row.name}: {PRESETS[row.name][0]}"


def _objective(row: Algorithm) -> str:
    weighed = equation("weights", row.weights)
    if Trait.PER_UNIT in row.facts("surrogate"):
        weighed = weighed.replace(" (1/n_u) Σ_{t in u}", "")  # a term that is the same for all of them
    factor = "" if _is_neutral("mismatch", row.mismatch) else "ρ_t · "
    lines = [f"maximise   J = {weighed}  {factor}{_term(row)}"]
    lines += [f"minus      {_with_numbers(_penalty(part), part)}" for part in row.regularizers]
    if row.needs_critic:
        loss = equation("value_loss", row.critic.loss).replace("\n", "\n" + " " * len("minimise   "))
        coef = "" if row.critic.coef == 1 else f", weighed by {row.critic.coef:g}"
        lines.append(f"minimise   {loss}     (critic, per {row.critic.level}{coef})")
    if not _is_neutral("scale", row.scale):
        target = "the gradient" if row.scale.options.get("apply") == "gradient" else "the optimiser's step"
        lines.append(f"then       {target} is multiplied by  {_written('scale', row.scale)}")
    return "\n".join(lines)


def _term(row: Algorithm) -> str:
    """The surrogate's equation with the row's own ratio and numbers written in."""
    symbol = equation("ratio", row.ratio).partition(" =")[0]
    term = re.sub(r"\bw\b", symbol, _written("surrogate", row.surrogate).splitlines()[0])
    return _with_numbers(re.sub(r"\bA_t\b", "Â_t", term), row.surrogate)


def _penalty(part: Part) -> str:
    return formula_of(function_of("regularizers", part.kind), part.options) or equation("regularizers", part)


def _written(axis: str, part: Part) -> str:
    """The part's own formula, or what its equation puts after the sign."""
    return formula_of(function_of(axis, part.kind), part.options) or _right_side(equation(axis, part))


def _with_numbers(text: str, part: Part) -> str:
    """The text with the part's options replaced by their values; `1+high` becomes one number."""
    for name, value in part.options.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            text = text.replace(f"1−{name}", f"{1 - value:g}").replace(f"1+{name}", f"{1 + value:g}")
            text = re.sub(rf"\b{name}\b", f"{value:g}", text)
    return text


def _right_side(text: str) -> str:
    return text.partition(" = ")[2] or text


def _is_neutral(axis: str, part: Part) -> bool:
    return Trait.NEUTRAL in facts(axis, part)


def _parts(row: Algorithm) -> Iterator[str]:
    skipped = {"filters", "weights", "regularizers", "value_loss"}  # shown with the objective and the schedule
    if Need.RATIO not in row.facts("surrogate"):
        skipped.add("ratio")
    for axis, part in row.parts():
        if axis not in skipped and not _is_neutral(axis, part):
            text = equation(axis, part)
            against_sampler = axis == "ratio" and Need.SAMPLER in facts(axis, part)
            yield f"{axis}: {part}\n" + textwrap.indent(text.replace("π_old", "μ") if against_sampler else text, "    ")


def _schedule(row: Algorithm) -> str:
    filters = ", ".join(str(part) for part in row.filters) or "none"
    updates = f"{row.epochs} epoch(s) × {row.minibatches} minibatch(es) = {row.updates_per_rollout} updates per rollout"
    after = {"lost": "nothing follows", "bootstrap": "the critic's value follows"}[row.cut]
    limits = f"\nat a limit of turns, tokens or context: {after}" if row.needs_critic or row.cut != "lost" else ""
    return f"left out: {filters}\nupdates:  {updates}, max_lag {row.max_lag}{limits}"


def _warnings(row: Algorithm) -> Iterator[str]:
    for warning in resolve(row):
        yield textwrap.fill(f"note: {warning}", width=118, subsequent_indent="      ")


def _note(row: Algorithm) -> Iterator[str]:
    if row.name in NOTES and not _changed(row):
        yield NOTES[row.name]
