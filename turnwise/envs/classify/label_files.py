"""Labelled texts from a JSONL file: `{"text": "...", "label": "spam"}` on each line.

A line may have several texts: premise and hypothesis, passage and question, or any fields that the user names. Labels
are texts, whole numbers or truth values; for regression they are numbers.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from turnwise.envs.classify.judgements import parse_gold
from turnwise.words import counted

TEXTS = ("passage", "premise", "hypothesis", "sentence1", "sentence2", "sentence", "text", "question")
"""Fields that are shown, in this order, unless the user names others."""
_SHOWN = 5
"""Bad lines that an error names."""
_FORM = '{"text": "...", "label": "..."}'
HeldOut = float | str


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """One line: `Labelled(text="Premise: A man.\\nHypothesis: A boy.", label="neutral")`."""

    text: str
    label: str


@dataclass(frozen=True, kw_only=True)
class FileForm:
    """How to read a file."""

    fields: tuple[str, ...] = ()
    """The fields that are shown; empty: those of `TEXTS` that a line has."""
    label: str = "label"
    names: tuple[tuple[str, str], ...] = ()
    """What labels of the file are called, such as `0` and `negative`; empty: as they are written."""
    numbers: bool = False
    """Whether labels are numbers to be estimated."""


def read_labelled(path: str, split: str, *, held_out: HeldOut, form: FileForm) -> tuple[Labelled, ...]:
    """The lines of a split. `held_out` is the share that is not for training, chosen by a stable hash of the text, or
    another file. Half of what is held out is the validation split, and the other half the test split."""
    if isinstance(held_out, str):
        others = _read(held_out, form)
        known = {line.text for line in others}
        lines = [line for line in _read(path, form) if line.text not in known] if split == "train" else others
        kept = tuple(line for line in lines if split == "train" or _split_of(line.text, 1.0) == split)
    else:
        if not 0 < held_out < 1:
            raise ValueError(f"held_out is {held_out:g}; write a share between 0 and 1, or the path of a file")
        lines = _read(path, form)
        kept = tuple(line for line in lines if _split_of(line.text, held_out) == split)
    if not kept:
        raise ValueError(f"{path} has no line for the split {split!r} ({len(lines)} in all); add lines or a file")
    return kept


def _split_of(text: str, share: float) -> str:
    place = zlib.crc32(text.encode(errors="replace")) / 2**32
    if place >= share:
        return "train"
    return "validation" if place < share / 2 else "test"


def _read(path: str, form: FileForm) -> tuple[Labelled, ...]:
    file = Path(path).expanduser()
    if not file.is_file():
        raise ValueError(f"no such file: {file}; path= names a JSONL file with {_FORM} on each line")
    return _read_all(file, file.stat().st_mtime_ns, form)


@cache
def _read_all(file: Path, changed: int, form: FileForm) -> tuple[Labelled, ...]:
    """All lines, read once per process and again if the file changes; ValueError names the bad ones."""
    lines, wrong = list[Labelled](), list[str]()
    for number, line in enumerate(file.read_text(encoding="utf-8-sig", errors="replace").split("\n"), 1):
        if not line.strip():
            continue
        try:
            lines.append(_parse(line, form))
        except ValueError as error:
            wrong.append(f"line {number}: {error}")
    if wrong:
        more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise ValueError(f"{file} has {counted(len(wrong), 'bad line')}: {'; '.join(wrong[:_SHOWN])}{more}")
    return tuple(lines)


def _parse(line: str, form: FileForm) -> Labelled:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error})") from None
    if not isinstance(row, dict):
        raise ValueError(f"not an object, as in {_FORM}")
    return Labelled(text=_show(row, form.fields), label=_label(row, form))


def _show(row: Mapping[str, Any], wanted: Sequence[str]) -> str:
    """One text alone, several with their names."""
    if missing := [name for name in wanted if name not in row]:
        raise ValueError(f"there is no field {missing[0]!r}; it has {', '.join(row) or 'none'} (fields= names them)")
    names = wanted or [name for name in TEXTS if name in row]
    if not names:
        raise ValueError(f"there is none of {', '.join(TEXTS)}; name the fields to show with fields=")
    texts = {name: _text(name, row[name]) for name in names}
    if len(texts) == 1:
        return next(iter(texts.values()))
    return "\n".join(f"{name.capitalize()}: {text}" for name, text in texts.items())


def _text(name: str, value: Any) -> str:
    joined = " ".join(map(str, value)) if isinstance(value, list) else value
    if not isinstance(joined, str) or not joined.strip():
        raise ValueError(f"the field {name!r} must be a text that is not empty")
    return joined.strip()


def _label(row: Mapping[str, Any], form: FileForm) -> str:
    value = row.get(form.label)
    if value is None:
        raise ValueError(f"there is no label in the field {form.label!r}; write it, or name another field with label=")
    label = value if isinstance(value, str) else json.dumps(value)
    if form.numbers:
        parse_gold(label)
        return label
    if isinstance(value, float | list | dict) or not label.strip():
        raise ValueError(f"the label must be a text or a whole number, not {label}; labels=number estimates numbers")
    names = dict(form.names)
    if names and label not in names:
        raise ValueError(f"the label {label!r} is not one of {', '.join(names)}; correct it, or add it to labels=")
    return names.get(label, label).strip()
