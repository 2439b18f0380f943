"""An algorithm as the equation that its row composes to, in plain text."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator

from turnwise.algorithm.parts import Part, function_of
from turnwise.algorithm.presets import MARKS, NOTES, PRESETS, preset
from turnwise.algorithm.row import Algorithm
from turnwise.algorithm.rules import resolve

_RATIO_SYMBOLS = {"token": "w_t", "turn": "w_k", "sequence": "s_i"}


def explain(row: Algorithm) -> str:
    """The objective, then every part of it, then warnings and what is known about the method."""
    sections = [_title(row), _objective(row), *_parts(row), _schedule(row), *_warnings(row), *_note(row)]
    text = "\n\n".join(sections) + "\n"
    return text + "".join(f"\n{mark} {meaning}\n" for mark, meaning in MARKS.items() if mark in text)


def equation(axis: str, part: Part) -> str:
    """The equation of a part: the second paragraph of its docstring.

    A line that begins with the name of an option belongs to it, and is left out when that option is None.
    """
    paragraphs = inspect.cleandoc(function_of(axis, part.kind).__doc__ or "").split("\n\n")
    text = textwrap.dedent(paragraphs[1]) if len(paragraphs) > 1 else paragraphs[0]
    unused = tuple(f"{name}{end}" for name, value in part.options.items() if value is None for end in ",:")
    return "\n".join(line for line in text.splitlines() if not line.startswith(unused))


def _changed(row: Algorithm) -> list[str]:
    """The axes in which a row differs from the preset whose name it bears."""
    original = preset(row.name)
    return [axis for axis in Algorithm.model_fields if getattr(row, axis) != getattr(original, axis)]


def _title(row: Algorithm) -> str:
    if row.name not in PRESETS:
        return f"{row.name}: your own row"
    changed = ", ".join(_changed(row))
    return f"{row.name}, changed: {changed}" if changed else f"{row.name}: {PRESETS[row.name][0]}"


def _objective(row: Algorithm) -> str:
    factor = "" if row.mismatch.kind == "none" else "ρ_t · "
    lines = [f"maximise   J = {equation('weights', row.weights)}  {factor}{_term(row)}"]
    lines += [f"minus      {_penalty(part)}" for part in row.regularizers]
    if row.needs_critic:
        loss = equation("value_loss", row.critic.loss).replace("\n", "\n" + " " * len("minimise   "))
        weighed = "" if row.critic.coef == 1 else f", weighed by {row.critic.coef:g}"
        lines.append(f"minimise   {loss}     (critic, per {row.critic.level}{weighed})")
    if row.scale.kind != "none":
        target = "the optimiser's step" if row.scale.options["apply"] == "step" else "the gradient"
        lines.append(f"then       {target} is multiplied by  {_scale_formula(row)}")
    return "\n".join(lines)


def _penalty(part: Part) -> str:
    return equation("regularizers", part).replace("coef", f"{part.options.get('coef', 'coef')}")


def _term(row: Algorithm) -> str:
    """The surrogate with the row's own ratio and bounds written in."""
    w, options = _RATIO_SYMBOLS.get(row.ratio.kind, "w_t"), row.surrogate.options
    if row.surrogate.kind == "ppo-clip":
        bounds = f"{1 - options['low']:g}, {1 + options['high']:g}"
        return f"min( {w} Â_t , clip({w}, {bounds}) Â_t )"
    if row.surrogate.kind == "mask":
        return f"M_t · sg[ min({w}, {options['cap']:g}) ] · Â_t · log π_t"
    if row.surrogate.kind == "cispo":
        return f"sg[ clip({w}, {1 - options['low']:g}, {1 + options['high']:g}) ] · Â_t · log π_t"
    return {"reinforce": "Â_t · log π_t", "nll": "log π_t"}.get(row.surrogate.kind, f"{row.surrogate}_t")


def _scale_formula(row: Algorithm) -> str:
    formulas = {"clip-bias": _clip_bias_formula, "drift": _drift_formula}
    if row.scale.kind in formulas:
        return formulas[row.scale.kind](row)
    return equation("scale", row.scale).removeprefix("scale = ")  # of a part of the user's own


def _drift_formula(row: Algorithm) -> str:
    options = row.scale.options
    measured = {"kl": "KL(μ ‖ π)", "clips": "clipped share"}[options["measure"]]
    power = "" if options["power"] == 1 else f"^{options['power']:g}"
    return f"min(1, {options['target']:g} / {measured}){power}"


def _clip_bias_formula(row: Algorithm) -> str:
    options = row.scale.options
    c0 = "c0" if options["threshold"] is None else f"{options['threshold']:g}"
    norm = f"‖C_{row.ratio.kind}‖"
    formulas = {"safe": f"1 / max(1, {norm}/{c0})", "soft": f"1 / (1 + {norm}/{c0})", "paper": f"1 / {norm}"}
    calibrated = f",  c0 = {options['target']:g} · median of the first {options['calibration']} norms"
    return formulas[options["form"]] + (calibrated if options["threshold"] is None else "")


def _parts(row: Algorithm) -> Iterator[str]:
    chosen = [
        ("sampling", row.sampling),
        *(("reward", part) for part in row.reward),
        ("advantage", row.advantage),
        ("normalizer", row.normalizer),
        ("ratio", row.ratio),
        ("mismatch", row.mismatch),
        ("surrogate", row.surrogate),
        ("scale", row.scale),
    ]
    for axis, part in chosen:
        if part.kind != "none":
            text = equation(axis, part)
            against_sampler = axis == "ratio" and part.options.get("against") == "mu"
            yield f"{axis}: {part}\n" + textwrap.indent(text.replace("π_old", "μ") if against_sampler else text, "    ")


def _schedule(row: Algorithm) -> str:
    filters = ", ".join(str(part) for part in row.filters) or "none"
    updates = f"{row.epochs} epoch(s) × {row.minibatches} minibatch(es) = {row.updates_per_rollout} updates per rollout"
    return f"left out: {filters}\nupdates:  {updates}, max_lag {row.max_lag}"


def _warnings(row: Algorithm) -> Iterator[str]:
    for warning in resolve(row):
        yield textwrap.fill(f"note: {warning}", width=118, subsequent_indent="      ")


def _note(row: Algorithm) -> Iterator[str]:
    if row.name in NOTES and not _changed(row):
        yield NOTES[row.name]
